"""The seam of compaction: what triggers and strategies look at, and what they answer. Pure; one file per family.

A trigger says when, a strategy says what: a pure function of a `Snapshot` that answers with a `Plan`. Neither
performs I/O. `palimpsest.sessions.compacting.compactor` reads the snapshot, has the plan summarised, and commits it.
Cuts, which a view needs to fit its budget, are planned in `palimpsest.context.cut`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from palimpsest.compaction.style import Style
from palimpsest.context.groups import Group
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.spans import Span
from palimpsest.log.summary import Summary

if TYPE_CHECKING:
    from palimpsest.compaction.triggers import Triggers

Reason = Literal[
    "below_threshold",
    "nothing_to_compact",
    "too_few_entries",
    "no_gain",
    "empty",
    "failed",
    "paused",
    "pending",
    "conflict",
]
"""Why a compaction did nothing."""


class InteractionGroups(msgspec.Struct, frozen=True):
    """A human message (`turn`, its `seq`; 0: the preamble) and the groups until the next one, without what is inactive.

    `open` says that it is the newest of the log, and has no final answer yet, or an unanswered call. Every other one is
    completed, answered or not.
    """

    turn: int
    groups: tuple[Group, ...]
    open: bool

    @property
    def entries(self) -> list[Entry]:
        """Its entries, oldest first."""
        return [entry for group in self.groups for entry in group.entries]

    @property
    def tokens(self) -> int:
        """What it costs."""
        return sum(group.cost for group in self.groups)

    @property
    def messages(self) -> int:
        """How many provider messages it is."""
        return sum(group.messages for group in self.groups)


def _shown(summary: Summary) -> int:
    return summary.shown_tokens


class Snapshot(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A session as triggers and strategies see it.

    `interactions` are what is active, oldest first; a preamble, where there is one, comes first. `archived` are those
    of the archive that no summary covers (what cuts and other strategies have evicted; for a strategy that may take
    nothing from there what cuts have evicted since the last compaction, where its triggers count interactions); pinned
    groups are never there. `summaries` are the current ones, oldest first. `pinned` are the `seq`s that every context
    keeps, system messages among them. `max_tokens` and `max_messages` are the session's limits (None: none), in counted
    tokens. `accessed` says when an entry was accessed last, on the session's access clock, which stands at `clock`; an
    entry that is not there was accessed when it was appended. `now` is in microseconds since 1970. `seen` is the
    session's `next_seq` of when the strategy that looks ran last (0: it never did), `tried` that of when a compaction
    has failed since (0: none has). `weigh` says what a current summary costs
    in a context; the next one costs what its text does and `fence`, about: the tags and the label around it, and the
    message that it is. `notes` is what a note in the place of an old result costs, by its `seq`;
    below the `seq` `mask` results are notes already.
    """

    interactions: Sequence[InteractionGroups]
    archived: Sequence[InteractionGroups] = ()
    summaries: Sequence[Summary] = ()
    pinned: frozenset[int] = frozenset()
    max_tokens: int | None = None
    max_messages: int | None = None
    mask: int = 0
    accessed: Mapping[int, int] = {}
    clock: int = 0
    now: int = 0
    seen: int = 0
    tried: int = 0
    weigh: Callable[[Summary], int] = _shown
    fence: int = 0
    notes: Mapping[int, int] = {}

    @property
    def groups(self) -> list[Group]:
        """The active groups, oldest first."""
        return [group for interaction in self.interactions for group in interaction.groups]

    @property
    def tokens(self) -> int:
        """What the active set costs, current summaries included."""
        return sum(i.tokens for i in self.interactions) + self.standing(self.summaries)

    def standing(self, summaries: Sequence[Summary]) -> int:
        """What these current `summaries` cost in a context, fences included."""
        return sum(map(self.weigh, summaries))

    @property
    def messages(self) -> int:
        """How many provider messages the active set is, one for each current summary included."""
        return sum(i.messages for i in self.interactions) + len(self.summaries)

    @property
    def entries(self) -> int:
        """How many entries are active; summaries are not counted."""
        return sum(len(group.entries) for group in self.groups)


class Step(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """One rung of a plan: its `name`, how many `entries` it takes, and `tokens` out of the active set, and `why`."""

    name: str
    entries: int
    tokens: int
    why: str


class Plan(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What to do, in whole groups: cover by a summary, evict to the archive, erase for good, mask old results.

    The next summary covers `cover` beside what the summaries in `fold` (revisions) cover, which it supersedes; its text
    is to take `summary_tokens` and may take `summary_most` (0: whatever still saves, fence included). `evict` and
    `erase` are ranges of `seq`s, `mask` is the `seq` below which tool results become notes, `steps` tell what is done.
    A plan that does nothing says why in `reason`.
    """

    cover: tuple[Span, ...] = ()
    fold: tuple[int, ...] = ()
    summary_tokens: int = 0
    summary_most: int = 0
    evict: tuple[Span, ...] = ()
    erase: tuple[Span, ...] = ()
    mask: int = 0
    steps: tuple[Step, ...] = ()
    reason: Reason | None = None

    @property
    def does_nothing(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.cover or self.fold or self.evict or self.erase or self.mask)

    @property
    def entries(self) -> int:
        """How many entries it takes out of the active set or the archive."""
        return spans.size(spans.union(self.cover, self.evict, self.erase))


class TriggerDecision(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """Whether a `rule` has `fired`, what was `observed`, and the `threshold` that it was compared with by `op`.

    Of several rules it is the first that fired; where none did, the one that was nearest to its threshold.
    """

    fired: bool
    rule: str
    observed: float
    threshold: float
    op: Literal[">", ">=", "=="]


class Strategy(Protocol):
    """When to compact, and what. `name` is how results and events call it.

    `summarizes` says that its plans may cover entries: the session's summarizer makes the summaries. `erases` says that
    they may erase some. Either is shown the whole archive, too.
    """

    @property
    def name(self) -> str: ...

    @property
    def summarizes(self) -> bool: ...

    @property
    def erases(self) -> bool: ...

    @property
    def style(self) -> Style: ...

    @property
    def triggers(self) -> Triggers: ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what to do with `snapshot`. A pure function; it never raises for a valid one."""
        ...

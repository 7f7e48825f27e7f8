"""The seam of compaction: what triggers and strategies look at, and what they answer. Pure.

A trigger says when, a strategy says what: it is a pure function from a `Snapshot` to a `Plan`. Neither performs I/O.
`palimpsest.sessions.compacting.compactor` reads the snapshot, has the plan summarised, and commits it. Each family of
strategies has a module. Cuts, which a view needs to fit its budget, are planned in `palimpsest.context.cut`.
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
    """The active groups of one interaction: a human message and everything until the next one.

    `turn` is the `seq` of the human message (0: the preamble). `open` is set for the newest interaction of the log if
    it has no final answer yet, or an unanswered call. All others are completed, answered or not.
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
        """Its cost in tokens."""
        return sum(group.cost for group in self.groups)

    @property
    def messages(self) -> int:
        """How many provider messages it takes."""
        return sum(group.messages for group in self.groups)


def _shown(summary: Summary) -> int:
    return summary.shown_tokens


class Snapshot(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A session as triggers and strategies see it.

    `interactions` are the active ones, oldest first, after a preamble if there is one. `archived` are the archived ones
    that no summary covers, without pinned groups: cuts and other strategies have evicted them. A strategy that may take
    nothing from the archive sees only what cuts have evicted since the last compaction, and only if its triggers count
    interactions. `summaries` are the current ones, oldest first. `pinned` are the `seq`s that every context keeps,
    system messages included. `max_tokens` and `max_messages` are the session's limits (None: none), in counted tokens.
    `accessed` maps entries to their last access on the session's access clock, which stands at `clock`; an entry
    missing there was accessed when it was appended. `now` is in microseconds since 1970. `seen` is the session's
    `next_seq` at the last run of the strategy (0: it never ran), `tried` that of a compaction that has failed since (0:
    none has). `weigh` returns what a current summary costs in a context. The next summary costs its text and about
    `fence`, which stands for the tags and the label around it, and the overhead of its message. `notes` maps old
    results by `seq` to the cost of a note in their place; results below the `seq` `mask` are notes already.
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
        """Tokens of the active set, current summaries included."""
        return sum(i.tokens for i in self.interactions) + self.standing(self.summaries)

    def standing(self, summaries: Sequence[Summary]) -> int:
        """Return what `summaries`, current ones, cost in a context, fences included."""
        return sum(map(self.weigh, summaries))

    @property
    def messages(self) -> int:
        """How many provider messages the active set takes, with one for each current summary."""
        return sum(i.messages for i in self.interactions) + len(self.summaries)

    @property
    def entries(self) -> int:
        """How many entries are active, without summaries."""
        return sum(len(group.entries) for group in self.groups)


class Step(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """One rung of a plan: its `name`, how many `entries` it takes, the `tokens` saved in the active set, and `why`."""

    name: str
    entries: int
    tokens: int
    why: str


class Plan(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What to do, in whole groups: cover by a summary, evict to the archive, erase for good, mask old results.

    The next summary covers `cover` and what the summaries in `fold` (revisions) cover, and supersedes these. Its text
    should take `summary_tokens` and may take `summary_most` (0: anything that still saves tokens, fence included).
    `evict` and `erase` are ranges of `seq`s. Tool results below the `seq` `mask` become notes. `steps` report what is
    done. A plan that does nothing says why in `reason`.
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

    It describes the first rule that fired; if none did, the one nearest to its threshold.
    """

    fired: bool
    rule: str
    observed: float
    threshold: float
    op: Literal[">", ">=", "=="]


class Strategy(Protocol):
    """When to compact, and what. `name` identifies it in results and events.

    `summarizes` says that its plans may cover entries; the session's summarizer then writes the summaries. `erases`
    says that its plans may erase entries. A strategy with either of them sees the whole archive, too.
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
        """Return what to do with the session of a `snapshot`. Pure; never raises for a valid snapshot."""
        ...

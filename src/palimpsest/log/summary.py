"""Summaries and the state after a compaction: which entries are covered or evicted, and what stands for them. Pure.

A compaction is one record of the log. It holds the summary that it made and the whole state after it, so that neither
exists without the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, get_args

import msgspec

from palimpsest.errors import shorten
from palimpsest.log import spans
from palimpsest.log.codec import ready
from palimpsest.log.entry import moment
from palimpsest.log.spans import Span
from palimpsest.log.values import is_number, is_whole

ItemKind = Literal["goal", "fact", "decision", "done", "artifact", "error", "open", "next"]
ITEM_KINDS: tuple[ItemKind, ...] = ("goal", "fact", "decision", "done", "artifact", "error", "open", "next")

Method = Literal["heuristic", "plain", "density"]
"""How a summary was made: without a model, in one pass of a model, or by Chain of Density."""
METHODS: tuple[Method, ...] = get_args(Method)

MOST_SPENT = 10**12
"""Most calls, tokens or dollars that one answer may report. Nobody has paid as much, and sums of such numbers can be
stored."""


class SummaryItem(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One statement of a summary: its section (`kind`), its words (`text`), and the `seq`s of its `sources` in the log.

    `status` is free text such as "open" or "failed". `pinned` says that no later summary may leave the item out.
    """

    kind: ItemKind
    text: str
    sources: tuple[int, ...] = ()
    status: str | None = None
    pinned: bool = False


class Spent(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """What summarizers have cost: `calls` of a model, tokens as its provider reports them or we count them, US dollars.

    `input_tokens` were read, `output_tokens` written. `cost` is 0 if no price is known.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=float(self.cost + other.cost),
        )

    def flaw(self) -> str | None:
        """Return which field has an invalid value, and why; None if all are valid."""
        for name in ("calls", "input_tokens", "output_tokens"):
            if not is_whole(number := getattr(self, name), 0, MOST_SPENT):
                return f"{name} is {shorten(number)}, not a whole number from 0 to {MOST_SPENT:,}"
        if not is_number(self.cost) or not 0 <= self.cost <= MOST_SPENT:
            return f"cost is {shorten(self.cost)}, not a number from 0 to {MOST_SPENT:,}"
        return None


class Summary(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """A text that stands for entries of the log, which stay where they are.

    `covers` are all entries that it stands for, and `folded` those of them that this version has added. `parents` are
    the revisions of the summaries that it supersedes. `revision` is that of the compaction that made it. `tokens` is
    the exact count of `text` by the session's counter `counter`, `shown_tokens` that of everything that a context shows
    of it, and `source_tokens` what the entries cost. `method` says how it was made, `fallback` why that is not the
    configured way. `version` counts its predecessors and itself; each has an `id` of its own. `level` counts roll-ups
    of summaries, and `folds` how often the text was folded. `items` are its single statements. `model`, `prompt` (its
    version) and `passes` say how it was written. `first_at` and `last_at` are when its first and last entry were
    written, `at` when it was made, all in microseconds; `spent` is what it cost. A `withdrawn` summary has lost its
    text to an erasure.
    """

    id: str
    text: str
    covers: tuple[Span, ...]
    folded: tuple[Span, ...] = ()
    parents: tuple[int, ...] = ()
    revision: int = 0
    version: int = 1
    level: int = 0
    folds: int = 0
    """How often the previous text was folded in since the summary was last made from the entries themselves."""
    items: tuple[SummaryItem, ...] = ()
    method: Method = "heuristic"
    model: str | None = None
    prompt: str | None = None
    passes: int = 0
    fallback: str | None = None
    tokens: int = 0
    shown_tokens: int = 0
    counter: str = ""
    source_tokens: int = 0
    first_at: int = 0
    last_at: int = 0
    at: int = 0
    spent: Spent = Spent()
    withdrawn: bool = False

    @property
    def entries(self) -> int:
        """How many entries it stands for."""
        return spans.size(self.covers)

    @property
    def created_at(self) -> datetime:
        """When it was made, UTC."""
        return moment(self.at)

    @property
    def time_range(self) -> tuple[datetime, datetime]:
        """When the first and the last entry that it stands for were written, UTC."""
        return moment(self.first_at), moment(self.last_at)

    @property
    def reduction_factor(self) -> float:
        """How many tokens of the entries one token of the text stands for."""
        return self.source_tokens / self.tokens if self.tokens else 0.0


class Compaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is not active any more, and what stands for it: the whole state after a step, not only the step.

    `summary` is the one made by this step. `current` are the revisions of the records whose summaries contexts show
    from then on, oldest first. `covered` is what those summaries stand for, `evicted` what strategies have moved to the
    archive without a summary, and `hidden` what was left out by hand. `released` is the part of what is covered or
    evicted that a flush has let go of, and that is kept only because another session needs it, too. Tool results below
    `mask` are shown as a note. `displaced` is what a replacement left out and was erased since: it is evicted no more,
    but what followed was linked without it.
    """

    summary: Summary | None = None
    current: tuple[int, ...] = ()
    covered: tuple[Span, ...] = ()
    evicted: tuple[Span, ...] = ()
    hidden: tuple[Span, ...] = ()
    mask: int = 0
    released: tuple[Span, ...] = ()
    displaced: tuple[Span, ...] = ()

    @property
    def replaced(self) -> tuple[Span, ...]:
        """What is covered or evicted, with or without a summary in its place."""
        return spans.union(self.covered, self.evicted)

    @property
    def inactive(self) -> tuple[Span, ...]:
        """Everything that is covered, evicted or hidden."""
        return spans.union(self.covered, self.evicted, self.hidden)


ready(Spent, Compaction)


def stamped(compaction: Compaction, revision: int, at: int) -> Compaction:
    """Return the compaction as it is committed: with the revision and time of its summary.

    In `current`, 0 stands for the summary of this step.
    """
    summary = compaction.summary
    if summary is not None and not summary.revision:
        summary = msgspec.structs.replace(summary, revision=revision, at=summary.at or at)
    current = tuple(number or revision for number in compaction.current)
    return msgspec.structs.replace(compaction, summary=summary, current=current)


def withdrawn(summary: Summary) -> Summary:
    """Return what stays of a summary that held something of an erased entry: what it covered, without any words."""
    return msgspec.structs.replace(summary, text="", items=(), fallback=None, tokens=0, shown_tokens=0, withdrawn=True)


def without(
    state: Compaction, lost: Sequence[Summary], erased: Sequence[Span], summaries: Mapping[int, Summary]
) -> Compaction:
    """Return the state after the `lost` summaries were withdrawn: what they covered is evicted, unless it was erased.

    Entries that a flush has destroyed cannot go back. If an earlier version tells of them, that version takes the place
    of the lost summary; `summaries` maps revisions to them.
    """
    lost_by_revision, current, uncovered = {other.revision: other for other in lost}, list[int](), tuple[Span, ...]()
    for revision in state.current:
        lost_summary = lost_by_revision.get(revision)
        earlier = list(_earlier(lost_summary, summaries, state.covered)) if lost_summary is not None else []
        current += [other.revision for other in earlier] if lost_summary is not None else [revision]
        if lost_summary is not None:
            uncovered = spans.union(
                uncovered, spans.minus(lost_summary.covers, spans.union(*(other.covers for other in earlier)))
            )
    return msgspec.structs.replace(
        state,
        summary=None,
        current=tuple(current),
        covered=spans.minus(state.covered, spans.union(uncovered, erased)),
        evicted=spans.minus(spans.union(state.evicted, uncovered), erased),
    )


def _earlier(summary: Summary, summaries: Mapping[int, Summary], covered: Sequence[Span]) -> Iterator[Summary]:
    """Yield the newest versions before a summary that have words and tell of something that is not `covered`."""
    for parent in (summaries[revision] for revision in summary.parents if revision in summaries):
        if parent.withdrawn:
            yield from _earlier(parent, summaries, covered)
        elif spans.minus(parent.covers, covered):
            yield parent


def faults(
    states: Mapping[int, Compaction], first: int, last: int, erased: Sequence[Span] = ()
) -> Iterator[tuple[int, str, str]]:
    """Yield inconsistencies in the compactions (by revision) of a log from `first` to `last`.

    `erased` are its tombstones. Each fault is a revision, a field, and what is wrong with it.
    """
    for revision, state in states.items():
        summary = state.summary
        ranges = {"covered": state.covered, "evicted": state.evicted, "hidden": state.hidden}
        ranges |= {"released": state.released, "displaced": state.displaced}
        if summary is not None:
            ranges |= {"summary.covers": summary.covers, "summary.folded": summary.folded}
            if summary.revision not in states or states[summary.revision].summary is None:
                yield revision, "summary.revision", f"{summary.revision} is no compaction that made a summary"
        for name, span_list in ranges.items():
            if (astray := spans.astray(span_list, first, last)) is not None:
                yield revision, name, f"{astray[0]} to {astray[1]} is no range of entries after the range before it"
        yield from ((revision, "current", why) for why in _unsupported(states, revision, erased))


def _unsupported(states: Mapping[int, Compaction], revision: int, erased: Sequence[Span]) -> Iterator[str]:
    """Yield why the current summaries of a state do not cover exactly what it calls covered, apart from tombstones."""
    current: list[Summary] = []
    for number in states[revision].current:
        summary = states[number].summary if number in states and number <= revision else None
        if summary is None or summary.withdrawn:
            yield f"{number} is no earlier compaction that made a summary" + (
                ", or it was withdrawn" if summary else ""
            )
        else:
            current.append(summary)
    covers = spans.union(*(summary.covers for summary in current))
    if spans.size(covers) != sum(summary.entries for summary in current):
        yield "two of its summaries cover the same entries"
    if spans.minus(covers, erased) != spans.minus(states[revision].covered, erased):
        yield "its summaries do not cover the entries that it lists as covered"


REBUILD = "rebuild"

"""Summaries and what a compaction leaves behind: which entries are covered or evicted, and what stands for them. Pure.

A compaction is one record of the log. It holds the summary that it made and the whole state after it, so that neither
is ever there without the other.
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
"""How a summary came about: without a model, in one pass of one, or by Chain of Density."""
METHODS: tuple[Method, ...] = get_args(Method)

MOST_SPENT = 10**12
"""Calls, tokens or dollars of one answer: nobody has ever paid as much, and sums of it are numbers that a log keeps."""


class SummaryItem(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that a summary says: its section (`kind`), its words (`text`), the `seq`s of its `sources` in the log.

    `status` is free text such as "open" or "failed". `pinned` says that no later summary may leave it out.
    """

    kind: ItemKind
    text: str
    sources: tuple[int, ...] = ()
    status: str | None = None
    pinned: bool = False


class Spent(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """What summarizers have cost: `calls` of a model, tokens as its provider reports or we count them, US dollars.

    `input_tokens` is what was read, `output_tokens` what was written. `cost` is 0 where no price is known.
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
        """What of it no account can hold, and what that is; None: it is sound."""
        for name in ("calls", "input_tokens", "output_tokens"):
            if not is_whole(number := getattr(self, name), 0, MOST_SPENT):
                return f"{name} is {shorten(number)}, not a whole number from 0 to {MOST_SPENT:,}"
        if not is_number(self.cost) or not 0 <= self.cost <= MOST_SPENT:
            return f"cost is {shorten(self.cost)}, not a number from 0 to {MOST_SPENT:,}"
        return None


class Summary(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """A text that stands for entries of the log, which stay where they are.

    `covers` are all entries that it stands for, `folded` those among them that this version has taken in; `parents` are
    the revisions of the summaries that it supersedes. `revision` is that of the compaction that made it, `tokens` the
    exact count of `text` by the session's counter `counter`, `shown_tokens` that of all that a context says of it,
    `source_tokens` what the entries cost. `method` says how it came about, `fallback` why it is not the configured way.
    `version` counts those that it has taken the place of, and itself; each has an `id` of its own. `level` counts
    roll-ups of summaries, `folds` what was folded in. `items` are what it says one by one, `model`, `prompt` (its
    version) and `passes` how it was written. `first_at` and `last_at` are when its first and last entry were written,
    `at` when it was made, in microseconds; `spent` is what it cost. One that is `withdrawn` has lost its text to an
    erasure.
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
    """How many times the previous text was folded in since the summary was last made from the entries themselves."""
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
        """Tokens of the entries for one token of the text."""
        return self.source_tokens / self.tokens if self.tokens else 0.0


class Compaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is not active any more, and what stands for it: the whole state after one step, not the step alone.

    `summary` is the one that this step made. `current` are the revisions of the records whose summaries a context
    shows from then on, oldest first. `covered` is what those stand for, `evicted` what strategies have moved to the
    archive without a summary, `hidden` what somebody has left out by hand. Of what is covered or evicted `released` is
    what a flush has let go of, and is there because another session has it, too. Tool results below `mask` are shown as
    a note.
    """

    summary: Summary | None = None
    current: tuple[int, ...] = ()
    covered: tuple[Span, ...] = ()
    evicted: tuple[Span, ...] = ()
    hidden: tuple[Span, ...] = ()
    mask: int = 0
    released: tuple[Span, ...] = ()

    @property
    def replaced(self) -> tuple[Span, ...]:
        """What is covered or evicted: compactions have put something in its place, or nothing."""
        return spans.union(self.covered, self.evicted)

    @property
    def inactive(self) -> tuple[Span, ...]:
        """Everything that is covered, evicted or hidden."""
        return spans.union(self.covered, self.evicted, self.hidden)


ready(Spent, Compaction)


def stamped(compaction: Compaction, revision: int, at: int) -> Compaction:
    """Return the compaction as it is committed: its summary knows its revision and its time.

    In `current` 0 stands for the summary of this very step.
    """
    made = compaction.summary
    if made is not None and not made.revision:
        made = msgspec.structs.replace(made, revision=revision, at=made.at or at)
    current = tuple(number or revision for number in compaction.current)
    return msgspec.structs.replace(compaction, summary=made, current=current)


def withdrawn(summary: Summary) -> Summary:
    """Return what stays of a summary that held something of an erased entry: what it covered, and no words."""
    return msgspec.structs.replace(summary, text="", items=(), fallback=None, tokens=0, shown_tokens=0, withdrawn=True)


def without(
    state: Compaction, lost: Sequence[Summary], erased: Sequence[Span], known: Mapping[int, Summary]
) -> Compaction:
    """Return the state after summaries were withdrawn: what they covered and is left is in the archive, uncovered.

    What a flush has destroyed is not there. Where an earlier version tells of it, one of the `known` by their revisions
    that has its words, that stands in place of the one that was lost.
    """
    gone, current, loose = {one.revision: one for one in lost}, list[int](), tuple[Span, ...]()
    for revision in state.current:
        made = gone.get(revision)
        again = list(_earlier(made, known, state.covered)) if made is not None else []
        current += [one.revision for one in again] if made is not None else [revision]
        if made is not None:
            loose = spans.union(loose, spans.minus(made.covers, spans.union(*(one.covers for one in again))))
    return msgspec.structs.replace(
        state,
        summary=None,
        current=tuple(current),
        covered=spans.minus(state.covered, spans.union(loose, erased)),
        evicted=spans.minus(spans.union(state.evicted, loose), erased),
    )


def _earlier(made: Summary, known: Mapping[int, Summary], covered: Sequence[Span]) -> Iterator[Summary]:
    """Yield the newest versions before a summary that have words, and tell of what is not among the `covered`."""
    for old in (known[revision] for revision in made.parents if revision in known):
        if old.withdrawn:
            yield from _earlier(old, known, covered)
        elif spans.minus(old.covers, covered):
            yield old


def faults(
    states: Mapping[int, Compaction], first: int, last: int, erased: Sequence[Span] = ()
) -> Iterator[tuple[int, str, str]]:
    """Yield what does not hold together in the compactions, by their revisions, of a log from `first` to `last`.

    `erased` are its tombstones. Each fault is the revision, the field and what is wrong with it.
    """
    for revision, state in states.items():
        made = state.summary
        places = {"covered": state.covered, "evicted": state.evicted, "hidden": state.hidden}
        places["released"] = state.released
        if made is not None:
            places |= {"summary.covers": made.covers, "summary.folded": made.folded}
            if made.revision not in states or states[made.revision].summary is None:
                yield revision, "summary.revision", f"{made.revision} is no compaction that made a summary"
        for name, where in places.items():
            if (astray := spans.astray(where, first, last)) is not None:
                yield revision, name, f"{astray[0]} to {astray[1]} is no range of entries behind the one before"
        yield from ((revision, "current", why) for why in _unsupported(states, revision, erased))


def _unsupported(states: Mapping[int, Compaction], revision: int, erased: Sequence[Span]) -> Iterator[str]:
    """Yield why what a state calls covered is not what its current summaries cover; tombstones do not count."""
    shown: list[Summary] = []
    for number in states[revision].current:
        made = states[number].summary if number in states and number <= revision else None
        if made is None or made.withdrawn:
            yield f"{number} is no compaction before it that made a summary" + (", or it was withdrawn" if made else "")
        else:
            shown.append(made)
    covers = spans.union(*(made.covers for made in shown))
    if spans.size(covers) != sum(made.entries for made in shown):
        yield "two of its summaries cover the same entries"
    if spans.minus(covers, erased) != spans.minus(states[revision].covered, erased):
        yield "its summaries do not cover what it calls covered"


REBUILD = "rebuild"

"""Groups of entries: how each entry is shown, what that costs, and what a provider is sent of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from palimpsest.formats import Format, Shown
from palimpsest.formats.fences import guard
from palimpsest.formats.wording import (
    NO_RESULT,
    NO_RESULT_TOKENS,
    clamped,
    counted_texts,
    has_media,
    is_empty,
    is_maskable,
    mask_note,
    mask_tokens,
    shown_text,
)
from palimpsest.log.entry import Entry
from palimpsest.log.head import Clamp, Cut
from palimpsest.log.late import dumps
from palimpsest.tokens.counter import Encoding, TokenCounter, failures_of

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

NEWEST = "newest"
"""The rung of a cut which leaves out the newest group: it is too large, and nothing of it can be shortened enough."""


class Meter:
    """What entries cost in one format and by one counter, in tokens.

    A stored count is used as it is. Where there is none, `cost` takes an upper bound, unless `exact` is
    set: then it counts and remembers in `counted` (by `seq`) what is to be stored.
    """

    def __init__(
        self, counter: TokenCounter, fmt: Format, model: Model | None, stored: Mapping[int, int] | None = None
    ) -> None:
        self.counter, self.format, self.model = counter, fmt, model
        self.stored = stored or {}
        """Counts by `seq` that entries were read without, for they were stored later."""
        self.memo: dict[int, int] = {}
        """Counts by `seq` that were made before, and were not stored."""
        self.exact = False
        self.counted: dict[int, int] = {}
        self.provisional: dict[int, int] = {}
        """Counts by `seq` that are not the counter's own, for it failed: they are made again, and never stored."""
        self._failures = failures_of(counter)
        self.guessed = 0
        """How many costs are bounds."""
        self._bounds = counter if isinstance(counter, Encoding) else None
        self.overhead: Callable[[Entry], int] = fmt.overhead if counter.overhead else _nothing
        """What the provider adds to an entry: nothing where the counter is a plain function of the user."""

    @property
    def is_provisional(self) -> bool:
        """Whether anything was counted by another counter since this was made, for its own failed."""
        return failures_of(self.counter) != self._failures

    def cost(self, entry: Entry) -> int:
        """Tokens of an entry shown as it is, with its provider's overhead."""
        tokens = entry.tokens
        if tokens is None:
            seq = entry.seq
            tokens = self.counted.get(seq)
            if tokens is None and (tokens := self.stored.get(seq)) is None:
                tokens = self._measure(entry)
        if type(entry.content) is str:
            return tokens + self.overhead(entry)
        return self._sent(entry, tokens)

    def whole(self, entry: Entry) -> int:
        """The exact cost of an entry shown as it is, whether or not bounds would do."""
        return self._sent(entry, self.texts(entry))

    def _sent(self, entry: Entry, tokens: int) -> int:
        if type(entry.content) is not str and has_media(entry):
            from palimpsest.tokens.media import media_tokens  # three milliseconds, for who sends media

            tokens += media_tokens(entry, self.model)
        return tokens + self.overhead(entry)

    def texts(self, entry: Entry) -> int:
        """The exact count of the entry's texts, remembered to be stored."""
        tokens = entry.tokens
        if tokens is None and (tokens := self._found(entry.seq)) is None:
            tokens = self.memo.get(entry.seq)
            if tokens is None:
                tokens = self.provisional.get(entry.seq)
            if tokens is None:
                before = failures_of(self.counter)
                tokens = sum(map(self.counter.count, counted_texts(entry)))
                if failures_of(self.counter) == before:
                    self.memo[entry.seq] = tokens
                else:
                    self.provisional[entry.seq] = tokens
            if entry.seq in self.provisional:
                return tokens
            self.counted[entry.seq] = tokens
        return tokens

    def _found(self, seq: int) -> int | None:
        tokens = self.counted.get(seq)
        return self.stored.get(seq) if tokens is None else tokens

    def note(self, entry: Entry, note: str, known: int) -> int:
        """Cost of one of our own one-line notes in the entry's place; `known` is its count in OpenAI's encodings."""
        return (known if self._bounds is not None else self.counter.count(note)) + self.overhead(entry)

    def _measure(self, entry: Entry) -> int:
        if self.exact or self._bounds is None or entry.seq in self.memo:
            return self.texts(entry)
        self.guessed += 1
        return sum(map(self._bounds.upper_bound, counted_texts(entry)))


def _nothing(_: Entry) -> int:
    return 0


class CostedEntry(Shown, frozen=True, gc=False):
    """One entry of a group as it is shown, with its cost; `form` says how."""

    cost: int = 0
    form: str = "whole"  # or "masked", "clamped", "data", "placeholder"


class Group:
    """Entries that are shown or left out together, with their cost in tokens and in provider messages.

    Where it is `bounded` the cost is an upper bound.
    """

    cost = 0
    pending = pinned = bounded = False
    _messages: int | None = 0
    _format: Format | None = None

    def __init__(self, seq: int, turn: int, entries: list[Entry]) -> None:
        self.seq, self.turn, self.entries = seq, turn, entries
        self.last = entries[-1].seq
        self.items: list[CostedEntry] = []

    def again(self) -> Group:
        """Another one that is as this is. The module `copy` would take each cold start a millisecond."""
        other = Group.__new__(Group)
        vars(other).update(vars(self))
        return other

    @property
    def messages(self) -> int:
        """How many messages of the format it is, before neighbours of one role are merged; made out when asked for."""
        if self._messages is None:
            assert self._format is not None, "shown in a format"
            self._messages = len(self._format.render(self.items)) if self.items else 0
        return self._messages

    def show(self, items: list[CostedEntry], fmt: Format, messages: int | None = None) -> None:
        """Show these items in this format, as so many messages where that is known."""
        self.items, self.cost = items, sum([item.cost for item in items])
        self._format, self._messages = fmt, messages


def counted_anew(groups: Iterable[Group], cut: Cut, meter: Meter) -> list[Group]:
    """The groups of a cut with exact costs: new ones in the place of those that have bounds."""
    meter.exact = True
    clamps = {clamp.seq: clamp for clamp in cut.clamps}
    found = []
    for group in groups:
        if group.bounded:
            exact = group.again()  # others may have the one that was
            fill(exact, cut.mask, clamps, meter)
            found.append(exact)
        else:
            found.append(group)
    return found


def by_group(entries: Iterable[Entry]) -> list[Group]:
    """Entries in log order as groups, by the links that they have."""
    groups: list[Group] = []
    for entry in entries:
        if groups and groups[-1].seq == entry.group:
            groups[-1].entries.append(entry)
        else:
            groups.append(Group(entry.group, entry.turn, [entry]))
    return groups


def by_interaction(groups: Iterable[Group]) -> list[list[Group]]:
    """Return the groups, oldest first, by the interaction that they are of; a preamble is one, too."""
    return [list(members) for _, members in groupby(groups, attrgetter("turn"))]


def by_pause(members: Sequence[Entry]) -> list[list[Entry]]:
    """Return a group's entries by the messages of the model that a pause parts, results with their calls.

    Each is rendered by itself: what was sent before a pause does not change when the model has gone on.
    """
    runs: list[list[Entry]] = [[]]
    places: dict[int, int] = {}
    paused = False
    for entry in members:
        if entry.kind == "tool_result":
            runs[places.get(entry.answers, -1)].append(entry)
            continue
        if paused and not entry.continues:
            runs.append([])
        if entry.kind == "tool_call":
            places[entry.seq] = len(runs) - 1
        runs[-1].append(entry)
        paused = entry.pauses
    return runs


def fill(
    group: Group, mask: int, clamps: Mapping[int, Clamp], meter: Meter, left_out: list[tuple[Entry, str]] | None = None
) -> None:
    """Decide how each entry of a closed group is shown, and what the group costs."""
    members, guessed = group.entries, meter.guessed
    items: list[CostedEntry] = []
    if len(members) == 1 and is_plain(members[0]) and members[0].seq not in clamps:
        shown_whole(group, meter)
        return
    calls = {entry.seq for entry in members if entry.kind == "tool_call"}
    answered = {entry.answers for entry in members if entry.kind == "tool_result" and not entry.late}
    for entry in members:
        kind, seq = entry.kind, entry.seq
        native = kind == "tool_result" and entry.answers in calls and not entry.late
        if kind == "tool_result" and entry.answers and not entry.late and not native:
            _leave(left_out, entry, "its call was erased")
        elif seq in clamps:
            items.append(_clamped(entry, clamps[seq], native, meter))
        elif native:
            if seq < mask and not group.pinned and is_maskable(entry):
                note = mask_note(entry)
                items.append(CostedEntry(entry, note, cost=meter.note(entry, note, mask_tokens(seq)), form="masked"))
            else:
                items.append(CostedEntry(entry, cost=meter.cost(entry)))
        elif kind in ("tool_result", "context", "summary"):
            items.append(CostedEntry(entry, data=True, cost=meter.cost(entry), form="data"))
        elif kind == "message" and is_empty(entry) and not (len(members) > 1 and any(map(_continues, members))):
            _leave(left_out, entry, "empty")
        else:
            items.append(CostedEntry(entry, cost=meter.cost(entry)))
    for seq in sorted(calls - answered):
        call = next(entry for entry in members if entry.seq == seq)
        items.append(stand_in(call, meter))
    group.show(_begun(items, meter), meter.format)
    group.bounded = meter.guessed > guessed


def _begun(items: list[CostedEntry], meter: Meter) -> list[CostedEntry]:
    """The items, where what began their message is not shown: the first of it that is pays for the message."""
    for i, item in enumerate(items):
        entry = item.entry
        if entry.kind in ("message", "tool_call") and not item.data:
            if entry.continues:
                more = meter.overhead(msgspec.structs.replace(entry, continues=False)) - meter.overhead(entry)
                items[i] = msgspec.structs.replace(item, cost=item.cost + more)
            break
    return items


def _continues(entry: Entry) -> bool:
    return entry.continues


def is_plain(entry: Entry) -> bool:
    """Whether this is a message of text alone, as most are: by itself it is shown whole, whatever the time."""
    return entry.kind == "message" and type(entry.content) is str and entry.content != "" and entry.expires_at is None


def shown_whole(group: Group, meter: Meter) -> Group:
    """Show the group's one entry as it is."""
    entry, guessed = group.entries[0], meter.guessed
    group.cost = cost = meter.cost(entry)
    group.bounded = meter.guessed > guessed
    group.items = [CostedEntry(entry, cost=cost)]
    group._format, group._messages = meter.format, 1  # noqa: SLF001 (what `show` does, for most groups)
    return group


def _clamped(entry: Entry, clamp: Clamp, native: bool, meter: Meter) -> CostedEntry:
    text = clamp_text(entry, clamp)
    data = entry.kind in ("tool_result", "context", "summary") and not native
    return CostedEntry(entry, text, data, clamp.tokens + meter.overhead(entry), "clamped")


def clamp_text(entry: Entry, clamp: Clamp) -> str:
    """The shortened text of a clamped entry; a call's arguments stay a JSON object."""
    if entry.kind != "tool_call":
        text = clamped(guard(entry.text), entry, clamp.head, clamp.tail, clamp.left_out)
        return shown_text(entry, guard(text))
    return dumps({"shortened": clamped(entry.text, entry, clamp.head, clamp.tail, clamp.left_out)})


def stand_in(call: Entry, meter: Meter) -> CostedEntry:
    """What is shown as the result of a call that was never answered."""
    result = Entry(
        kind="tool_result", role="tool", content=NO_RESULT, answers=call.seq, name=call.name, call_id=call.call_id
    )
    return CostedEntry(result, cost=meter.note(result, NO_RESULT, NO_RESULT_TOKENS), form="placeholder")


def _leave(left_out: list[tuple[Entry, str]] | None, entry: Entry, reason: str) -> None:
    if left_out is not None:
        left_out.append((entry, reason))


def most(entry: Entry, meter: Meter) -> int:
    """Tokens of an entry shown as it is, a call with what stands in for its result while there is none."""
    return meter.cost(entry) + (stand_in(entry, meter).cost if entry.kind == "tool_call" else 0)


def opening(group: Group, fmt: Format) -> int:
    """How many messages the format puts before the group where it is the first."""
    messages = fmt.render(group.items) if group.items else []
    return max(len(fmt.join(None, messages).messages) - len(messages), 0)


def most_messages(entry: Entry) -> int:
    """How many messages an entry is at most in any format, with what stands in for the result of a call."""
    parts = 1 if isinstance(entry.content, str) else max(len(entry.content), 1)
    return parts + (entry.kind == "tool_call")

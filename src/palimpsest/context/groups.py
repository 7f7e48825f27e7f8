"""Groups of entries: how each entry is shown, what it costs, and which entries are rendered together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from palimpsest.formats import Format, Shown
from palimpsest.formats.wording import (
    NO_RESULT,
    NO_RESULT_TOKENS,
    clamp_name,
    clamp_text,
    counted_texts,
    has_media,
    is_empty,
    is_maskable,
    mask_note,
    mask_tokens,
)
from palimpsest.log.entry import Entry
from palimpsest.log.head import Clamp, Cut
from palimpsest.tokens.counter import Encoding, TokenCounter, failures_of

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

UNTHOUGHT = "reasoning that was made behind other messages"
"""Why an entry is not shown that holds nothing else."""

NEWEST = "newest"
"""The rung of a cut that leaves out even the newest group, because it cannot be shortened enough."""


class Meter:
    """Costs of entries in tokens, for one format and one counter.

    A stored count is used as it is. Without one, `cost` uses an upper bound, unless `exact` is set: then it counts, and
    keeps the count in `counted` (by `seq`) to be stored.
    """

    def __init__(
        self, counter: TokenCounter, fmt: Format, model: Model | None, stored: Mapping[int, int] | None = None
    ) -> None:
        self.counter, self.format, self.model = counter, fmt, model
        self.stored = stored or {}
        """Counts by `seq` that were stored after the entries were read."""
        self.memo: dict[int, int] = {}
        """Counts by `seq` that were made before and are not stored yet."""
        self.exact, self.keeps_thoughts = False, True
        self.counted: dict[int, int] = {}
        self.provisional: dict[int, int] = {}
        """Counts by `seq` from a fallback, because the counter failed: they are counted again next time, and never
        stored."""
        self._failures = failures_of(counter)
        self.guessed = 0
        """How many of the returned costs are upper bounds."""
        self._bounds = counter if isinstance(counter, Encoding) else None
        self.overhead: Callable[[Entry], int] = fmt.overhead if counter.overhead else _no_overhead
        """The provider's overhead of an entry in tokens: 0 where the counter is a plain function of the user."""

    @property
    def is_provisional(self) -> bool:
        """Whether the counter has failed since this meter was made, so that a fallback counted for it."""
        return failures_of(self.counter) != self._failures

    def cost(self, entry: Entry) -> int:
        """Return the tokens of an entry shown whole, with the provider's overhead."""
        tokens = entry.tokens
        if tokens is None:
            seq = entry.seq
            tokens = self.counted.get(seq)
            if tokens is None and (tokens := self.stored.get(seq)) is None:
                tokens = self._counted_or_bound(entry)
        if type(entry.content) is str:
            return tokens + self.overhead(entry)
        return self._with_media(entry, tokens)

    def whole(self, entry: Entry) -> int:
        """Return the exact cost of an entry shown whole, even where bounds would suffice."""
        return self._with_media(entry, self.texts(entry))

    def _with_media(self, entry: Entry, tokens: int) -> int:
        if type(entry.content) is not str and has_media(entry):
            from palimpsest.tokens.media import media_tokens  # takes 3 ms, so only for entries with media

            tokens += media_tokens(entry, self.model)
        return tokens + self.overhead(entry)

    def shown(self, entry: Entry, thoughts: int) -> Entry:
        """Return a message as it is shown: without reasoning that was made behind other messages, if the provider
        refuses that. `thoughts` is that of the cut."""
        if type(entry.content) is str or (self.keeps_thoughts and entry.seq >= thoughts):
            return entry
        return self.format.unbound(entry, self.model)

    def part(self, entry: Entry) -> int:
        """Return the cost of a part of an entry, as an entry of its own."""
        return self._with_media(entry, self.unkept(counted_texts(entry)))

    def unkept(self, texts: Iterable[str]) -> int:
        """Return the count of texts that are not those of a whole entry, so that it is not kept under a `seq`."""
        count = self.counter.count
        if not self.exact and self._bounds is not None:
            count, self.guessed = self._bounds.upper_bound, self.guessed + 1
        return sum(map(count, texts))

    def texts(self, entry: Entry) -> int:
        """Return the exact count of the entry's texts, and keep it to be stored."""
        tokens = entry.tokens
        if tokens is None and (tokens := self._looked_up(entry.seq)) is None:
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

    def _looked_up(self, seq: int) -> int | None:
        tokens = self.counted.get(seq)
        return self.stored.get(seq) if tokens is None else tokens

    def note(self, entry: Entry, note: str, encoding_count: int) -> int:
        """Return the cost of a fixed one-line note in the entry's place.

        `encoding_count` is the note's count in each of OpenAI's encodings.
        """
        return (encoding_count if self._bounds is not None else self.counter.count(note)) + self.overhead(entry)

    def _counted_or_bound(self, entry: Entry) -> int:
        if self.exact or self._bounds is None or entry.seq in self.memo:
            return self.texts(entry)
        self.guessed += 1
        return sum(map(self._bounds.upper_bound, counted_texts(entry)))


def _no_overhead(_: Entry) -> int:
    return 0


class CostedEntry(Shown, frozen=True, gc=False):
    """One entry of a group as it is shown, with its cost. `form` says how it is shown.

    `unthought` says that the entry is shown without reasoning that its provider would not take behind these messages.
    """

    cost: int = 0
    unthought: bool = False
    form: str = "whole"  # or "masked", "clamped", "data", "placeholder"


class Group:
    """Entries that are shown or left out together, with their cost in tokens and in provider messages.

    `seq` is that of its first entry, `turn` that of the human message of its interaction (0: the preamble), and `last`
    that of its last entry. `bounded` is set where the cost is an upper bound.
    """

    cost = 0
    pending = pinned = bounded = False
    _messages: int | None = 0
    _format: Format | None = None

    def __init__(self, seq: int, turn: int, entries: list[Entry]) -> None:
        self.seq, self.turn, self.entries = seq, turn, entries
        self.last = entries[-1].seq
        self.items: list[CostedEntry] = []

    def copy(self) -> Group:
        """Return a shallow copy. (Importing the module `copy` would add a millisecond to each cold start.)"""
        other = Group.__new__(Group)
        vars(other).update(vars(self))
        return other

    @property
    def messages(self) -> int:
        """How many provider messages the group makes before neighbours of one role are merged. Rendered once."""
        if self._messages is None:
            assert self._format is not None, "shown in a format"
            self._messages = len(self._format.render(self.items)) if self.items else 0
        return self._messages

    def show(self, items: list[CostedEntry], fmt: Format, messages: int | None = None) -> None:
        """Show these items in this format. `messages` is their number of provider messages (None: not known yet)."""
        self.items, self.cost = items, sum([item.cost for item in items])
        self._format, self._messages = fmt, messages


def counted_anew(groups: Iterable[Group], cut: Cut, meter: Meter) -> list[Group]:
    """Return the groups of a cut with exact costs: groups whose cost is a bound are replaced by counted copies."""
    meter.exact = True
    clamps = {clamp.seq: clamp for clamp in cut.clamps}
    recounted = []
    for group in groups:
        if group.bounded:
            exact = group.copy()  # the original may be shared with remembered views
            fill(exact, cut.mask, clamps, meter, thoughts=cut.thoughts)
            recounted.append(exact)
        else:
            recounted.append(group)
    return recounted


def by_group(entries: Iterable[Entry]) -> list[Group]:
    """Split entries in log order into groups, by their `group`."""
    groups: list[Group] = []
    for entry in entries:
        if groups and groups[-1].seq == entry.group:
            groups[-1].entries.append(entry)
        else:
            groups.append(Group(entry.group, entry.turn, [entry]))
    return groups


def by_interaction(groups: Iterable[Group]) -> list[list[Group]]:
    """Split groups, oldest first, by interaction. A preamble counts as one, too."""
    return [list(members) for _, members in groupby(groups, attrgetter("turn"))]


def fill(
    group: Group,
    mask: int,
    clamps: Mapping[int, Clamp],
    meter: Meter,
    left_out: list[tuple[Entry, str]] | None = None,
    *,
    thoughts: int = 0,
) -> None:
    """Decide how each entry of a closed group is shown, and what the group costs.

    `mask` and `thoughts` are those of the cut. Entries that are not shown are added to `left_out` with the reason.
    """
    members, guessed_before = group.entries, meter.guessed
    items: list[CostedEntry] = []
    if len(members) == 1 and is_plain(members[0]) and members[0].seq not in clamps:
        shown_whole(group, meter)
        return
    calls = {entry.seq for entry in members if entry.kind == "tool_call"}
    answered = {entry.answers for entry in members if entry.kind == "tool_result" and not entry.late}
    for entry in members:
        kind, seq = entry.kind, entry.seq
        is_answer = kind == "tool_result" and entry.answers in calls and not entry.late
        if kind == "tool_result" and entry.answers and not entry.late and not is_answer:
            _note_left_out(left_out, entry, "its call was erased")
        elif seq in clamps:
            items.append(_clamped(entry, clamps[seq], is_answer, meter))
        elif is_answer:
            if seq < mask and not group.pinned and is_maskable(entry):
                note = mask_note(entry)
                items.append(CostedEntry(entry, note, cost=meter.note(entry, note, mask_tokens(seq)), form="masked"))
            else:
                items.append(CostedEntry(entry, cost=meter.cost(entry)))
        elif kind in ("tool_result", "context", "summary"):
            items.append(CostedEntry(entry, data=True, cost=meter.cost(entry), form="data"))
        elif (
            kind == "message"
            and is_empty(entry)
            and not (len(members) > 1 and any(member.continues for member in members))
        ):
            _note_left_out(left_out, entry, "empty")
        elif kind == "message" and (shown_entry := meter.shown(entry, thoughts)) is not entry:
            if shown_entry.content:
                items.append(CostedEntry(shown_entry, cost=meter.part(shown_entry), unthought=True))
            else:
                _note_left_out(left_out, entry, UNTHOUGHT)
        else:
            items.append(CostedEntry(entry, cost=meter.cost(entry)))
    for seq in sorted(calls - answered):
        call = next(entry for entry in members if entry.seq == seq)
        items.append(stand_in(call, meter))
    group.show(_with_message_overhead(items, meter), meter.format)
    group.bounded = meter.guessed > guessed_before


def _with_message_overhead(items: list[CostedEntry], meter: Meter) -> list[CostedEntry]:
    """Charge the overhead of a message to its first shown item, where the entry that began the message is not shown."""
    for i, item in enumerate(items):
        entry = item.entry
        if entry.kind in ("message", "tool_call") and not item.data:
            if entry.continues:
                added = meter.overhead(msgspec.structs.replace(entry, continues=False)) - meter.overhead(entry)
                items[i] = msgspec.structs.replace(item, cost=item.cost + added)
            break
    return items


def is_plain(entry: Entry) -> bool:
    """Whether this is a message of text alone, as most are. If it is alone in its group, it is always shown whole."""
    return entry.kind == "message" and type(entry.content) is str and entry.content != "" and entry.expires_at is None


def shown_whole(group: Group, meter: Meter) -> Group:
    """Show the single entry of this group whole."""
    entry, guessed_before = group.entries[0], meter.guessed
    group.cost = cost = meter.cost(entry)
    group.bounded = meter.guessed > guessed_before
    group.items = [CostedEntry(entry, cost=cost)]
    group._format, group._messages = meter.format, 1  # noqa: SLF001 (inlines `show`, since most groups come here)
    return group


def _clamped(entry: Entry, clamp: Clamp, is_answer: bool, meter: Meter) -> CostedEntry:
    text = clamp_text(entry, clamp)
    data = entry.kind in ("tool_result", "context", "summary") and not is_answer
    same_counter = clamp.counter == meter.counter.name
    tokens = clamp.tokens if same_counter else meter.unkept((text, clamp_name(entry)))
    return CostedEntry(entry, text, data, tokens + meter.overhead(entry), form="clamped")


def stand_in(call: Entry, meter: Meter) -> CostedEntry:
    """Return the item shown as the result of a call that was never answered."""
    result = Entry(
        kind="tool_result", role="tool", content=NO_RESULT, answers=call.seq, name=call.name, call_id=call.call_id
    )
    return CostedEntry(result, cost=meter.note(result, NO_RESULT, NO_RESULT_TOKENS), form="placeholder")


def _note_left_out(left_out: list[tuple[Entry, str]] | None, entry: Entry, reason: str) -> None:
    if left_out is not None:
        left_out.append((entry, reason))


def most(entry: Entry, meter: Meter) -> int:
    """Return the most tokens that an entry can cost: shown whole, and for a call with its stand-in result."""
    return meter.cost(entry) + (stand_in(entry, meter).cost if entry.kind == "tool_call" else 0)


def most_messages(entry: Entry) -> int:
    """Return the most messages that an entry can take in any format, for a call with its stand-in result."""
    parts = 1 if isinstance(entry.content, str) else max(len(entry.content), 1)
    return parts + (entry.kind == "tool_call")

"""From entries and a cut to what is shown, group by group, and what it costs. Pure.

A view is a function of the entries from the cut's start on and of the cut, and of nothing else: not of the
time, not of counts, not of what is in memory. That is what keeps the prefix of a context stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

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
from palimpsest.tokens.counter import Encoding, TokenCounter

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

BY_CUT, BY_CONDITION = "left out by the cut", "a condition"
"""Why a window leaves out what might be shown."""


class Rule(Protocol):
    """What an entry must meet to be shown."""

    def holds(self, values: Mapping[str, Mapping[str, object]]) -> bool:
        """Whether it does, given what a condition may see of it."""
        ...


class Meter:
    """What entries cost in one format and by one counter, in tokens.

    A stored count is used as it is. Where there is none, `cost` takes an upper bound, unless `exact` is
    set: then it counts and remembers in `counted` (by `seq`) what is to be stored.
    """

    def __init__(self, counter: TokenCounter, fmt: Format, model: Model | None) -> None:
        self.counter, self.format, self.model = counter, fmt, model
        self.exact = False
        self.counted: dict[int, int] = {}
        self.guessed = False
        self._bounds = counter if isinstance(counter, Encoding) else None
        self.overhead: Callable[[Entry], int] = fmt.overhead if counter.overhead else _nothing
        """What the provider adds to an entry: nothing where the counter is a plain function of the user."""

    def cost(self, entry: Entry) -> int:
        """Tokens of an entry shown as it is, with its provider's overhead."""
        tokens = entry.tokens
        if tokens is None:
            tokens = self.counted.get(entry.seq)
            if tokens is None:
                tokens = self._measure(entry)
        return self._sent(entry, tokens)

    def whole(self, entry: Entry) -> int:
        """The exact cost of an entry shown as it is, whether or not bounds would do."""
        return self._sent(entry, self.texts(entry))

    def _sent(self, entry: Entry, tokens: int) -> int:
        if type(entry.content) is not str and has_media(entry):
            from palimpsest.tokens.media import media_tokens

            tokens += media_tokens(entry, self.model)
        return tokens + self.overhead(entry)

    def texts(self, entry: Entry) -> int:
        """The exact count of the entry's texts, remembered to be stored."""
        tokens = entry.tokens
        if tokens is None and (tokens := self.counted.get(entry.seq)) is None:
            tokens = sum(map(self.counter.count, counted_texts(entry)))
            self.counted[entry.seq] = tokens
        return tokens

    def note(self, entry: Entry, note: str, known: int) -> int:
        """Cost of one of our own one-line notes in the entry's place; `known` is its count in OpenAI's encodings."""
        return (known if self._bounds is not None else self.counter.count(note)) + self.overhead(entry)

    def _measure(self, entry: Entry) -> int:
        if self.exact or self._bounds is None:
            return self.texts(entry)
        self.guessed = True
        return sum(map(self._bounds.upper_bound, counted_texts(entry)))


def _nothing(_: Entry) -> int:
    return 0


class CostedEntry(Shown, frozen=True, gc=False):
    """One entry of a group as it is shown, with its cost; `form` says how."""

    cost: int = 0
    form: str = "whole"  # or "masked", "clamped", "data", "placeholder"


class Group:
    """Entries that are shown or left out together, with their cost in tokens and in provider messages."""

    __slots__ = ("_format", "_messages", "cost", "entries", "items", "last", "pending", "pinned", "seq", "turn")

    def __init__(self, seq: int, turn: int, entries: list[Entry]) -> None:
        self.seq, self.turn, self.entries = seq, turn, entries
        self.last = entries[-1].seq
        self.items: list[CostedEntry] = []
        self.cost = 0
        self.pending = False
        self.pinned = False
        self._messages: int | None = 0
        self._format: Format | None = None

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
    found: list[list[Group]] = []
    for group in groups:
        if found and found[-1][0].turn == group.turn:
            found[-1].append(group)
        else:
            found.append([group])
    return found


class Window(msgspec.Struct, frozen=True):
    """What a cut shows of the entries given: groups oldest first, and what it does not show, with the reason."""

    groups: list[Group]
    pending: list[Group]
    left_out: list[tuple[Entry, str]]
    stale: list[tuple[int, str]]
    """Entries that are shown no longer from the next cut on, which must be made now: (seq, reason)."""


def look(
    entries: Sequence[Entry],
    cut: Cut,
    meter: Meter,
    *,
    now: float,
    conditions: Sequence[Rule] = (),
    newest: dict[str, int] | None = None,
    open_group: int | None = None,
) -> Window:
    """Show `entries` (ascending) under `cut`. `now` is in microseconds since 1970.

    `newest` are the named contexts shown before these entries, by `seq`; those of the entries are added to it.
    `open_group` is the one that may wait for results (0: none; default: that of the last entry).
    """
    groups: list[Group] = []
    pending: list[Group] = []
    left_out: list[tuple[Entry, str]] = []
    stale: list[tuple[int, str]] = []
    gone = _members(cut.gone)
    clamps = {clamp.seq: clamp for clamp in cut.clamps}
    newest = {} if newest is None else newest
    pins = frozenset(cut.pins)
    special = pins.union(gone, clamps)
    last = open_group if open_group is not None else entries[-1].group if entries else 0
    i, count = 0, len(entries)
    while i < count:
        entry = entries[i]
        seq = entry.group
        members = [entry]
        i += 1
        while i < count and entries[i].group == seq:
            members.append(entries[i])
            i += 1
        if len(members) == 1 and _is_plain(entry) and entry.seq not in special and not conditions:
            groups.append(_whole(Group(seq, entry.turn, members), meter))
            continue
        kept = [member for member in members if not member.erased]
        if gone and not gone.isdisjoint(member.seq for member in kept):
            kept = without(kept, gone & {member.seq for member in kept}, left_out, BY_CUT)
        if conditions and not any(member.pinned or member.seq in pins for member in kept):
            kept = _meeting(kept, conditions, meter, left_out)
        if not kept:
            continue
        _outdate(kept, newest, now, stale)
        group = Group(seq, entry.turn, kept)
        group.last = members[-1].seq
        group.pinned = bool(pins) and any(member.seq in pins for member in kept)
        if seq == last and _is_open(kept):
            group.entries, held = _parted(kept)
            pending.append(Group(held[0].seq, entry.turn, held))
            pending[-1].pending = True
            if not group.entries:
                continue
        fill(group, cut.mask, clamps, meter, left_out)
        if group.items:
            groups.append(group)
    return Window(groups, pending, left_out, stale)


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


def _parted(members: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """What of an open group was said before a pause, and what is open."""
    runs = by_pause(members)
    done = next(i for i, run in enumerate(runs) if _is_open(run))
    return [entry for run in runs[:done] for entry in run], [entry for run in runs[done:] for entry in run]


def _outdate(members: list[Entry], newest: dict[str, int], now: float, stale: list[tuple[int, str]]) -> None:
    """Add to `stale` which of these have expired, and which earlier contexts they supersede."""
    for member in members:
        if member.expired(now):
            stale.append((member.seq, "expiry"))
        if member.kind == "context" and member.name:
            if member.name in newest:
                stale.append((newest[member.name], "a newer version of a file context"))
            newest[member.name] = member.seq


def fill(
    group: Group, mask: int, clamps: Mapping[int, Clamp], meter: Meter, left_out: list[tuple[Entry, str]] | None = None
) -> None:
    """Decide how each entry of a closed group is shown, and what the group costs."""
    members = group.entries
    items: list[CostedEntry] = []
    if len(members) == 1 and _is_plain(members[0]) and members[0].seq not in clamps:
        _whole(group, meter)
        return
    calls = {entry.seq for entry in members if entry.kind == "tool_call"}
    answered = {entry.answers for entry in members if entry.kind == "tool_result" and not entry.late}
    for entry in members:
        native = entry.kind == "tool_result" and entry.answers in calls and not entry.late
        if entry.kind == "tool_result" and entry.answers and not entry.late and not native:
            _leave(left_out, entry, "its call was erased")
        elif entry.seq in clamps:
            items.append(_clamped(entry, clamps[entry.seq], native, meter))
        elif native:
            if entry.seq < mask and not group.pinned and is_maskable(entry):
                note = mask_note(entry)
                items.append(
                    CostedEntry(entry, note, cost=meter.note(entry, note, mask_tokens(entry.seq)), form="masked")
                )
            else:
                items.append(CostedEntry(entry, cost=meter.cost(entry)))
        elif entry.kind in ("tool_result", "context", "summary"):
            items.append(CostedEntry(entry, data=True, cost=meter.cost(entry), form="data"))
        elif entry.kind == "message" and is_empty(entry) and not (len(members) > 1 and any(map(_continues, members))):
            _leave(left_out, entry, "empty")
        else:
            items.append(CostedEntry(entry, cost=meter.cost(entry)))
    for seq in sorted(calls - answered):
        call = next(entry for entry in members if entry.seq == seq)
        items.append(stand_in(call, meter))
    group.show(_begun(items, meter), meter.format)


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


def stand_in(call: Entry, meter: Meter) -> CostedEntry:
    """What is shown as the result of a call that was never answered."""
    result = Entry(
        kind="tool_result", role="tool", content=NO_RESULT, answers=call.seq, name=call.name, call_id=call.call_id
    )
    return CostedEntry(result, cost=meter.note(result, NO_RESULT, NO_RESULT_TOKENS), form="placeholder")


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


def _continues(entry: Entry) -> bool:
    return entry.continues


def _is_plain(entry: Entry) -> bool:
    """Whether this is a message of text alone, as most are: by itself it is shown whole, whatever the time."""
    return entry.kind == "message" and type(entry.content) is str and entry.content != "" and entry.expires_at is None


def _whole(group: Group, meter: Meter) -> Group:
    """Show the group's one entry as it is."""
    item = CostedEntry(group.entries[0], cost=meter.cost(group.entries[0]))
    group.show([item], meter.format, 1)
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
    import json

    return json.dumps({"shortened": clamped(entry.text, entry, clamp.head, clamp.tail, clamp.left_out)})


def _is_open(members: Sequence[Entry]) -> bool:
    calls = {entry.seq for entry in members if entry.kind == "tool_call"}
    if calls:
        return bool(calls - {entry.answers for entry in members if entry.kind == "tool_result"})
    return bool(members) and members[-1].is_reasoning and members[-1].kind == "message"


def _leave(left_out: list[tuple[Entry, str]] | None, entry: Entry, reason: str) -> None:
    if left_out is not None:
        left_out.append((entry, reason))


def _members(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


# --- conditions that depend on one message alone (the others act at cuts)


def _meeting(
    members: list[Entry],
    conditions: Sequence[Rule],
    meter: Meter,
    left_out: list[tuple[Entry, str]],
) -> list[Entry]:
    """Drop entries that fail a condition, and what cannot stand without them. A group with a pinned entry is exempt."""
    failed = set()
    for i, entry in enumerate(members):
        if entry.kind == "message" and entry.role in ("system", "user"):
            continue  # a human message may still be open: it is judged at cuts
        calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
        values = {"message": message_values(entry, meter, calls)}
        if not all(condition.holds(values) for condition in conditions):
            failed.add(entry.seq)
    return without(members, failed, left_out) if failed else members


def without(
    members: list[Entry], failed: set[int], left_out: list[tuple[Entry, str]], reason: str = BY_CONDITION
) -> list[Entry]:
    """Return the group without `failed`: dropping a result drops its call, dropping a call its results.

    A late result is of another group than its call: neither takes the other along.
    """
    for entry in members:
        if entry.kind == "tool_result" and not entry.late and (entry.seq in failed or entry.answers in failed):
            failed |= {entry.seq, entry.answers}
    for entry in members:
        if entry.kind == "tool_result" and not entry.late and entry.answers in failed:
            failed.add(entry.seq)
    calls = [entry for entry in members if entry.kind == "tool_call"]
    if calls and all(entry.seq in failed for entry in calls):
        failed |= {entry.seq for entry in members if entry.kind == "message" and is_empty(entry)}
    left_out.extend((entry, reason) for entry in members if entry.seq in failed)
    return [entry for entry in members if entry.seq not in failed]


def message_values(
    entry: Entry, meter: Meter, calls: bool, index: int | None = None, age: int | None = None
) -> dict[str, object]:
    """What a condition may see of one message. `calls` says whether it asks for tool calls."""
    text = entry.text
    metadata = entry.metadata or {}
    return {
        "role": entry.role,
        "name": entry.name,
        "content": text,
        "content_length": len(text),
        "tokens": meter.whole(entry),
        "index": index,
        "age": age,
        "timestamp": entry.at / 1_000_000,
        "tool_name": entry.name if entry.kind in ("tool_call", "tool_result") else None,
        "tool_status": (entry.status or "unknown") if entry.kind == "tool_result" else None,
        "has_tool_calls": calls,
        "tags": metadata.get("tags") or [],
        "metadata": metadata,
        "kind": entry.kind,
        "pinned": entry.pinned,
        "is_summary": entry.kind == "summary",
    }

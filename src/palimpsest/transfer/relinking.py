"""Links of a log that comes from elsewhere: kept where it has them and they can be, made anew where it has none. Pure.

Which call a result answers, and what is one group, was decided when it was added, by what was open then: ids, names and
erasures of today do not tell it any more. What follows from these two, and from the kinds, is made anew in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from msgspec.structs import replace

from palimpsest.errors import ImportFailed
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.linking import link
from palimpsest.log.resuming import Displaced, Walk
from palimpsest.log.spans import Span

JOINS = ("tool_call", "tool_result")
"""Kinds that may belong to the group before them, and so may what an assistant says."""


def relinked(
    entries: Sequence[Entry], first: int, rewound: Sequence[Span], where: str, left: Sequence[Displaced] = ()
) -> list[Entry]:
    """Return the entries, which have their places from `first` on, with links; `left` is what was left out in between.

    Raises ImportFailed for links that no log has: to a call that is hidden, answered already or of another id, to a
    group that does not end just before, and revisions that go back.
    """
    log, taken_back = _Log(first, where, left), set(spans.members(rewound))
    for entry in entries:
        log.add(entry, hidden=entry.seq in taken_back)
    return list(log.entries.values())


def head_of(entries: Sequence[Entry], first: int, rewound: Sequence[Span], left: Sequence[Displaced] = ()) -> Head:
    """Return the head after entries that have their links: what is open, which names are known."""
    walk, taken_back = Walk(first, left), set(spans.members(rewound))
    walk.follow([entry for entry in entries if entry.seq not in taken_back])
    head = walk.end()
    waits = any(call.group == head.group for call in head.calls)  # one that was erased does not
    end = entries[-1].seq + 1 if entries else first
    return replace(head, next_seq=end, group=head.group if waits else 0)


def joining(entries: Sequence[Entry], rewound: Sequence[Span], there: Mapping[str, Entry]) -> list[Entry]:
    """Return what of a log goes into another one, which has the entries `there` of it by their ids.

    That is not what was erased or taken back, nor a result whose call was erased: by itself it would be shown. A result
    names its call by the place that this has there, or in the log that it is from.
    """
    from_there, taken_back = {entry.seq: entry for entry in entries}, set(spans.members(rewound))
    found: list[Entry] = []
    for entry in entries:
        if entry.erased or entry.seq in taken_back:
            continue
        if not entry.answers:
            found.append(entry)
            continue
        call = from_there[entry.answers]
        known = there.get(call.id)
        if not (call.erased or (known is not None and known.erased)):
            found.append(entry if known is None else replace(entry, seq=0, answers=known.seq))
    return found


class _Log:
    """A log as far as its entries were looked at."""

    def __init__(self, first: int, where: str, left: Sequence[Displaced]) -> None:
        self.entries: dict[int, Entry] = {}
        self._where, self._walk = where, Walk(first, left)
        self._calls: set[int] = set()
        self._answered: set[int] = set()
        self._revision = 0

    def add(self, entry: Entry, *, hidden: bool) -> None:
        """Take the next entry; one that is hidden is not what the next one follows."""
        if entry.revision and entry.revision < self._revision:
            self._refuse(entry, f"is of revision {entry.revision}, which does not come after {self._revision}")
        self._revision = entry.revision or self._revision
        if entry.revision != self._revision:  # what stays as it is, is not there twice
            entry = replace(entry, revision=self._revision)
        if not hidden:
            self._walk.reach(self._revision)
        head = self._walk.head
        if hidden:
            entry = self._hidden(entry)
        elif entry.group:
            self._check_group(entry)
            turn, late = entry.seq if entry.is_human else head.turn, self._is_late(entry)
            if (entry.turn, entry.late) != (turn, late):
                entry = replace(entry, turn=turn, late=late)
        else:
            _, (entry,) = link(replace(head, revision=entry.revision - 1), [entry], entry.at, bounded=False)
        self.entries[entry.seq] = entry
        if not hidden:
            if entry.answers:
                self._check_answer(entry)
            if entry.kind == "tool_call":
                self._calls.add(entry.seq)
            self._walk.follow([entry])
        self._walk.head = replace(self._walk.head, next_seq=entry.seq + 1)

    def _check_group(self, entry: Entry) -> None:
        joins = entry.kind in JOINS or (entry.kind == "message" and entry.role == "assistant")
        if entry.group != entry.seq and not (joins and entry.group == self._walk.head.tail):
            self._refuse(entry, f"is in group {entry.group}, which is neither its own nor that of what it follows")

    def _check_answer(self, entry: Entry) -> None:
        call = self.entries[entry.answers]
        known = not (call.erased or entry.erased or call.call_id is None or entry.call_id is None)
        if call.seq in self._answered:
            self._refuse(entry, f"answers {call.seq}, which is answered already")
        if call.seq not in self._calls or entry.kind != "tool_result":
            self._refuse(entry, f"answers {call.seq}, which it cannot")
        if known and call.call_id != entry.call_id:
            self._refuse(entry, f"answers {call.seq}, which is a call of another id")
        self._answered.add(call.seq)

    def _hidden(self, entry: Entry) -> Entry:
        """What a rewind has hidden follows something that is not there any more: its links are to be in the log."""
        group = entry.group or entry.seq
        first = entry if group == entry.seq else self.entries.get(group)
        if first is None or (first is not entry and first.group != group):
            self._refuse(entry, f"is in group {group}, which is none")
        turn = entry.seq if entry.is_human else entry.turn
        human = self.entries.get(turn)
        if turn and not entry.is_human and (human is None or not human.is_human):
            self._refuse(entry, f"is of the interaction {turn}, which no human message began")
        return replace(entry, group=group, turn=turn, late=self._is_late(replace(entry, group=group)))

    def _is_late(self, entry: Entry) -> bool:
        return bool(entry.answers) and self.entries[entry.answers].group != entry.group

    def _refuse(self, entry: Entry, reason: str) -> NoReturn:
        raise ImportFailed(f"{self._where}.entries", f"entry {entry.seq} {reason}")

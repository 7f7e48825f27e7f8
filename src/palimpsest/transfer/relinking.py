"""Links of an imported log: kept where it has valid ones, made anew where it has none. Pure.

Which call a result answers and which entries form a group was decided when they were added, by what was open then. It
cannot be derived from ids and names any more, since entries may be erased. Links that follow from these two and from
the kinds of entries are always made anew.
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
"""Kinds of entries that may join the group before them. Messages of the assistant may, too."""


def relinked(
    entries: Sequence[Entry], first: int, rewound: Sequence[Span], where: str, displaced: Sequence[Displaced] = ()
) -> list[Entry]:
    """Return the entries with their links. They have consecutive places from `first` on.

    `displaced` is what replacements in between have left out. Raises ImportFailed for links that no log can have: to a
    call that is hidden, answered already or of another id, or to a group that does not end just before; and for
    revisions that go back.
    """
    log, taken_back = _Log(first, where, displaced), set(spans.members(rewound))
    for entry in entries:
        log.add(entry, hidden=entry.seq in taken_back)
    return list(log.entries.values())


def head_of(entries: Sequence[Entry], first: int, rewound: Sequence[Span], displaced: Sequence[Displaced] = ()) -> Head:
    """Return the head behind linked entries: what is open, which names are known."""
    walk, taken_back = Walk(first, displaced), set(spans.members(rewound))
    walk.follow([entry for entry in entries if entry.seq not in taken_back])
    head = walk.end()
    waits = any(call.group == head.group for call in head.calls)  # an erased call does not wait
    end = entries[-1].seq + 1 if entries else first
    return replace(head, next_seq=end, group=head.group if waits else 0)


def joining(entries: Sequence[Entry], rewound: Sequence[Span], stored: Mapping[str, Entry]) -> list[Entry]:
    """Return those entries of a log that a merge adds to another one, which has the entries `stored` of it (by id).

    Erased and rewound entries are left out, and so are results whose call was erased: contexts would show them alone. A
    result answers the stored call by its place there, or else keeps the place of the call in the log it comes from.
    """
    by_seq, taken_back = {entry.seq: entry for entry in entries}, set(spans.members(rewound))
    joining_entries: list[Entry] = []
    for entry in entries:
        if entry.erased or entry.seq in taken_back:
            continue
        if not entry.answers:
            joining_entries.append(entry)
            continue
        call = by_seq[entry.answers]
        stored_call = stored.get(call.id)
        if not (call.erased or (stored_call is not None and stored_call.erased)):
            linked = entry if stored_call is None else replace(entry, seq=0, answers=stored_call.seq)
            joining_entries.append(linked)
    return joining_entries


class _Log:
    """The part of a log that has been linked so far."""

    def __init__(self, first: int, where: str, displaced: Sequence[Displaced]) -> None:
        self.entries: dict[int, Entry] = {}
        self._where, self._walk = where, Walk(first, displaced)
        self._calls: set[int] = set()
        self._answered: set[int] = set()
        self._revision = 0

    def add(self, entry: Entry, *, hidden: bool) -> None:
        """Link the next entry. One that a rewind hides has no influence on the links of later ones."""
        if entry.revision and entry.revision < self._revision:
            self._refuse(entry, f"has revision {entry.revision}, but the entry before it has {self._revision}")
        self._revision = entry.revision or self._revision
        if entry.revision != self._revision:  # an unchanged entry is not copied, so that it is not in memory twice
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
        if entry.group != entry.seq and not (joins and entry.group == self._walk.newest):
            self._refuse(
                entry,
                f"is in group {entry.group}; it can only begin a group or join that of the entry before",
            )

    def _check_answer(self, entry: Entry) -> None:
        call = self.entries[entry.answers]
        comparable = not (call.erased or entry.erased or call.call_id is None or entry.call_id is None)
        if call.seq in self._answered:
            self._refuse(entry, f"answers the call {call.seq}, which has a result already")
        if call.seq not in self._calls or entry.kind != "tool_result":
            self._refuse(entry, f"answers entry {call.seq}; only a tool result can answer, and only a tool call")
        if comparable and call.call_id != entry.call_id:
            self._refuse(entry, f"answers the call {call.seq}, which has another call_id")
        self._answered.add(call.seq)

    def _hidden(self, entry: Entry) -> Entry:
        """Link an entry that a rewind has hidden. It may follow entries that cannot be told any more, so its links are
        only checked to lead to existing groups and interactions."""
        group = entry.group or entry.seq
        first = entry if group == entry.seq else self.entries.get(group)
        if first is None or (first is not entry and first.group != group):
            self._refuse(entry, f"is in group {group}, which does not exist")
        turn = entry.seq if entry.is_human else entry.turn
        human = self.entries.get(turn)
        if turn and not entry.is_human and (human is None or not human.is_human):
            self._refuse(entry, f"is in interaction {turn}, but entry {turn} is not a human message")
        return replace(entry, group=group, turn=turn, late=self._is_late(replace(entry, group=group)))

    def _is_late(self, entry: Entry) -> bool:
        return bool(entry.answers) and self.entries[entry.answers].group != entry.group

    def _refuse(self, entry: Entry, reason: str) -> NoReturn:
        raise ImportFailed(f"{self._where}.entries", f"entry {entry.seq} {reason}")

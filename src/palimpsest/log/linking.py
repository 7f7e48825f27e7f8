"""How new entries are linked to what the log holds: interactions, groups, calls and their results. Pure.

By what the head says is open:

    tool_call    joins the open group, or the provider message it continues; else it opens a group
    tool_result  answers the unanswered call of its id in the open group, else in the nearest group that has one:
                 where several of one group share the id, the oldest, as results come in the order of their
                 calls; without an id the oldest open call of its tool's name; that whose place it names, where
                 it names one. In the open group it joins it; a result of a call whose group is closed is
                 `late`, one without a call is an orphan (`answers` 0)
    reasoning    opens a group that the next assistant entry joins
    a pause      the message that `pauses` is joined by the model's next one, which goes on with it
    anything else closes the open group and is its own group; a human message starts an interaction

The open group closes when its last call is answered. Until then the head names all of its calls, so that none loses its
result; of calls of closed groups it names the newest.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from palimpsest.errors import InvalidEntry
from palimpsest.log.entry import Entry, digest, placed_ids
from palimpsest.log.head import CONTEXT_NAMES, GROUP_NAMES, NAMES, OPEN_CALLS, OPEN_GROUP, Head, OpenCall

T = TypeVar("T")

_replace = msgspec.structs.replace


def link(head: Head, batch: Sequence[Entry], at: int, *, bounded: bool = True) -> tuple[Head, list[Entry]]:
    """Return the head after `batch` is appended and the batch's entries with place and links.

    Entries keep an `at` and an id of their own (an import, a key) and get `at` and a new id otherwise. Raises
    InvalidEntry where more calls would wait for their results at once than a head may name; not where the batch is a
    part of what was one (`bounded` is False).
    """
    seq = first = head.next_seq
    ids: list[str] = []
    linker, linked = _Linker(head), []
    for entry in batch:
        id = entry.id
        if not id:
            ids = ids or placed_ids(range(first, first + len(batch)), at // 1000)
            id = ids[seq - first]
        linked.append(linker.add(entry, seq, id, entry.at or at))
        seq += 1
    after = linker.head_after(seq, at)
    if bounded and after.calls:
        _refuse_more(after)
    return after, linked


class _Linker:
    """What a head says is open, moved on entry by entry."""

    __slots__ = (
        "calls",
        "contexts",
        "erased",
        "group",
        "head",
        "moved",
        "pauses",
        "pinned",
        "reasoning",
        "tail",
        "turn",
        "turns",
    )

    def __init__(self, head: Head) -> None:
        self.head = head
        self.moved: dict[int, int] = {}
        self.turn, self.group, self.tail = head.turn, head.group, head.tail
        self.reasoning, self.pauses = head.reasoning, head.pauses
        self.calls, self.pinned, self.contexts, self.turns = list(head.calls), head.pinned, head.contexts, head.turns
        self.erased = head.erased

    def add(self, entry: Entry, seq: int, id: str, at: int) -> Entry:
        """Link one entry."""
        kind, name, call_id = entry.kind, entry.name, entry.call_id
        turn, group, answers, late = self.turn, seq, 0, False
        if kind == "message":
            if entry.role == "user":
                turn = seq
            elif entry.role == "assistant" and self.joins(entry):
                group = self.tail
        elif kind == "tool_call":
            if self.group or entry.continues or self.reasoning or self.pauses:
                group = self.group or self.tail
            if entry.seq:
                self.moved[entry.seq] = seq
        elif kind == "tool_result":
            call = self.answered(entry)
            group = self.group or seq
            if call is not None:
                answers, late = call.seq, not self.group or call.group != self.group
                name, call_id = name or call.name, call_id or call.call_id
        linked = _replace(
            entry,
            id=id,
            seq=seq,
            at=at,
            turn=turn,
            group=group,
            answers=answers,
            late=late,
            revision=self.head.revision + 1,
            name=name,
            call_id=call_id,
        )
        self.follow(linked)
        self.erased += entry.erased
        return linked

    def joins(self, said: Entry) -> bool:
        """Whether what the model says belongs to what it said before."""
        return self.reasoning or self.pauses or (said.continues and self.tail != 0)

    def follow(self, entry: Entry) -> None:
        """Move on over an entry that has its links. What was erased opens and pins nothing."""
        kind, role, seq, group = entry.kind, entry.role, entry.seq, entry.group
        message = kind == "message"
        self.turn, self.tail = entry.turn, group
        if kind == "tool_call":
            if not entry.erased:
                self.group = group
                self.calls.append(OpenCall(seq, entry.call_id, entry.name, group))
        elif kind == "tool_result":
            self.close(entry.answers)
        else:
            if group == seq:  # it overtakes open calls, whose group closes
                self.group = 0
            if entry.turn == seq:
                self.turns += 1
            elif kind == "context" and entry.name and not entry.erased:
                self.contexts = {**self.contexts, entry.name: (seq, digest(entry.text))}
        self.reasoning = message and role == "assistant" and type(entry.content) is tuple and entry.is_reasoning
        if kind != "tool_result" or group == seq:  # results come before the model goes on
            self.pauses = entry.pauses and not entry.erased
        if (entry.pinned or (role == "system" and message)) and not entry.erased:
            self.pinned = (*self.pinned, seq)

    def answered(self, result: Entry) -> OpenCall | None:
        """The call that a result answers, or None for an orphan.

        One that says which call it answers, by its place here, or, with a place of its own, by that in the log that
        both are from, answers that one while it is open.
        """
        if result.answers:
            place = self.moved.get(result.answers) if result.seq else result.answers
            for call in self.calls:
                if call.seq == place:
                    return call
        if result.call_id is None:
            named = (call for call in self.calls if call.name == result.name and result.name is not None)
            return next(named, None)
        same = [call for call in self.calls if call.call_id == result.call_id]
        # Calls of the open group stand last, so the last of these is of it where any is.
        return next((call for call in same if call.group == same[-1].group), None)

    def close(self, seq: int) -> None:
        """Take the call at `seq` as answered; the open group closes with its last one."""
        for call in self.calls:
            if call.seq == seq:
                self.calls.remove(call)
                break
        if self.group and not any(other.group == self.group for other in self.calls):
            self.group = 0

    def head_after(self, next_seq: int, at: int) -> Head:
        """The head that says what is open now."""
        calls, contexts = self.calls, self.contexts
        if calls:
            closed = bisect_left(calls, 1, key=lambda call: call.group == self.group)  # these come behind the others
            calls = [*_newest(calls[:closed], OPEN_CALLS, _length), *calls[closed:]]
        if contexts is not self.head.contexts:
            by_place = sorted(contexts.items(), key=lambda item: item[1][0])
            kept = _newest(by_place, CONTEXT_NAMES, lambda item: len(item[0]))
            contexts = contexts if len(kept) == len(contexts) else dict(kept)
        return _replace(
            self.head,
            revision=self.head.revision + 1,
            next_seq=next_seq,
            turn=self.turn,
            group=self.group,
            tail=self.tail,
            reasoning=self.reasoning,
            pauses=self.pauses,
            calls=tuple(calls),
            pinned=self.pinned,
            contexts=contexts,
            erased=self.erased,
            turns=self.turns,
            created=self.head.created or at,
            updated=at,
        )


def _refuse_more(head: Head) -> None:
    """Raise InvalidEntry where the open group of a head has more calls, or longer names of these, than it may."""
    waiting = [call for call in head.calls if call.group == head.group]
    if len(waiting) > OPEN_GROUP:
        found = f"{len(waiting)} calls, where {OPEN_GROUP} may be"
    elif (characters := sum(map(_length, waiting))) > GROUP_NAMES:
        found = f"calls with {characters} characters of names and ids, where {GROUP_NAMES} may be"
    else:
        return
    raise InvalidEntry(
        "tool calls",
        f"{found} without results at once; add the results of some first, or calls and results as one batch",
    )


def _length(call: OpenCall) -> int:
    return len(call.call_id or "") + len(call.name or "")


def _newest(items: list[T], most: int, length: Callable[[T], int]) -> list[T]:
    """The newest of these, which are oldest first: at most so many, whose names have `NAMES` characters together."""
    kept = items[-most:]
    room = NAMES - sum(map(length, kept))
    first = 0
    while room < 0:
        room += length(kept[first])
        first += 1
    return kept[first:]


def follow(head: Head, entries: Sequence[Entry]) -> Head:
    """Return the head after entries that have their place and links already, such as those of another time."""
    if not entries:
        return head
    linker = _Linker(head)
    for entry in entries:
        linker.follow(entry)
    after = linker.head_after(entries[-1].seq + 1, entries[-1].at)
    return _replace(after, revision=max(head.revision, entries[-1].revision))

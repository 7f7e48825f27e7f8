"""Link new entries to what the log holds: interactions, groups, calls and their results. Pure.

The head says what is open:

    tool_call    joins the open group, or the provider message that it continues; else it opens a group
    tool_result  answers the unanswered call with its id: in the open group, else in the nearest group that
                 has one; the oldest one if calls of one group share the id, since results come in the
                 order of their calls. A result without an id answers the oldest open call of its tool's
                 name, and one that names the place of a call answers that call. A result of the open
                 group joins it. A result for a closed group is `late`; one without a call is an orphan
                 (`answers` is 0)
    reasoning    opens a group that the next assistant entry joins
    a pause      after a message that `pauses`, the model's next message joins its group
    other        closes the open group and is a group of its own; a human message starts an interaction

The open group closes when its last call is answered. Until then the head names all of its calls, so that every result
finds its call. Of calls of closed groups it names only the newest.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from palimpsest.errors import InvalidEntry
from palimpsest.log.entry import Entry, digest
from palimpsest.log.head import CONTEXT_NAMES, GROUP_NAMES, NAMES, OPEN_CALLS, OPEN_GROUP, Head, OpenCall
from palimpsest.log.ids import placed_ids

T = TypeVar("T")

_replace = msgspec.structs.replace


def link(head: Head, batch: Sequence[Entry], at: int, *, bounded: bool = True) -> tuple[Head, list[Entry]]:
    """Return the head after `batch` is appended, and the entries of the batch with place and links.

    Entries keep their own `at` and id if they have them (an import, a key), else they get `at` and a new id. Raises
    InvalidEntry if more calls would wait for results at once than a head may name, unless `bounded` is False: then the
    batch is part of what was one.
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
        _refuse_excess(after)
    return after, linked


class _Linker:
    """The open state of a head, updated entry by entry."""

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
        """Link one entry and return it."""
        kind, name, call_id = entry.kind, entry.name, entry.call_id
        turn, group, answers, late, continues = self.turn, seq, 0, False, entry.continues
        if kind == "message":
            if entry.role == "user":
                turn = seq
            elif entry.role == "assistant":
                if self.joins(entry):
                    group = self.tail
                else:
                    continues = False
        elif kind == "tool_call":
            if self.group or self.joins(entry):
                group = self.group or self.tail
            else:
                continues = False
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
            continues=continues,
            revision=self.head.revision + 1,
            name=name,
            call_id=call_id,
        )
        self.follow(linked)
        self.erased += entry.erased
        return linked

    def joins(self, entry: Entry) -> bool:
        """Whether a message or call of the model belongs to the group of the newest entry.

        An entry from the middle of a message of the model continues only what the model said last: nothing that
        somebody else has said since, and no group whose results are all there.
        """
        return self.reasoning or self.pauses or (entry.continues and self.tail != 0)

    def follow(self, entry: Entry) -> None:
        """Update the state by an entry that has its links. Tombstones open and pin nothing."""
        kind, role, seq, group = entry.kind, entry.role, entry.seq, entry.group
        is_message = kind == "message"
        is_models = kind == "tool_call" or (is_message and role == "assistant")
        self.turn = entry.turn
        if kind == "tool_call":
            if not entry.erased:
                self.group = group
                self.calls.append(OpenCall(seq, entry.call_id, entry.name, group))
        elif kind == "tool_result":
            self.close(entry.answers)
        else:
            if group == seq:  # it comes before the results of open calls, so their group closes
                self.group = 0
            if entry.turn == seq:
                self.turns += 1
            elif kind == "context" and entry.name and not entry.erased:
                self.contexts = {**self.contexts, entry.name: (seq, digest(entry.text))}
        self.reasoning = is_message and is_models and type(entry.content) is tuple and entry.is_reasoning
        if kind != "tool_result" or group == seq:  # results come before the model continues
            self.pauses = entry.pauses and is_models and not entry.erased
        goes_on = is_models or (group != seq and (self.group == group or self.pauses))
        self.tail = group if goes_on else 0
        if (entry.pinned or (role == "system" and is_message)) and not entry.erased:
            self.pinned = (*self.pinned, seq)

    def answered(self, result: Entry) -> OpenCall | None:
        """Return the call that a result answers, or None for an orphan.

        A result may name its call by place: `answers` is a place in this log, or, if the result brings a `seq` of its
        own, in the log that both come from. It answers that call if the call is still open.
        """
        if result.answers:
            target = self.moved.get(result.answers) if result.seq else result.answers
            for call in self.calls:
                if call.seq == target:
                    return call
        if result.call_id is None:
            by_name = (call for call in self.calls if call.name == result.name and result.name is not None)
            return next(by_name, None)
        by_id = [call for call in self.calls if call.call_id == result.call_id]
        # Calls of the open group come last, so if any of these is in the open group, the last one is.
        return next((call for call in by_id if call.group == by_id[-1].group), None)

    def close(self, seq: int) -> None:
        """Mark the call at `seq` as answered. The open group closes with its last call."""
        for call in self.calls:
            if call.seq == seq:
                self.calls.remove(call)
                break
        if self.group and not any(other.group == self.group for other in self.calls):
            self.group = 0

    def head_after(self, next_seq: int, at: int) -> Head:
        """Return the head with the present state."""
        calls, contexts = self.calls, self.contexts
        if calls:
            # Calls of the open group come last.
            closed = bisect_left(calls, 1, key=lambda call: call.group == self.group)
            calls = [*_newest(calls[:closed], OPEN_CALLS, _name_length), *calls[closed:]]
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


def _refuse_excess(head: Head) -> None:
    """Raise InvalidEntry if the open group has too many unanswered calls, or too long names of them."""
    open_calls = [call for call in head.calls if call.group == head.group]
    if len(open_calls) > OPEN_GROUP:
        excess = f"{len(open_calls)} calls wait for results, but at most {OPEN_GROUP} may"
    elif (characters := sum(map(_name_length, open_calls))) > GROUP_NAMES:
        excess = f"calls with {characters} characters of names and ids wait for results, but at most {GROUP_NAMES} may"
    else:
        return
    raise InvalidEntry(
        "tool calls",
        f"{excess} at once; add the results of some first, or calls and results as one batch",
    )


def _name_length(call: OpenCall) -> int:
    return len(call.call_id or "") + len(call.name or "")


def _newest(items: list[T], most: int, length: Callable[[T], int]) -> list[T]:
    """Return the newest of these, given oldest first: at most `most`, with at most `NAMES` characters of names."""
    kept = items[-most:]
    room = NAMES - sum(map(length, kept))
    first = 0
    while room < 0:
        room += length(kept[first])
        first += 1
    return kept[first:]


def follow(head: Head, entries: Sequence[Entry]) -> Head:
    """Return the head after entries that already have their place and links, such as those of another log."""
    if not entries:
        return head
    linker = _Linker(head)
    for entry in entries:
        linker.follow(entry)
    after = linker.head_after(entries[-1].seq + 1, entries[-1].at)
    return _replace(after, revision=max(head.revision, entries[-1].revision))

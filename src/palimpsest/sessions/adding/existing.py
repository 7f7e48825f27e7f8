"""Finding entries that a verb need not add, because the log or the buffer of an open atomic turn has them already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

from palimpsest.log.entry import Entry, digest
from palimpsest.log.head import OpenCall
from palimpsest.log.linking import link
from palimpsest.log.replacing import says_the_same
from palimpsest.privacy.gate import Admitted
from palimpsest.sessions.adding.gathered import TurnBuffer
from palimpsest.sessions.paging import newest_active
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.states import states_of


class ExistingEntries:
    """Looks for entries in the log of a session, and in the `buffer` of its atomic turn if one is open.

    New entries are compared as the privacy policy would store them (`admitted`).
    """

    def __init__(
        self,
        scope: SessionScope,
        admitted: Callable[[Sequence[Entry]], Awaitable[Sequence[Admitted]]],
        buffer: Callable[[], TurnBuffer | None],
    ) -> None:
        self._scope, self._admitted, self._buffer = scope, admitted, buffer

    async def context(self, entry: Entry) -> Entry | None:
        """Return the newest version of a context if it makes adding `entry` unnecessary; None if it must be added.

        It does if it has the same text and expiry, if contexts show it (or will when the atomic turn ends), and if it
        is pinned or `entry` is not.
        """
        admitted = (await self._admitted([entry]))[0].kept
        if admitted is None:
            return None
        buffer, now = self._buffer(), self._scope.clock()
        if buffer is not None and (buffered := buffer.contexts.get(admitted.name)) is not None:  # newer than in the log
            serves = _serves_as(buffered, admitted, pinned=buffered.pinned) and not buffered.expired(now)
            return buffered if serves else None
        head = await self._scope.store.head(self._scope.key)
        newest = head.contexts.get(admitted.name or "") if head is not None else None  # its seq and digest
        if head is None or newest is None or newest[1] != digest(admitted.text):
            return None
        stored, pinned = await self._scope.store.fetch(self._scope.key, [newest[0]]), newest[0] in head.pinned
        if not stored or not _serves_as(stored[0], admitted, pinned=pinned):
            return None
        state = (await states_of(self._scope.store, self._scope.options, head)).of(stored[0], now)
        return stored[0] if state == "active" or (state == "covered" and pinned) else None

    async def calls(self) -> Sequence[OpenCall]:
        """Return the calls that wait for a result, including those in the buffer, which have seqs after the log's end.

        Calls of the log that a result in the buffer answers are left out.
        """
        head, buffer = await self._scope.head(), self._buffer()
        buffered = buffer.newest(len(buffer.slots)) if buffer is not None else []
        return link(head, buffered, self._scope.clock(), bounded=False)[0].calls if buffered else head.calls

    async def last(self, entries: Sequence[Entry], key: str | None = None) -> tuple[list[Entry], Sequence[Entry]]:
        """Return the newest entries that equal these ones, and those of these that are not among them.

        Compared are the newest entries that contexts show, or will when the atomic turn ends. Either all of `entries`
        are found, or only results at their beginning, or none. With a key it is all or none: the ids of a batch derive
        from the places of its entries.
        """
        buffer, count = self._buffer(), len(entries)
        newest = buffer.newest(count) if buffer is not None else []
        if len(newest) < count:
            newest = [
                *await newest_active(self._scope.store, self._scope.key, self._scope.clock(), count - len(newest)),
                *newest,
            ]
        if [(entry.kind, entry.role) for entry in newest] == [(entry.kind, entry.role) for entry in entries]:
            slots = await self._admitted(entries)
            if all(_is_equal(existing, slot.kept) for existing, slot in zip(newest, slots, strict=True)):
                return newest, ()
        return ([], entries) if key is not None else await self._without_results(newest, entries)

    async def _without_results(
        self, newest: Sequence[Entry], entries: Sequence[Entry]
    ) -> tuple[list[Entry], Sequence[Entry]]:
        """Return the trailing results of `newest` that equal leading results of `entries`, and the other entries.

        A call has only one result, so a result is known by the id of its call, or else by its place among the results
        of its tool.
        """
        results = list(takewhile(_is_result, reversed(newest)))  # newest first
        by_id = {entry.call_id: entry for entry in results if entry.call_id is not None}
        leading = list(takewhile(_is_result, entries))
        pairings = [[(entry, by_id[entry.call_id])] for entry in leading if entry.call_id in by_id]
        if results and any(entry.call_id is None for entry in leading):
            pairings += _by_place(leading, results[::-1], await self.calls())
        paired = [given for pairs in pairings for given, _ in pairs]
        slots = await self._admitted(paired) if paired else ()
        kept = {id(given): slot.kept for given, slot in zip(paired, slots, strict=True)}
        repeated, existing = set[int](), set[int]()  # by identity
        for pairs in pairings:
            if all(_is_equal(old, kept[id(given)]) for given, old in pairs):
                repeated |= {id(given) for given, _ in pairs}
                existing |= {id(old) for _, old in pairs}
        new = [entry for entry in leading if id(entry) not in repeated]
        return [entry for entry in results[::-1] if id(entry) in existing], [*new, *entries[len(leading) :]]


def _is_result(entry: Entry) -> bool:
    return entry.kind == "tool_result"


def _by_place(
    given: Sequence[Entry], results: Sequence[Entry], calls: Sequence[OpenCall]
) -> list[list[tuple[Entry, Entry]]]:
    """Pair given results without ids with the newest results of their tools in the log, one list for each tool.

    If more results of a tool are given than calls of it still wait, the first of them are given again.
    """
    pairings = []
    for name in dict.fromkeys(entry.name for entry in given if entry.call_id is None):
        unnamed = [entry for entry in given if entry.name == name and entry.call_id is None]
        again = len(unnamed) - sum(call.name == name for call in calls)
        of_tool = [entry for entry in results if entry.name == name]
        if 0 < again <= len(of_tool):
            pairings.append(list(zip(unnamed[:again], of_tool[-again:], strict=True)))
    return pairings


def _serves_as(old: Entry, new: Entry, *, pinned: bool) -> bool:
    """Whether an old context, which is `pinned` now or not, has the text, the expiry and the pin of a new one."""
    return (old.text, old.expires_at) == (new.text, new.expires_at) and (pinned or not new.pinned)


def _is_equal(old: Entry, new: Entry | None) -> bool:
    """Whether a stored entry equals a new one. A new result need not have the name or call id, which storing adds."""
    if new is None or old.erased or not says_the_same(old, new):
        return False
    return new.name in (None, old.name) and new.call_id in (None, old.call_id)

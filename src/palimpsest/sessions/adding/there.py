"""What is there already: in the log, or gathered by the atomic turn that is open."""

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


class There:
    """Looks for what somebody adds, as the policy has `admitted` it, also in the `buffer` of an atomic turn."""

    def __init__(
        self,
        scope: SessionScope,
        admitted: Callable[[Sequence[Entry]], Awaitable[Sequence[Admitted]]],
        buffer: Callable[[], TurnBuffer | None],
    ) -> None:
        self._scope, self._admitted, self._buffer = scope, admitted, buffer

    async def context(self, entry: Entry) -> Entry | None:
        """The newest version of a context, where it says what this one would say, as long, and contexts show it.

        Or will when the turn ends. One that is pinned does for one that need not be.
        """
        kept = (await self._admitted([entry]))[0].kept
        if kept is None:
            return None
        buffer, now = self._buffer(), self._scope.clock()
        if buffer is not None and (one := buffer.contexts.get(kept.name)) is not None:  # the log has an older version
            return one if _does_for(one, kept, pinned=one.pinned) and not one.expired(now) else None
        head = await self._scope.store.head(self._scope.key)
        known = head.contexts.get(kept.name or "") if head is not None else None
        if head is None or known is None or known[1] != digest(kept.text):
            return None
        there, pinned = await self._scope.store.fetch(self._scope.key, [known[0]]), known[0] in head.pinned
        if not there or not _does_for(there[0], kept, pinned=pinned):
            return None
        state = (await states_of(self._scope.store, self._scope.options, head)).of(there[0], now)
        return there[0] if state == "active" or (state == "covered" and pinned) else None

    async def calls(self) -> Sequence[OpenCall]:
        """The calls that wait for a result when what is gathered is in the log; those have places from its end on."""
        head, buffer = await self._scope.head(), self._buffer()
        kept = buffer.newest(len(buffer.slots)) if buffer is not None else []
        return link(head, kept, self._scope.clock(), bounded=False)[0].calls if kept else head.calls

    async def last(self, entries: Sequence[Entry], key: str | None = None) -> tuple[list[Entry], Sequence[Entry]]:
        """The newest entries, where they say what these would say, and contexts show them, or will after the turn; and
        what of these is not there.

        Results that these begin with may be there by themselves, unless they are a batch with a key: no call has a
        second one.
        """
        buffer, many = self._buffer(), len(entries)
        there = buffer.newest(many) if buffer is not None else []
        if len(there) < many:
            there = [
                *await newest_active(self._scope.store, self._scope.key, self._scope.clock(), many - len(there)),
                *there,
            ]
        if [(one.kind, one.role) for one in there] == [(one.kind, one.role) for one in entries]:
            slots = await self._admitted(entries)
            if all(_says(old, slot.kept) for old, slot in zip(there, slots, strict=True)):
                return there, ()
        return ([], entries) if key is not None else await self._without_results(there, entries)

    async def _without_results(
        self, there: Sequence[Entry], entries: Sequence[Entry]
    ) -> tuple[list[Entry], Sequence[Entry]]:
        """The newest results that are some of those with which these entries begin, and what is left of these."""
        results = {one.call_id: one for one in takewhile(_is_named_result, reversed(there))}
        given = list(takewhile(_is_named_result, entries))
        known = [one for one in given if one.call_id in results]
        slots = await self._admitted(known) if known else ()
        same = {one.call_id for one, slot in zip(known, slots, strict=True) if _says(results[one.call_id], slot.kept)}
        left = [one for one in given if one.call_id not in same]
        return [one for one in results.values() if one.call_id in same][::-1], [*left, *entries[len(given) :]]


def _is_named_result(entry: Entry) -> bool:
    """Whether an entry is a result that says of which call."""
    return entry.kind == "tool_result" and entry.call_id is not None


def _does_for(old: Entry, new: Entry, *, pinned: bool) -> bool:
    """Whether an entry, which is `pinned` by now or not, says what a new one would say, as long as that."""
    return (old.text, old.expires_at) == (new.text, new.expires_at) and (pinned or not new.pinned)


def _says(old: Entry, new: Entry | None) -> bool:
    """Whether an entry of the log, which is told more than was given of a result, says what a new one would say."""
    if new is None or old.erased or not says_the_same(old, new):
        return False
    return new.name in (None, old.name) and new.call_id in (None, old.call_id)

"""Where an imported message belongs in a session: by its place in its conversation, never by what it says.

An id outlives its entry, and stands in clear beside what is encrypted. One made of a text would let whoever has the
file try texts out, so ids are made of places. Two files may have different messages at one place: there the second
one takes an alternative of it, the first that is free. Which of them a file has taken is told by what is stored there,
which goes with an erasure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from palimpsest.errors import PrivacyRefused
from palimpsest.log.entry import Entry, same
from palimpsest.log.head import SessionKey
from palimpsest.privacy.gate import Gate
from palimpsest.stores import Store

AT_ONCE = 512
"""Alternatives whose first entries are looked at in one step, at most."""


class AlternativePlaces(NamedTuple):
    """Which alternative entries belong to, the ids that they have there, and what of them is there already.

    `graves` says that all of this was erased: only that it was something of the same kind is known, and when.
    """

    alternative: int
    ids: list[str]
    there: dict[str, Entry]
    graves: bool = False


class Places:
    """Finds the places of entries in one session."""

    def __init__(self, gate: Gate, store: Store, key: SessionKey) -> None:
        self._gate, self._store, self._key = gate, store, key

    async def find(
        self, entries: Sequence[Entry], ids_at: Callable[[int], Iterator[str]], first: dict[str, Entry] | None = None
    ) -> AlternativePlaces:
        """Return the place of entries that belong together; `ids_at` gives their ids in an alternative.

        That is the alternative that holds them, or their beginning. Where something there was erased nobody can tell
        what that was: then it is the alternative that holds most of them, or, as erased entries do not come back, one
        of which all was erased; else the first that is free. `first` is what is there in alternative 0, where the
        caller knows.
        """
        given = _Given(self, entries)
        best, most = None, -1
        async for place in self._alternatives(given, ids_at, first):
            if not place.there:
                return best or place
            alive = await given.alive_in(place)
            if alive == len(place.there):
                return place
            if alive is not None and alive > most:
                best, most = place._replace(graves=not alive), alive
        raise AssertionError("there is always one that is free")

    async def there(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return what the session holds of these ids."""
        return {entry.id: entry for entry in await self._store.fetch(self._key, ids=ids)}

    async def admitted(self, entries: Sequence[Entry]) -> list[Entry | None]:
        """Return the entries as the policy lets them be stored; None for what it withholds or cannot check."""
        try:
            return [slot.kept for slot in await self._gate.entries(self._store, self._key, entries)]
        except PrivacyRefused:
            if len(entries) == 1:
                return [None]
            return [kept for entry in entries for kept in await self.admitted([entry])]

    async def _alternatives(
        self, given: _Given, ids_at: Callable[[int], Iterator[str]], first: dict[str, Entry] | None
    ) -> AsyncIterator[AlternativePlaces]:
        """The alternatives in order, without those that begin otherwise."""
        ids = list(ids_at(0))
        yield AlternativePlaces(0, ids, await self.there(ids) if first is None else first)
        begin, count = 1, 8
        while True:
            firsts = {number: next(ids_at(number)) for number in range(begin, begin + count)}
            begun = await self.there(list(firsts.values()))
            for number, id in firsts.items():
                beginning = begun.get(id)
                if beginning is None or await given.mentions(0, beginning) is not False:
                    ids = list(ids_at(number))
                    yield AlternativePlaces(number, ids, await self.there(ids))
            begin, count = begin + count, min(4 * count, AT_ONCE)


class _Given:
    """Entries of a file, to be compared with what is stored."""

    def __init__(self, places: Places, entries: Sequence[Entry]) -> None:
        self._places, self._entries = places, entries
        self._kept: list[Entry | None] | None = None

    async def alive_in(self, place: AlternativePlaces) -> int | None:
        """How many of the entries are there, and not erased; None where something else is there."""
        alive = 0
        for i, id in enumerate(place.ids):
            if (stored := place.there.get(id)) is not None:
                found = await self.mentions(i, stored)
                if found is False:
                    return None
                alive += found is True
        return alive

    async def mentions(self, index: int, stored: Entry) -> bool | None:
        """Whether a stored entry says what the one of this index does; None where nobody can tell."""
        given = self._entries[index]
        if stored.erased:
            fits = (stored.kind, stored.role) == (given.kind, given.role) and given.at in (0, stored.at)
            return None if fits else False
        if _says_the_same(given, stored):
            return True
        if self._kept is None:
            self._kept = await self._places.admitted(self._entries)
        kept = self._kept[index]
        return None if kept is None else kept is not given and _says_the_same(kept, stored)


def _says_the_same(given: Entry, stored: Entry) -> bool:
    return given.content == stored.content and same(replace(given, id=stored.id), stored)

"""Where an imported message belongs in a session: its id is made from its place in the conversation, not from its text.

The reason: an id outlives its entry and is stored in clear beside encrypted content. If it were made from the text,
whoever has the file could test guesses of the text. Two files may have different messages at the same place. Then the
second one takes the first free alternative of that place. Which alternative a file took is known only by comparing with
what is stored there, so an erasure removes that knowledge, too.
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
"""The most alternatives whose first entries are read in one step."""


class AlternativePlaces(NamedTuple):
    """The alternative that entries belong to, their ids in it, and the stored entries by id.

    `all_erased` says that everything stored there was erased: only kinds, roles and times could be compared.
    """

    alternative: int
    ids: list[str]
    stored: dict[str, Entry]
    all_erased: bool = False


class Places:
    """Finds the places of entries in one session."""

    def __init__(self, gate: Gate, store: Store, key: SessionKey) -> None:
        self._gate, self._store, self._key = gate, store, key

    async def find(
        self, entries: Sequence[Entry], ids_at: Callable[[int], Iterator[str]], first: dict[str, Entry] | None = None
    ) -> AlternativePlaces:
        """Return the place of consecutive entries. `ids_at` gives their ids in an alternative.

        That is the alternative that holds them, or the beginning of them. Where entries were erased, their content is
        unknown. Then it is the alternative that holds most of the entries, which may be one where everything was
        erased: erased entries are not imported again. If none fits it is the first free alternative. `first` are the
        stored entries of alternative 0, if the caller has read them.
        """
        given = _Given(self, entries)
        best, most = None, -1
        async for place in self._alternatives(given, ids_at, first):
            if not place.stored:
                return best or place
            alive = await given.alive_in(place)
            if alive == len(place.stored):
                return place
            if alive is not None and alive > most:
                best, most = place._replace(all_erased=not alive), alive
        raise AssertionError("some alternative is always free")

    async def stored(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return the session's entries with these ids."""
        return {entry.id: entry for entry in await self._store.fetch(self._key, ids=ids)}

    async def admitted(self, entries: Sequence[Entry]) -> list[Entry | None]:
        """Return the entries as the policy stores them; None for one that it withholds or that cannot be checked."""
        try:
            return [slot.kept for slot in await self._gate.entries(self._store, self._key, entries)]
        except PrivacyRefused:
            if len(entries) == 1:
                return [None]
            return [kept for entry in entries for kept in await self.admitted([entry])]

    async def _alternatives(
        self, given: _Given, ids_at: Callable[[int], Iterator[str]], first: dict[str, Entry] | None
    ) -> AsyncIterator[AlternativePlaces]:
        """Yield the alternatives in order, without those that begin with another message."""
        ids = list(ids_at(0))
        yield AlternativePlaces(0, ids, await self.stored(ids) if first is None else first)
        begin, count = 1, 8
        while True:
            firsts = {number: next(ids_at(number)) for number in range(begin, begin + count)}
            stored_firsts = await self.stored(list(firsts.values()))
            for number, id in firsts.items():
                beginning = stored_firsts.get(id)
                if beginning is None or await given.equals(0, beginning) is not False:
                    ids = list(ids_at(number))
                    yield AlternativePlaces(number, ids, await self.stored(ids))
            begin, count = begin + count, min(4 * count, AT_ONCE)


class _Given:
    """Entries of a file, to be compared with what is stored."""

    def __init__(self, places: Places, entries: Sequence[Entry]) -> None:
        self._places, self._entries = places, entries
        self._kept: list[Entry | None] | None = None

    async def alive_in(self, place: AlternativePlaces) -> int | None:
        """Return how many of the entries are stored at a place and not erased; None if another entry is there."""
        alive = 0
        for i, id in enumerate(place.ids):
            if (stored := place.stored.get(id)) is not None:
                equal = await self.equals(i, stored)
                if equal is False:
                    return None
                alive += equal is True
        return alive

    async def equals(self, index: int, stored: Entry) -> bool | None:
        """Return whether a stored entry says the same as the given one of this index; None if that is unknown."""
        given = self._entries[index]
        if stored.erased:
            fits = (stored.kind, stored.role) == (given.kind, given.role) and given.at in (0, stored.at)
            return None if fits else False
        if _says_the_same(given, stored):
            return True
        if self._kept is None:
            self._kept = await self._places.admitted(self._entries)
        admitted = self._kept[index]
        return None if admitted is None else admitted is not given and _says_the_same(admitted, stored)


def _says_the_same(given: Entry, stored: Entry) -> bool:
    return given.content == stored.content and same(replace(given, id=stored.id), stored)

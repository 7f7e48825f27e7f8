"""A change of keys: everything in an encrypted store comes under the current key, while others read and write.

    begin     The mark retires the other keys. Writers that see a head under another key read the mark first.
    heads     Each is sealed anew, unchanged. A writer that has not read the mark is refused, and tries again.
    rows      Then the rows of that home are sealed anew, a stretch at a time. Whoever makes a head reads the mark again
              once it is stored, and seals it anew if its key was retired meanwhile. So places that come into being
              behind the change are not missed.
    finish    The mark forgets the other keys, and the store scrubs what was overwritten.

What is done stays done: after a kill, the same call goes on with what remains. When older keys are given it looks at
everything, even if the mark says that nothing remains.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol, TypeAlias

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt, WrongKey
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Place
from palimpsest.stores.encrypted.backend import SealedBackend
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealed_bytes import key_of
from palimpsest.stores.encrypted.sealed_rows import LOG, SESSION, hides, is_clear
from palimpsest.stores.rules import all_places, all_tenants

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of sessions that are done, and the number of all sessions."""


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of keys did: the id of the key that all is under now, and how much of what was sealed anew.

    `remains` says in plain sentences where the store may still hold old ciphertexts.
    """

    key_id: str
    sessions: int = 0
    texts: int = 0
    items: int = 0
    remains: tuple[str, ...] = ()


class HasStore(Protocol):
    """Whatever has an opened store: a memory."""

    @property
    def store(self) -> Store:
        """The store."""
        ...


def rotate_keys(memory: HasStore, *, progress: Progress | None = None) -> Rotated:
    """Bring everything in the memory's store, of every tenant, under its current key.

    Other processes may go on reading and writing meanwhile if they have both keys. Afterwards the other keys are not
    needed any more. If it is interrupted, call it again: it goes on where it was. Raises ConfigError for a store that
    is not encrypted, and Conflict when a change to another key begins meanwhile. Raises StoreCorrupt for data that
    cannot be read, and WrongKey for data under a key that was not given, both after everything else is done: the old
    keys are kept for that. In an `AsyncMemory`, await `rotate(memory.store)`.
    """
    return drive(rotate(memory.store, progress))


async def rotate(store: Store, progress: Progress | None = None) -> Rotated:
    """Do what `rotate_keys` does, on an opened store."""
    backend = store.backend
    if not isinstance(backend, SealedBackend):
        raise ConfigError("rotate-keys", store.url, "an encrypted store, opened with its keys")
    markings = backend.markings
    begun = await backend.together(markings.begin)
    own = markings.writing
    if not (begun or markings.others):
        return Rotated(key_id=own)
    sessions, texts, items, unread = 0, 0, 0, list[StoreCorrupt]()
    failed = set[Place]()
    remaining = await backend.together(lambda: _places(backend))
    while remaining:
        total = sessions + sum(place.space == SESSION for place in remaining)  # grows if the next round lists new ones
        for places in [list(of_home) for _, of_home in groupby(sorted(remaining), lambda place: place[:2])]:
            faults = dict[Place, StoreCorrupt]()
            items_done, texts_done = await _home(backend, places, faults)
            items, texts = items + items_done, texts + texts_done
            unread += faults.values()
            failed.update(faults)  # a head that cannot be opened keeps its key, and would be listed for ever
            _check_not_overtaken(markings, own)
            for _ in range(sum(place.space == SESSION for place in places)):
                sessions += 1
                if progress is not None:
                    progress(sessions, total)
        remaining = await backend.together(lambda: _places(backend, own))  # those that came into being meanwhile
        remaining = [place for place in remaining if place not in failed]
    out_of_reach = await backend.together(backend.unread)
    if unread or out_of_reach:
        unread += [StoreCorrupt(store.url, f"{why}. The keys of the store are kept") for why in out_of_reach]
        raise _after_the_rest(store, unread[0])
    await backend.together(markings.finish)
    remains = (await store.scrub(whole=False)).remains  # the rest would take long, and keep others waiting
    return Rotated(key_id=own, sessions=sessions, texts=texts, items=items, remains=remains)


def _after_the_rest(store: Store, fault: StoreCorrupt) -> StoreCorrupt | WrongKey:
    """Return the error to raise for data that was left as it is, once everything else is done."""
    if not isinstance(fault, WrongKey):
        return fault
    reason, outcome = (
        "some data is encrypted with it, and it is not among the given keys",
        "All other data is done: give this key, too, and rotate again",
    )
    return WrongKey(store.url, fault.key_id, reason, outcome)


def _check_not_overtaken(markings: Markings, own: str) -> None:
    """Raise Conflict if the mark names another key to write with by now."""
    if markings.writing != own:
        reason = f"was overtaken by another rotation, to the key {markings.writing!r}, which encrypts all data"
        raise Conflict("the rotation of keys", reason)


async def _home(backend: SealedBackend, places: Sequence[Place], faults: dict[Place, StoreCorrupt]) -> tuple[int, int]:
    """Seal these places of one home, and its rows, under the current key.

    Return how many items, and how many rows, were under another key. What cannot be read is left as it is, with the
    error in `faults`. Starts again if another change of keys has begun meanwhile.
    """
    log = Place(places[0].tenant, places[0].home, LOG, "")
    items = texts = 0

    async def attempt(place: Place, seal: Callable[[Place], Awaitable[int]]) -> int:
        try:
            return await seal(place)
        except StoreCorrupt as fault:
            faults[place] = fault
            return 0

    def head(place: Place) -> Awaitable[bool]:
        return backend.together(partial(backend.resealer.head, place))

    while True:
        own = backend.markings.writing
        for place in places:
            items += await attempt(place, head) and hides(place)
        await attempt(log, head)  # last: a writer that has seen the others makes no old one
        await attempt(log._replace(space="tree"), backend.resealer.rows)
        texts += await attempt(log, backend.resealer.rows)
        await backend.together(backend.markings.refresh)
        if backend.markings.writing == own:
            return items, texts


async def _places(backend: SealedBackend, own: str = "") -> list[Place]:
    """Return the stored places that have a sealed head, without those whose head is under the key `own` already."""
    places: list[Place] = []
    async for tenant in all_tenants(backend):
        listed = [row async for row in all_places(backend.below, tenant, "", beneath=True)]
        places += [row.place for row in listed if not is_clear(row.place) and key_of(row.head.hot) != own]
    return places

"""A change of keys: everything that an encrypted store holds comes under the current key, while others read and write.

    begin     the store's mark retires the other keys: whoever writes from now on looks at it first, for
    heads     each is sealed anew as it is, so that a writer who has not looked fails and begins again;
    rows      of the session's home are sealed anew then, a stretch at a time. Whoever makes a head looks at the mark
              once more when that is stored, and seals it anew where its key was retired meanwhile: so what comes into
              being behind the change is not forgotten, either
    finish    the mark forgets the other keys, and the store scrubs what it has overwritten

What was done stays done: after a kill, the same again goes on with what is left. With older keys at hand it looks at
everything, also where nothing is known to be left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol, TypeAlias

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Place
from palimpsest.stores.encrypted.backend import SealedBackend
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealed_bytes import key_of
from palimpsest.stores.encrypted.sealed_rows import LOG, SESSION, hides, is_clear
from palimpsest.stores.rules import all_places, all_tenants

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of sessions that are done, and of all."""


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of keys did: the id of the key that all is under, how much of what was sealed anew.

    `remains` says in plain sentences where the store may still hold ciphertexts of before.
    """

    key_id: str
    sessions: int = 0
    texts: int = 0
    items: int = 0
    remains: tuple[str, ...] = ()


class HasStore(Protocol):
    """What has an opened store: a memory."""

    @property
    def store(self) -> Store:
        """The store."""
        ...


def rotate_keys(memory: HasStore, *, progress: Progress | None = None) -> Rotated:
    """Bring all that the memory's store holds, of every tenant, under its current key.

    Other processes go on reading and writing meanwhile, as long as they have both keys; when it is done, the others
    are not needed any more. Interrupted, it goes on where it was when it is called again. Raises ConfigError for a
    store that is not encrypted, Conflict where a change to another key begins meanwhile, and StoreCorrupt, when all
    the rest is done, for what cannot be read: the old keys are kept for that. In an `AsyncMemory`, await
    `rotate(memory.store)`.
    """
    return drive(rotate(memory.store, progress))


async def rotate(store: Store, progress: Progress | None = None) -> Rotated:
    """Do what `rotate_keys` says, on an opened store."""
    backend = store.backend
    if not isinstance(backend, SealedBackend):
        raise ConfigError("rotate-keys", store.url, "an encrypted store, opened with its keys")
    markings = backend.markings
    begun = await backend.together(markings.begin)
    own = markings.writing
    if not (begun or markings.others):
        return Rotated(key_id=own)
    sessions, texts, items, damaged = 0, 0, 0, list[StoreCorrupt]()
    failed = set[Place]()
    left = await backend.together(lambda: _places(backend))
    while left:
        total = sessions + sum(place.space == SESSION for place in left)  # others are found when these are done
        for places in [list(some) for _, some in groupby(sorted(left), lambda place: place[:2])]:
            try:
                found = await backend.together(partial(_home, backend, places))
                items, texts = items + found[0], texts + found[1]
            except StoreCorrupt as fault:
                damaged.append(fault)
                failed.update(places)  # a head that cannot be opened keeps its key, and would be found again and again
            _check_not_overtaken(markings, own)
            for _ in range(sum(place.space == SESSION for place in places)):
                sessions += 1
                if progress is not None:
                    progress(sessions, total)
        left = await backend.together(lambda: _places(backend, own))  # which came into being meanwhile
        left = [place for place in left if place not in failed]
    unread = await backend.together(backend.unread)
    if damaged or unread:
        raise next(iter(damaged), None) or StoreCorrupt(store.url, f"{next(iter(unread))}. Its keys are kept")
    await backend.together(markings.finish)
    remains = (await store.scrub(whole=False)).remains  # what would take long would keep others waiting
    return Rotated(key_id=own, sessions=sessions, texts=texts, items=items, remains=remains)


def _check_not_overtaken(markings: Markings, own: str) -> None:
    if markings.writing != own:
        told = f"was overtaken by another one, to the key {markings.writing!r}: all comes under that"
        raise Conflict("the change of keys", told)


async def _home(backend: SealedBackend, places: Sequence[Place]) -> tuple[int, int]:
    """Bring these places of one home under the current key, and its rows; how many items, and rows, were not.

    Again where another change of keys has overtaken it.
    """
    log = Place(places[0].tenant, places[0].home, LOG, "")
    items = texts = 0
    while True:
        own = backend.markings.writing
        for place in places:
            items += await backend.resealer.head(place) and hides(place)
        await backend.resealer.head(log)  # after the heads of the sessions: who has looked at these makes no other
        await backend.resealer.rows(log._replace(space="tree"))
        texts += await backend.resealer.rows(log)
        await backend.markings.refresh()
        if backend.markings.writing == own:
            return items, texts


async def _places(backend: SealedBackend, own: str = "") -> list[Place]:
    """The places that have a head, as they are kept, but for those whose head is under a key already."""
    found: list[Place] = []
    async for tenant in all_tenants(backend):
        there = [one async for one in all_places(backend.below, tenant, "", beneath=True)]
        found += [one.place for one in there if not is_clear(one.place) and key_of(one.head.hot) != own]
    return found

"""A change of keys: everything that an encrypted store holds comes under the current key, while others read and write.

    begin     the store's mark retires the other keys: whoever writes from now on looks at it first, for
    session   each head is moved by one revision, so that a writer who has not looked fails and begins again;
              then the session's records and entries are sealed anew, a stretch at a time
    items     until none is left. Whoever makes a session, or puts an item, looks at the mark once more when that is
              stored, and seals it anew where its key was retired meanwhile: so what comes into being behind the
              change is not forgotten, either
    finish    the mark forgets the other keys, and the store scrubs what it has overwritten

What was done stays done: after a kill, the same again goes on with what is left. With older keys at hand it looks at
everything, also where nothing is known to be left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeAlias

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.encrypted.engine import SealedEngine
from palimpsest.stores.paging import sessions_of

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
    if not isinstance(store, SealedEngine):
        raise ConfigError("rotate-keys", store.url, "an encrypted store, opened with its keys")
    begun = await store.markings.begin()
    if not (begun or store.markings.others):
        return Rotated(key_id=store.markings.writing)
    own = store.markings.writing
    done, texts, damaged = set[SessionKey](), 0, list[StoreCorrupt]()
    while left := [key async for key in _sessions(store) if key not in done]:
        total = len(done) + len(left)  # those that come into being meanwhile are found when these are done
        for key in left:
            done.add(key)
            try:
                texts += await store.seal_anew(key)
            except StoreCorrupt as fault:
                damaged.append(fault)
            _still(store, own)
            if progress is not None:
                progress(len(done), total)
    items = sum([await store.seal_items_anew(tenant) for tenant in await store.tenants()])
    _still(store, own)
    if damaged:
        raise damaged[0]
    await store.markings.finish()
    remains = await store.scrub(whole=False)  # what would take long would keep others waiting
    return Rotated(key_id=own, sessions=len(done), texts=texts, items=items, remains=remains)


def _still(store: SealedEngine, own: str) -> None:
    """Raise Conflict where another change has begun meanwhile, to another key: that one goes on."""
    now = store.markings.writing
    if now != own:
        raise Conflict("the change of keys", f"was overtaken by another one, to the key {now!r}: all comes under that")


async def _sessions(store: SealedEngine) -> AsyncIterator[SessionKey]:
    for tenant in await store.tenants():
        async for one in sessions_of(store, tenant):
            yield SessionKey(tenant, one.session)

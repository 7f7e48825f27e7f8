"""What an encrypted store says of its keys: one item, in clear but for a secret that every one of its keys can open.

`keys` has an entry for each key under which something may be stored. What is written is written under a process's own
current key, unless a change of keys has `retired` that: then under the store's `current` one. So from the moment when a
change begins nothing more comes under the old key, whoever writes.
"""

from __future__ import annotations

import os

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt, StoreTooNew, WrongKey
from palimpsest.errors.secret import Secret
from palimpsest.log.codec import ready
from palimpsest.stores import MARK, Item, Put
from palimpsest.stores.backend import Backend
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.encrypted.sealed_bytes import NONCE, REFUSED, Unsealed, Values
from palimpsest.stores.engine.items import LEASES, Items
from palimpsest.stores.rules import all_places, all_tenants

VERSION = 3

_encode = msgspec.json.Encoder().encode


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The item's content. `keys` has, by key id, the secret that makes tokens of names, sealed under that key."""

    version: int = VERSION
    current: str
    keys: dict[str, bytes]
    retired: tuple[str, ...] = ()


ready(Mark)


def read_mark(url: str, value: bytes) -> Mark:
    """Return what the item says. Raises StoreCorrupt, StoreTooNew."""
    try:
        mark = msgspec.json.decode(value, type=Mark)
    except msgspec.DecodeError as cause:
        raise StoreCorrupt(url, f"what it says of its encryption cannot be read ({cause})") from None
    if mark.version > VERSION:
        raise StoreTooNew(url, mark.version, VERSION)
    if mark.version < VERSION:
        told = f"is encrypted as by version {mark.version}, which this version does not read, and was not changed"
        raise StoreCorrupt(url, f"{told}. Export its sessions with the version that wrote it, and import them")
    return mark


async def _is_empty(backend: Backend) -> bool:
    """Whether nothing of anybody's is stored but leases."""
    async for tenant in all_tenants(backend):
        async for one in all_places(backend, tenant, "", beneath=True):
            if one.place.space != LEASES:
                return False
    return True


class Markings:
    """The mark of a store as it was last seen, and the keys of this process."""

    def __init__(self, backend: Backend, items: Items, keys: Keys, values: Values) -> None:
        self._url, self._writable, self._items = backend.url, backend.writable, items
        self._keys, self._values = keys, values
        self._item: Item | None = None
        self._names = Secret(b"")
        self.mark = Mark(current=keys.current, keys={})

    @classmethod
    async def opened(cls, backend: Backend, items: Items, keys: Keys, values: Values) -> Markings:
        """Read the mark, or make it in a backend that is empty."""
        markings = cls(backend, items, keys, values)
        item = await items.get(*MARK)
        if item is None and not await _is_empty(backend):
            item = await items.get(*MARK)  # another process may have made it meanwhile
            if item is None:
                told = (
                    "None for this store, which holds what is not encrypted: unset PALIMPSEST_KEY where that is set. "
                    "To encrypt it, export it without a key, and import that into a new store"
                )
                raise ConfigError("encryption", keys, told)
        if item is None:
            markings._names = Secret(os.urandom(32))
            if not backend.writable:
                return markings
            item = await markings._written(markings._with(keys.current), 0)
        await markings._take(item or await items.get(*MARK))
        return markings

    @property
    def writing(self) -> str:
        """The id of the key under which this process writes now."""
        own = self._keys.current
        return self.mark.current if own in self.mark.retired else own

    @property
    def secret(self) -> bytes:
        """What makes tokens of names."""
        return self._names.reveal()

    @property
    def others(self) -> tuple[str, ...]:
        """The ids of our keys beside the current one."""
        return tuple(id for id in self._keys.ids if id != self._keys.current)

    async def refresh(self) -> None:
        """See what the store says now. Raises WrongKey where what it is written under is not among our keys."""
        item = await self._items.get(*MARK)
        if item is None or item != self._item:  # one of the same value may have another version: another has written it
            await self._take(item)

    async def begin(self) -> bool:
        """Say that from now on all is written under our current key; return whether that was not said before."""
        own = self._keys.current
        while True:
            await self.refresh()
            others = tuple(sorted({*self.mark.keys, *self.mark.retired} - {own}))
            if self.mark.current == own and self.mark.retired == others and set(self.mark.keys) == {own}:
                return False
            if await self._put(msgspec.structs.replace(self._with(own), current=own, retired=others)):
                return True

    async def finish(self) -> None:
        """Say that nothing is stored under the keys that were retired."""
        while True:
            await self.refresh()
            left = {id: secret for id, secret in self.mark.keys.items() if id not in self.mark.retired}
            if await self._put(msgspec.structs.replace(self.mark, keys=left)):
                return

    async def _take(self, item: Item | None) -> None:
        """Make this what is known, with our current key among the store's."""
        if item is None:
            raise StoreCorrupt(self._url, "what it says of its encryption is missing. Restore it from a backup")
        mark = read_mark(self._url, item.value)
        if not mark.keys:
            raise StoreCorrupt(self._url, "what it says of its encryption names no key. Restore it from a backup")
        for id, sealed in mark.keys.items():
            self._names = Secret(self._opened(id, sealed))
        self._item, self.mark = item, mark
        if self.writing not in mark.keys and self._writable:
            added = await self._written(self._with(self.writing), item.version)
            await self._take(added or await self._items.get(*MARK))

    def _opened(self, id: str, sealed: bytes) -> bytes:
        """The secret as a key has it. Raises WrongKey where ours of this id does not fit, or is missing."""
        try:
            return self._values.cipher(id, ("store",)).decrypt(sealed[:NONCE], sealed[NONCE:], b"names")
        except Unsealed:
            advice = "something is encrypted with it, and it is not among the keys given; give it, too"
        except REFUSED:
            advice = "it is another one than the one of this id that the store is encrypted with"
        raise WrongKey(self._url, id, advice)

    def _with(self, id: str) -> Mark:
        nonce = os.urandom(NONCE)
        sealed = nonce + self._values.cipher(id, ("store",)).encrypt(nonce, self.secret, b"names")
        return msgspec.structs.replace(self.mark, keys={**self.mark.keys, id: sealed})

    async def _put(self, mark: Mark) -> bool:
        item = await self._written(mark, self._item.version if self._item is not None else 0)
        if item is None:
            return False
        self._item, self.mark = item, mark
        return True

    async def _written(self, mark: Mark, version: int) -> Item | None:
        """Store the mark unless another process was first (None)."""
        try:
            tenant, namespace, key = MARK
            return (await self._items.put(tenant, namespace, [Put(key, _encode(mark), expect=version)]))[0]
        except Conflict:
            return None

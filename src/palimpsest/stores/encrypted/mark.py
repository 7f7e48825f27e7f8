"""What an encrypted store says of its keys: one item, in clear but for a secret that every one of its keys can open.

`keys` has an entry for each key under which something may be stored. What is written is written under a process's own
current key, unless a change of keys has `retired` that: then under the store's `current` one. So from the moment when a
change begins nothing more comes under the old key, whoever writes.
"""

from __future__ import annotations

import os
from typing import Protocol

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt, StoreTooNew, WrongKey
from palimpsest.errors.secret import Secret
from palimpsest.stores import MARK, Item
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.encrypted.sealing import Sealer, Unsealed

VERSION = 1
PLACE = "names"
"""The place of the secret, under which names of items become tokens."""

_encode = msgspec.json.Encoder().encode


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The item's content. `keys` has, by key id, the secret that makes tokens of names, sealed under that key."""

    version: int = VERSION
    current: str
    keys: dict[str, str]
    retired: tuple[str, ...] = ()


def read_mark(url: str, value: bytes) -> Mark:
    """Return what the item says. Raises StoreCorrupt, StoreTooNew."""
    try:
        mark = msgspec.json.decode(value, type=Mark)
    except msgspec.DecodeError as cause:
        raise StoreCorrupt(url, f"what it says of its encryption cannot be read ({cause})") from None
    if mark.version > VERSION:
        raise StoreTooNew(url, mark.version, VERSION)
    return mark


class Holds(Protocol):
    """Where the mark is kept."""

    url: str
    writable: bool

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        """As `Store.get_item`."""
        ...

    async def put_item(self, tenant: str, namespace: str, key: str, value: bytes, *, expect: int) -> Item:
        """As `Store.put_item`."""
        ...


async def is_empty(store: Holds) -> bool:
    """Whether nothing of anybody's is stored, as far as the store can tell."""
    tenants = getattr(store, "tenants", None)
    return tenants is None or not await tenants()


class Markings:
    """The mark of a store as it was last seen, and the keys of this process."""

    def __init__(self, store: Holds, keys: Keys, sealer: Sealer) -> None:
        self._store, self._keys, self._sealer = store, keys, sealer
        self._item: Item | None = None
        self.mark = Mark(current=keys.current, keys={})
        self._names = Secret(b"")

    @classmethod
    async def opened(cls, store: Holds, keys: Keys, sealer: Sealer, item: Item | None) -> Markings:
        """Read the mark, `item` if it has been found already, or make it in a store that is empty."""
        markings = cls(store, keys, sealer)
        if item is None and not await is_empty(store):
            item = await store.get_item(*MARK)  # another process may have made it meanwhile
            if item is None:
                allowed = (
                    "None for this store: it holds what is not encrypted. Export that, and import it into a new one"
                )
                raise ConfigError("encryption", keys, allowed)
        if item is None:
            markings._names = Secret(os.urandom(32))
            if not store.writable:
                return markings
            item = await markings._written(markings._with(keys.current), 0)
        await markings._take(item or await store.get_item(*MARK))
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
        item = await self._store.get_item(*MARK)
        if item is None or self._item is None or item.value != self._item.value:
            await self._take(item)

    async def begin(self) -> bool:
        """Say that from now on all is written under our current key; return whether that was not said before."""
        own = self._keys.current
        while True:
            await self.refresh()
            others = tuple(sorted({*self.mark.keys, *self.mark.retired} - {own}))
            if self.mark.current == own and self.mark.retired == others and set(self.mark.keys) == {own}:
                return False
            mark = msgspec.structs.replace(self._with(own), current=own, retired=others)
            if await self._put(mark):
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
            raise StoreCorrupt(self._store.url, "what it says of its encryption is missing. Restore it from a backup")
        mark = read_mark(self._store.url, item.value)
        self._names = Secret(self._opened(mark))
        self._item, self.mark = item, mark
        if self.writing not in mark.keys and self._store.writable:
            added = await self._written(self._with(self.writing), item.version)
            await self._take(added or await self._store.get_item(*MARK))

    def _opened(self, mark: Mark) -> bytes:
        """The secret, as each of our keys has it. Raises WrongKey where one does not fit, or one is missing."""
        if not mark.keys:
            raise StoreCorrupt(self._store.url, "what it says of its encryption names no key. Restore it from a backup")
        secret = b""
        for id, sealed in mark.keys.items():
            try:
                secret = self._sealer.box(("store",), id).open(PLACE, sealed)
            except Unsealed as fault:
                if fault.key_id:
                    advice = "something is encrypted with it, and it is not among the keys given; give it, too"
                    raise WrongKey(self._store.url, id, advice) from None
                advice = "it is another one than the one of this id that the store is encrypted with"
                raise WrongKey(self._store.url, id, advice) from None
        return secret

    def _with(self, id: str) -> Mark:
        sealed = self._sealer.box(("store",), id).seal(PLACE, self.secret)
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
            return await self._store.put_item(*MARK, _encode(mark), expect=version)
        except Conflict:
            return None

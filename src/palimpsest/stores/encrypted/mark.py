"""What an encrypted store says of its keys: one item, in clear but for a secret that every one of its keys can open.

`keys` has an entry for each key under which something may be stored. What is written is written under a process's own
current key, unless a change of keys has `retired` that: then under its heir. So from the moment when a change begins
nothing more comes under the old key, whoever writes.

Whoever can write to the store can change what stands here. So a key is retired only where that is sealed with this very
key: who has one that was taken out of use, and no other, has nobody write under it again.
"""

from __future__ import annotations

import os

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt, StoreTooNew, WrongKey
from palimpsest.errors.secret import Secret
from palimpsest.log.codec import ready
from palimpsest.stores import MARK, Item, Put
from palimpsest.stores.backend import Backend
from palimpsest.stores.encrypted.keys import Keys, is_id
from palimpsest.stores.encrypted.sealed_bytes import NONCE, REFUSED, Unsealed, Values, key_of
from palimpsest.stores.engine.items import LEASES, ORDER, Items
from palimpsest.stores.rules import all_places, all_tenants

VERSION = 3
RESTORE = "Restore it from a backup"
UNPROVED = f"and nobody has said so who has that key: it was changed. {RESTORE}"

NAMES = b"names"
"""What the secret is bound to that makes tokens of names."""


def _bequest(heir: str) -> bytes:
    """What it is bound to where a key is retired and this one takes its place."""
    return b"heir:" + heir.encode()


_encode = msgspec.json.Encoder().encode


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The item's content. `keys` has, by key id, the secret that makes tokens of names, sealed under that key.

    `heirs` has, by the id of a retired key, which key is written with in its place, and that same secret, sealed under
    the retired key for this heir.
    """

    version: int = VERSION
    current: str
    keys: dict[str, bytes]
    retired: tuple[str, ...] = ()
    heirs: dict[str, tuple[str, bytes]] = {}


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
    if not all(map(is_id, (mark.current, *mark.keys, *mark.retired, *mark.heirs))):
        raise StoreCorrupt(url, f"what it says of its encryption names what is no key. {RESTORE}")
    return mark


async def _is_sealed(backend: Backend) -> bool | None:
    """Whether what is stored is sealed, as far as one thing tells; None: nothing of anybody's is there but leases."""
    found = None
    async for tenant in all_tenants(backend):
        async for one in all_places(backend, tenant, "", beneath=True):
            if one.place.space not in (LEASES, ORDER):
                return key_of(one.head.hot) is not None
            found = found if one.place.space == LEASES else False
    return found


class Markings:
    """The mark of a store as it was last seen, and the keys of this process."""

    def __init__(self, backend: Backend, items: Items, keys: Keys, values: Values) -> None:
        self._url, self._writable, self._items = backend.url, backend.writable, items
        self._keys, self._values = keys, values
        self._item: Item | None = None
        self._names = Secret(b"")
        self.mark = Mark(current=keys.current, keys={})
        self.writing = keys.current
        """The id of the key under which this process writes now."""

    @classmethod
    async def opened(cls, backend: Backend, items: Items, keys: Keys, values: Values) -> Markings:
        """Read the mark, or make it in a backend that is empty."""
        markings = cls(backend, items, keys, values)
        item = await items.get(*MARK)
        if item is None and (sealed := await _is_sealed(backend)) is not None:
            item = await items.get(*MARK)  # another process may have made it meanwhile
            if item is None and sealed:
                raise StoreCorrupt(backend.url, f"what it says of its encryption is missing. {RESTORE}")
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
            told = {id for id in others if id in self.mark.heirs} == set(others)
            if self.mark.current == own and self.mark.retired == others and set(self.mark.keys) == {own} and told:
                return False
            held = {id: (own, self._sealed(id, _bequest(own))) for id in others if id in self._keys.ids}
            heirs = {id: heir for id, heir in (self.mark.heirs | held).items() if id in others}
            if await self._put(msgspec.structs.replace(self._with(own), current=own, retired=others, heirs=heirs)):
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
            raise StoreCorrupt(self._url, f"what it says of its encryption is missing. {RESTORE}")
        mark = read_mark(self._url, item.value)
        if not mark.keys:
            raise StoreCorrupt(self._url, f"what it says of its encryption names no key. {RESTORE}")
        names = {self._opened(id, sealed) for id, sealed in mark.keys.items()}
        if len(names) > 1:
            raise StoreCorrupt(self._url, f"what it says of its encryption is of two stores. {RESTORE}")
        self._names = Secret(names.pop())
        self._item, self.mark, self.writing = item, mark, self._heir(mark)
        if self.writing not in mark.keys and self._writable:
            added = await self._written(self._with(self.writing), item.version)
            await self._take(added or await self._items.get(*MARK))

    def _heir(self, mark: Mark) -> str:
        """The key that is written with: our current one, or the one that has come in its place.

        Raises WrongKey where that is not among ours, StoreCorrupt where nobody who has the retired key has said so.
        """
        id, seen = self._keys.current, set[str]()
        while id in mark.retired:
            heir, proof = mark.heirs.get(id, ("", b""))
            names = self._opened(id, proof, _bequest(heir), told=f"it says that the key {id!r} is retired")
            if names != self.secret or id in seen:
                raise StoreCorrupt(self._url, f"it says that the key {id!r} is retired, {UNPROVED}")
            seen.add(id)
            id = heir
        return id

    def _opened(self, id: str, sealed: bytes, what: bytes = NAMES, *, told: str = "") -> bytes:
        """The secret as a key has it. Raises WrongKey where ours of this id does not fit, or is missing.

        Where our current one fits, and what is `told` is not so, it raises StoreCorrupt."""
        try:
            return self._values.cipher(id, ("store",)).decrypt(sealed[:NONCE], sealed[NONCE:], what)
        except Unsealed:
            advice = "something is encrypted with it, and it is not among the keys given; give it, too"
        except REFUSED:
            if told:
                raise StoreCorrupt(self._url, f"{told}, {UNPROVED}") from None
            advice = "it is another one than the one of this id that the store is encrypted with"
        raise WrongKey(self._url, id, advice)

    def _sealed(self, id: str, what: bytes = NAMES) -> bytes:
        """The secret, as `_opened` opens it."""
        nonce = os.urandom(NONCE)
        return nonce + self._values.cipher(id, ("store",)).encrypt(nonce, self.secret, what)

    def _with(self, id: str) -> Mark:
        return msgspec.structs.replace(self.mark, keys={**self.mark.keys, id: self._sealed(id)})

    async def _put(self, mark: Mark) -> bool:
        item = await self._written(mark, self._item.version if self._item is not None else 0)
        if item is None:
            return False
        self._item, self.mark, self.writing = item, mark, self._heir(mark)
        return True

    async def _written(self, mark: Mark, version: int) -> Item | None:
        """Store the mark unless another process was first (None)."""
        try:
            tenant, namespace, key = MARK
            return (await self._items.put(tenant, namespace, [Put(key, _encode(mark), expect=version)]))[0]
        except Conflict:
            return None

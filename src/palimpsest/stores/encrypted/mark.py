"""The mark of an encrypted store: one item that says under which keys something may be stored.

It is in clear, but for a secret that each of the store's keys can open. `keys` has an entry for each key under which
something may be stored. A process writes under its own current key, unless a change of keys has `retired` that: then
under the key's heir. So once a change of keys has begun, no process writes under an old key.

Whoever can write to the store can also change the mark. So a key counts as retired only where that is sealed with this
very key: somebody who has nothing but a key taken out of use cannot make processes write under that key again.
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
UNPROVED = f"but this was not written with that key: somebody changed it. {RESTORE}"

NAMES = b"names"
"""Associated data of the sealed secret in `Mark.keys`. Tokens of names are made from that secret."""


def _bequest(heir: str) -> bytes:
    """Return the associated data of the sealed secret that proves a key retired, with `heir` in its place."""
    return b"heir:" + heir.encode()


_encode = msgspec.json.Encoder().encode


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The item's content.

    `keys` has, by key id, the secret from which tokens of names are made, sealed under that key. `heirs` has, by the id
    of a retired key, the id of the key to write with instead, and the same secret, sealed under the retired key and
    bound to that heir.
    """

    version: int = VERSION
    current: str
    keys: dict[str, bytes]
    retired: tuple[str, ...] = ()
    heirs: dict[str, tuple[str, bytes]] = {}


ready(Mark)


def read_mark(url: str, value: bytes) -> Mark:
    """Decode the mark's item. Raises StoreCorrupt, StoreTooNew."""
    try:
        mark = msgspec.json.decode(value, type=Mark)
    except msgspec.DecodeError as cause:
        raise StoreCorrupt(url, f"its record of its encryption cannot be read ({cause}). {RESTORE}") from None
    if mark.version > VERSION:
        raise StoreTooNew(url, mark.version, VERSION)
    if mark.version < VERSION:
        reason = f"is encrypted in format version {mark.version}, which this version does not read, and was not changed"
        raise StoreCorrupt(url, f"{reason}. Export its sessions with the version that wrote it, and import them")
    if not all(map(is_id, (mark.current, *mark.keys, *mark.retired, *mark.heirs))):
        raise StoreCorrupt(url, f"its record of its encryption has an invalid key id. {RESTORE}")
    return mark


async def _is_sealed(backend: Backend) -> bool | None:
    """Return whether the store's places are sealed, judged by the first one; None if there are only leases.

    The counter of a namespace, which is never sealed, counts as unsealed if it is alone.
    """
    sealed = None
    async for tenant in all_tenants(backend):
        async for row in all_places(backend, tenant, "", beneath=True):
            if row.place.space not in (LEASES, ORDER):
                return key_of(row.head.hot) is not None
            sealed = sealed if row.place.space == LEASES else False
    return sealed


class Markings:
    """The mark of a store as it was last seen, with the keys of this process."""

    def __init__(self, backend: Backend, items: Items, keys: Keys, values: Values) -> None:
        self._url, self._writable, self._items = backend.url, backend.writable, items
        self._keys, self._values = keys, values
        self._item: Item | None = None
        self._names = Secret(b"")
        self.mark = Mark(current=keys.current, keys={})
        self.writing = keys.current
        """The id of the key under which this process writes: its current one, or that one's heir."""

    @classmethod
    async def opened(cls, backend: Backend, items: Items, keys: Keys, values: Values) -> Markings:
        """Read the mark; make it if the backend is empty.

        Raises StoreCorrupt for sealed data without a mark, ConfigError for unencrypted data, and WrongKey.
        """
        markings = cls(backend, items, keys, values)
        item = await items.get(*MARK)
        if item is None and (sealed := await _is_sealed(backend)) is not None:
            item = await items.get(*MARK)  # another process may have made it since
            if item is None and sealed:
                raise StoreCorrupt(backend.url, f"its record of its encryption is missing. {RESTORE}")
            if item is None:
                advice = (
                    "None for this store, which has data that is not encrypted: if PALIMPSEST_KEY is set, unset it. To "
                    "encrypt it, export it without a key, and import that into a new store"
                )
                raise ConfigError("encryption", keys, advice)
        if item is None:
            markings._names = Secret(os.urandom(32))
            if not backend.writable:
                return markings
            item = await markings._written(markings._with(keys.current), 0)
        await markings._take(item or await items.get(*MARK))
        return markings

    @property
    def secret(self) -> bytes:
        """The secret from which tokens of names are made."""
        return self._names.reveal()

    @property
    def others(self) -> tuple[str, ...]:
        """The ids of this process's keys other than its current one."""
        return tuple(id for id in self._keys.ids if id != self._keys.current)

    async def refresh(self) -> None:
        """Read the mark again. Raises WrongKey when the key that is now to be written with is not among ours."""
        item = await self._items.get(*MARK)
        # Versions are compared, too: another process may have written an equal value.
        if item is None or item != self._item:
            await self._take(item)

    async def begin(self) -> bool:
        """Retire all keys but our current one. Return False if the mark says so already, and has no other key left."""
        own = self._keys.current
        while True:
            await self.refresh()
            others = tuple(sorted({*self.mark.keys, *self.mark.retired} - {own}))
            have_heirs = all(id in self.mark.heirs for id in others)
            if self.mark.current == own and self.mark.retired == others and set(self.mark.keys) == {own} and have_heirs:
                return False
            proved = {id: (own, self._sealed(id, _bequest(own))) for id in others if id in self._keys.ids}
            heirs = {id: heir for id, heir in (self.mark.heirs | proved).items() if id in others}
            if await self._put(msgspec.structs.replace(self._with(own), current=own, retired=others, heirs=heirs)):
                return True

    async def finish(self) -> None:
        """Take the retired keys out of the mark: nothing is stored under them any more."""
        while True:
            await self.refresh()
            remaining = {id: secret for id, secret in self.mark.keys.items() if id not in self.mark.retired}
            if await self._put(msgspec.structs.replace(self.mark, keys=remaining)):
                return

    async def _take(self, item: Item | None) -> None:
        """Take this item as the mark, and add the key that we write with if the mark does not have it."""
        if item is None:
            raise StoreCorrupt(self._url, f"its record of its encryption is missing. {RESTORE}")
        mark = read_mark(self._url, item.value)
        if not mark.keys:
            raise StoreCorrupt(self._url, f"its record of its encryption names no key. {RESTORE}")
        secrets = {self._opened(id, sealed) for id, sealed in mark.keys.items()}
        if len(secrets) > 1:
            raise StoreCorrupt(self._url, f"its record of its encryption has keys of two stores. {RESTORE}")
        self._names = Secret(secrets.pop())
        self._item, self.mark, self.writing = item, mark, self._heir(mark)
        if self.writing not in mark.keys and self._writable:
            written = await self._written(self._with(self.writing), item.version)
            await self._take(written or await self._items.get(*MARK))

    def _heir(self, mark: Mark) -> str:
        """Return the id of the key to write with: our current one, or the last of its heirs.

        Raises WrongKey when a key of that chain is not among ours, StoreCorrupt when a retirement is not proved by the
        retired key itself.
        """
        id, seen = self._keys.current, set[str]()
        while id in mark.retired:
            heir, proof = mark.heirs.get(id, ("", b""))
            claim = f"its record of its encryption says that the key {id!r} is retired"
            # A key that is still in the mark has opened the secret there, so it is ours that fits.
            secret = self._opened(id, proof, _bequest(heir), claim=claim if id in mark.keys else "")
            if secret != self.secret or id in seen:
                raise StoreCorrupt(self._url, f"{claim}, {UNPROVED}")
            seen.add(id)
            id = heir
        return id

    def _opened(self, id: str, sealed: bytes, associated: bytes = NAMES, *, claim: str = "") -> bytes:
        """Open the secret with one of our keys. Raises WrongKey when our key of this id is missing or another one.

        With a `claim` it raises StoreCorrupt instead of the latter: our key is known to fit, so the claim is forged.
        """
        try:
            return self._values.cipher(id, ("store",)).decrypt(sealed[:NONCE], sealed[NONCE:], associated)
        except Unsealed:
            advice = "some data is encrypted with it, and it is not among the given keys; give it, too"
        except REFUSED:
            if claim:
                raise StoreCorrupt(self._url, f"{claim}, {UNPROVED}") from None
            advice = "the store is encrypted with another key of this id; give that one"
        raise WrongKey(self._url, id, advice)

    def _sealed(self, id: str, associated: bytes = NAMES) -> bytes:
        """Seal the secret so that `_opened` opens it."""
        nonce = os.urandom(NONCE)
        return nonce + self._values.cipher(id, ("store",)).encrypt(nonce, self.secret, associated)

    def _with(self, id: str) -> Mark:
        """Return the mark with this key added."""
        return msgspec.structs.replace(self.mark, keys={**self.mark.keys, id: self._sealed(id)})

    async def _put(self, mark: Mark) -> bool:
        """Store the mark in the place of the one last seen. Return whether no other process was first."""
        item = await self._written(mark, self._item.version if self._item is not None else 0)
        if item is None:
            return False
        self._item, self.mark, self.writing = item, mark, self._heir(mark)
        return True

    async def _written(self, mark: Mark, version: int) -> Item | None:
        """Store the mark over the one of this version; None if another process was first."""
        try:
            tenant, namespace, key = MARK
            return (await self._items.put(tenant, namespace, [Put(key, _encode(mark), expect=version)]))[0]
        except Conflict:
            return None

"""Encryption at rest: a store around any other, which keeps what it holds under keys that it never sees.

    master key       32 bytes of yours, under an id; several at once, one of which is current
      tenant's key   HKDF-SHA256 of it, the tenant in the info
        session's    HKDF-SHA256 of that: texts of entries, heads and records
        items'       the same: values of namespaces, and their keys

Everything that is text is sealed with AES-256-GCM as `sealed:1:KEY ID:BASE64` of nonce, ciphertext and tag, and bound
to its place: the entry's seq and id, the record's revision, the item's key. The stores below see ids, kinds, links,
counts and times, and link, compact, erase and expire by these as ever. `docs/stores.md` lists what stays in clear: that
is authenticated, by what `notary` adds to heads, records and tombstones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from palimpsest.errors import WrongKey
from palimpsest.stores.encrypted.keys import Keys

if TYPE_CHECKING:
    from palimpsest.stores import Item, Store

Encryption: TypeAlias = Keys | Mapping[str, str | bytes] | str
"""What `encryption=` takes: keys, a mapping of key ids to keys, or the text that `PALIMPSEST_KEY` has."""


async def unlock(store: Store, mark: Item | None, encryption: Encryption | None, clock: Callable[[], int]) -> Store:
    """Return the store as these keys read it; `mark` is what it says of its encryption (None: it says nothing).

    Raises WrongKey where it is encrypted and they do not fit, or none were given; ConfigError where it holds what is
    not encrypted; MissingExtra without the extra.
    """
    from palimpsest.stores.encrypted.mark import Markings, read_mark  # only where something is unlocked

    if encryption is None:
        assert mark is not None, "a store that is not encrypted needs no unlocking"
        current = read_mark(store.url, mark.value).current
        advice = "it is encrypted: open it with encryption=Keys(...) that has this key, or set PALIMPSEST_KEY"
        raise WrongKey(store.url, current, f"{advice} for the command line")
    from palimpsest.stores.encrypted.sealing import Sealer  # needs the extra
    from palimpsest.stores.encrypted.store import EncryptedStore

    keys = Keys.of(encryption)
    sealer = Sealer(keys)
    markings = await Markings.opened(store, keys, sealer, mark)
    return EncryptedStore(store, sealer, markings, clock)

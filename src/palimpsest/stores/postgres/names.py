"""How names are escaped in text columns, and the keys that are hashed from them. Pure.

PostgreSQL cannot store NUL in a text. So U+0000, U+0001 and U+0002 are each escaped as two characters that begin with
U+0002. Different names stay different, escaped names sort by code point like the names themselves, and common prefixes
are kept. U+0001 is then free to separate the names in an address.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from asyncpg.pgproto.pgproto import UUID

from palimpsest.stores.backend import Place

BETWEEN = "\x01"
BEHIND = "\x02"
"""Appended to a tenant's name, gives a text that sorts behind all addresses of that tenant, and before those of
every tenant whose longer name begins with it."""

LONGEST = 100
"""Characters up to which a table's name is stored as it is. A longer one is shortened and ends in a hash; its whole
name is stored in another column."""

_KEPT = 8192

_OUT = {"\x00": "\x02\x03", "\x01": "\x02\x04", "\x02": "\x02\x05"}
_TABLE = str.maketrans(_OUT)


def text_of(name: str) -> str:
    """Return a name as it is stored in a column."""
    if name.isprintable():  # nearly all names: nothing to escape
        return name
    return name.translate(_TABLE)


def name_of(text: str) -> str:
    """Return the name that is stored as this text: the inverse of `text_of`."""
    if BEHIND not in text:
        return text
    first, *rest = text.split(BEHIND)
    return first + "".join(chr(max(ord(part[0]) - 3, 0)) + part[1:] for part in rest if part)


@lru_cache(_KEPT)
def address_of(place: Place) -> str:
    """Return the address of a place, a single text. Addresses sort by tenant, space, name and home."""
    tenant, home, space, name = place
    return BETWEEN.join(map(text_of, (tenant, space, name, home)))


def place_of(address: str) -> Place | None:
    """Return the place that has this address, or None if the text is not an address."""
    parts = address.split(BETWEEN)
    if len(parts) != 4:
        return None
    tenant, space, name, home = map(name_of, parts)
    return Place(tenant, home, space, name)


@lru_cache(_KEPT)
def home_key(tenant: str, home: str) -> int:
    """Return the number of a home, 64 bits of a hash: the first column of every key, by which data is partitioned."""
    text = BETWEEN.join(map(text_of, (tenant, home)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


@lru_cache(_KEPT)
def place_key(place: Place) -> UUID:
    """Return the key of a place: 128 bits of a hash of its address, as the driver's own UUID type."""
    return UUID(blake2b(address_of(place).encode(), digest_size=16).digest())


@lru_cache(_KEPT)
def table_key(name: str) -> tuple[str, str | None]:
    """Return a table's name as it is stored in the key of a row, and its whole name if that was shortened, or None."""
    text = text_of(name)
    if len(text) <= LONGEST:
        return text, None
    return text[: LONGEST - 40] + BETWEEN + blake2b(text.encode(), digest_size=16).hexdigest(), text

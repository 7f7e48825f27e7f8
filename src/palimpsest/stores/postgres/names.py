"""How names are kept in columns of text, and the keys that are made of them. Pure.

PostgreSQL keeps no NUL in a text. So the first three characters there are stand as two each, in the same order. No two
names meet by that, and those that sort by code point, or begin alike, still do. U+0001 is left to stand between the
names of an address.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from asyncpg.pgproto.pgproto import UUID

from palimpsest.stores.backend import Place

BETWEEN = "\x01"
BEHIND = "\x02"
"""What every address of a name that goes on sorts behind, and none of the name itself."""

LONGEST = 100
"""Characters of a table's name that is kept as it is: longer ones have a hash for an end, and stand whole beside it."""

_KEPT = 8192

_OUT = {"\x00": "\x02\x03", "\x01": "\x02\x04", "\x02": "\x02\x05"}
_TABLE = str.maketrans(_OUT)


def text_of(name: str) -> str:
    """A name as it stands in a column."""
    if name.isprintable():  # as nearly all are
        return name
    return name.translate(_TABLE)


def name_of(text: str) -> str:
    """The name that stands in a column so."""
    if BEHIND not in text:
        return text
    first, *rest = text.split(BEHIND)
    return first + "".join(chr(max(ord(part[0]) - 3, 0)) + part[1:] for part in rest if part)


@lru_cache(_KEPT)
def address_of(place: Place) -> str:
    """A place as one text. Such texts sort by tenant, space, name and home."""
    tenant, home, space, name = place
    return BETWEEN.join(map(text_of, (tenant, space, name, home)))


def place_of(address: str) -> Place | None:
    """The place of an address; None for what is none."""
    parts = address.split(BETWEEN)
    if len(parts) != 4:
        return None
    tenant, space, name, home = map(name_of, parts)
    return Place(tenant, home, space, name)


@lru_cache(_KEPT)
def home_key(tenant: str, home: str) -> int:
    """The number by which all of a home is found, and spread: 64 bits of a hash."""
    text = BETWEEN.join(map(text_of, (tenant, home)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


@lru_cache(_KEPT)
def place_key(place: Place) -> UUID:
    """What a place is told from all others by: 128 bits of a hash of its address, in the driver's own kind of UUID."""
    return UUID(blake2b(address_of(place).encode(), digest_size=16).digest())


@lru_cache(_KEPT)
def table_key(name: str) -> tuple[str, str | None]:
    """A table's name as it stands in the key of a row, and whole where that is not all of it."""
    text = text_of(name)
    if len(text) <= LONGEST:
        return text, None
    return text[: LONGEST - 40] + BETWEEN + blake2b(text.encode(), digest_size=16).hexdigest(), text

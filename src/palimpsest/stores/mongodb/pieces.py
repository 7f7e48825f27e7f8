"""Values that are too large for the document they belong to: in pieces, with what refers to them in their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from palimpsest.stores.backend import Ask, PlaceHead, Seen
from palimpsest.stores.mongodb.layout import home_of
from palimpsest.stores.mongodb.rows import SUM, Apart, Doc

PIECE = 4 * 1024 * 1024
"""Bytes of a piece."""


def reference(number: bytes, size: int) -> bytes:
    """What stands for a value in pieces."""
    return number + size.to_bytes(8)


def piece_keys(home: bytes, reference: bytes) -> list[bytes]:
    """The keys of its pieces, in order."""
    count = -(-int.from_bytes(reference[SUM:]) // PIECE)
    return [home + b"v" + reference[:SUM] + number.to_bytes(4) for number in range(count)]


def in_pieces(home: bytes, reference: bytes, value: bytes) -> list[Doc]:
    """The documents that keep a value."""
    keys = enumerate(piece_keys(home, reference))
    return [{"_id": key, "home": home, "v": value[i * PIECE : (i + 1) * PIECE]} for i, key in keys]


def apart_in(asks: Sequence[Ask], seen: Sequence[Seen]) -> list[tuple[bytes, bytes]]:
    """References to values, in what was seen, with their homes."""
    found = dict[tuple[bytes, bytes], None]()
    for ask, one in zip(asks, seen, strict=True):
        heads = (one.head.hot, one.head.cold) if one.head is not None else ()
        values = [*heads, *(value for rows in one.rows for _, value, *_ in rows)]
        home = home_of(ask.place.tenant, ask.place.home)
        found.update(((home, bytes(value)), None) for value in values if isinstance(value, Apart))
    return list(found)


def filled(seen: Iterable[Seen], values: dict[bytes, bytes]) -> list[Seen]:
    """The same with the values in the places of references."""

    def full(value: bytes) -> bytes:
        return values[bytes(value)] if isinstance(value, Apart) else value

    return [
        Seen(
            None if one.head is None else PlaceHead(full(one.head.hot), full(one.head.cold)),
            [[(key, full(value), id, expires) for key, value, id, expires in rows] for rows in one.rows],
        )
        for one in seen
    ]

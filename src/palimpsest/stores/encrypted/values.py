"""How heads and rows stand in a store as sealed bytes, each bound to its address. Knows no stores.

value     2, the id of the key with its length before it, a row's token with its length before it, nonce, ciphertext
hot       the life of the head, how often it was moved, what its cold value is bound to, when it expires, the name of
          its place with its length before it: then it
cold      the notes of the head with their length before them: then it
row       its id and when it expires, where it has either: then its value
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

import msgspec

from palimpsest.log.spans import Span
from palimpsest.stores.backend import Cells, Place, PlaceHead, Row
from palimpsest.stores.encrypted.notes import NOTHING, Notes
from palimpsest.stores.encrypted.sealing import NONCE, REFUSED, Sealer, Unsealed, joined

VERSION = 2
LIFE = 8
"""Bytes that tell a head, from when it is made until it goes, from every other of its place."""

NUMBER = 8
BOUND = 8
NEVER = 2**64 - 1
UNBOUND = bytes(BOUND)
"""What a hot value says of a cold one that there is none of."""


class Known(NamedTuple):
    """A head as it was opened, or sealed. `reads` are the spans of keys of logs that it vouches for, its own first."""

    stored: PlaceHead
    plain: PlaceHead
    key_id: str
    life: bytes
    moves: int
    bound: bytes = UNBOUND
    notes: Notes = NOTHING
    name: str = ""
    expires: int | None = None
    reads: tuple[Span, ...] = ()


class Values:
    """Seals and opens the values of a store."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    # --- heads

    def head(self, place: Place, known: Known, key_id: str, name: str) -> Known:
        """The head as it is stored, one move on, under a key: all that is not `stored` of `known` is to be so.

        A cold value that is bound already stays as it is stored.
        """
        cold, bound, moves = known.stored.cold, known.bound, known.moves + 1
        if not bound:
            notes = known.notes.dump()
            bound = UNBOUND
            cold = b""
            if known.plain.cold or notes:
                bound = os.urandom(BOUND)
                plain = len(notes).to_bytes(4) + notes + known.plain.cold
                cold = self._sealed(place, key_id, _where(b"c", place), known.life + bound, plain)
        named, expires = name.encode(), NEVER if known.expires is None else known.expires
        told = b"%b%b%b%b%b%b%b" % (
            known.life,
            moves.to_bytes(NUMBER),
            bound,
            expires.to_bytes(NUMBER),
            len(named).to_bytes(2),
            named,
            known.plain.hot,
        )
        hot = self._sealed(place, key_id, _where(b"h", place), b"", told)
        return known._replace(stored=PlaceHead(hot, cold), key_id=key_id, moves=moves, bound=bound, name=name)

    def opened(self, place: Place, stored: PlaceHead, before: Known | None) -> Known:
        """The head that is stored. Of `before`, which was, a cold value need not be opened again. Raises Unsealed."""
        key_id, _, told = self._opened(place, _where(b"h", place), stored.hot)
        life, moves, bound = told[:8], int.from_bytes(told[8:16]), told[16:24]
        when, end = int.from_bytes(told[24:32]), 34 + int.from_bytes(told[32:34])
        name, plain, expires = told[34:end].decode(), PlaceHead(told[end:]), None if when == NEVER else when
        if before is not None and before.stored.cold == stored.cold and (before.life, before.bound) == (life, bound):
            plain = PlaceHead(plain.hot, before.plain.cold)
            return Known(stored, plain, key_id, life, moves, bound, before.notes, name, expires)
        cold, notes = b"", NOTHING
        if bound != UNBOUND:
            _, token, raw = self._opened(place, _where(b"c", place), stored.cold)
            if token != life + bound:
                raise Unsealed("is not as it was committed: its rarely changed part is of another time")
            end = 4 + int.from_bytes(raw[:4])
            cold, notes = raw[end:], Notes.load(raw[4:end])
        elif stored.cold:
            raise Unsealed("is not as it was committed: it has a part more than it had")
        return Known(stored, PlaceHead(plain.hot, cold), key_id, life, moves, bound, notes, name, expires)

    # --- rows

    def row(self, place: Place, table: str, row: Cells, token: bytes, key_id: str, found_by: str) -> Row:
        """The row as it is stored."""
        key, value, id, expires = row
        about = msgspec.json.encode((id, expires)) if id or expires is not None else b""
        plain = len(about).to_bytes(2) + about + value
        return Row(key, self._sealed(place, key_id, _row(place, table, key), token, plain), found_by, expires)

    def row_opened(self, place: Place, table: str, row: Cells) -> tuple[Row, bytes]:
        """The row as it was sealed, and its token. Raises Unsealed."""
        key, value, _, _ = row
        _, token, plain = self._opened(place, _row(place, table, key), value)
        end = 2 + int.from_bytes(plain[:2])
        id, expires = msgspec.json.decode(plain[2:end], type=tuple[str, int | None]) if end > 2 else ("", None)
        return Row(key, plain[end:], id, expires), token

    # --- both

    def _sealed(self, place: Place, key_id: str, where: bytes, token: bytes, plain: bytes) -> bytes:
        nonce, id = os.urandom(NONCE), key_id.encode("ascii")
        cipher = self._sealer.cipher(key_id, ("home", place[0], place[1]))
        sealed = cipher.encrypt(nonce, plain, where + token)
        return b"%c%c%b%c%b%b%b" % (VERSION, len(id), id, len(token), token, nonce, sealed)

    def _opened(self, place: Place, where: bytes, value: bytes) -> tuple[str, bytes, bytes]:
        key_id = key_of(value)
        if key_id is None:
            raise Unsealed("is not encrypted, though its store is: it was not written with these keys")
        try:
            at = 3 + len(key_id)
            end = at + value[at - 1]
            token, nonce, sealed = value[at:end], value[end : end + NONCE], value[end + NONCE :]
            cipher = self._sealer.cipher(key_id, ("home", place[0], place[1]))
            return key_id, token, cipher.decrypt(nonce, sealed, where + token)
        except Unsealed:
            raise
        except (*REFUSED, IndexError):
            told = f"cannot be decrypted with the key {key_id!r}: it was changed, or comes from another place"
            raise Unsealed(told) from None


def key_of(value: bytes) -> str | None:
    """The id of the key that a value is sealed under; None for one that is not sealed."""
    if len(value) < 3 or value[0] != VERSION:
        return None
    id = value[2 : 2 + value[1]]
    return id.decode() if id and id.isascii() else None


@lru_cache(4096)
def _where(what: bytes, place: Place, table: str = "") -> bytes:
    """What a value of this place is bound to, but for its key."""
    return what + joined((*place, table))


def _row(place: Place, table: str, key: int) -> bytes:
    return _where(b"r", place, table) + key.to_bytes(8)

"""How heads and rows stand in a store as sealed bytes, each bound to its address; which keys are derived for what.

A value is a version, the id of the key with its length before it, a row's token with its length before it, nonce and
ciphertext. What is sealed is MessagePack: of rows the value, the id and the expiry; of heads see `Hot` and `Cold`.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from palimpsest.errors import MissingExtra, StoreCorrupt, StoreError, WrongKey
from palimpsest.stores.backend import Cells, Place, PlaceHead, Row
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.encrypted.notes import NOTHING, Notes
from palimpsest.stores.engine.forms import Spoilt

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as missing:
    raise MissingExtra("encryption", "encryption") from missing

VERSION = 2
LIFE = BOUND = 8
NONCE = 12
REFUSED = (InvalidTag, ValueError)
"""What a cipher raises for what it has not sealed so."""

KEPT = 4096
"""Derived keys that are kept, so that one is derived once a home."""

Scope = tuple[str, ...]
"""What a key is derived for: ("store",) or ("home", tenant, home)."""

_encode = msgspec.msgpack.Encoder().encode


class Unsealed(ValueError):
    """Bytes are not sealed, or not as they were sealed; where it is for want of a key, `key_id` names that."""

    def __init__(self, why: str, key_id: str = "") -> None:
        self.why, self.key_id = why, key_id
        super().__init__(why)

    def told(self, url: str, what: str) -> StoreError:
        """The error of ours about `what` in the store."""
        if self.key_id:
            return WrongKey(url, self.key_id, f"{what} {self.why}")
        return StoreCorrupt(url, f"{what} {self.why}")


class Floor(NamedTuple):
    """The life of the head of a home's log, and its moves, as of some moment; nothing and 0 where there was none."""

    life: bytes = b""
    moves: int = 0


class SealedHead(NamedTuple):
    """A head as it was opened, or sealed: `stored` as the backend below has it, `plain` as the engine knows it.

    `life`, `moves` and `floor`, and for the head of a log `notes` and `floors`, are as the package's page has them.
    `bound` is random, and in both of its values, so that no cold one goes with a hot one of another time: b"" where
    there is no cold value, None where that is to be sealed anew. `name` is an item's, whose place has a token for it.
    """

    stored: PlaceHead
    plain: PlaceHead
    key_id: str = ""
    life: bytes = b""
    moves: int = 0
    bound: bytes | None = None
    expires: int | None = None
    name: str = ""
    floor: Floor = Floor()
    notes: Notes = NOTHING
    floors: Mapping[str, int] = {}

    def is_before(self, other: SealedHead) -> bool:
        """Whether it is an earlier one than that."""
        return self.life == other.life and self.moves < other.moves

    @classmethod
    def unread(cls, stored: PlaceHead, why: str) -> SealedHead:
        """One that cannot be opened, or is none that may be: nobody reads it, and it can be taken away."""
        hot = Unread.of(stored.hot, why)
        hot.sealed = cls(stored, PlaceHead(hot))
        return hot.sealed


class Unread(Spoilt):
    """In the place of the hot value of a head that cannot be opened: what is `sealed` is what stands there."""

    sealed: SealedHead


Hot = tuple[bytes, int, bytes, int | None, str, bytes, int, bytes]
"""Life, moves, bound, expiry, the name of an item, the two of the floor, and the hot value."""

Cold = tuple[dict[str, dict[int, dict[bytes, bytes]]], dict[str, int], bytes]
"""The notes of the head, its floors, and the cold value."""

_hot, _cold = msgspec.msgpack.Decoder(Hot).decode, msgspec.msgpack.Decoder(Cold).decode
_row = msgspec.msgpack.Decoder(tuple[bytes, str, int | None]).decode


class Values:
    """Seals and opens the values of a store, under these keys; what it derives from them it keeps."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._derived: dict[tuple[str, Scope], AESGCM] = {}

    def cipher(self, key_id: str, scope: Scope) -> AESGCM:
        """The cipher of a scope. Raises Unsealed for a key that is not there."""
        found = self._derived.get((key_id, scope))
        if found is not None:
            return found
        key = self._keys.secret(key_id)
        if key is None:
            raise Unsealed("is encrypted with it, and it is not among the keys given", key_id)
        purpose, *names = scope
        if names:
            tenant, *names = names
            key = _hkdf(key, "tenant", tenant)
        if len(self._derived) >= KEPT:
            self._derived.clear()
        cipher = self._derived[key_id, scope] = AESGCM(_hkdf(key, purpose, *names))
        return cipher

    # --- heads

    def head(self, place: Place, known: SealedHead, key_id: str) -> SealedHead:
        """The head as it is stored, one move on, under a key: all that is not `stored` of `known` is to be so.

        A cold value that is bound already stays as it is stored.
        """
        cold, bound, moves, (life, least) = known.stored.cold, known.bound, known.moves + 1, known.floor
        if bound is None:
            cold = bound = b""
            if known.plain.cold or known.notes.tables or known.floors:
                bound = os.urandom(BOUND)
                plain = _encode((known.notes.tables, known.floors, known.plain.cold))
                cold = self._sealed(place, key_id, _where("cold", place), known.life + bound, plain)
        told = _encode((known.life, moves, bound, known.expires, known.name, life, least, known.plain.hot))
        hot = self._sealed(place, key_id, _where("hot", place), b"", told)
        return known._replace(stored=PlaceHead(hot, cold), key_id=key_id, moves=moves, bound=bound)

    def opened(self, place: Place, stored: PlaceHead, before: SealedHead | None) -> SealedHead:
        """The head that is stored. Of `before`, which was, a cold value need not be opened again. Raises Unsealed."""
        key_id, _, told = self._opened(place, _where("hot", place), stored.hot)
        life, moves, bound, expires, name, floor, least, hot = _hot(told)
        cold, notes = b"", NOTHING
        floors: Mapping[str, int] = {}
        if before is not None and before.stored.cold == stored.cold and (before.life, before.bound) == (life, bound):
            cold, notes, floors = before.plain.cold, before.notes, before.floors
        elif bound:
            _, token, raw = self._opened(place, _where("cold", place), stored.cold)
            if token != life + bound:
                raise Unsealed("is not as it was committed: its rarely changed part is of another time")
            tables, floors, cold = _cold(raw)
            notes = Notes(tables)
        elif stored.cold:
            raise Unsealed("is not as it was committed: it has a part more than it had")
        plain = PlaceHead(hot, cold)
        return SealedHead(stored, plain, key_id, life, moves, bound, expires, name, Floor(floor, least), notes, floors)

    # --- rows

    def row(self, place: Place, table: str, row: Cells, token: bytes, key_id: str, found_by: str) -> Row:
        """The row as it is stored."""
        key, value, id, expires = row
        where = _where("row", place, table) + key.to_bytes(8)
        return Row(key, self._sealed(place, key_id, where, token, _encode((value, id, expires))), found_by, expires)

    def opener(self, place: Place, table: str) -> Callable[[Cells], tuple[Cells, bytes]]:
        """What opens rows of a table: it returns a row as it was sealed, and its token. That raises Unsealed."""
        where, ciphers = _where("row", place, table), dict[bytes, AESGCM]()

        def opened(row: Cells) -> tuple[Cells, bytes]:
            key, sealed = row[0], row[1]
            at = 3 + sealed[1] if len(sealed) > 1 else 0
            header = sealed[:at]
            cipher = ciphers.get(header)  # most rows of a table have one key, and none a token
            if cipher is None:
                _, token, plain = self._opened(place, where + key.to_bytes(8), sealed)
                ciphers[header] = self._cipher(place, sealed)
            else:
                end = at + header[-1]
                token = sealed[at:end]
                try:
                    plain = cipher.decrypt(
                        sealed[end : end + NONCE], sealed[end + NONCE :], where + key.to_bytes(8) + token
                    )
                except REFUSED:
                    raise _changed(sealed) from None
            value, id, expires = _row(plain)
            return (key, value, id, expires), token

        return opened

    # --- both

    def _sealed(self, place: Place, key_id: str, where: bytes, token: bytes, plain: bytes) -> bytes:
        nonce, id = os.urandom(NONCE), key_id.encode("ascii")
        sealed = self.cipher(key_id, ("home", place[0], place[1])).encrypt(nonce, plain, where + token)
        return b"%c%c%b%c%b%b%b" % (VERSION, len(id), id, len(token), token, nonce, sealed)

    def _cipher(self, place: Place, value: bytes) -> AESGCM:
        return self.cipher(key_of(value) or "", ("home", place[0], place[1]))

    def _opened(self, place: Place, where: bytes, value: bytes) -> tuple[str, bytes, bytes]:
        key_id = key_of(value)
        if key_id is None:
            raise Unsealed("is not encrypted, though its store is: it was not written with these keys")
        at = 3 + len(key_id)
        end = at + (value[at - 1] if len(value) >= at else 0)
        cipher, token = self._cipher(place, value), value[at:end]
        try:
            return key_id, token, cipher.decrypt(value[end : end + NONCE], value[end + NONCE :], where + token)
        except REFUSED:
            raise _changed(value) from None


def _changed(value: bytes) -> Unsealed:
    told = f"cannot be decrypted with the key {key_of(value)!r}: it was changed, or comes from another place"
    return Unsealed(told)


def key_of(value: bytes) -> str | None:
    """The id of the key that a value is sealed under; None for one that is not sealed."""
    if len(value) < 3 or value[0] != VERSION:
        return None
    id = value[2 : 2 + value[1]]
    return id.decode() if id and id.isascii() else None


@lru_cache(4096)
def _where(what: str, place: Place, table: str = "") -> bytes:
    """What a value of this place is bound to, but for its key."""
    return joined((what, *place, table))


def token(secret: bytes, *names: str) -> str:
    """A name that stands for these names and tells nothing of them: HMAC-SHA256."""
    return hmac.new(secret, joined(names), "sha256").hexdigest()


def _hkdf(key: bytes, *info: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=b"palimpsest/1", info=joined(info)).derive(key)


def joined(names: tuple[str, ...]) -> bytes:
    """The names as bytes, each with its length before it, so that no two lists are alike."""
    return b"".join(b"%d:%b" % (len(name), name) for name in map(_bytes, names))


_bytes = partial(str.encode, encoding="utf-8", errors="surrogatepass")

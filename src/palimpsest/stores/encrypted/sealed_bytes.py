"""How heads and rows are sealed into bytes, each bound to its address, and which keys are derived from a master key.

A sealed value is: version, length of the key's id, that id, length of the row's token, that token, nonce, ciphertext.
What is sealed is MessagePack: for a row its value, id and expiry; for a head see `Hot` and `Cold`.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from palimpsest.errors import MissingExtra, StoreCorrupt, WrongKey
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
"""What a cipher raises for a value that was changed, or was sealed with another key or for another address."""

KEPT = 4096
"""Derived keys that are kept at once, so that a home's key is not derived for each value."""

Scope = tuple[str, ...]
"""What a key is derived for: ("store",) or ("home", tenant, home)."""

_encode = msgspec.msgpack.Encoder(enc_hook=bytes).encode  # bytes: a damaged value stays so


class KeyMissing(WrongKey, StoreCorrupt):
    """Some of the data is under a key that was not given. Like damaged data, it stops nothing but what needs it."""


class Unsealed(ValueError):
    """A value cannot be opened: it is not sealed, was changed, or its key is missing. Then `key_id` names the key."""

    def __init__(self, why: str, key_id: str = "") -> None:
        self.why, self.key_id = why, key_id
        super().__init__(why)

    def as_error(self, url: str, what: str) -> StoreCorrupt:
        """Return the public error about `what` in the store: WrongKey for a missing key, else StoreCorrupt."""
        if self.key_id:
            return KeyMissing(url, self.key_id, f"{what} {self.why}", "Give it, too")
        return StoreCorrupt(url, f"{what} {self.why}")


class Floor(NamedTuple):
    """The life and the moves of the head of a home's log at some moment; b"" and 0 where there was no such head."""

    life: bytes = b""
    moves: int = 0


class SealedHead(NamedTuple):
    """A head, opened or just sealed: `stored` as the backend below has it, `plain` as the engine knows it.

    The package's docstring explains `life`, `moves`, `floor` and, for the head of a log, `notes` and `floors`. `bound`
    is a random number in both the hot and the cold value, so that a cold value never passes with a hot one of another
    time; b"" where there is no cold value, None where the cold value has to be sealed anew. `name` is that of an item,
    whose stored place has a token instead.
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

    @property
    def spoilt(self) -> Unread | None:
        """What stands in its place for reading, if it cannot be trusted or opened."""
        return self.plain.hot if isinstance(self.plain.hot, Unread) else None

    def is_before(self, other: SealedHead) -> bool:
        """Return whether this is an earlier state of the same head."""
        return self.life == other.life and self.moves < other.moves

    @classmethod
    def unread(cls, stored: PlaceHead, fault: StoreCorrupt, log: SealedHead | None = None) -> SealedHead:
        """Return a head that stands for one that cannot be trusted or opened. Reading it fails, dropping it works."""
        spoilt = Unread.of(stored.hot, fault.reason)
        spoilt.sealed, spoilt.error, spoilt.log = cls(stored, PlaceHead(spoilt)), fault, log
        spoilt.fault = fault if isinstance(fault, KeyMissing) else None
        return spoilt.sealed


class Unread(Spoilt):
    """Stands in for the hot value of a head that cannot be opened. `sealed` is that head, with its stored values.

    `error` says why. `log` is the head of the session's log if it is that which cannot be opened.
    """

    sealed: SealedHead
    error: StoreCorrupt
    log: SealedHead | None


Hot = tuple[bytes, int, bytes, int | None, str, bytes, int, bytes]
"""Life, moves, bound, expiry, the name of an item, the floor's life and moves, and the plain hot value."""

Cold = tuple[dict[str, dict[int, dict[bytes, bytes]]], dict[str, int], bytes]
"""The notes of the head, its floors, and the plain cold value."""

_hot, _cold = msgspec.msgpack.Decoder(Hot).decode, msgspec.msgpack.Decoder(Cold).decode
_row = msgspec.msgpack.Decoder(tuple[bytes, str, int | None]).decode


class Values:
    """Seals and opens the values of a store under these keys. Keeps the ciphers that it derives from them."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._derived: dict[tuple[str, Scope], AESGCM] = {}

    def cipher(self, key_id: str, scope: Scope) -> AESGCM:
        """Return the cipher of a scope. Raises Unsealed when the key is not among those given."""
        cipher = self._derived.get((key_id, scope))
        if cipher is not None:
            return cipher
        key = self._keys.secret(key_id)
        if key is None:
            raise Unsealed("is encrypted with it, and it is not among the given keys", key_id)
        purpose, *names = scope
        if names:
            tenant, *names = names
            key = _hkdf(key, "tenant", tenant)
        if len(self._derived) >= KEPT:
            self._derived.clear()
        cipher = self._derived[key_id, scope] = AESGCM(_hkdf(key, purpose, *names))
        return cipher

    # --- heads

    def head(self, place: Place, head: SealedHead, key_id: str) -> SealedHead:
        """Seal the head under a key, one move on: its `stored` is made from its other fields.

        The stored cold value is kept as it is, unless `bound` is None.
        """
        cold, bound, moves, floor = head.stored.cold, head.bound, head.moves + 1, head.floor
        if bound is None:
            cold = bound = b""
            if head.plain.cold or head.notes.tables or head.floors:
                bound = os.urandom(BOUND)
                plain = _encode((head.notes.tables, head.floors, head.plain.cold))
                cold = self._sealed(place, key_id, _where("cold", place), head.life + bound, plain)
        plain = _encode((head.life, moves, bound, head.expires, head.name, floor.life, floor.moves, head.plain.hot))
        hot = self._sealed(place, key_id, _where("hot", place), b"", plain)
        return head._replace(stored=PlaceHead(hot, cold), key_id=key_id, moves=moves, bound=bound)

    def opened(self, place: Place, stored: PlaceHead, before: SealedHead | None) -> SealedHead:
        """Open a stored head. Raises Unsealed.

        If its cold value is still that of `before`, the head known until now, that is not opened again.
        """
        key_id, _, raw = self._opened(place, _where("hot", place), stored.hot)
        life, moves, bound, expires, name, floor_life, floor_moves, hot = _hot(raw)
        cold, notes = b"", NOTHING
        floors: Mapping[str, int] = {}
        if before is not None and before.stored.cold == stored.cold and (before.life, before.bound) == (life, bound):
            cold, notes, floors = before.plain.cold, before.notes, before.floors
        elif bound:
            _, token, raw = self._opened(place, _where("cold", place), stored.cold)
            if token != life + bound:
                raise Unsealed("was changed since it was committed: its rarely changed part is from another time")
            tables, floors, cold = _cold(raw)
            notes = Notes(tables)
        elif stored.cold:
            raise Unsealed("was changed since it was committed: it has an additional part")
        plain, floor = PlaceHead(hot, cold), Floor(floor_life, floor_moves)
        return SealedHead(stored, plain, key_id, life, moves, bound, expires, name, floor, notes, floors)

    # --- rows

    def row(self, place: Place, table: str, row: Cells, token: bytes, key_id: str, found_by: str) -> Row:
        """Return the row as it is stored. `found_by` is the token of its id."""
        key, value, id, expires = row
        where = _where("row", place, table) + key.to_bytes(8)
        return Row(key, self._sealed(place, key_id, where, token, _encode((value, id, expires))), found_by, expires)

    def opener(self, place: Place, table: str) -> Callable[[Cells], tuple[Cells, bytes]]:
        """Return a function that opens rows of a table. It returns the plain row and its token, and raises Unsealed."""
        where, ciphers = _where("row", place, table), dict[bytes, AESGCM]()

        def opened(row: Cells) -> tuple[Cells, bytes]:
            key, sealed = row[0], row[1]
            at = 3 + sealed[1] if len(sealed) > 1 else 0
            header = sealed[:at]  # version, key, length of the token: most rows of a table have the same
            cipher = ciphers.get(header)
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
    reason = f"cannot be decrypted with the key {key_of(value)!r}: it was changed, or comes from another place"
    return Unsealed(reason)


def key_of(value: bytes) -> str | None:
    """Return the id of the key that a value is sealed under; None if it is not sealed."""
    if len(value) < 3 or value[0] != VERSION:
        return None
    id = value[2 : 2 + value[1]]
    return id.decode() if id and id.isascii() else None


@lru_cache(4096)
def _where(what: str, place: Place, table: str = "") -> bytes:
    """Return the address that a value of this place is bound to; for a row without its key."""
    return joined((what, *place, table))


def token(secret: bytes, *names: str) -> str:
    """Return a keyed token (HMAC-SHA256) that stands for these names and reveals nothing about them."""
    return hmac.new(secret, joined(names), "sha256").hexdigest()


def _hkdf(key: bytes, *info: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=b"palimpsest/1", info=joined(info)).derive(key)


def joined(names: tuple[str, ...]) -> bytes:
    """Return the names as bytes, each after its length, so that two different lists never give the same bytes."""
    return b"".join(b"%d:%b" % (len(name), name) for name in map(_bytes, names))


_bytes = partial(str.encode, encoding="utf-8", errors="surrogatepass")

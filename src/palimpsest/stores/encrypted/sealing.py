"""Sealing and opening texts: which key is derived for what, and how a sealed text is written. Knows no stores."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b

import msgspec

from palimpsest.errors import MissingExtra, StoreCorrupt, StoreError, WrongKey
from palimpsest.stores.encrypted.keys import LONGEST_ID, Keys

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as missing:
    raise MissingExtra("encryption", "encryption") from missing

BEGINNING = "sealed:1:"
NONCE, MAC = 12, 16
REFUSED = (InvalidTag, ValueError)
"""What a cipher raises for what it has not sealed so."""

KEPT = 4096
"""Derived keys that are kept, so that one is derived once a session."""

_encode = msgspec.json.Encoder().encode  # bytes are base64 in its JSON, and it is quicker at that than binascii
_decode = msgspec.json.Decoder(bytes).decode

Scope = tuple[str, ...]
"""What a key is derived for: ("store",), ("items", tenant), ("session", tenant, session) or
("home", tenant, home)."""


class Unsealed(ValueError):
    """A text is not sealed, or not as it was sealed; where it is for want of a key, `key_id` names that.

    `what` it is about in the store, where that is known.
    """

    def __init__(self, why: str, key_id: str = "") -> None:
        self.why, self.key_id, self.what = why, key_id, ""
        super().__init__(why)

    def about(self, what: str) -> Unsealed:
        """The same, about this."""
        self.what = self.what or what
        return self

    def told(self, url: str, what: str = "") -> StoreError:
        """The error of ours about `what` in the store."""
        what = self.what or what
        if self.key_id:
            return WrongKey(url, self.key_id, f"{what} {self.why}")
        return StoreCorrupt(url, f"{what} {self.why}")


class Sealer:
    """Seals and opens with the keys given; what it derives from them it keeps."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._derived: dict[tuple[str, Scope], AESGCM] = {}
        self._hashes: dict[str, blake2b] = {}

    def box(self, scope: Scope, key_id: str) -> Box:
        """What seals under the key of this id, and opens under any, for one scope."""
        return Box(self, scope, key_id)

    def cipher(self, key_id: str, scope: Scope) -> AESGCM:
        """The cipher of a scope. Raises Unsealed for a key that is not there."""
        found = self._derived.get((key_id, scope))
        if found is not None:
            return found
        master = self._master(key_id)
        if len(self._derived) >= KEPT:
            self._derived.clear()
        cipher = self._derived[key_id, scope] = AESGCM(_derived(master, scope))
        return cipher

    def mac(self, key_id: str, whose: bytes, body: bytes) -> str:
        """The keyed hash of a body of somebody's, as text. Raises Unsealed for a key that is not there."""
        begun = self._hashes.get(key_id)
        if begun is None:
            key = _hkdf(self._master(key_id), "authenticity")
            begun = self._hashes[key_id] = blake2b(key=key, digest_size=MAC)
        hashed = begun.copy()
        hashed.update(b"%d:" % len(whose))
        hashed.update(whose)
        hashed.update(body)
        return _encode(hashed.digest())[1:-1].decode("ascii")

    def _master(self, key_id: str) -> bytes:
        master = self._keys.secret(key_id)
        if master is None:
            raise Unsealed("is encrypted with it, and it is not among the keys given", key_id)
        return master


class Box:
    """Seals and opens the texts of one scope; each is bound to its place, given as `place`."""

    __slots__ = ("_prefix", "_scope", "_sealer", "key_id")

    def __init__(self, sealer: Sealer, scope: Scope, key_id: str) -> None:
        self._sealer, self._scope, self.key_id = sealer, scope, key_id
        self._prefix = f"{BEGINNING}{key_id}:"

    def seal(self, place: str, content: bytes, nonce: bytes = b"") -> str:
        """Return the sealed text. Its nonce is random: the same content is another text each time.

        Whoever seals many draws the nonces of all at once, see `nonces`.
        """
        nonce = nonce or os.urandom(NONCE)
        sealed = self._sealer.cipher(self.key_id, self._scope).encrypt(nonce, content, _bytes(place))
        return self._prefix + _encode(nonce + sealed)[1:-1].decode("ascii")

    def open(self, place: str, text: object) -> bytes:
        """Return the content. Raises Unsealed where it is not as it was sealed at this place, or its key is missing."""
        own = isinstance(text, str) and text.startswith(self._prefix)
        key_id = self.key_id if own else sealed_under(text)
        if key_id is None or not isinstance(text, str):
            raise Unsealed("is not encrypted, though its store is: it was not written with these keys")
        try:
            raw = _decode(f'"{text[len(BEGINNING) + len(key_id) + 1 :]}"')
            return self._sealer.cipher(key_id, self._scope).decrypt(raw[:NONCE], raw[NONCE:], _bytes(place))
        except Unsealed:
            raise
        except REFUSED:
            raise Unsealed(
                f"cannot be decrypted with the key {key_id!r}: it was changed, or comes from another place"
            ) from None


def nonces(number: int) -> Iterator[bytes]:
    """So many nonces: one call of the system instead of one for each."""
    drawn = os.urandom(NONCE * number)
    return (drawn[at : at + NONCE] for at in range(0, len(drawn), NONCE))


def sealed_under(text: object) -> str | None:
    """The id of the key that a text is sealed under; None for one that is not sealed."""
    if not isinstance(text, str) or not text.startswith(BEGINNING):
        return None
    end = text.find(":", len(BEGINNING), len(BEGINNING) + LONGEST_ID + 1)
    return text[len(BEGINNING) : end] if end > 0 else None


def token(secret: bytes, *names: str) -> str:
    """A name that stands for these names and tells nothing of them: HMAC-SHA256."""
    return hmac.new(secret, joined(names), "sha256").hexdigest()


def _derived(master: bytes, scope: Scope) -> bytes:
    purpose, *names = scope
    if purpose == "store":
        return _hkdf(master, "store")
    tenant = _hkdf(master, "tenant", names[0])
    return _hkdf(tenant, purpose, *names[1:])


def _hkdf(key: bytes, *info: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=b"palimpsest/1", info=joined(info)).derive(key)


def joined(names: tuple[str, ...]) -> bytes:
    """The names as bytes, each with its length before it, so that no two lists are alike."""
    return b"".join(b"%d:%b" % (len(name), name) for name in map(_bytes, names))


_bytes = partial(str.encode, encoding="utf-8", errors="surrogatepass")

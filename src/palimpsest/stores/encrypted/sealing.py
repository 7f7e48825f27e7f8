"""What seals and opens bytes: which key is derived for what. Knows no stores."""

from __future__ import annotations

import hmac
from functools import partial
from typing import TypeAlias

from palimpsest.errors import MissingExtra, StoreCorrupt, StoreError, WrongKey
from palimpsest.stores.encrypted.keys import Keys

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as missing:
    raise MissingExtra("encryption", "encryption") from missing

NONCE = 12
REFUSED = (InvalidTag, ValueError)
"""What a cipher raises for what it has not sealed so."""

KEPT = 4096
"""Derived keys that are kept, so that one is derived once a home."""

Cipher: TypeAlias = AESGCM

Scope = tuple[str, ...]
"""What a key is derived for: ("store",) or ("home", tenant, home)."""


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


class Sealer:
    """Has the ciphers of the keys given; what it derives from these it keeps."""

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


def token(secret: bytes, *names: str) -> str:
    """A name that stands for these names and tells nothing of them: HMAC-SHA256."""
    return hmac.new(secret, joined(names), "sha256").hexdigest()


def _hkdf(key: bytes, *info: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=b"palimpsest/1", info=joined(info)).derive(key)


def joined(names: tuple[str, ...]) -> bytes:
    """The names as bytes, each with its length before it, so that no two lists are alike."""
    return b"".join(b"%d:%b" % (len(name), name) for name in map(_bytes, names))


_bytes = partial(str.encode, encoding="utf-8", errors="surrogatepass")

"""Ids: which texts may be ids and scopes, and new ids for entries, calls and leases."""

from __future__ import annotations

import os
from collections.abc import Iterable

from palimpsest.errors import ConfigError
from palimpsest.log.lazy_imports import sha256

MAX_ID = 256
"""Most characters of an id."""

ID_RULE = f"text of 1 to {MAX_ID} characters without control characters or lone surrogates"


def is_id(text: str) -> bool:
    """Whether a text can be an id: 1 to 256 characters, no control characters, no lone surrogates."""
    if not 0 < len(text) <= MAX_ID:
        return False
    return text.isprintable() or not any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in text)


def check_id(text: object, where: str) -> None:
    """Raise ConfigError unless `text` is 1 to 256 characters without control characters or lone surrogates."""
    if not isinstance(text, str) or not is_id(text):
        raise ConfigError(where, text, ID_RULE)


def check_scope(name: object, where: str = "scope") -> None:
    """Raise ConfigError unless `name` is a scope: an id, or a path of ids with "/" between them."""
    if not isinstance(name, str) or len(name) > 2 * MAX_ID or not all(map(is_id, name.split("/"))):
        allowed = f"an id, or a path of ids such as 'user/ann', of at most {2 * MAX_ID} characters"
        raise ConfigError(where, name, allowed)


# --- new ids


def new_ids(count: int, now_ms: int) -> list[str]:
    """Return `count` new ids in ascending order, for what needs an id before it has a place in a log.

    Such are entries of an atomic turn, calls without an id, and leases.
    """
    return sorted(placed_ids(range(count), now_ms))


def placed_ids(seqs: Iterable[int], now_ms: int) -> list[str]:
    """Return new ids for the entries at `seqs`: UUIDs of version 7 (RFC 9562) whose last 32 bits are the seq.

    So a store finds an entry by id without an index. The time `now_ms` and 42 random bits, shared by entries that are
    added together, keep the ids of different sessions apart.
    """
    noise = int.from_bytes(os.urandom(6)) & 0x0FFF_3FFF_FFFF | 0x7000_8000_0000  # sets the version and variant bits
    groups = (now_ms & 0xFFFF_FFFF_FFFF).to_bytes(6).hex("-", 2), noise.to_bytes(6).hex("-", 2)
    prefix = f"{groups[0][:4]}{groups[0][5:]}-{groups[1]}"
    return [prefix + (seq & 0xFFFFFFFF).to_bytes(4).hex() for seq in seqs]


def placed_at(id: str) -> int:
    """Return the seq in an id made by `placed_ids`: a meaningless number for other UUIDs, 0 for other texts."""
    try:
        return int(id[-8:], 16) if len(id) == 36 else 0
    except ValueError:
        return 0


_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def derived_ids(key: str, count: int) -> list[str]:
    """Return the ids of `add(..., key=key)`: UUIDs of version 8, from SHA-256 of the key and the index."""
    ids = []
    for i in range(count):
        digest = sha256(f"palimpsest:{i}:{key}".encode("utf-8", "surrogatepass")).hex()
        ids.append(
            f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{_VARIANT[digest[16]]}{digest[17:20]}-{digest[20:32]}"
        )
    return ids

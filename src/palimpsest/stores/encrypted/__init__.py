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

from collections.abc import Mapping
from typing import TypeAlias

from palimpsest.stores.encrypted.keys import Keys

Encryption: TypeAlias = Keys | Mapping[str, str | bytes] | str
"""What `encryption=` takes: keys, a mapping of key ids to keys, or the text that `PALIMPSEST_KEY` has."""

"""Encryption at rest: a backend around any other, which keeps what it holds under keys that it never sees.

    master key       32 bytes of yours, under an id; several at once, one of which is current
      tenant's key   HKDF-SHA256 of it, the tenant in the info
        home's       HKDF-SHA256 of that: all that a session and its branches have, or the items of a namespace

Every value is sealed with AES-256-GCM and bound to its address. `docs/stores.md` lists what stays in clear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from palimpsest.stores.encrypted.keys import Keys

Encryption: TypeAlias = Keys | Mapping[str, str | bytes] | str
"""What `encryption=` takes: keys, a mapping of key ids to keys, or the text that `PALIMPSEST_KEY` has."""

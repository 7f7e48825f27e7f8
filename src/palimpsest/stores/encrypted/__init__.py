"""Encryption at rest: a backend around any other, which keeps what it holds under keys that it never sees.

    master key       32 bytes of yours, under an id; several at once, one of which is current
      tenant's key   HKDF-SHA256 of it, the tenant in the info
        home's       HKDF-SHA256 of that: all that a session and its branches have, or the items of a namespace

Every value is sealed with AES-256-GCM and bound to its address: what somebody has moved elsewhere does not open.
`docs/stores.md` lists what stays in clear.

What somebody has put back would open: it was sealed for its place, earlier. So heads count, and vouch for rows:

    any head          has a `life`, random, from when it is made until it goes, and counts its `moves`. Whoever has seen
                      a later one takes no earlier one of the same life.
    head of the log   one a home, which the engine does not see. In its `notes` it has which records there are, and for
                      each row that was written anew the token that it was sealed with then.
    head of a session has in its `floor` the life and the moves of the head of the log, as of when both were written
                      together last. That one has the same number, by the session's name, in its `floors`. Where the
                      two differ one of them was put back.

The modules, none of which imports one above it:

    rotation          a change of keys: all that is stored comes under the current one
    backend           the verbs
    resealing         what is under another key, sealed again
    sealed_batch      a batch as it is sealed
    sealed_rows       which places are sealed, where they are kept, and rows held against the heads that vouch for them
    mark              what the store says of its keys
    sealed_bytes      heads and rows as sealed bytes
    notes, keys       what a head knows of rows; master keys
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from palimpsest.stores.encrypted.keys import Keys

Encryption: TypeAlias = Keys | Mapping[str, str | bytes] | str
"""What `encryption=` takes: keys, a mapping of key ids to keys, or the text that `PALIMPSEST_KEY` has."""

"""Encryption at rest: a backend around any other, which holds only values sealed under keys that it never sees.

    master key       32 bytes of the user's, under an id; several at once, one of which is current
      tenant's key   HKDF-SHA256 of it, with the tenant in the info
        home's       HKDF-SHA256 of that: for all of a session and its branches, or for the items of a namespace

Every value is sealed with AES-256-GCM and bound to its address: a value that was moved elsewhere does not open.
`docs/stores.md` lists what stays in clear.

An earlier value that somebody has put back at its own address would open. So heads count, and vouch for rows:

    any head          has a random `life` from when it is made until it is dropped, and counts its `moves`. A process
                      that has seen a later one refuses an earlier one of the same life.
    head of the log   one for each home, hidden from the engine. Its `notes` say which records exist and, for each row
                      that was written anew, the token that it was sealed with.
    head of a session has in its `floor` the life and moves of the head of the log, as of when both were last written
                      together. The head of the log has the same number of moves, by the session's name, in its
                      `floors`. Where the two differ, one of the heads was put back.

The modules; none imports one above it:

    rotation          a change of keys: everything stored comes under the current key
    backend           the verbs
    resealing         heads and rows under another key, sealed anew
    sealed_batch      one batch, sealed
    sealed_rows       which places are sealed, where they are stored, and rows checked against the heads that vouch for
                      them
    mark              what the store says about its keys
    sealed_bytes      heads and rows as sealed bytes
    notes, keys       what a head knows of rows; master keys
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from palimpsest.stores.encrypted.keys import Keys

Encryption: TypeAlias = Keys | Mapping[str, str | bytes] | str
"""What `encryption=` takes: keys, a mapping of key ids to keys, or text as in `PALIMPSEST_KEY`."""

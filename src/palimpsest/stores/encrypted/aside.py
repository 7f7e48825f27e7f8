"""What stands for an entry that somebody has changed, with its checksum: what is made of one that a checksum finds.

Nothing that is not authentic is in it, but for the id and, where the entries beside it bear it out, what it was. Where
only what stands in clear beside the ciphertext was changed, the links are those that were sealed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from palimpsest.log.entry import Entry, pack, set_aside
from palimpsest.log.head import SessionKey
from palimpsest.log.withdrawal import tombstone
from palimpsest.runtime.logs import warn
from palimpsest.stores.encrypted import forms
from palimpsest.stores.encrypted.sealing import Unsealed

if TYPE_CHECKING:
    from palimpsest.stores import Store
    from palimpsest.stores.encrypted.sealing import Box
    from palimpsest.stores.encrypted.seen import Seen

BESIDE = 8
"""Entries on each side that are asked."""


class Reads(Protocol):
    """What opens the entries of a store, as far as it is asked here: `reading.Reader`."""

    @property
    def url(self) -> str:
        """The store's address, for messages."""
        ...

    @property
    def below(self) -> Store:
        """The store that holds what is sealed."""
        ...

    def place(self, key: SessionKey, seen: Seen, seq: int) -> tuple[Box, str]:
        """What the entry of this place is sealed with and bound to."""
        ...

    def entry(self, key: SessionKey, seen: Seen, stored: Entry) -> Entry:
        """The entry as it is. Raises Unsealed."""
        ...

    def sound(self, key: SessionKey, seen: Seen, stored: Entry) -> Entry | None:
        """The entry as it is; None for one that is not authentic."""
        ...


class Aside:
    """Makes what stands for entries that cannot be opened, and tells of each once."""

    def __init__(self, reader: Reads) -> None:
        self._reader = reader
        self._told = set[tuple[SessionKey, int]]()

    async def of(self, key: SessionKey, seen: Seen, stored: Entry) -> Entry:
        """What stands for the entry that is stored like this. Raises Unsealed for want of a key."""
        self._tell(key, seen, stored)
        try:
            box, log = self._reader.place(key, seen, stored.seq)
            sealed = forms.sealed_entry(stored, box, log, seen.ledger.entries.get(stored.seq, ""))
        except Unsealed:
            return await self._guessed(key, seen, stored)
        return msgspec.structs.replace(tombstone(sealed), damaged=True)

    def _tell(self, key: SessionKey, seen: Seen, stored: Entry) -> None:
        if (key, stored.seq) in self._told:
            return
        try:
            self._reader.entry(key, seen, stored)
        except Unsealed as fault:
            self._told.add((key, stored.seq))
            warn("%s", f"{fault.told(self._reader.url)}. It is set aside, and `repair` takes it out")

    async def _guessed(self, key: SessionKey, seen: Seen, stored: Entry) -> Entry:
        seq = stored.seq
        places = {*range(max(seq - BESIDE, 1), seq + BESIDE + 1), stored.answers} - {0, seq}
        near: dict[int, Entry] = {}
        for one in await self._reader.below.fetch(key, places):
            entry = self._reader.sound(key, seen, one)
            if entry is not None and not entry.damaged:
                near[entry.seq] = entry
        before = [near[at] for at in sorted(near, reverse=True) if seq - BESIDE <= at < seq]
        behind = [near[at] for at in sorted(near) if at > seq]
        call = near.get(stored.answers)
        waits = call is not None and call.kind == "tool_call" and all(one.answers != call.seq for one in behind)
        is_likely = stored.kind != "tool_result" or waits
        return set_aside(stored.id, seq, pack(stored) if is_likely else b"", before, behind)

"""Opening what an encrypted store holds: heads, entries and records of its sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from palimpsest.entries import Entry
from palimpsest.log import Head, Record, SessionKey, digest
from palimpsest.stores import Store
from palimpsest.stores.encrypted import forms, telling
from palimpsest.stores.encrypted.forms import Lineage
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealing import Box, Sealer, Unsealed

K = TypeVar("K")
V = TypeVar("V")

KEPT = 4096
"""Sessions, and texts of heads, that are remembered at once."""

SHORT = 1024
"""Characters up to which a text of a head is remembered."""


class Reader:
    """Opens what the store `below` gives. Raises StoreCorrupt, naming it, for what was changed, WrongKey."""

    def __init__(self, below: Store, sealer: Sealer, markings: Markings) -> None:
        self.below, self.url = below, below.url
        self._sealer, self._markings = sealer, markings
        self._lineages: dict[SessionKey, Lineage] = {}
        self._texts: dict[tuple[SessionKey, str, str], str] = {}
        self._digests: dict[tuple[SessionKey, int, str], str] = {}

    def box(self, key: SessionKey) -> Box:
        """What seals and opens the texts of a session."""
        return self._sealer.box(("session", *key), self._markings.writing)

    # --- heads

    def text(self, key: SessionKey) -> forms.Translate:
        """Opens texts that a session has sealed."""
        box = self.box(key)
        return lambda place, text: _decoded(box.open(place, text))

    async def head(self, key: SessionKey) -> tuple[Head, Head] | None:
        """The session's head as it is stored, and as it is."""
        stored = await self.below.head(key)
        return None if stored is None else (stored, await self.open_head(key, stored))

    async def open_head(self, key: SessionKey, stored: Head) -> Head:
        """The head that is stored like this."""
        try:
            self.line(key, stored)
            digests = await self._digested(key, stored) if stored.contexts else {}
            return forms.open_head(stored, self._head_text(key), digests)
        except Unsealed as fault:
            raise fault.told(self.url, f"the head of session {key.session!r}") from None

    def note_digests(self, key: SessionKey, stored: Head, entries: Sequence[Entry]) -> None:
        """Remember the digests of contexts that have just been written, so that nobody has to read them again."""
        texts = {entry.seq: entry for entry in entries if entry.kind == "context" and entry.name}
        for seq, mark in stored.contexts.values() if texts else ():
            if seq in texts:
                _keep(self._digests, (key, seq, mark), digest(texts[seq].text))

    def line(self, key: SessionKey, stored: Head) -> Lineage:
        """The sessions whose entries and records a session shares that has this head."""
        found = forms.lineage_of(stored, self._head_text(key))
        if found:
            _keep(self._lineages, key, found)
        else:
            self._lineages.pop(key, None)
        return found

    def _head_text(self, key: SessionKey) -> forms.Translate:
        """Opens texts of a session's own head, of which the short ones are remembered: they come again and again."""
        open_text = self.text(key)

        def text(place: str, sealed: str) -> str:
            found = self._texts.get((key, place, sealed))
            if found is None:
                found = open_text(place, sealed)
                if len(found) <= SHORT:
                    _keep(self._texts, (key, place, sealed), found)
            return found

        return text

    async def _digested(self, key: SessionKey, stored: Head) -> dict[int, str]:
        """The digests of the texts of those of a head's contexts that it has a mark of, by seq."""
        places = {seq: (key, seq, mark) for seq, mark in stored.contexts.values() if forms.is_mark(mark)}
        found = {seq: self._digests[place] for seq, place in places.items() if place in self._digests}
        unknown = [seq for seq in places if seq not in found]
        if unknown:
            for entry in await self.entries(key, await self.below.fetch(key, unknown)):
                if not entry.erased:
                    found[entry.seq] = digest(entry.text)
                    _keep(self._digests, places[entry.seq], found[entry.seq])
        return found

    # --- entries and records

    async def entries(self, key: SessionKey, stored: Sequence[Entry]) -> list[Entry]:
        """The entries that are stored like this."""
        try:
            return self._entries(key, stored, self._lineages.get(key, ()), last=False)
        except Unsealed:  # what is known of its line may be of another session of this id, or nothing yet
            lineage = await self._line_now(key)
            if lineage is None:
                return []  # it was deleted since they were read, and what they are sealed with is not known any more
            return self._entries(key, stored, lineage, last=True)

    def _entries(self, key: SessionKey, stored: Sequence[Entry], lineage: Lineage, *, last: bool) -> list[Entry]:
        own = self.box(key)
        found = []
        for entry in stored:
            box = own
            if lineage:
                box = self.box(key._replace(session=forms.owner(lineage, key.session, seq=entry.seq)))
            try:
                found.append(forms.open_entry(entry, box))
            except Unsealed as fault:
                if not last:
                    raise
                raise fault.told(self.url, f"entry {entry.seq} of session {key.session!r}") from None
        return found

    async def records(self, key: SessionKey, stored: Sequence[Record]) -> list[Record]:
        """The records that are stored like this."""
        try:
            return [self._record(key, record, self._lineages.get(key, ())) for record in stored]
        except Unsealed:
            lineage = await self._line_now(key)
            if lineage is None:
                return []  # as of entries
        found = []
        for record in stored:
            try:
                found.append(self._record(key, record, lineage))
            except Unsealed as fault:
                told = f"the record of revision {record.revision} of session {key.session!r}"
                raise fault.told(self.url, told) from None
        return found

    def _record(self, key: SessionKey, record: Record, lineage: Lineage) -> Record:
        teller = telling.teller(record, lineage, key.session)
        return telling.open_record(record, self.text(key._replace(session=teller)))

    async def lineage(self, key: SessionKey) -> Lineage:
        """The same, as its head says now."""
        return await self._line_now(key) or ()

    async def _line_now(self, key: SessionKey) -> Lineage | None:
        """The same; None where there is no session."""
        stored = await self.below.head(key)
        if stored is None:
            return None
        try:
            return self.line(key, stored)
        except Unsealed as fault:
            raise fault.told(self.url, f"the head of session {key.session!r}") from None


def _keep(kept: dict[K, V], at: K, value: V) -> None:
    if len(kept) >= KEPT:
        kept.clear()
    kept[at] = value


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")

"""Opening what an encrypted store holds: heads, entries and records of its sessions, if they are what was written last.

A head vouches for all that is below it, see `palimpsest.stores.encrypted.notary`. What is read is held against the head
that was seen before; where the two do not fit, because somebody has written meanwhile, against the one that is there
now, until they do, or the same head is found again: then something was changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from palimpsest.log.change import Record
from palimpsest.log.entry import Entry, digest
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.withdrawal import tombstone
from palimpsest.stores import Store
from palimpsest.stores.encrypted import forms, telling
from palimpsest.stores.encrypted.aside import Aside
from palimpsest.stores.encrypted.completeness import Wanted, check_chain
from palimpsest.stores.encrypted.forms import Lineage
from palimpsest.stores.encrypted.ledger import Ledger
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.notary import Notary
from palimpsest.stores.encrypted.sealing import Box, Sealer, Unsealed
from palimpsest.stores.encrypted.seen import Seen

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

KEPT = 4096
"""Sessions, and texts of heads, that are remembered at once."""

SHORT = 1024
"""Characters up to which a text of a head is remembered."""

TRIES = 100
"""How often something is read again that others write meanwhile."""


class SealedReader:
    """Opens what the store `below` gives. Raises StoreCorrupt, naming it, for what was changed, WrongKey."""

    def __init__(self, below: Store, sealer: Sealer, markings: Markings) -> None:
        self.below, self.url = below, below.url
        self._sealer, self._markings = sealer, markings
        self.notary = Notary(below.url, sealer, markings, self.line)
        self.aside = Aside(self)
        self._seen: dict[SessionKey, Seen] = {}
        self._texts: dict[tuple[SessionKey, str, str], str] = {}
        self._digests: dict[tuple[SessionKey, int, str], str] = {}

    def box(self, key: SessionKey, key_id: str = "") -> Box:
        """What opens the texts of a session, and seals under the key of this id (default: what is written under)."""
        return self._sealer.box(("session", *key), key_id or self._markings.writing)

    # --- heads

    def text(self, key: SessionKey) -> forms.Translate:
        """Opens texts that a session has sealed."""
        box = self.box(key)
        return lambda place, text: _decoded(box.open(place, text))

    async def head(self, key: SessionKey) -> Seen | None:
        """The session's head, as it is now, looked at."""
        before: Head | None = None
        for _ in range(TRIES):
            stored = await self.below.head(key)
            if stored is None:
                self._seen.pop(key, None)
                return None
            known = self._seen.get(key)
            if known is not None and (known.stored is stored or known.stored == stored):
                return known
            is_still = stored == before
            try:
                seen = await self._look(key, stored, lenient=is_still)
                await self._is_newest(key, seen, known)
            except Unsealed as fault:
                failed, before = fault, stored
                if is_still:
                    break
            else:
                _keep(self._seen, key, seen)
                return seen
        raise failed.told(self.url, f"the head of session {key.session!r}")

    async def took(self, key: SessionKey, stored: Head, plain: Head | None = None) -> Head:
        """Remember the head that a commit of ours has just made, and return it as it is."""
        try:
            seen = await self._look(key, stored, plain)
        except Unsealed:  # somebody else has rewritten meanwhile what it names, or deleted all
            now = await self.head(key)
            return now.plain if now is not None else Head()
        _keep(self._seen, key, seen)
        return seen.plain

    async def _look(self, key: SessionKey, stored: Head, plain: Head | None = None, *, lenient: bool = False) -> Seen:
        seal, known = self.notary.check_head(key, stored), self._seen.get(key)
        lineage = self.line(key, stored)
        ledger = known.ledger if known is not None and known.seal == seal else Ledger.of(seal)
        if plain is None:
            before = Seen(stored, stored, seal, ledger, lineage)
            digests = await self._digested(key, before, lenient) if stored.contexts else {}
            plain = forms.open_head(stored, self._head_text(key), digests)
        return Seen(stored, plain, seal, ledger, lineage)

    async def _is_newest(self, key: SessionKey, seen: Seen, known: Seen | None) -> None:
        """Raise Unsealed for a head of before: one that was seen is later, or there are rows that it does not know.

        Where a later one has come meanwhile it was the newest when it was read: beside somebody who never pauses there
        may always be a later one.
        """
        if known is not None and known.seal.log == seen.seal.log and known.stored.revision > seen.stored.revision:
            raise Unsealed("is of an earlier time: a later one was there before")
        if await self.below.fetch(key, [seen.stored.next_seq]):
            unknown = "entries"
        elif await self.below.records(key, after=seen.seal.last):
            unknown = "records"
        else:
            return
        now = await self.below.head(key)
        if now is None or now.revision <= seen.stored.revision or self.notary.check_head(key, now).log != seen.seal.log:
            raise Unsealed(f"is of an earlier time: there are {unknown} that it does not know")

    def note_digests(self, key: SessionKey, stored: Head, entries: Sequence[Entry]) -> None:
        """Remember the digests of contexts that have just been written, so that nobody has to read them again."""
        texts = {entry.seq: entry for entry in entries if entry.kind == "context" and entry.name}
        for seq, mark in stored.contexts.values() if texts else ():
            if seq in texts:
                _keep(self._digests, (key, seq, mark), digest(texts[seq].text))

    def line(self, key: SessionKey, stored: Head) -> Lineage:
        """The sessions whose entries and records a session shares that has this head."""
        return forms.lineage_of(stored, self._head_text(key))

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

    async def _digested(self, key: SessionKey, seen: Seen, lenient: bool) -> dict[int, str]:
        """The digests of the texts of those of a head's contexts that it has a mark of, by seq.

        With `lenient` those that somebody has changed are left out, as all that is damaged is.
        """
        contexts = seen.stored.contexts.values()
        places = {seq: (key, seq, mark) for seq, mark in contexts if forms.is_mark(mark)}
        found = {seq: self._digests[place] for seq, place in places.items() if place in self._digests}
        unknown = [seq for seq in places if seq not in found]
        for stored in await self.below.fetch(key, unknown) if unknown else ():
            entry = self.sound(key, seen, stored) if lenient else self.entry(key, seen, stored)
            if entry is not None and not entry.erased:
                found[entry.seq] = digest(entry.text)
                _keep(self._digests, places[entry.seq], found[entry.seq])
        return found

    # --- entries and records

    async def entries(
        self,
        key: SessionKey,
        wanted: Wanted,
        read: Callable[[int | None], Awaitable[list[Entry]]],
        *,
        part: bool = False,
    ) -> list[Entry]:
        """The entries that `read` gives, as they are stored, before a place: those wanted, or with `part` some."""

        def opened(seen: Seen | None, stored: list[Entry]) -> list[Entry]:
            if seen is None:
                if stored:
                    raise Unsealed("is there, and its session has no head").about(f"entry {stored[0].seq}")
                return []
            (wanted._replace(some=True, seqs=()) if part else wanted).check(seen.plain, stored)
            if seen.lineage or seen.seal.graves:
                return [self.entry(key, seen, entry) for entry in stored]
            return self._own_entries(key, seen, stored)

        async def set_aside(seen: Seen, stored: list[Entry]) -> list[Entry]:
            (wanted._replace(some=True, seqs=()) if part else wanted).check(seen.plain, stored)
            return [self.sound(key, seen, entry) or await self.aside.of(key, seen, entry) for entry in stored]

        return await self._held_against(
            key, lambda upto: read(upto.stored.next_seq if upto else None), opened, set_aside
        )

    def _own_entries(self, key: SessionKey, seen: Seen, stored: Sequence[Entry]) -> list[Entry]:
        """The same as `entry` of each, where nothing is shared and nothing was erased, as in most sessions."""
        box, log, tokens = self.box(key), seen.seal.log, seen.ledger.entries
        try:
            return [forms.open_entry(entry, box, log, tokens.get(entry.seq, "")) for entry in stored]
        except Unsealed:
            return [self.entry(key, seen, entry) for entry in stored]  # which names the one

    def entry(self, key: SessionKey, seen: Seen, stored: Entry) -> Entry:
        """The entry that is stored like this in a session of this head. Raises Unsealed."""
        if stored.damaged:
            return stored
        try:
            if stored.erased or stored.seq in seen.ledger.graves:
                self.notary.check_grave(stored, erased=stored.seq in seen.ledger.graves)
                return tombstone(stored)
            box, log = self.place(key, seen, stored.seq)
            return forms.open_entry(stored, box, log, seen.ledger.entries.get(stored.seq, ""))
        except Unsealed as fault:
            raise fault.about(f"entry {stored.seq} of session {key.session!r}") from None

    def sound(self, key: SessionKey, seen: Seen, stored: Entry) -> Entry | None:
        """The same; None where somebody has changed it. Raises Unsealed for want of a key."""
        try:
            return self.entry(key, seen, stored)
        except Unsealed as fault:
            if fault.key_id:
                raise
            return None

    def place(self, key: SessionKey, seen: Seen, seq: int) -> tuple[Box, str]:
        """What seals and opens the entry at a place, and the mark of the log that it was written into."""
        session = forms.owner(seen.lineage, key.session, seq=seq)
        return self.box(key._replace(session=session)), forms.log_of(seen.lineage, seen.seal.log, seq=seq)

    async def records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        """The records between two revisions, opened."""
        single = before is not None and before == after + 2

        async def read(upto: Seen | None) -> tuple[list[Record], list[Record]]:
            found, later = await self.below.records(key, after=after, before=before), list[Record]()
            if before is not None and not (single and found):
                later = await self.below.records(key, after=before - 1)
            return (found, later) if upto is None else (_known(found, upto), _known(later, upto))

        def opened(seen: Seen | None, stored: tuple[list[Record], list[Record]]) -> list[Record]:
            found, later = stored
            if seen is None:
                if found:
                    raise Unsealed("is there, and its session has no head").about(_told(found[0], key))
                return []
            check_chain(seen, found, later, after, whole=not (single and found))
            for one in later[:1]:
                self.record(key, seen, one)
            return [self.record(key, seen, one) for one in found]

        return await self._held_against(key, read, opened)

    def record(self, key: SessionKey, seen: Seen, stored: Record, text: forms.Translate | None = None) -> Record:
        """The record that is stored like this in a session of this head; `text` opens what it tells.

        Raises Unsealed.
        """
        try:
            log = forms.log_of(seen.lineage, seen.seal.log, revision=stored.revision)
            self.notary.check_record(key, stored, log, seen.ledger)
            teller = telling.teller(stored, seen.lineage, key.session)
            return telling.open_record(stored, text or self.text(key._replace(session=teller)))
        except Unsealed as fault:
            raise fault.about(_told(stored, key)) from None

    async def _held_against(
        self,
        key: SessionKey,
        read: Callable[[Seen | None], Awaitable[K]],
        opened: Callable[[Seen | None, K], T],
        lenient: Callable[[Seen, K], Awaitable[T]] | None = None,
    ) -> T:
        """What is opened of what is read, with the head that it fits.

        Where the head of before does not fit, `read` is asked for what the one that is there now knows, so that what
        others add meanwhile is not in the way. Where none fits, what `lenient` makes of it, which may read more.
        """
        seen = self._seen.get(key) or await self.head(key)
        upto: Seen | None = None
        before: K | None = None
        for _ in range(TRIES):
            stored = await read(upto)
            try:
                return opened(seen, stored)
            except Unsealed as fault:
                failed, was = fault, seen
            seen = upto = await self.head(key)
            if seen is was and (seen is not None or stored == before):  # it may have come and gone between two looks
                if seen is None or lenient is None or failed.key_id:
                    break
                try:
                    made = await lenient(seen, stored)
                except Unsealed as fault:
                    failed = fault
                    break
                if await self.head(key) is seen:
                    return made
            before = stored
        raise failed.told(self.url)


def _known(records: Sequence[Record], seen: Seen) -> list[Record]:
    return [record for record in records if record.revision <= seen.seal.last]


def _told(stored: Record, key: SessionKey) -> str:
    return f"the record of revision {stored.revision} of session {key.session!r}"


def _keep(kept: dict[K, V], at: K, value: V) -> None:
    if len(kept) >= KEPT:
        kept.clear()
    kept[at] = value


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")

"""Rewriting the sessions of an encrypted store: each value is opened, given to somebody, and sealed again in its place.

A head is rewritten only if its line, its contexts and its seal are those that were looked at before, for these are read
apart from the step in which the store below rewrites. Otherwise all begins again; that others append is not in the way.
What is to be others is found before that step, too, for the head tells of each row that was written anew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from palimpsest.errors import StoreCorrupt, WrongKey
from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores.encrypted import forms, telling
from palimpsest.stores.encrypted.completeness import Wanted
from palimpsest.stores.encrypted.forms import Translate
from palimpsest.stores.encrypted.ledger import Ledger, new_token
from palimpsest.stores.encrypted.reading import SealedReader
from palimpsest.stores.encrypted.sealing import Box, Unsealed, sealed_under
from palimpsest.stores.encrypted.seen import Seen
from palimpsest.stores.rewriting import Rest, Rewritable, Rewrite

BATCH = 256
"""Entries that are looked at at once."""


async def rewrite_session(
    below: Rewritable,
    reader: SealedReader,
    key: SessionKey,
    how: Rewrite,
    *,
    after: int = 0,
    seqs: Collection[int] | None = None,
    touched: set[SessionKey],
) -> tuple[int, int | None]:
    """Rewrite a stretch of what a session says, or the entries at `seqs`, as `Rewritable.rewrite` does.

    The branches whose heads are rewritten are added to `touched`.
    """
    how = Rest(how, after) if after else how
    while (seen := await reader.head(key)) is not None:
        plan = await _planned(reader, key, how, seqs, after)
        resealing = _Resealing(reader, key, seen, how, plan)
        try:
            done = await below.rewrite(key, resealing, seqs=plan.entries)
        except _Behind:
            continue
        except (StoreCorrupt, WrongKey):
            if await reader.head(key) is seen:  # else somebody has written meanwhile
                raise
        else:
            touched |= resealing.branches
            return done[0], plan.further
    return 0, None


class _Plan(NamedTuple):
    """Which entries and records become others, the token of the step, and the place after which there is more."""

    entries: Collection[int]
    records: Collection[int]
    token: str
    further: int | None = None


async def _planned(
    reader: SealedReader, key: SessionKey, how: Rewrite, seqs: Collection[int] | None, after: int
) -> _Plan:
    there_are = await reader.records(key, 0, None) if not after else ()
    records = [one.revision for one in there_are if how.record(one) is not one]
    if seqs is not None:
        wanted = Wanted(some=True, seqs=seqs)
        there = await reader.entries(key, wanted, lambda _: reader.below.fetch(key, seqs))
        return _Plan({entry.seq for entry in there if how.entry(entry) is not entry}, set(records), new_token())
    there = await reader.entries(
        key, Wanted(after, limit=BATCH), lambda upto: reader.below.read(key, after=after, before=upto, limit=BATCH)
    )
    entries = {entry.seq for entry in there if how.entry(entry) is not entry}
    return _Plan(entries, set(records), new_token(), there[-1].seq if len(there) == BATCH else None)


async def seal_session_anew(below: Rewritable, reader: SealedReader, key: SessionKey, *, move: bool) -> int:
    """Bring a session under the key that is written with; return how many entries and records were under another.

    With `move` its head moves by a revision, so that whoever is about to write looks at it again.
    """
    changed, after = 0, 0
    while (seen := await reader.head(key)) is not None:
        try:
            more, next_after = await below.rewrite(key, _Resealing(reader, key, seen, _Same(move)), after=after)
        except _Behind:
            continue
        except (StoreCorrupt, WrongKey):
            if await reader.head(key) is seen:
                raise
            continue
        changed += more
        if next_after is None:
            break
        after = next_after
    return changed


class _Behind(Exception):
    """The session has another line, other contexts or another seal than when it was looked at."""


class _Same:
    """Leaves everything as it is, but for the revision of a head that is to move."""

    keeps_texts = True

    def __init__(self, move: bool) -> None:
        self._move = move

    def head(self, head: Head) -> Head:
        return msgspec.structs.replace(head, revision=head.revision + 1) if self._move else head

    def branch(self, _: SessionKey, head: Head, __: Collection[int]) -> Head:
        return head

    def entry(self, entry: Entry) -> Entry:
        return entry

    def record(self, record: Record) -> Record:
        return record


class _Resealing:
    """What the store below puts in the place of stored values: what `how` says, for what is planned.

    Without a plan all goes on saying what it says, and what is under another key than is written with is sealed anew.
    """

    def __init__(
        self, reader: SealedReader, key: SessionKey, seen: Seen, how: Rewrite, plan: _Plan | None = None
    ) -> None:
        self._reader, self._notary = reader, reader.notary
        self._key, self._seen, self._how, self._plan = key, seen, how, plan
        self.keeps_texts = how.keeps_texts
        self.branches: set[SessionKey] = set()
        self._ledger = seen.ledger.copy()
        self._ledgers = [seen.ledger]
        """Those by which an entry may stand below: a branch may have a copy of its own."""
        if plan is not None:
            self._ledger.write_anew(plan.token, plan.entries, plan.records)

    def head(self, stored: Head) -> Head:
        if stored != self._seen.stored:
            self._seen = self._moved_on(stored)
        plain = self._seen.plain
        box, new = self._reader.box(self._key), self._how.head(plain)
        seal = self._ledger.put_into(self._seen.seal)
        is_old = self._plan is None and self._is_old_head(stored, plain, box)
        if new is plain and seal == self._seen.seal and not is_old:
            return stored
        sealed = forms.seal_head(new, box, self._seen.lineage, seal)
        moved = stored.revision + (is_old or new is not plain)
        return msgspec.structs.replace(sealed, revision=max(new.revision, moved))

    def _moved_on(self, stored: Head) -> Seen:
        """A head that came after the one that was looked at, where all that was found is still as it was."""
        seen, before, plain = self._seen, self._seen.stored, self._seen.plain
        as_before = [(one.seal, one.created, one.forked_from, one.contexts) for one in (stored, before)]
        if as_before[0] != as_before[1]:
            raise _Behind
        try:
            seal = self._notary.check_head(self._key, stored)
            now = forms.open_head(stored, self._reader.text(self._key), dict(plain.contexts.values()))
        except Unsealed as fault:
            raise fault.told(self._reader.url, f"the head of session {self._key.session!r}") from None
        return msgspec.structs.replace(seen, stored=stored, plain=now, seal=seal)

    def _is_old_head(self, stored: Head, plain: Head, box: Box) -> bool:
        watched = _Watched(self._reader.text(self._key), box)
        forms.open_head(stored, watched, dict(plain.contexts.values()))
        forms.lineage_of(stored, watched)
        return watched.is_old or self._notary.is_old(stored.mac)

    def branch(self, key: SessionKey, stored: Head, seqs: Collection[int]) -> Head:
        self.branches.add(key)
        text, box = self._reader.text(key), self._reader.box(key)
        marks = {seq: mark for seq, mark in stored.contexts.values() if forms.is_mark(mark)}
        try:  # a mark goes through in the place of its digest, which would have to be read
            seal = self._notary.check_head(key, stored)
            ledger = Ledger.of(seal)
            self._ledgers.append(ledger.copy())
            if self._plan is not None:
                ledger.write_anew(self._plan.token, set(seqs).intersection(self._plan.entries), ())
            new = self._how.branch(key, forms.open_head(stored, text, marks), seqs)
            sealed = forms.seal_head(new, box, forms.lineage_of(stored, text), ledger.put_into(seal))
        except Unsealed as fault:
            raise fault.told(self._reader.url, f"the head of session {key.session!r}") from None
        known = zip(sealed.contexts.items(), new.contexts.values(), strict=True)
        kept = {name: given if marks.get(given[0]) == given[1] else own for (name, own), given in known}
        return msgspec.structs.replace(sealed, contexts=kept)

    def entry(self, stored: Entry) -> Entry:
        seq = stored.seq
        box, log = self._reader.place(self._key, self._seen, seq)
        if stored.erased:
            is_old = self._plan is None and self._notary.is_old(stored.content)
            return self._notary.grave(self._opened(stored)) if is_old else stored
        if self._plan is None:
            if forms.keys_of(stored) == {box.key_id}:
                return stored
        elif seq not in self._plan.entries:
            return stored
        new = self._how.entry(self._opened(stored))
        return forms.seal_entry(new, box, log, self._ledger.entries.get(seq, ""))

    def _opened(self, stored: Entry) -> Entry:
        """The entry, by the ledger that it was written by."""
        for ledger in self._ledgers:
            try:
                return self._reader.entry(self._key, msgspec.structs.replace(self._seen, ledger=ledger), stored)
            except Unsealed as fault:
                failed = fault
        raise failed.told(self._reader.url)

    def record(self, stored: Record) -> Record:
        asked, lineage = telling.asked_in(stored), self._seen.lineage
        teller = self._key._replace(session=telling.teller(stored, lineage, self._key.session))
        watched = _Watched(self._reader.text(teller), self._reader.box(teller))
        try:
            plain = self._reader.record(self._key, self._seen, stored, watched)
        except Unsealed as fault:
            raise fault.told(self._reader.url) from None
        is_old = self._plan is None and (watched.is_old or self._notary.is_old(stored.mac))
        if not is_old and (self._plan is None or stored.revision not in self._plan.records):
            return stored
        new = telling.seal_record(self._how.record(plain), self._reader.box(teller), asked)
        new = decoded(encoded(msgspec.structs.replace(new, before=stored.before)), Record)
        log = forms.log_of(lineage, self._seen.seal.log, revision=stored.revision)
        return self._notary.sealed_record(self._key, new, log, self._ledger)


class _Watched:
    """Opens texts, and sees whether one of them is under another key than what is written."""

    def __init__(self, open_text: Translate, box: Box) -> None:
        self._open_text, self._box = open_text, box
        self.is_old = False

    def __call__(self, place: str, text: str) -> str:
        self.is_old |= sealed_under(text) != self._box.key_id
        return self._open_text(place, text)

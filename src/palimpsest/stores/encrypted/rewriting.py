"""Rewriting the sessions of an encrypted store: each value is opened, given to somebody, and sealed again in its place.

A head is rewritten only if its line and its contexts are those that were looked at before, for they are read apart from
the step in which the store below rewrites. Otherwise all begins again; that others append is not in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec

from palimpsest.entries import Entry
from palimpsest.errors import StoreCorrupt, WrongKey
from palimpsest.log import Head, Record, SessionKey
from palimpsest.stores.encrypted import forms, telling
from palimpsest.stores.encrypted.forms import Lineage, Translate
from palimpsest.stores.encrypted.reading import Reader
from palimpsest.stores.encrypted.sealing import Box, Unsealed, sealed_under
from palimpsest.stores.rewriting import Rewritable, Rewrite

T = TypeVar("T")


async def rewrite_session(
    below: Rewritable,
    reader: Reader,
    key: SessionKey,
    how: Rewrite,
    *,
    after: int = 0,
    seqs: Collection[int] | None = None,
    anew: bool = False,
    touched: set[SessionKey] | None = None,
) -> tuple[int, int | None]:
    """Rewrite a stretch of what a session says, as `Rewritable.rewrite` does.

    With `anew` what stays as it is, but is under another key, is sealed anew, and counts as rewritten. The branches
    whose heads are rewritten are added to `touched`.
    """
    while True:
        looked = await reader.head(key)
        if looked is None:
            return 0, None
        lineage = reader.line(key, looked[0])
        try:
            resealing = _Resealing(reader, key, looked, lineage, how, anew)
            done = await below.rewrite(key, resealing, after=after, seqs=seqs)
            if touched is not None:
                touched |= resealing.branches
            return done
        except _Behind:
            continue
        except (StoreCorrupt, WrongKey):
            if await reader.lineage(key) == lineage:  # else another session has come in its place
                raise


async def seal_session_anew(below: Rewritable, reader: Reader, key: SessionKey, *, move: bool) -> int:
    """Bring a session under the key that is written with; return how many entries and records were under another.

    With `move` its head moves by a revision, so that whoever is about to write looks at it again.
    """
    changed, after = await rewrite_session(below, reader, key, _Same(move), anew=True)
    while after is not None:
        more, after = await rewrite_session(below, reader, key, _Same(move), after=after, anew=True)
        changed += more
    return changed


class _Behind(Exception):
    """The session has another line, or other contexts, than when it was looked at."""


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
    """What the store below puts in the place of stored values, where `how` says what they say from then on."""

    def __init__(
        self, reader: Reader, key: SessionKey, looked: tuple[Head, Head], lineage: Lineage, how: Rewrite, anew: bool
    ) -> None:
        self._reader, self._key, self._looked = reader, key, looked
        self._lineage, self._how, self._anew = lineage, how, anew
        self.keeps_texts = how.keeps_texts
        self.branches: set[SessionKey] = set()

    def head(self, stored: Head) -> Head:
        before, plain = self._looked
        if stored != before:
            plain = self._moved_on(stored)
        box, new = self._reader.box(self._key), self._how.head(plain)
        if new is plain and not (self._anew and self._is_old_head(stored, plain, box)):
            return stored
        sealed = forms.seal_head(new, box, self._lineage)
        return msgspec.structs.replace(sealed, revision=max(new.revision, stored.revision + 1))

    def _moved_on(self, stored: Head) -> Head:
        """A head that came after the one that was looked at, where nothing must be read to open it."""
        before, plain = self._looked
        if (stored.created, stored.forked_from, stored.contexts) != (
            before.created,
            before.forked_from,
            before.contexts,
        ):
            raise _Behind
        try:
            return forms.open_head(stored, self._reader.text(self._key), dict(plain.contexts.values()))
        except Unsealed as fault:
            raise fault.told(self._reader.url, f"the head of session {self._key.session!r}") from None

    def _is_old_head(self, stored: Head, plain: Head, box: Box) -> bool:
        watched = _Watched(self._reader.text(self._key), box)
        forms.open_head(stored, watched, dict(plain.contexts.values()))
        forms.lineage_of(stored, watched)
        return watched.is_old

    def branch(self, key: SessionKey, stored: Head, seqs: Collection[int]) -> Head:
        self.branches.add(key)
        text, box = self._reader.text(key), self._reader.box(key)
        marks = {seq: mark for seq, mark in stored.contexts.values() if forms.is_mark(mark)}
        try:  # a mark goes through in the place of its digest, which would have to be read
            new = self._how.branch(key, forms.open_head(stored, text, marks), seqs)
            sealed = forms.seal_head(new, box, forms.lineage_of(stored, text))
        except Unsealed as fault:
            raise fault.told(self._reader.url, f"the head of session {key.session!r}") from None
        known = zip(sealed.contexts.items(), new.contexts.values(), strict=True)
        kept = {name: given if marks.get(given[0]) == given[1] else own for (name, own), given in known}
        return msgspec.structs.replace(sealed, contexts=kept)

    def entry(self, stored: Entry) -> Entry:
        owner = forms.owner(self._lineage, self._key.session, seq=stored.seq)
        box = self._reader.box(self._key._replace(session=owner))
        is_old = self._anew and forms.keys_of(stored) != {box.key_id}
        if stored.erased or (self._anew and not is_old):
            return stored
        plain = self._opened(f"entry {stored.seq}", lambda: forms.open_entry(stored, box))
        new = self._how.entry(plain)
        return stored if new is plain and not is_old else forms.seal_entry(new, box)

    def record(self, stored: Record) -> Record:
        asked = telling.asked_in(stored)
        key = self._key._replace(session=telling.teller(stored, self._lineage, self._key.session))
        box = self._reader.box(key)
        watched = _Watched(self._reader.text(key), box)
        what = f"the record of revision {stored.revision}"
        plain = self._opened(what, lambda: telling.open_record(stored, watched))
        new = self._how.record(plain)
        return stored if new is plain and not (self._anew and watched.is_old) else telling.seal_record(new, box, asked)

    def _opened(self, what: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except Unsealed as fault:
            raise fault.told(self._reader.url, f"{what} of session {self._key.session!r}") from None


class _Watched:
    """Opens texts, and sees whether one of them is under another key than what is written."""

    def __init__(self, open_text: Translate, box: Box) -> None:
        self._open_text, self._box = open_text, box
        self.is_old = False

    def __call__(self, place: str, text: str) -> str:
        self.is_old |= sealed_under(text) != self._box.key_id
        return self._open_text(place, text)

"""Keep a search index up to date with the logs of one tenant.

Appending an entry does no indexing work: the log itself is the queue. A search first lets the `Follower` read what each
session has had since the cursor that the index holds for it, page by page.

Other processes may read and erase at the same time. Text that was removed never comes back into the index: an update is
applied only if nothing was removed since its page was read (`generation`), and entries that are about to be erased are
blocked from before the erasure until after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.spans import Span
from palimpsest.recall.index import LAST_SEQ, Cursor, Document, Index, Update
from palimpsest.recall.parts import searchable_text
from palimpsest.runtime.logs import warn
from palimpsest.stores import SessionInfo, Store

FIRST, PAGE, CHARS = 16, 200, 2_000_000
"""How many entries of a session are read and indexed as one page: `FIRST` in the first page, then twice as many each
time, at most `PAGE`. A page with more than `CHARS` characters makes the next one smaller."""

TRIES = 16
"""How often in a row another writer may be first before a session is left for the next search."""

BLOCKED = 60_000_000
"""Microseconds after which a block is taken over, since whoever set it to erase entries must have been killed."""

Progress = Callable[[int, int], object]
"""Called with the number of sessions brought up to date so far, and the number of all that were behind."""


class Follower:
    """Follows the logs of one tenant with an index.

    `apart` says that the index is not kept in the store's own database, so a store that loses writes does not lose them
    in the index, too.
    """

    def __init__(self, store: Store, tenant: str, index: Index, clock: Callable[[], int], *, apart: bool) -> None:
        self.index = index
        self._store, self._tenant, self._clock = store, tenant, clock
        self._settled_at, self._era, self._apart = 0, store.era, apart

    # --- following

    async def catch_up(self, sessions: Collection[str] | None = None, progress: Progress | None = None) -> int:
        """Index what these sessions have had since the last time, or all of the tenant's; return how many were behind.

        With None only sessions that were written to since the last call are read. With names, exactly these are read.
        """
        await self._settle_old()
        if self._apart and self._era != self._store.era:  # the store lost writes that the index may hold
            self._era = self._store.era
            await self.index.empty()
        if sessions is not None:
            return sum([(await self._follow(session))[0] for session in sessions])
        generation = await self.index.generation()
        sessions_behind, mark = await self._behind()
        all_taken_in = True
        for number, session in enumerate(sessions_behind, 1):
            all_taken_in &= (await self._follow(session))[1]
            if progress is not None:
                progress(number, len(sessions_behind))
        if all_taken_in:  # with the old mark, sessions that are not finished are looked at again
            await self.index.set_mark(mark, generation)
        return len(sessions_behind)

    async def behind(self) -> list[str]:
        """Return the sessions that have entries or changes not in the index yet, the longest unchanged first."""
        return (await self._behind())[0]

    async def _behind(self) -> tuple[list[str], int]:
        """Return the sessions that the index is behind, the longest unchanged first, and the mark up to which was
        looked.

        A mark is a moment in which several writes may fall, and more may still come. So the mark returned is one lower
        than the last that was seen, and the writes of that moment are looked at again next time.
        """
        start = mark = await self.index.mark()
        sessions_behind, after = dict[str, None](), ""
        while page := await self._store.used(self._tenant, mark=mark, after=after):
            infos = [info for _, info in page if not info.damaged]
            cursors = await self.index.cursors([info.session for info in infos])
            sessions_behind |= {info.session: None for info in infos if _is_behind(info, cursors.get(info.session))}
            mark, after = page[-1][0], page[-1][1].session
        return list(sessions_behind), max(start, mark - 1)

    async def _follow(self, session: str) -> tuple[bool, bool]:
        """Index what a session has had until now; return whether there was anything, and whether all of it was taken
        in.

        What is added meanwhile is left for the next time: otherwise a busy writer would keep this going without end.
        """
        pace, has_moved, tries = _Pace(SessionKey(self._tenant, session)), False, 0
        try:
            while tries < TRIES:
                is_indexed = await self._store.together(partial(self._page, pace), reads=True)
                if is_indexed is None:
                    break
                has_moved, tries = has_moved or is_indexed, 0 if is_indexed else tries + 1
        except StoreCorrupt as fault:  # `verify` reports the damage; the other sessions can still be searched
            warn("a session is damaged, so new entries in it cannot be searched: %s", fault)
        if pace.loses and (await self.index.size()).stale:
            await self.index.scrub(whole=False)
        return has_moved, tries < TRIES

    async def _page(self, pace: _Pace) -> bool | None:
        """Index the next page of a session.

        Return True if that was done, False if another writer was first, None if nothing was left to do.
        """
        index, key = self.index, pace.key
        generation, head = await index.generation(), await self._store.head(key)
        cursor = (await index.cursors([key.session])).get(key.session)
        if cursor is not None and head is not None and cursor.revision > head.revision:
            # Another process may have indexed an append that happened after our head was read: read that again.
            head = await self._store.head(key)
        if cursor is not None and (head is None or head.created != cursor.created or head.revision < cursor.revision):
            await index.end(key.session)
            return True
        if head is None or (cursor is not None and (_is_at(cursor, head) or cursor.revision >= pace.until(head))):
            return None
        update = await self._update(pace, head, cursor, generation)
        if update is None:
            await index.end(key.session)
            return True
        return await index.update(key.session, update)

    async def _update(self, pace: _Pace, head: Head, cursor: Cursor | None, generation: int) -> Update | None:
        """Return the update that takes in the next page of a session.

        None means that what the index has of the session must be dropped, and the session read from its start: entries
        of it were redacted and nobody told the index which, or the store lost entries and has others in their places.
        """
        key, now, until_revision = pace.key, self._clock(), pace.until(head)
        start = cursor or Cursor(created=head.created, next_seq=head.first_seq)
        add, drop, lost_spans, hidden = list[Document](), list[Document](), tuple[Span, ...](), head.rewound
        unfinished = False
        if cursor is not None:
            records = await self._store.records(key, after=cursor.revision, before=head.revision + 1)
            if not self.index.name and any(record.kind == "redact" for record in records):
                return None  # only an index that the store knows by name is told what a redaction changes
            erased = spans.of(seq for record in records if record.kind == "erase" for seq in record.seqs)
            lost_spans = spans.union(erased, [(0, head.first_seq - 1)])
            pace.loses |= bool(erased)
            # Entries that were rewound, or brought back, since the cursor was set: one page of each at a time.
            indexed = [(head.first_seq, cursor.next_seq - 1)]
            rewound, rewound_later = _first_page(spans.common(spans.minus(head.rewound, cursor.hidden), indexed))
            restored, restored_later = _first_page(spans.common(spans.minus(cursor.hidden, head.rewound), indexed))
            drop, add = await self._documents(key, rewound, now), await self._documents(key, restored, now)
            hidden = spans.union(spans.minus(head.rewound, rewound_later), restored_later)
            unfinished = bool(rewound_later or restored_later)
        first, last = max(start.next_seq, head.first_seq), min(pace.next_seq, head.next_seq, LAST_SEQ)
        limit = 0 if unfinished else pace.limit
        # A server that lost writes may have other entries in their places. So the last indexed entry is read, too.
        overlap = int(self._apart and self._store.remote and start.last != "" and first > head.first_seq)
        after = first - 1 - overlap
        entries = (
            await self._store.read(key, after=after, before=last, limit=limit + overlap) if after < last - 1 else []
        )
        if overlap and (not entries or entries.pop(0).id != start.last):
            return None
        visible = [entry for entry in entries if not spans.within(head.rewound, entry.seq)]
        add += await self._store.apart(_documents, visible, now)
        pace.read(entries)
        more = unfinished or len(entries) == limit
        return Update(
            expect=cursor,
            generation=generation,
            cursor=Cursor(
                created=head.created,
                revision=start.revision if more else until_revision,
                next_seq=entries[-1].seq + 1 if entries and more else first if more else max(first, pace.next_seq),
                hidden=hidden,
                last=entries[-1].id if entries else start.last,
            ),
            add=add,
            drop=drop,
            lost=lost_spans,
        )

    async def _documents(self, key: SessionKey, seqs: Sequence[int], now: int | None = None) -> list[Document]:
        return await self._store.apart(_documents, await self._store.fetch(key, seqs), now) if seqs else []

    # --- removing

    async def remove(self, session: str, seqs: Sequence[int]) -> int:
        """Drop these entries and block them; return how many parts were dropped. Called before the log loses them."""
        gone = 0
        for at in range(0, len(seqs), PAGE):
            page = partial(self._remove, SessionKey(self._tenant, session), seqs[at : at + PAGE])
            gone += await self._store.together(page, reads=True)
        return gone

    async def _remove(self, key: SessionKey, seqs: Sequence[int]) -> int:
        """Drop and block one page of entries of a session.

        The documents are made, and freed, where the store's verbs run: freeing megabytes on an event loop would hold it
        up.
        """
        try:
            drop = await self._documents(key, seqs)
        except StoreCorrupt:  # a damaged entry cannot be read, but it must be possible to erase it
            drop = []
        return await self.index.block(key.session, drop, seqs, self._clock())

    async def remove_all(self, session: str) -> int:
        """Drop all of a session and block it; return how many parts were dropped.

        Called before the store loses the session.
        """
        last: int | None = 0
        now, dropped, pace = self._clock(), 0, _Pace(SessionKey(self._tenant, session))
        await self.index.block(session, (), (0,), now)
        if session not in await self.index.cursors([session]):
            return 0
        try:
            while last is not None:
                last, parts = await self._store.together(partial(self._remove_page, pace, last, now), reads=True)
                dropped += parts
        except StoreCorrupt as fault:  # a damaged session can be deleted, too
            warn("a damaged session was removed from the search index without being read: %s", fault)
        return dropped + await self.index.end(session)

    async def _remove_page(self, pace: _Pace, after: int, now: int) -> tuple[int | None, int]:
        """Drop the next entries; return the `seq` of the last (None: there are no more), and how many parts were
        dropped."""
        entries = await self._store.read(pace.key, after=after, limit=pace.limit)
        if not entries:
            return None, 0
        drop = await self._store.apart(_documents, entries)
        pace.read(entries)
        return entries[-1].seq, await self.index.block(pace.key.session, drop, (), now)

    async def settle(self, session: str, seqs: Sequence[int]) -> None:
        """Unblock these places, and index again whatever the log still has there. 0 among them stands for the whole
        session.

        Called when the erasure that blocked them is over, whether it was completed or not.
        """
        for at in range(0, len(seqs), PAGE):
            page = seqs[at : at + PAGE]
            for _ in range(TRIES):
                generation, add = await self.index.generation(), await self._remaining(session, page)
                if await self.index.unblock(session, page, generation, add):
                    break
        if 0 in seqs:  # `catch_up` passes over a session that was not written to since the mark
            await self._follow(session)

    async def _remaining(self, session: str, seqs: Sequence[int]) -> list[Document]:
        """Return the documents of those of these places that the log still has and shows."""
        key, now = SessionKey(self._tenant, session), self._clock()
        try:
            head = await self._store.head(key)
            visible = [seq for seq in seqs if seq and head is not None and not spans.within(head.rewound, seq)]
            return await self._documents(key, visible, now)
        except StoreCorrupt:  # a damaged entry is not indexed
            return []

    async def _settle_old(self) -> None:
        """Settle what a process blocked and was killed before it could settle it; then scrub what it dropped."""
        now = self._clock()
        if now - self._settled_at >= BLOCKED:
            for session, seqs in (await self.index.blocked(now - BLOCKED)).items():
                await self.settle(session, seqs)
            await self.index.scrub(whole=False)
            self._settled_at = now

    async def rebuild(self, progress: Progress | None = None) -> int:
        """Empty the index and fill it again from the logs; return how many sessions it has.

        If killed, the next call goes on.
        """
        await self.index.empty()
        return await self.catch_up(progress=progress)


class _Pace:
    """How much of a session is read as one page, and where reading stops: at the head as it was when reading began."""

    def __init__(self, key: SessionKey) -> None:
        self.key, self.limit, self.next_seq, self.loses = key, FIRST, 0, False
        self._begun: Head | None = None

    def until(self, head: Head) -> int:
        """Return the revision up to which the session is read. `head` is its head now; the first one seen counts."""
        if self._begun is None or self._begun.created != head.created:
            self._begun, self.next_seq = head, head.next_seq
        return self._begun.revision

    def read(self, entries: Sequence[Entry]) -> None:
        """Set the size of the next page by how many characters this one had."""
        chars = sum(len(searchable_text(entry)) for entry in entries)
        self.limit = min(2 * self.limit, PAGE) if chars < CHARS else max(1, len(entries) * CHARS // (2 * chars))


def is_found(entry: Entry, now: int | None = None) -> bool:
    """Return whether an entry can be searched.

    Entries that are erased or damaged cannot, nor reasoning. With `now` (microseconds) expired ones cannot either: the
    store may sweep these without leaving a record.
    """
    return not (entry.erased or entry.damaged or entry.is_reasoning or (now is not None and entry.expired(now)))


def _documents(entries: Sequence[Entry], now: int | None = None) -> list[Document]:
    """Return the documents of the searchable ones of these entries.

    Finding terms takes 1 ms per some thousand characters.
    """
    return [Document.of(entry) for entry in entries if is_found(entry, now)]


def _first_page(where: Iterable[Span]) -> tuple[list[int], tuple[Span, ...]]:
    """Return the first `PAGE` places in these spans, and the spans of the others."""
    every = tuple(where)
    seqs = list(islice(spans.members(every), PAGE))
    return seqs, tuple(spans.minus(every, spans.of(seqs)))


def _is_behind(info: SessionInfo, cursor: Cursor | None) -> bool:
    return cursor is None or (cursor.revision, cursor.created) != (info.revision, info.created)


def _is_at(cursor: Cursor, head: Head) -> bool:
    return cursor.revision == head.revision and cursor.next_seq == head.next_seq

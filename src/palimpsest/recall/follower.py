"""Bringing an index up to date with the logs of a tenant: the log is its own outbox, so nothing is done at an append.

A session is read from where its cursor stands, a page at a time. Whatever else reads or erases meanwhile, an index
never takes back what was removed from it: an update is made only where nothing was removed since its page was read, and
what somebody is about to erase is blocked from before that until after it.
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
from palimpsest.recall.parts import said
from palimpsest.runtime.logs import warn
from palimpsest.stores import SessionInfo, Store

FIRST, PAGE, CHARS = 16, 200, 2_000_000
"""Entries of a session that are read, and taken into the index, together: so many first, and then twice as many each
time, up to so many. Where they have more characters than that together, fewer are the next time."""

TRIES = 16
"""How often somebody else may be first, one after the other, until a session is left for another time."""

BLOCKED = 60_000_000
"""Microseconds after which whoever has blocked entries, to erase them, is taken to have been killed."""

Progress = Callable[[int, int], object]
"""Called with the number of sessions that were brought up to date, and of all that are behind."""


class Follower:
    """Follows the logs of one tenant with an index, which loses nothing together with the store where it is `apart`."""

    def __init__(self, store: Store, tenant: str, index: Index, clock: Callable[[], int], *, apart: bool) -> None:
        self.index = index
        self._store, self._tenant, self._clock = store, tenant, clock
        self._settled, self._era, self._apart = 0, store.era, apart

    # --- following

    async def catch_up(self, sessions: Collection[str] | None = None, progress: Progress | None = None) -> int:
        """Take in what these sessions have had since, or all of the tenant's; return how many were behind.

        Of the others that nobody has written to since the last time nothing is read.
        """
        await self._settle_old()
        if self._apart and self._era != self._store.era:  # it has read what is gone
            self._era = self._store.era
            await self.index.empty()
        if sessions is not None:
            return sum([(await self._follow(session))[0] for session in sessions])
        generation = await self.index.generation()
        behind, mark = await self._behind()
        whole = True
        for number, session in enumerate(behind, 1):
            whole &= (await self._follow(session))[1]
            if progress is not None:
                progress(number, len(behind))
        if whole:  # else they are looked at again
            await self.index.set_mark(mark, generation)
        return len(behind)

    async def behind(self) -> list[str]:
        """Return which sessions have had something that is not in the index yet, those of longest ago first."""
        return (await self._behind())[0]

    async def _behind(self) -> tuple[list[str], int]:
        """The sessions that the index is behind, those of longest ago first, and up to which mark they were looked at.

        A mark is a moment: what is written in that comes again next time.
        """
        start = mark = await self.index.mark()
        behind, after = dict[str, None](), ""
        while page := await self._store.used(self._tenant, mark=mark, after=after):
            infos = [info for _, info in page if not info.damaged]
            cursors = await self.index.cursors([info.session for info in infos])
            behind |= {info.session: None for info in infos if _is_behind(info, cursors.get(info.session))}
            mark, after = page[-1][0], page[-1][1].session
        return list(behind), max(start, mark - 1)

    async def _follow(self, session: str) -> tuple[bool, bool]:
        """Take in what a session has had until now; return whether there was anything, and whether all was taken in.

        Whatever is added meanwhile comes the next time: or whoever goes on adding would keep it going.
        """
        pace, moved, tries = _Pace(SessionKey(self._tenant, session)), False, 0
        try:
            while tries < TRIES:
                done = await self._store.together(partial(self._page, pace), reads=True)
                if done is None:
                    break
                moved, tries = moved or done, 0 if done else tries + 1
        except StoreCorrupt as fault:  # `verify` names it; what is damaged keeps nobody from the rest
            warn("a session cannot be searched: %s", fault)
        if pace.loses and (await self.index.size()).stale:
            await self.index.scrub(whole=False)
        return moved, tries < TRIES

    async def _page(self, pace: _Pace) -> bool | None:
        """Take in a page; return whether that was done, None for nothing that was left to do."""
        index, key = self.index, pace.key
        generation, head = await index.generation(), await self._store.head(key)
        cursor = (await index.cursors([key.session])).get(key.session)
        if cursor is not None and head is not None and cursor.revision > head.revision:
            head = await self._store.head(key)  # it may have been added to, and read by another process
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
        """What becomes of a session by its next page. None: what is known of it has other words now, nobody knows
        where, or the store has lost it, and has another entry in the place of the last of it."""
        key, now, until = pace.key, self._clock(), pace.until(head)
        done = cursor or Cursor(created=head.created, next_seq=head.first_seq)
        add, drop, lost, hidden, rest = list[Document](), list[Document](), tuple[Span, ...](), head.rewound, False
        if cursor is not None:
            records = await self._store.records(key, after=cursor.revision, before=head.revision + 1)
            if not self.index.name and any(record.kind == "redact" for record in records):
                return None  # who has a name is told of it
            erased = spans.of(seq for record in records if record.kind == "erase" for seq in record.seqs)
            lost = spans.union(erased, [(0, head.first_seq - 1)])
            pace.loses |= bool(erased)
            known = [(head.first_seq, cursor.next_seq - 1)]
            gone, left = _some(spans.common(spans.minus(head.rewound, cursor.hidden), known))
            back, still = _some(spans.common(spans.minus(cursor.hidden, head.rewound), known))
            drop, add = await self._documents(key, gone, now), await self._documents(key, back, now)
            hidden, rest = spans.union(spans.minus(head.rewound, left), still), bool(left or still)
        first, last = max(done.next_seq, head.first_seq), min(pace.next_seq, head.next_seq, LAST_SEQ)
        limit = 0 if rest else pace.limit
        again = int(self._apart and self._store.remote and done.last != "" and first > head.first_seq)
        behind = first - 1 - again
        entries = (
            await self._store.read(key, after=behind, before=last, limit=limit + again) if behind < last - 1 else []
        )
        if again and (not entries or entries.pop(0).id != done.last):
            return None
        shown = [one for one in entries if not spans.within(head.rewound, one.seq)]
        add += await self._store.apart(_documents, shown, now)
        pace.read(entries)
        more = rest or len(entries) == limit
        return Update(
            expect=cursor,
            generation=generation,
            cursor=Cursor(
                created=head.created,
                revision=done.revision if more else until,
                next_seq=entries[-1].seq + 1 if entries and more else first if more else max(first, pace.next_seq),
                hidden=hidden,
                last=entries[-1].id if entries else done.last,
            ),
            add=add,
            drop=drop,
            lost=lost,
        )

    async def _documents(self, key: SessionKey, seqs: Sequence[int], now: int | None = None) -> list[Document]:
        return await self._store.apart(_documents, await self._store.fetch(key, seqs), now) if seqs else []

    # --- what goes

    async def remove(self, session: str, seqs: Sequence[int]) -> int:
        """Drop these entries, which are still in the log, and take none of them back; return how many parts went."""
        gone = 0
        for at in range(0, len(seqs), PAGE):
            page = partial(self._remove, SessionKey(self._tenant, session), seqs[at : at + PAGE])
            gone += await self._store.together(page, reads=True)
        return gone

    async def _remove(self, key: SessionKey, seqs: Sequence[int]) -> int:
        """Drop these of a session. They end where they are read: to let go of megabytes would hold up an event loop."""
        try:
            drop = await self._documents(key, seqs)
        except StoreCorrupt:  # nobody can read what it says, who must be able to erase it all the same
            drop = []
        return await self.index.block(key.session, drop, seqs, self._clock())

    async def remove_all(self, session: str) -> int:
        """Drop a session, which is still there, and take nothing of it back; return how many parts went."""
        last: int | None = 0
        now, gone, pace = self._clock(), 0, _Pace(SessionKey(self._tenant, session))
        await self.index.block(session, (), (0,), now)
        if session not in await self.index.cursors([session]):
            return 0
        try:
            while last is not None:
                last, some = await self._store.together(partial(self._remove_page, pace, last, now), reads=True)
                gone += some
        except StoreCorrupt as fault:  # as above
            warn("a session leaves the search index unread: %s", fault)
        return gone + await self.index.end(session)

    async def _remove_page(self, pace: _Pace, after: int, now: int) -> tuple[int | None, int]:
        """Drop the next entries; return the last of them (None: there were none), and how many parts went."""
        entries = await self._store.read(pace.key, after=after, limit=pace.limit)
        if not entries:
            return None, 0
        drop = await self._store.apart(_documents, entries)
        pace.read(entries)
        return entries[-1].seq, await self.index.block(pace.key.session, drop, (), now)

    async def settle(self, session: str, seqs: Sequence[int]) -> None:
        """Take back what of these places (0: of all) is still there, now that whatever was done to it is done."""
        for at in range(0, len(seqs), PAGE):
            some = seqs[at : at + PAGE]
            for _ in range(TRIES):
                generation, add = await self.index.generation(), await self._there(session, some)
                if await self.index.unblock(session, some, generation, add):
                    break
        if 0 in seqs:  # nobody else comes by a session that was written to before the mark
            await self._follow(session)

    async def _there(self, session: str, seqs: Sequence[int]) -> list[Document]:
        """What is to be found of these places as the log is now."""
        key, now = SessionKey(self._tenant, session), self._clock()
        try:
            head = await self._store.head(key)
            shown = [seq for seq in seqs if seq and head is not None and not spans.within(head.rewound, seq)]
            return await self._documents(key, shown, now)
        except StoreCorrupt:  # as above
            return []

    async def _settle_old(self) -> None:
        """Settle what somebody has blocked who was killed before he could, and see that no byte of it is left."""
        now = self._clock()
        if now - self._settled >= BLOCKED:
            for session, seqs in (await self.index.blocked(now - BLOCKED)).items():
                await self.settle(session, seqs)
            await self.index.scrub(whole=False)
            self._settled = now

    async def rebuild(self, progress: Progress | None = None) -> int:
        """Make the index anew from the logs; return how many sessions are in it. Killed, it is gone on with."""
        await self.index.empty()
        return await self.catch_up(progress=progress)


class _Pace:
    """How much of a session is read at once, and up to where: up to how it was when that began."""

    def __init__(self, key: SessionKey) -> None:
        self.key, self.limit, self.next_seq, self.loses = key, FIRST, 0, False
        self._begun: Head | None = None

    def until(self, head: Head) -> int:
        """The revision up to which it is read; `head` is how it is now."""
        if self._begun is None or self._begun.created != head.created:
            self._begun, self.next_seq = head, head.next_seq
        return self._begun.revision

    def read(self, entries: Sequence[Entry]) -> None:
        """Know how large these were."""
        chars = sum(len(said(entry)) for entry in entries)
        self.limit = min(2 * self.limit, PAGE) if chars < CHARS else max(1, len(entries) * CHARS // (2 * chars))


def is_found(entry: Entry, now: int | None = None) -> bool:
    """Whether an entry is searched: what has gone is not, nor what a model thought, nor (at a time, in microseconds)
    what has expired, which may be swept without a word."""
    return not (entry.erased or entry.damaged or entry.is_reasoning or (now is not None and entry.expired(now)))


def _documents(entries: Sequence[Entry], now: int | None = None) -> list[Document]:
    """What an index takes of these entries: to find their terms takes a millisecond for some thousand characters."""
    return [Document.of(entry) for entry in entries if is_found(entry, now)]


def _some(where: Iterable[Span]) -> tuple[list[int], tuple[Span, ...]]:
    """The first places of these, as many as are read at once, and where the others are."""
    all_of = tuple(where)
    seqs = list(islice(spans.members(all_of), PAGE))
    return seqs, tuple(spans.minus(all_of, spans.of(seqs)))


def _is_behind(info: SessionInfo, cursor: Cursor | None) -> bool:
    return cursor is None or (cursor.revision, cursor.created) != (info.revision, info.created)


def _is_at(cursor: Cursor, head: Head) -> bool:
    return cursor.revision == head.revision and cursor.next_seq == head.next_seq

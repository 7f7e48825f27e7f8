"""Drives steps (`palimpsest.context.asks`): pure code that asks for parts of a session's log. Reads only.

A context is computed by such steps. This module answers their asks from the store, and from what was remembered of the
session's last context.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TypeVar

from palimpsest.context.asks import Ask, BySeqs, Cached, Compacted, Done, Long, Newest, Page, Steps, advance
from palimpsest.context.layout import CachedContext
from palimpsest.errors import PalimpsestError, StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.summary import Compaction
from palimpsest.sessions.remembered import CacheUse, Stretch, weight_of
from palimpsest.stores import Store
from palimpsest.stores.values import Standing

T = TypeVar("T")

LIGHT = 176 * 1024
"""Bytes of entries, by `weight_of`, up to which steps run on the event loop's own thread. Computing with so many takes
half a millisecond as a rule and two at most, which is as long as changing to another thread and back delays others."""


async def run_steps(
    store: Store, key: SessionKey, counter: str, begin: Callable[[], Steps[T]], cache: CacheUse | None = None
) -> T:
    """Run the steps that `begin` returns and return their result. Entries come with their counts by this counter.

    Parts of the log that `cache` has from the session's last context are not read again, if they still hold; afterwards
    `cache` also has what was read. Nothing is read twice.

    All reads happen in one go, where the store's verbs run. Computing between two reads does not block an event loop:
    it is done in a thread, unless it works on few entries (`LIGHT`) and the steps have not asked for `Long`.

    Steps that ask for the head get the one that this process saw last, without a read. Every later read also returns
    the present head; if that is another one, the steps are begun again.
    """

    async def read() -> T:
        outcome = await _Answers(store, key, counter, store.seen(key), cache).run(begin())
        while outcome is None:  # the head that was seen last was outdated: now it is read first
            outcome = await _Answers(store, key, counter, None, cache).run(begin())
        return outcome.value

    return await store.together(read, reads=True)


def run_cached(
    store: Store, key: SessionKey, counter: str, begin: Callable[[], Steps[T]], cache: CacheUse
) -> Done[T] | None:
    """Run the steps that `begin` returns if everything they ask for is remembered and small; None if it is not.

    They run on the calling thread, since changing to another thread and back would take as long.
    """
    before = cache.before
    if before is None or before.weight > LIGHT:
        return None
    standing = store.glance(key)
    if standing is None or not before.holds(standing.mark, counter):
        return None
    return _Answers(store, key, counter, standing, cache).run_cached(begin(), standing)


class _Answers:
    """Answers one run of steps.

    `assumed` is how this process saw the session last, or None. The steps are told so, and while `_confirmed` is false
    no read has shown yet that the session still is like that.
    """

    def __init__(
        self, store: Store, key: SessionKey, counter: str, assumed: Standing | None, cache: CacheUse | None
    ) -> None:
        self._store, self._key, self._counter, self._assumed, self._cache = store, key, counter, assumed, cache
        self._before = cache or CacheUse(None, 0)
        self._confirmed = assumed is None
        self._edge: Entry | None = None  # the last remembered entry, if it is yet to be seen that the store has it
        self._asked = False  # whether the steps have asked for the head
        self._read = False  # whether the store was read, so that what it has seen is newer than `assumed`
        self._has_view = False  # whether the last context's rendering is remembered
        self._long = False
        self._weight = 0
        self._stretches: list[Stretch] = []
        self._compacted: dict[int, Compaction] = {}

    async def run(self, steps: Steps[T]) -> Done[T] | None:
        """Return the result of the steps, or None if they assumed an outdated head and must begin again."""
        store = self._store
        answer: object = None
        was_newest = False
        while True:  # a blocking store is in its own thread here
            on_this_thread = store.blocking or was_newest or not (self._long or self._weight > LIGHT)
            try:
                ask = advance(steps, answer) if on_this_thread else await store.apart(self._advance, steps, answer)
            except PalimpsestError:  # an outdated head may be the cause
                if self._asked and await self._is_outdated():
                    return None
                raise
            if isinstance(ask, Done):
                if self._asked and await self._is_outdated():
                    return None
                if self._cache is not None and self._assumed is not None:
                    self._cache.read(self._assumed.mark, self._stretches)
                return ask
            was_newest = isinstance(ask, Newest)
            if isinstance(ask, Long):
                self._long, answer = True, None
            elif isinstance(ask, Cached):
                answer = self._cached()
            elif isinstance(ask, Newest):
                if self._asked and await self._is_outdated():
                    return None
                answer = (await self._newest()).head
            else:
                answer = await self._answer(ask)
                if answer is None:
                    return None

    def run_cached(self, steps: Steps[T], standing: Standing) -> Done[T] | None:
        """Return the result of the steps for this standing, without any read; None if one is needed."""
        ask = advance(steps, None)
        while not isinstance(ask, Done):
            match ask:
                case Newest():
                    answer: tuple[object] | None = (standing.head,)
                case Cached():
                    answer = (self._cached(),)
                case Long():
                    answer = None
                case _:
                    answer = self._unread_answer(ask)
            if answer is None:
                return None
            ask = advance(steps, answer[0])
        if self._cache is not None:
            self._cache.read(standing.mark, self._stretches)
        return ask

    def _advance(self, steps: Steps[T], answer: object) -> Ask | Done[T]:
        """Advance the steps up to the next ask that needs a read.

        This runs in a thread, so that everything between two reads takes a single change of threads.
        """
        ask = advance(steps, answer)
        while (unread := self._unread_answer(ask)) is not None:
            ask = advance(steps, unread[0])
        return ask

    def _unread_answer(self, ask: Ask | Done[T]) -> tuple[object] | None:
        """Return the answer in a tuple, if it needs no read; None if it needs one."""
        match ask:
            case Long():
                return (None,)
            case Newest() if self._asked and self._confirmed and self._read:
                seen = self._store.seen(self._key)
                return (seen.head,) if seen is not None else None
            case Page():
                entries, rest = self._already_read(ask)
                return (entries,) if rest is None else None
            case Compacted(revision) if revision in self._compacted:
                return (self._compacted[revision],)
        return None

    def _cached(self) -> CachedContext | None:
        """Return what was remembered of the last context, if it holds for the assumed standing."""
        before = self._cache.before if self._cache is not None else None
        if before is None or self._assumed is None or not before.holds(self._assumed.mark, self._counter):
            return None
        head, edge = self._assumed.head, before.edge if self._store.remote else None
        if edge is not None and (edge.seq, edge.revision) != (head.next_seq - 1, head.revision):
            self._edge = edge
        self._stretches, self._has_view = list(before.stretches), before.cached.view is not None
        self._weight = before.weight
        return before.cached

    async def _newest(self) -> Standing:
        """Return how the session is: first as assumed, later as the store has seen it in the meantime."""
        first, self._asked = not self._asked, True
        if first and self._assumed is not None:
            return self._assumed
        last_seen = self._store.seen(self._key) if self._read else None
        standing = last_seen or await self._store.standing(self._key)
        if first:
            self._assumed = standing
        return standing

    async def _is_outdated(self) -> bool:
        """Whether the session is not as the steps assumed. Looks at the store if no read has confirmed it yet."""
        if self._edge is not None:
            edge = self._edge.seq
            self._confirmed = await self._read_and_confirm(Page(edge, edge + 1, 1), 0) is not None
        if not self._confirmed:
            self._confirmed = _is_same(self._assumed, await self._store.standing(self._key))
            self._read = self._confirmed
        return not self._confirmed

    async def _answer(self, ask: Ask) -> object:
        """Read the answer from the store; None if the read shows that the assumed standing is outdated."""
        match ask:
            case Page():
                return await self._page(ask)
            case BySeqs(seqs):
                entries = await self._store.fetch(self._key, seqs, counter=self._counter)
                self._weight += weight_of(entries)
                return entries
            case Compacted(revision):
                empty = Page(0, 1, 1)  # reads no entries, but the record, and how the session is
                if revision not in self._compacted and await self._read_and_confirm(empty, revision) is None:
                    return None
                return self._compacted[revision]
        raise AssertionError(f"nobody asks {ask}")

    async def _page(self, ask: Page) -> list[Entry] | None:
        """Return a page, reading only what is not known yet; None if the assumed standing is outdated."""
        entries: list[Entry] = []
        rest: Page | None = ask
        while rest is not None:
            already_read, rest = self._already_read(rest)
            entries += already_read
            if rest is not None:
                piece = self._next_unread(rest)
                read = await self._read_page(piece)
                if read is None:
                    return None
                entries += read
                rest = _rest_of(rest, piece, len(read))
        return entries

    async def _read_page(self, ask: Page) -> list[Entry] | None:
        """Read a page. The first one is read together with the newest compaction, which steps mostly ask for next."""
        ahead = self._assumed is not None and not (self._compacted or self._has_view)
        revision = self._assumed.head.compaction if self._assumed is not None and ahead else 0
        if revision:
            with suppress(StoreCorrupt):  # a damaged record raises when the steps ask for it
                return await self._read_and_confirm(ask, revision)
        return await self._read_and_confirm(ask, 0)

    async def _read_and_confirm(self, ask: Page, revision: int) -> list[Entry] | None:
        """Read a page and the compaction of this revision; None if the assumed standing is outdated."""
        with_edge = int(self._edge is not None and self._edge.seq == ask.after)
        standing, entries, records = await self._store.page(
            self._key,
            after=ask.after - with_edge,
            before=ask.before,
            limit=ask.limit + with_edge,
            newest_first=ask.newest_first,
            counter=self._counter,
            revision=revision,
        )
        if self._cache is not None and self._assumed is not None and self._assumed.mark != standing.mark:
            self._cache = None  # the reads belong to different marks, so they must not be remembered together
        if self._asked and not self._confirmed:
            self._confirmed = _is_same(self._assumed, standing)
            if not self._confirmed:
                return None
        if with_edge and not self._has_edge(entries, ask):
            return None
        self._read = True
        self._compacted[revision] = (records[0].compaction if records else None) or Compaction()
        if ask.before - ask.after > 1:
            self._keep(ask, entries)
        return entries

    def _has_edge(self, entries: list[Entry], ask: Page) -> bool:
        """Whether the read entries begin with the last remembered one, and go on from it. It is removed from them.

        A store that has lost acknowledged writes may have other entries at its place by now. Then everything that is
        remembered is forgotten, and all is read anew.
        """
        at = -1 if ask.newest_first else 0
        if ask.newest_first and len(entries) > ask.limit and entries[at].seq != ask.after:
            entries.pop()  # the page ends before the edge; this is the one entry more than was asked for
        elif entries and self._edge is not None and entries[at].id == self._edge.id:
            entries.pop(at)
            self._edge = None
        else:
            self._before.forget()
            return False
        return True

    def _keep(self, ask: Page, answer: Sequence[Entry]) -> None:
        """Keep what a read of a page returned, joined with neighbouring stretches, and without those it contains."""
        entries = list(answer[::-1] if ask.newest_first else answer)
        is_complete = len(entries) < ask.limit
        low = ask.after if is_complete or not ask.newest_first else entries[0].seq - 1
        high = ask.before if is_complete or ask.newest_first else entries[-1].seq + 1
        if self._cache is not None and any(entry.damaged for entry in entries):
            self._cache = None  # a damaged entry may be repaired, or be readable the next time
        weighed = self._cache is not None or not self._store.blocking
        stretch = Stretch(low, high, entries, weight_of(entries) if weighed else 0)
        self._weight += stretch.weight
        separate = []
        for existing in self._stretches:
            if (joined := stretch.joined(existing)) is not None:
                stretch = joined
            elif existing.low < stretch.low or stretch.high < existing.high:
                separate.append(existing)
        self._stretches = [*separate, stretch]

    def _already_read(self, page: Page) -> tuple[list[Entry], Page | None]:
        """Return the entries from the beginning of a page that were read before, and the rest of the page, if any."""
        at = page.before - 1 if page.newest_first else page.after + 1
        for stretch in self._stretches:
            low, high, entries = stretch.low, stretch.high, stretch.entries
            if low < at < high:
                first = bisect_left(entries, max(page.after, low) + 1, key=_seq)
                known = entries[first : bisect_left(entries, min(page.before, high), key=_seq)]
                known = known[: -page.limit - 1 : -1] if page.newest_first else known[: page.limit]
                return known, _rest_of(page, Page(low, high, page.limit, page.newest_first), len(known))
        return [], page

    def _next_unread(self, page: Page) -> Page:
        """Return the part of a page to read next: from its beginning up to the next entries that were read before."""
        if page.newest_first:
            after = max((one.high - 1 for one in self._stretches if one.high < page.before), default=0)
            return Page(max(after, page.after), page.before, page.limit, newest_first=True)
        before = min((one.low + 1 for one in self._stretches if one.low > page.after), default=page.before)
        return Page(page.after, min(before, page.before), page.limit)


def _rest_of(page: Page, piece: Page, count: int) -> Page | None:
    """Return the rest of a page after a piece of it that had `count` entries; None if nothing is left."""
    if count == page.limit:
        return None
    if page.newest_first:
        rest = Page(page.after, piece.after + 1, page.limit - count, newest_first=True)
    else:
        rest = Page(piece.before - 1, page.before, page.limit - count)
    return rest if rest.before - rest.after > 1 else None


_seq = attrgetter("seq")


def _is_same(assumed: Standing | None, now: Standing) -> bool:
    """Whether a session is as it was assumed to be."""
    return assumed is not None and assumed.mark == now.mark and (assumed.head is now.head or assumed.head == now.head)

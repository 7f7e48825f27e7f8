"""Answers what pure code asks of a session's log (`palimpsest.context.asks`), from a store. Reads only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple, TypeVar

from palimpsest.context.asks import Ask, Compacted, Done, Newest, Page, Places, Steps, advance
from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.summary import Compaction
from palimpsest.stores import Store, compaction_of
from palimpsest.stores.values import Standing

T = TypeVar("T")


async def answered(store: Store, key: SessionKey, counter: str, begin: Callable[[], Steps[T]]) -> T:
    """Return what the steps come to that `begin` begins. Entries have what this counter counts of them.

    All is read in one go, where the store's verbs run, and nothing of it twice. What is computed in between holds up no
    event loop. Steps that ask for the head are told the one that was seen last: whatever is read tells the one that is
    there, too, and where that is another they begin again.
    """

    async def read() -> T:
        done = await _Answers(store, key, counter, store.seen(key)).run(begin())
        while done is None:
            done = await _Answers(store, key, counter, None).run(begin())
        return done.value

    return await store.together(read, reads=True)


class Stretch(NamedTuple):
    """Entries that were read: all between two places, both exclusive, in order."""

    low: int
    high: int
    entries: list[Entry]


class _Answers:
    """Answers steps, once; `told` is how the session was seen last, if it was."""

    def __init__(self, store: Store, key: SessionKey, counter: str, told: Standing | None) -> None:
        self._store, self._key, self._counter, self._told = store, key, counter, told
        self._sure = told is None
        self._asked = self._read = False
        self._stretches: list[Stretch] = []
        self._compacted: dict[int, Compaction] = {}

    async def run(self, steps: Steps[T]) -> Done[T] | None:
        """What the steps come to; None where the session was not as they were told, and so they are to begin again."""
        store = self._store
        answer: object = None
        while True:  # a blocking store is in its own thread here
            ask = advance(steps, answer) if store.blocking else await store.apart(advance, steps, answer)
            if isinstance(ask, Done):
                return None if self._asked and await self._is_other() else ask
            if isinstance(ask, Newest):
                if self._asked and await self._is_other():
                    return None
                answer = (await self._newest()).head
            else:
                answer = self._known(ask)
                if answer is None:
                    answer = await self._answer(ask)
                if answer is None:
                    return None

    async def _newest(self) -> Standing:
        """How the session is, as far as is known: as this process has seen it since something of it was read."""
        first, self._asked = not self._asked, True
        if first and self._told is not None:
            return self._told
        seen = self._store.seen(self._key) if self._read else None
        now = seen or await self._store.standing(self._key)
        if first:
            self._told = now
        return now

    async def _is_other(self) -> bool:
        """Whether the session turns out to be another than was told, where nothing that was read has said it yet."""
        if not self._sure:
            self._sure = _same(self._told, await self._store.standing(self._key))
            self._read = self._sure
        return not self._sure

    async def _answer(self, ask: Ask) -> object:
        """What is read of the store; None where that shows the session as another than was told."""
        match ask:
            case Page():
                return await self._page(ask)
            case Places(seqs):
                return await self._store.fetch(self._key, seqs, counter=self._counter)
            case Compacted(revision):
                found = self._compacted[revision] = await compaction_of(self._store, self._key, revision)
                return found
        raise AssertionError(f"nobody asks {ask}")

    async def _page(self, ask: Page) -> list[Entry] | None:
        """A page. With the first comes the newest compaction, which is likely to be asked for after it."""
        revision = self._told.head.compaction if self._told is not None and not self._compacted else 0
        if revision:
            with suppress(StoreCorrupt):  # a damaged record is told to who asks for it
                return await self._paged(ask, revision)
        return await self._paged(ask, 0)

    async def _paged(self, ask: Page, revision: int) -> list[Entry] | None:
        now, entries, records = await self._store.page(
            self._key,
            after=ask.after,
            before=ask.before,
            limit=ask.limit,
            newest_first=ask.newest_first,
            counter=self._counter,
            revision=revision,
        )
        if self._asked and not self._sure:
            self._sure = _same(self._told, now)
            if not self._sure:
                return None
        self._read = True
        if revision:
            self._compacted[revision] = (records[0].compaction if records else None) or Compaction()
        self._keep(ask, entries)
        return entries

    def _keep(self, ask: Page, answer: Sequence[Entry]) -> None:
        entries = list(answer[::-1] if ask.newest_first else answer)
        whole = len(entries) < ask.limit
        low = ask.after if whole or not ask.newest_first else entries[0].seq - 1
        high = ask.before if whole or ask.newest_first else entries[-1].seq + 1
        for i, (other_low, other_high, others) in enumerate(self._stretches):
            if other_low == high - 1:
                self._stretches[i] = Stretch(low, other_high, entries + others)
                return
            if other_high == low + 1:
                self._stretches[i] = Stretch(other_low, high, others + entries)
                return
        self._stretches.append(Stretch(low, high, entries))

    def _known(self, ask: Ask) -> object:
        """What was read before; None where that does not say it."""
        if isinstance(ask, Compacted):
            return self._compacted.get(ask.revision)
        if not isinstance(ask, Page):
            return None
        at = ask.before - 1 if ask.newest_first else ask.after + 1
        for low, high, entries in self._stretches:
            if low < at < high:
                first = bisect_left(entries, max(ask.after, low) + 1, key=_seq)
                end = bisect_left(entries, min(ask.before, high), key=_seq)
                found = entries[first:end]
                if found or (low <= ask.after and ask.before <= high):
                    return found[: -ask.limit - 1 : -1] if ask.newest_first else found[: ask.limit]
        return None


_seq = attrgetter("seq")


def _same(told: Standing | None, now: Standing) -> bool:
    """Whether a session is as it was told."""
    return told is not None and told.mark == now.mark and (told.head is now.head or told.head == now.head)

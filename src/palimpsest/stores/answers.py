"""Answers what pure code asks of a session's log (`palimpsest.context.asks`), from a store. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from palimpsest.context.asks import Ask, Compacted, Done, Newest, Page, Places, Steps, advance
from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.summary import Compaction
from palimpsest.stores import Store, compaction_of

T = TypeVar("T")


async def answered(store: Store, key: SessionKey, counter: str, begin: Callable[[], Steps[T]]) -> T:
    """Return what the steps come to that `begin` begins. Entries have what this counter counts of them.

    All is read in one go, where the store's verbs run. What is computed in between holds up no event loop. Steps that
    ask for the head are told the one that was seen last: whatever is read tells the one that is there, too, and where
    that is another they begin again.
    """

    async def read() -> T:
        done = await _answered(store, key, counter, begin(), store.seen(key))
        while done is None:
            done = await _answered(store, key, counter, begin(), None)
        return done.value

    return await store.together(read, reads=True)


async def _answered(store: Store, key: SessionKey, counter: str, steps: Steps[T], told: Head | None) -> Done[T] | None:
    """What the steps come to; None where the head was not the one that is `told`, and so they are to begin again."""
    answer: object = None
    asked, read, sure = False, False, told is None
    before = _Read()
    while True:  # a blocking store is in its own thread here
        ask = advance(steps, answer) if store.blocking else await store.apart(advance, steps, answer)
        if isinstance(ask, Done):
            if asked and not sure and await store.head(key) != told:
                return None
            return ask
        if isinstance(ask, Newest) and not asked and told is not None:
            asked, answer = True, told
        elif isinstance(ask, Newest) and read:
            answer = store.seen(key) or await store.head(key) or Head()
        else:
            answer = before.answer(ask)
            if answer is None:
                answer = await before.read(store, key, counter, ask)
            read = read or isinstance(ask, Page | Places)
        if read and asked and not sure:
            if store.seen(key) != told:
                return None
            sure = True


class _Read:
    """What steps were answered last, for when they ask for some of it again: a stretch of the log, and a compaction."""

    def __init__(self) -> None:
        self._low = self._high = 0
        self._entries: list[Entry] = []
        self._compacted: tuple[Ask, object] | None = None

    async def read(self, store: Store, key: SessionKey, counter: str, ask: Ask) -> object:
        """Read the answer. With a page comes the newest compaction, which is likely to be asked for after it."""
        head = store.seen(key)
        if isinstance(ask, Page) and self._compacted is None and head is not None and head.compaction:
            with suppress(StoreCorrupt):  # a damaged record is told to who asks for it
                return await self._page(store, key, counter, ask, head.compaction)
        answer = await _answer(store, key, counter, ask)
        self._keep(ask, answer)
        return answer

    async def _page(self, store: Store, key: SessionKey, counter: str, ask: Page, revision: int) -> list[Entry]:
        entries, records = await store.page(
            key,
            after=ask.after,
            before=ask.before,
            limit=ask.limit,
            newest_first=ask.newest_first,
            counter=counter,
            revision=revision,
        )
        self._keep(ask, entries)
        self._keep(Compacted(revision), (records[0].compaction if records else None) or Compaction())
        return entries

    def _keep(self, ask: Ask, answer: object) -> None:
        if isinstance(ask, Compacted):
            self._compacted = ask, answer
        elif isinstance(ask, Page) and isinstance(answer, list):
            entries = answer[::-1] if ask.newest_first else answer[:]
            whole = len(entries) < ask.limit
            self._low = ask.after if whole or not ask.newest_first else entries[0].seq - 1
            self._high = ask.before if whole or ask.newest_first else entries[-1].seq + 1
            self._entries = entries

    def answer(self, ask: Ask) -> object:
        """What was read before; None where that does not say it."""
        if isinstance(ask, Compacted) and self._compacted is not None and self._compacted[0] == ask:
            return self._compacted[1]
        if isinstance(ask, Page) and self._low <= ask.after and ask.before <= self._high:
            found = [entry for entry in self._entries if ask.after < entry.seq < ask.before]
            return (found[::-1] if ask.newest_first else found)[: ask.limit]
        return None


async def _answer(store: Store, key: SessionKey, counter: str, ask: Ask) -> object:
    match ask:
        case Newest():
            return await store.head(key) or Head()
        case Page(after, before, limit, newest):
            return await store.read(key, after=after, before=before, limit=limit, newest_first=newest, counter=counter)
        case Places(seqs):
            return await store.fetch(key, seqs, counter=counter)
        case Compacted(revision):
            return await compaction_of(store, key, revision)

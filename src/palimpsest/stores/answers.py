"""Answers what pure code asks of a session's log (`palimpsest.context.asks`), from a store. Reads only."""

from __future__ import annotations

from typing import TypeVar

from palimpsest.context.asks import Ask, Compacted, Done, Newest, Page, Places, Steps, advance
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores import Store, compaction_of

T = TypeVar("T")


async def answered(store: Store, key: SessionKey, counter: str, steps: Steps[T]) -> T:
    """Return what the steps come to. Entries have what this counter counts of them.

    All is read in one go, where the store's verbs run. What is computed in between holds up no event loop.
    """

    async def read() -> T:
        answer: object = None
        while True:  # a blocking store is in its own thread here
            ask = advance(steps, answer) if store.blocking else await store.apart(advance, steps, answer)
            if isinstance(ask, Done):
                found: T = ask.value
                return found
            answer = await _answer(store, key, counter, ask)

    return await store.together(read, reads=True)


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

"""A writer that is always first: it writes before each commit of a verb, however often the verb tries again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from palimpsest import Entry, Memory
from palimpsest.log.change import Change
from palimpsest.log.head import Cut, SessionKey
from palimpsest.stores import Store

COMMITS = ("commit", "fork", "delete", "load", "rewrite")
"""The verbs of a store that change a session, except `append`, which never starts again."""

PATIENCE = 300
"""The number of commits of one verb after which it counts as never ending."""

MEANWHILE = "meanwhile"

Meddling = Callable[[Store, SessionKey, int], Awaitable[object]]


class RivalWriter:
    """Calls `meddling` with the session before each of a verb's first `times` commits; `number` counts the calls."""

    def __init__(self, memory: Memory, meddling: Meddling, times: int = PATIENCE) -> None:
        self.number = 0
        self._store, self._meddling, self._times, self._inside = memory.store, meddling, times, False
        for verb in COMMITS:
            if (commit := getattr(memory.store, verb, None)) is not None:
                setattr(memory.store, verb, self._after_meddling(commit))

    def _after_meddling(self, commit: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def late(key: SessionKey, *arguments: Any, **options: Any) -> Any:
            if not self._inside and self.number < self._times and await self._store.head(key) is not None:
                self._inside, self.number = True, self.number + 1
                await self._meddling(self._store, key, self.number)
                self._inside = False
                assert self.number < PATIENCE, "the verb starts again for ever"
            return await commit(key, *arguments, **options)

        return late


async def adding(store: Store, key: SessionKey, _: int) -> object:
    """Add a message."""
    return await store.append(key, [Entry(content=MEANWHILE)])


async def cutting(store: Store, key: SessionKey, number: int) -> object:
    """Add a message and commit a cut, which begins an epoch."""
    await adding(store, key, number)
    return await store.commit(key, Change(kind="cut", reason="budget", view="another", cut=Cut()))

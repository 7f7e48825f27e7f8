"""What an encrypted store does about keys: under which one is written, who waits for whom, and rewriting.

A text is never left under a key that was retired: who writes to a session that is there does it by compare-and-set of a
head that a change of keys has moved; who makes something new, or rewrites, looks at the mark once more afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from palimpsest.errors import ConfigError
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores import MARK, Item, Store
from palimpsest.stores.blocking import BlockingStore
from palimpsest.stores.encrypted.items import Items
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.reading import KEPT, SealedReader
from palimpsest.stores.encrypted.rewriting import rewrite_session, seal_session_anew
from palimpsest.stores.encrypted.sealing import Box, Sealer
from palimpsest.stores.rewriting import Rewritable, Rewrite

T = TypeVar("T")

TRIES = 4
"""How often a write loses to other processes' writes before these are kept waiting."""

LOCKS = 64
"""Sessions of different locks are written at the same time."""


class SealingStore(Store, Rewritable):
    """The part of an encrypted store that is about keys."""

    def __init__(self, below: Store, sealer: Sealer, markings: Markings, clock: Callable[[], int]) -> None:
        self.below, self.url, self.writable = below, below.url, below.writable
        self.blocking = below.blocking
        self.markings, self.reader = markings, SealedReader(below, sealer, markings)
        self.notary = self.reader.notary
        self.notary.take_over(below.witness)
        below.ask(self.notary)
        self.items = Items(below.url, sealer, markings)
        self._clock = clock
        self._blocking = below if isinstance(below, BlockingStore) else None
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))
        self._seen: dict[SessionKey, tuple[int, int]] = {}

    @property
    def left_open(self) -> bool:
        return self.below.left_open

    async def close(self) -> None:
        await self.together(self.below.close)  # behind a write that has begun

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """As the store below has it, sealing included."""
        return await self.below.together(start, reads=reads)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self.below.apart(function, *arguments)

    def _alone(self, key: SessionKey) -> AbstractContextManager[object]:
        """What keeps this process's other writers of the session waiting; over a store that suspends, Conflict does.

        It is C's own lock: between taking and holding it there is no step in which a signal's handler could raise.
        """
        if self._blocking is None:
            return nullcontext()
        self._blocking.check()  # a child of the process that opened it must not wait for a lock of that
        return self._locks[hash(key) % LOCKS]

    async def _first_or_again(self, key: SessionKey, attempt: Callable[[], Coroutine[Any, Any, T | None]]) -> T:
        """Return what `attempt` gives when nobody else was first, which None says.

        Reading and sealing take longer than another process's next write may: so the store below is asked for peace.
        """
        for _ in range(TRIES):
            if (done := await attempt()) is not None:
                return done

        async def insist() -> T:
            while (done := await attempt()) is None:
                pass
            return done

        return await self.below.undisturbed(key, insist)

    async def _box(self, key: SessionKey, head: Head | None) -> Box:
        """What seals for a session of which this head was read just now (None: it is new, or none was read).

        Whoever retires a key moves all heads after that: so one that has not moved needs no look at the mark.
        """
        if head is None or self._seen.get(key) != _moment(head):
            await self.markings.refresh()
        return self.reader.box(key)

    async def _is_retired(self, box: Box) -> bool:
        """Whether the key was retired since the mark was looked at, and what was just written is for its writer to do.

        For a change of keys moves every head that it finds; it cannot move one that comes into being behind it.
        """
        await self.markings.refresh()
        return box.key_id != self.markings.writing

    async def _settle(self, keys: Collection[SessionKey], box: Box) -> None:
        """Seal sessions that came into being, or were rewritten, once more, if that is for us to do."""
        if isinstance(self.below, Rewritable) and await self._is_retired(box):
            for key in keys:
                await seal_session_anew(self.below, self.reader, key, move=False)

    async def _settle_items(self, tenant: str, box: Box) -> None:
        """The same for items."""
        if isinstance(self.below, Rewritable) and await self._is_retired(box):
            await self.items.seal_anew(self.below, tenant)

    def _note(self, key: SessionKey, head: Head) -> None:
        """Remember that the mark was looked at when the session had this head."""
        if len(self._seen) >= KEPT:
            self._seen.clear()
        self._seen[key] = _moment(head)

    # --- a change of keys

    async def seal_anew(self, key: SessionKey, *, move: bool) -> int:
        """Bring a session under the key that is written with; return how many texts were under another.

        With `move` its head moves by a revision, so that whoever is about to write looks at it again.
        """
        box = self.reader.box(key)
        changed = await seal_session_anew(self.rewritable(), self.reader, key, move=move)
        await self._settle([key], box)
        return changed

    async def seal_items_anew(self, tenant: str) -> int:
        """Bring the tenant's items under the key that is written with; return how many were under another."""
        box = self.items.box(tenant)
        changed = await self.items.seal_anew(self.rewritable(), tenant)
        await self._settle_items(tenant, box)
        return changed

    # --- rewriting

    def rewritable(self) -> Rewritable:
        """The store below, which must be able to rewrite what it holds: else ConfigError."""
        if not isinstance(self.below, Rewritable):
            raise ConfigError("store", self.url, "one that rewrites in place (palimpsest.stores.rewriting.Rewritable)")
        return self.below

    async def tenants(self) -> list[str]:
        return [tenant for tenant in await self.rewritable().tenants() if tenant != MARK[0]]

    async def rewrite(
        self, key: SessionKey, how: Rewrite, *, after: int = 0, seqs: Collection[int] | None = None
    ) -> tuple[int, int | None]:
        below = self.rewritable()

        async def write() -> tuple[int, int | None]:
            with self._alone(key):
                box = await self._box(key, None)
                touched = {key}
                done = await rewrite_session(below, self.reader, key, how, after=after, seqs=seqs, touched=touched)
                await self._settle(touched, box)
            return done

        return await self.together(write)

    async def rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        below = self.rewritable()
        await self.markings.refresh()
        box = self.items.box(tenant)
        changed = await self.items.rewrite(below, tenant, how)
        await self._settle_items(tenant, box)
        return changed


def _moment(head: Head) -> tuple[int, int]:
    """What tells a head from any other of a session of this name."""
    return head.created, head.revision

"""A write with an unknown outcome takes place once or not at all, even if the server does it later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from intercepting_backend import Stepping
from on_servers import own_server
from palimpsest import AsyncMemory, Keys, Memory, StoreUnavailable
from palimpsest.runtime.runner import Inline
from palimpsest.stores import STORES
from palimpsest.stores.backend import Again, Batch, Refusal
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.rules import ask_again
from postgresstore import asked
from processes import until
from suspending import kind_of

MOMENTS = range(7)
"""Verbs that others begin before the server does what is late."""


class LateBackend(Stepping):
    """A backend that does an append (or another `kind` of write) only before the verb number `late` after it, unknown
    to the caller.

    With `holds` the server has begun the append and holds its head, so that another writer waits. With `asks` it asks
    `again`. A closed `gate` keeps writes waiting; `passes` says how many writes are not late.
    """

    url = "late://"
    gathers = False

    def __init__(self) -> None:
        self._below = MemoryBackend(Inline())
        self.late: int | None = None
        self.kind = "append"
        self.holds = self.asks = False
        self.lost: BaseException | None = None
        self.passes = 0
        self.away = False
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self._left: tuple[Sequence[Batch], int] | None = None

    async def _step(self, verb: str, *given: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable(self.url, "is away")
        if self._left is not None and self.late is not None:
            self.late -= 1
            if self.late < 0 or (self.holds and verb == "write"):
                left, self._left, self.late = self._left, None, None
                await self._below.write(*left)
        elif self.late is not None and kind_of(verb, given) == self.kind and not self.passes:
            self._left = given[0], given[1]
            self.begun.set()
            if self.lost is not None:
                raise self.lost
            await asyncio.Event().wait()
        self.passes -= self.passes and verb == "write"
        return await getattr(self._below, verb)(*given, **named)

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        await self.gate.wait()
        done: list[Refusal | None] = await self._step("write", batches, at)
        for number, refusal in enumerate(done):
            if refusal is not None and again is not None and self.asks:
                other = await ask_again(again, number, batches[number], refusal, self._below.look)
                if other is not None:
                    (done[number],) = await self._below.write([other], at)
        return done


def open_late(url: str, runner: object, **_: object) -> LateBackend:
    """Open an empty store."""
    made: LateBackend = LateBackend()
    return made


STORES.register("late", open_late)


def late(memory: AsyncMemory) -> LateBackend:
    """Return the backend of a memory."""
    backend: Any = memory.store.backend
    return backend if isinstance(backend, LateBackend) else backend.below  # type: ignore[no-any-return]


async def texts(memory: AsyncMemory) -> list[str]:
    """Return the session's texts once everything late is done."""
    for _ in MOMENTS:
        await memory.store.tenants()
    return [entry.text for entry in await memory.session("s").entries()]


@asynccontextmanager
async def begun(new: bool, sealed: bool) -> AsyncIterator[AsyncMemory]:
    """Open a memory over such a store, with a new session or one with a message."""
    given: Any = {"encryption": Keys({"one": bytes(range(32))})} if sealed else {}
    async with AsyncMemory.open("late://", **given) as memory:
        if not new:
            await memory.session("s").add_user_message("before")
        yield memory


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("how", ["", "holds", "asks", "holds asks"])
@pytest.mark.parametrize("new", [False, True])
def test_an_append_whose_writer_was_cancelled_is_stored_once(new: bool, how: str, sealed: bool) -> None:
    """Others whose appends were in the same write find them stored or write them, never both."""

    async def work(moment: int) -> None:
        async with begun(new, sealed) as memory:
            backend, session = late(memory), memory.session("s")
            backend.gate.clear()
            first = asyncio.create_task(session.add_user_message("first"))
            await settled()
            group = [asyncio.create_task(memory.session("s").add_user_message(f"other {n}")) for n in range(3)]
            await settled()
            if new:
                first.cancel()
            backend.late, backend.passes = moment, 0 if new else 1
            backend.holds, backend.asks = "holds" in how, "asks" in how
            backend.gate.set()
            await backend.begun.wait()
            group[0].cancel()
            ends = await asyncio.gather(*group, return_exceptions=True)

            assert [isinstance(one, asyncio.CancelledError) for one in ends] == [True, False, False]
            found = await texts(memory)
            assert sorted(found) == sorted(set(found))
            assert set(found) >= {"other 1", "other 2"}
            told = {entry.text: entry for entry in await session.entries()}
            assert [told[one.text].id == one.id for one in ends[1:]] == [True, True]

    for moment in MOMENTS:
        asyncio.run(work(moment))


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_an_append_reported_as_not_written_is_never_stored(new: bool, sealed: bool) -> None:
    """If an error says that nothing was written, the append is never stored; otherwise it may be, once."""

    async def work(moment: int) -> None:
        async with begun(new, sealed) as memory:
            backend, session = late(memory), memory.session("s")
            backend.late, backend.holds = moment, True
            backend.lost = StoreUnavailable("a store", "is away", written=None)

            try:
                await session.add_user_message("said")
            except StoreUnavailable as fault:
                expected = {None: (0, 1), False: (0,)}[fault.written]
            else:
                expected = (1,)

            assert (await texts(memory)).count("said") in expected

    for moment in MOMENTS:
        asyncio.run(work(moment))


def test_an_error_claims_nothing_was_written_only_after_looking() -> None:
    """If the store is away when an unknown append is looked for, the error says that it may be stored."""

    async def work() -> None:
        async with AsyncMemory.open("late://") as memory:
            backend, session = late(memory), memory.session("s")
            backend.gate.clear()
            first = asyncio.create_task(session.add_user_message("first"))
            await settled()
            group = [asyncio.create_task(memory.session("s").add_user_message(f"other {n}")) for n in range(3)]
            await settled()
            backend.late, backend.passes = 9, 1
            backend.gate.set()
            await backend.begun.wait()
            backend.away = True
            group[0].cancel()
            ends = await asyncio.gather(first, *group, return_exceptions=True)

            assert [getattr(one, "written", "") for one in ends[2:]] == [None, None]

    asyncio.run(work())


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_a_turn_cancelled_while_it_begins_never_holds_up_the_next(new: bool, sealed: bool) -> None:
    """A lease that the server grants after its turn was cancelled is refused or given back."""

    async def work(moment: int) -> None:
        async with begun(new, sealed) as memory:
            backend = late(memory)
            backend.late, backend.kind = moment, "lease"
            cancelled = asyncio.create_task(enter(memory))
            await backend.begun.wait()
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await texts(memory)

            await enter(memory)

    for moment in MOMENTS:
        asyncio.run(work(moment))


async def enter(memory: AsyncMemory) -> None:
    """Hold a turn for a moment; raise LockTimeout if somebody else holds it."""
    async with memory.session("s").turn(wait=0):
        pass


@pytest.mark.wide
def test_a_message_waiting_for_a_standby_is_stored_once() -> None:
    """A message that PostgreSQL has written and that waits for a standby is not reported as unwritten."""
    with own_server("postgres") as server, Memory.open(server.address, timeout_seconds=1) as memory:
        session = memory.session("s")
        session.add_user_message("before")
        asked(server.address, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        until(lambda: asked(server.address, "SHOW synchronous_standby_names")[0][0] == "nobody")

        for text in ("one", "two", "three"):
            try:
                session.add_user_message(text)
            except StoreUnavailable as fault:
                assert fault.written is None  # noqa: PT017 (it may also be there)
        asked(server.address, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")

        assert [entry.text for entry in session.entries()] == ["before", "one", "two", "three"]


async def settled() -> None:
    """Wait until every task has come to its wait."""
    for _ in range(50):
        await asyncio.sleep(0)

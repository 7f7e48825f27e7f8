"""Many writers over the same heads of a server's store: each succeeds after a few tries."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest

from drivers import DrivenBackend
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, now_us
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Again, Batch, Place, Step
from palimpsest.stores.bridged import BridgedBackend
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.opening import unlocked
from sealed import FIRST
from suspending import SuspendingBackend

KEY = SessionKey("tenant", "one")
WRITERS, EACH, MOST = 24, 4, 16
TURN = 0.0002
"""Seconds that a turn of the loop stands for: a call of the store takes about five."""


class Crowded(SuspendingBackend):
    """A suspending store that counts the tries of each writer; waiting is so many turns of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: Counter[object] = Counter()

    async def called(self, verb: str, *given: Any, **named: Any) -> Any:
        if verb == "write":
            self.tries[asyncio.current_task()] += 1
        return await super().called(verb, *given, **named)

    async def pause(self, seconds: float) -> None:
        for _ in range(round(seconds / TURN)):
            await asyncio.sleep(0)


def said(text: str) -> list[Entry]:
    return [Entry(content=text)]


Verb = Callable[[Store, str], Any]


async def append(store: Store, text: str) -> None:
    await store.append(KEY, said(text))


async def pin(store: Store, text: str) -> None:
    await store.commit(KEY, Change(kind="pin", reason=text))


async def put(store: Store, text: str) -> None:
    await store.put_item("tenant", "things", "one", text.encode())


def tries_of(verb: Verb, chance: Callable[[], float], keys: Keys | None = None) -> list[int]:
    """Return how often each of many writers that begin at once has tried."""
    kind: Any = Crowded  # which has its verbs from the seam, where no type checker sees them
    backend, begun = kind(), asyncio.Event()

    async def one(number: int) -> list[int]:
        opened = await unlocked(Store(backend), keys, now_us)
        store, found, task = Store(opened.backend, chance=chance), [], asyncio.current_task()
        await begun.wait()
        for turn in range(EACH):
            backend.tries[task] = 0
            await verb(store, f"{number}.{turn}")
            found.append(backend.tries[task])
        return found

    async def work() -> list[int]:
        await append(await unlocked(Store(backend), keys, now_us), "first")
        writers = [asyncio.create_task(one(number)) for number in range(WRITERS)]
        for _ in range(1_000):  # until all have opened it
            await asyncio.sleep(0)
        begun.set()
        return list(chain(*await asyncio.gather(*writers)))

    tries = asyncio.run(work())
    assert len(tries) == WRITERS * EACH
    return tries


@pytest.mark.sampled
@pytest.mark.parametrize("verb", [append, pin, put])
@pytest.mark.parametrize(("seed", "keys"), [(1, None), (2, None), (3, None), (4, FIRST)])
def test_each_of_many_writers_succeeds_after_a_few_tries(verb: Verb, seed: int, keys: Keys | None) -> None:
    """Random waits keep the number of tries of each write far below the number of writers."""
    tries = tries_of(verb, random.Random(seed).random, keys)

    assert max(tries) <= MOST
    assert sum(tries) < 6 * len(tries)


@pytest.mark.parametrize("verb", [append, pin, put])
def test_without_waits_some_writer_needs_many_tries(verb: Verb) -> None:
    """Without waits, some write takes more tries than that, which is why writers wait."""
    assert max(tries_of(verb, lambda: 0.0)) > MOST


class Overtaken(DrivenBackend):
    """A driver's store in which another writer comes before each of the next `times` writes; records the waits."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.waits = times, list[float]()
        self.other = Store(self.below)

    async def write(self, batches: Sequence[Batch], at: int, **how: Any) -> Any:
        if self.times:
            self.times -= 1
            await self.other.append(KEY, said("other"))
        return await super().write(batches, at, **how)

    async def pause(self, seconds: float) -> None:
        self.waits.append(seconds)


def overtaken(times: int) -> Any:
    kind: Any = Overtaken
    return kind(times)


@pytest.mark.parametrize("verb", [append, pin])
def test_a_refused_writers_wait_doubles_up_to_a_bound(verb: Verb) -> None:
    """A refused writer waits up to twice as long each time, to a bound, but not after the first refusal."""
    backend = overtaken(0)

    async def work() -> None:
        store = Store(backend, chance=lambda: 1.0)
        await append(store, "first")
        backend.times = 11
        await verb(store, "mine")
        assert backend.waits == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.25, 0.25]
        backend.times = 1
        await verb(store, "mine again")
        assert len(backend.waits) == 10

    asyncio.run(work())


def test_a_wait_is_random_up_to_its_bound() -> None:
    """A wait is random between none and its whole length."""
    backend, chances = overtaken(0), iter([0.0, 0.5, 1.0])

    async def work() -> None:
        store = Store(backend, chance=lambda: next(chances))
        await append(store, "first")
        backend.times = 4
        await append(store, "mine")

    asyncio.run(work())
    assert backend.waits == [0.0, 0.002, 0.008]


class Standing(Overtaken):
    """A store in which the first writer to wait stands still until it is released."""

    def __init__(self, times: int) -> None:
        super().__init__(times)
        self.waiting, self.over = asyncio.Event(), asyncio.Event()

    async def pause(self, seconds: float) -> None:
        if not self.waiting.is_set():
            self.waiting.set()
            await self.over.wait()


def standing() -> Any:
    kind: Any = Standing
    return kind(0)


def test_other_writers_of_the_process_write_during_a_wait() -> None:
    """Others of the process write to the session during a wait, and their write includes the waiting one."""

    async def work() -> None:
        backend = standing()
        store = Store(backend)
        await append(store, "first")
        backend.times = 2
        mine = asyncio.create_task(append(store, "mine"))
        await backend.waiting.wait()

        await asyncio.wait_for(append(store, "another's"), 10)

        assert not mine.done()
        assert [entry.text for entry in await store.read(KEY)][-2:] == ["mine", "another's"]
        backend.over.set()
        await mine
        assert len(await store.read(KEY)) == 5

    asyncio.run(work())


def test_a_writer_cancelled_during_its_wait_writes_nothing() -> None:
    """A writer that is cancelled while it waits has written nothing, then or later."""

    async def work() -> None:
        backend = standing()
        store = Store(backend)
        await append(store, "first")
        backend.times = 2
        mine = asyncio.create_task(append(store, "mine"))
        await backend.waiting.wait()

        mine.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mine

        backend.over.set()
        await append(store, "later")
        assert [entry.text for entry in await store.read(KEY)] == ["first", "other", "other", "later"]

    asyncio.run(work())


def test_a_synchronous_memory_waits_on_its_loop() -> None:
    """Over a bridged driver the waits run on the memory's loop."""
    backend, runner = overtaken(0), Inline()

    async def work() -> None:
        store = Store(BridgedBackend(backend, runner), chance=lambda: 1.0)
        await append(store, "first")
        backend.times = 3
        await append(store, "mine")
        assert [entry.text for entry in await store.read(KEY)] == ["first", *["other"] * 3, "mine"]

    drive(work())
    drive(runner.close())
    assert backend.waits == [0.002, 0.004]


class Locked(MemoryBackend):
    """A store of blocking functions in which another writer comes before each of the next `times` writes."""

    times = 0

    async def write(self, batches: Sequence[Batch], at: int, **how: Any) -> Any:
        if self.times:
            self.times -= 1
            await append(Store(self), "other")
        return await super().write(batches, at, **how)

    async def pause(self, seconds: float) -> None:
        raise AssertionError("nobody waits")


@pytest.mark.parametrize("verb", [append, pin])
def test_a_blocking_store_retries_a_refused_write_at_once(verb: Verb) -> None:
    """In a store of blocking functions a refused writer tries again at once."""
    backend = Locked(Inline())
    store = Store(backend)
    drive(append(store, "first"))
    backend.times = 12

    drive(verb(store, "mine"))

    assert backend.times == 0


def test_a_refused_replacement_write_returns_the_heads_of_its_own_places() -> None:
    """If a replaced write is refused too, the caller gets the heads of its own places."""
    mine, other = (Place("t", "h", "session", name) for name in ("a", "b"))
    given, longer = [Step(mine, b"0", b"x")], [Step(mine, b"1", b"x"), Step(other, b"0", b"y")]

    class Server(MemoryBackend):
        """Somebody was quicker again."""

        remote = True

        async def pause(self, seconds: float) -> None:
            """Nobody else is there to be waited for."""

        async def write(self, batches: Any, at: int, *, lasting: bool = True, again: Again | None = None) -> Any:
            assert again is not None
            return [(None,) * len(again(0, batches[0], (None,), lambda asks: []) or ())]

    crowds = Crowds(Server(Inline()), lambda: 0.0)
    for _ in range(3):
        assert drive(crowds.write(given, 0, again=lambda *_: longer)) == (None, None)
    assert crowds.is_at(mine)

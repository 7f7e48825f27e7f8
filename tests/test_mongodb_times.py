"""The store on MongoDB under many writers, and calls that end early. Tested against SecantusDB."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

import mongostore
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores.backend import LAST_KEY, Ask, Due, Named, Place, Range, Row, Step
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.mongodb import open_mongodb
from palimpsest.stores.mongodb.writing import Changing
from processes import Process, together, whole_turns
from writer import ENTRIES_A_TURN, SESSION, quarters

WRITING = Path(__file__).with_name("mongodb_writer.py")
WRITERS, EACH = 8, 25

LEAVES = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A driver that is cancelled while it connects leaves a socket to the garbage collector, which warns."""


# --- many writers


@pytest.mark.wide
def test_two_processes_of_eight_writers_lose_and_double_nothing() -> None:
    """Two processes with several writers each lose and double no entry, and keep each writer's order."""
    address = mongostore.address_of("writers")

    together(Process(address, name, str(EACH), script=WRITING) for name in ("0", "1"))
    together(Process("threads", address, name, 4, 5) for name in ("one", "two"))

    with Memory.open(address) as memory:
        entries = memory.session(SESSION).entries()
        assert memory.session(SESSION).verify().problems == ()
    texts = [entry.text for entry in entries[: 2 * EACH]]
    assert sorted(texts) == sorted(f"{name} {number}" for name in range(2) for number in range(EACH))
    for name in range(2):
        assert [text for text in texts if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(EACH)]
    found = whole_turns(entries[2 * EACH :], ENTRIES_A_TURN)
    assert (len(found), set(found.values())) == (40, {1})


@pytest.mark.slow
def test_eight_processes_adding_to_one_session_lose_nothing() -> None:
    """Eight processes that add to one session lose and double no entry."""
    address = mongostore.address_of("writers")

    together(Process(address, str(name), str(EACH), script=WRITING) for name in range(WRITERS))

    with Memory.open(address) as memory:
        texts = [entry.text for entry in memory.session(SESSION).entries()]
    assert sorted(texts) == sorted(f"{name} {number}" for name in range(WRITERS) for number in range(EACH))


@pytest.mark.wide
def test_appends_beside_transactions_leave_one_log() -> None:
    """While one memory appends, another counts, pins and erases: every entry is at its place."""

    async def work(address: str) -> None:
        async with AsyncMemory.open(address) as first, AsyncMemory.open(address) as other:
            log, theirs = first.session("s", counter=quarters), other.session("s", counter=quarters)
            await log.add_user_message("0")

            async def appending() -> None:
                for number in range(1, 80):
                    await log.add_user_message(f"{number}" * 100)

            async def changing() -> None:
                for number in range(1, 6):
                    await theirs.count()
                    await theirs.pin(number)
                    await theirs.erase([number])
                    await theirs.entries()

            await asyncio.gather(appending(), changing())
            entries = await theirs.entries()
            assert [entry.seq for entry in entries] == list(range(1, 81))
            assert [entry.seq for entry in entries if entry.erased] == [1, 2, 3, 4, 5]
            assert (await log.verify()).problems == ()

    asyncio.run(work(mongostore.address_of("beside")))


# --- ended too early


@LEAVES
def test_a_call_that_waits_too_long_says_whether_it_wrote() -> None:
    """A call blocked by a transaction ends after `timeout_seconds` and says whether it wrote, as far as is known."""

    async def work(address: str, sent: list[str]) -> None:
        backend: Any = open_mongodb(f"{address}?timeout_seconds=1", Inline())
        holder: Any = open_mongodb(address, Inline())
        place, rows = Place("t", "h", "s", "n"), Place("t", "h", "rows", "n")
        await backend.write([[Step(place, None, b"1")]], 0)
        await holder.look([Ask(place)])
        async with holder._client.client.start_session() as session:
            await session.start_transaction()
            changing = Changing(holder._client.within, session, "t", "h")
            assert await changing.take([Step(place, b"1", b"1")]) is None
            for batch in ([Step(place, b"1", b"2")], [Step(place, b"1", b"2"), Step(rows, None, b"x")]):
                with pytest.raises(StoreUnavailable, match="timeout_seconds") as caught:
                    await backend.write([batch], 0)
                assert caught.value.written is (None if len(batch) == 1 else False)
                sent.clear()
                call = asyncio.create_task(backend.write([batch], 0))
                while "update" not in sent:  # noqa: ASYNC110 (the driver tells it in no other way)
                    await asyncio.sleep(0.001)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            await session.abort_transaction()
        (seen,) = await backend.look([Ask(rows)])
        assert seen.head is None
        (refused,) = await backend.write([[Step(place, b"1", b"3")]], 0)
        assert refused is None or refused[0].hot == b"2"  # a single update that the server has may yet be done
        await backend.close()
        await holder.close()

    with mongostore.watched() as sent:
        asyncio.run(work(mongostore.address_of("late"), sent))


@LEAVES
def test_calls_that_are_cancelled_again_and_again_leave_a_working_store() -> None:
    """A call may be cancelled more than once, as frameworks do that cancel until a task ends: it ends, and others work.

    While calls wait for a connection the driver holds a lock, which a second cancellation must not keep it from giving
    back.
    """

    async def work(address: str) -> None:
        async with AsyncMemory.open(address, pool_size=1, timeout_seconds=5) as memory:
            sessions = [memory.session(f"s{number}") for number in range(8)]
            for session in sessions:
                await session.add_user_message("hello")
            for turns in range(120):
                calls = [asyncio.create_task(session.entries()) for session in sessions]
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                for _ in range(3):
                    for call in calls:
                        call.cancel()
                    await asyncio.sleep(0)

                _, under_way = await asyncio.wait(calls, timeout=20)
                assert not under_way
            assert len(await sessions[0].entries()) == 1

    asyncio.run(work(mongostore.address_of("cancelled")))
    with warnings.catch_warnings():  # PyMongo does not close a socket when connecting it is cancelled
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        gc.collect()


# --- beside a program that keeps its own books


@pytest.mark.wide
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_random_batches_behave_as_in_memory(seed: int) -> None:
    """After random batches from two backends, rows and heads equal those of the backend in memory."""
    dice = random.Random(seed)
    places = [Place("t", "h", "s", name) for name in "abc"]
    keys = [*range(6), 31, 32, 33, 2**32 - 1, 2**32, 7 << 32, 7 << 32 | 40, LAST_KEY]

    async def in_pages(backend: Any, now: int) -> list[Due]:
        found = list[Due]()
        while page := await backend.expired("t", now, after=found[-1] if found else None, limit=3):
            found += page
        return found

    def heads_after(model: MemoryBackend, place: Place) -> bool:
        return drive(model.look([Ask(place)]))[0].head is not None

    def step(place: Place, heads: dict[Place, bytes | None]) -> Step:
        hot = heads[place] if dice.random() < 0.9 else b"wrong"
        kind = dice.random()
        after = hot if kind < 0.2 else None if kind > 0.92 else b"%d" % dice.randrange(10**6)
        put = [
            (
                table,
                [Row(key, dice.randbytes(dice.randrange(30)), dice.choice(["", "x", "y"]), dice.choice([None, key]))],
            )
            for table in ("t", "u")
            for key in dice.sample(keys, dice.randrange(3))
        ]
        merged: dict[str, dict[int, Row]] = {}
        for table, rows in put:
            merged.setdefault(table, {}).update((row.key, row) for row in rows)
        rows_of = [(table, list(rows.values())) for table, rows in merged.items()]
        low, high = sorted(dice.choices(keys, k=2))
        drop = [(dice.choice(["t", "u", "*"]), low, high)] if dice.random() < 0.15 else []
        alone = dice.random() < 0.3
        return (
            Step(place, rows_only=True, put=rows_of, drop=drop)
            if alone
            else Step(
                place, hot, after, dice.choice([None, b"cold"]), dice.choice([None, 5, 40]), put=rows_of, drop=drop
            )
        )

    async def work(address: str) -> None:
        both = [open_mongodb(address, Inline()) for _ in range(2)]
        model = MemoryBackend(Inline())
        asks = [
            Ask(
                place,
                [
                    Range(table, [(0, LAST_KEY)], limit, newest),
                    Range(table, [(1, 40), (2**32, 2**33)], limit),
                    *([Named(table, ["x"]), Named(table, ["y", "x", "z"])] if limit else []),
                ],
            )
            for place in places
            for table in ("t", "u")
            for limit in (None, 3)
            for newest in (False, True)
        ]
        for number in range(60):
            heads: dict[Place, bytes | None] = {
                place: seen.head.hot if seen.head is not None else None
                for place, seen in zip(places, drive(model.look([Ask(p) for p in places])), strict=True)
            }
            batch = [step(place, heads) for place in dice.sample(places, dice.choice([1, 1, 1, 2, 3]))]
            ours = dice.choice(both)
            assert await ours.write([batch], number) == drive(model.write([batch], number)), batch
            ours = dice.choice(both)
            asked = dice.choice(asks)
            ((seen_now,), (wanted_now,)) = await ours.look([asked]), drive(model.look([asked]))
            assert [[Row(*row) for row in rows] for rows in seen_now.rows] == [list(rows) for rows in wanted_now.rows]
            if number % 6 == 5:
                seen, wanted = await ours.look(asks), drive(model.look(asks))
                assert [(one.head, [[Row(*row) for row in rows] for rows in one.rows]) for one in seen] == [
                    (one.head, [list(rows) for rows in one.rows]) for one in wanted
                ]
                assert await ours.expired("t", 2**62) == drive(model.expired("t", 2**62))
                assert await in_pages(ours, 2**62) == drive(model.expired("t", 2**62))
                assert [one.place for one in await ours.places("t", "s")] == [
                    p for p in places if heads_after(model, p)
                ]
        for backend in both:
            await backend.close()

    asyncio.run(work(mongostore.address_of("model")))

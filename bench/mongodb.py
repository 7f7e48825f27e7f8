"""Measure a store on MongoDB beside the driver doing the same work raw, on one connection of the same server.

    python bench/mongodb.py [--runs 3] [--calls 200] [--large 100000] [--json] [--gate]

Needs the extra `mongodb`, and a server: that of PALIMPSEST_TEST_MONGODB_URL, or one that this starts. The latter is
SecantusDB, which speaks MongoDB's protocol over MongoDB's storage engine; it is not MongoDB, and slower. The raw side
of an append is one `insert_one` of a document with the same messages, packed as JSON with an id and a time, and the
bytes of a head; a unique index on session and number refuses a second document of the number, as a log needs it. A bare
insert, into a collection with no index but that of `_id`, is shown beside it. The raw side of a context finds a head
and as many documents of 32 messages and counts as the window needs, and decodes each message. The client's write
concern is majority and journaled on all sides, and it retries writes, as it does by default.
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

from bson import Binary, encode
from crowd import crowd, figures_of
from measure import Figure, arguments, over_runs, report
from pymongo import AsyncMongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern
from raw import estimate, payload, stored
from workload import Turn, history, some

from mongostore import watched
from palimpsest import AsyncMemory
from servers import Server, Unavailable

BUDGET, BUCKET, HEAD = 8_000, 32, -1
OURS, RAW = "palimpsest_bench", "palimpsest_bench_raw"


class Raw:
    """One session in a collection of its own."""

    def __init__(self, client: Any) -> None:
        concerns: Any = {"write_concern": WriteConcern("majority", j=True), "read_concern": ReadConcern("snapshot")}
        self.log = client[RAW].get_collection("log", **concerns)
        self.window_of = client[RAW].get_collection("window", **concerns)
        self.bare = client[RAW].get_collection("bare", **concerns)
        self._seq = 0

    def _values(self, turn: Turn) -> list[Binary]:
        now = time.time()
        return [Binary(stored(message, self._seq + i, now).encode()) for i, message in enumerate(turn)]

    async def add(self, turn: Turn, to: Any = None) -> None:
        """Append a turn."""
        head = json.dumps([538242339, 1, self._seq, "x" * 90, time.time()]).encode()
        self._seq += len(turn)
        into = self.log if to is None else to
        await into.insert_one({"home": b"s", "k": self._seq, "hot": head, "r": self._values(turn)})

    async def fill(self, turns: list[Turn]) -> None:
        """Store what a context reads."""
        messages = [message for turn in turns for message in turn]
        docs = []
        for begin in range(0, len(messages), BUCKET):
            bucket = messages[begin : begin + BUCKET]
            counts = [estimate(message) for message in bucket]
            docs.append({"home": b"s", "k": begin // BUCKET, "r": self._values(bucket), "counts": counts})
        docs.append({"home": b"s", "k": HEAD, "hot": b"x" * 120, "cold": b"y" * 240, "r": []})
        await self.window_of.insert_many(docs)

    async def window(self, messages: int, last: int) -> list[Any]:
        """Return the newest messages."""
        keys = [HEAD, *range(last - (messages - 1) // BUCKET, last + 1)]
        docs = await self.window_of.find({"home": b"s", "k": {"$in": keys}}).to_list()
        return [json.loads(row) for doc in docs for row in doc["r"]]


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server, without a database."""
    if address := os.environ.get("PALIMPSEST_TEST_MONGODB_URL"):
        yield address
        return
    with tempfile.TemporaryDirectory() as folder:
        started = Server("mongodb", Path(folder) / "server")
        started.start()
        try:
            yield started.address
        finally:
            started.kill()


@asynccontextmanager
async def both(address: str, **options: Any) -> AsyncIterator[tuple[Any, Raw, AsyncMemory]]:
    """Yield a client, the raw side with new collections, and an empty memory."""
    async with AsyncMongoClient(address) as client:
        for name in (OURS, RAW):
            await client.drop_database(name)
        raw = Raw(client)
        for collection in (raw.log, raw.window_of):
            await collection.create_index([("home", 1), ("k", 1)], unique=True)
        bare, mark, query = address.partition("?")
        where = f"{bare.rpartition('/')[0]}/{OURS}{mark}{query}"
        async with AsyncMemory.open(where, **options) as memory:
            yield client, raw, memory


async def timed(do: Callable[[], Awaitable[object]]) -> float:
    """Return the wall time of a call, in microseconds."""
    start = time.perf_counter()
    await do()
    return (time.perf_counter() - start) * 1e6


async def alternated(work: list[tuple[Callable[[], Awaitable[object]], ...]]) -> list[list[float]]:
    """Return the times of each side. Another side is first each time."""
    times: list[list[float]] = [[] for _ in work[0]]
    for i, sides in enumerate(work):
        for side in range(len(sides)):
            index = (side + i) % len(sides)
            times[index].append(await timed(sides[index]))
    return times


def appends(address: str, calls: int) -> dict[str, float]:
    """Time appends of a turn, and count their round trips."""

    async def run() -> dict[str, float]:
        with watched() as sent:
            async with both(address) as (_, raw, memory):
                session, turns = memory.session("s", max_tokens=BUDGET), [*some(calls + 30, seed=7)]
                for turn in turns[:30]:
                    await raw.add(turn)
                    await session.add(turn)
                sent.clear()
                theirs, bare, ours = await alternated(
                    [
                        (lambda t=turn: raw.add(t), lambda t=turn: raw.add(t, raw.bare), lambda t=turn: session.add(t))
                        for turn in turns[30:]
                    ]
                )
                found = {"median": median(ours) / median(theirs), "us": median(ours), "raw us": median(theirs)}
                found |= {"bare": median(ours) / median(bare), "bare us": median(bare)}
                return found | {"mean": sum(ours) / sum(theirs), "trips": len(sent) / calls}

    return asyncio.run(run())


def growth(address: str, sizes: tuple[int, int] = (200, 10_000), calls: int = 80) -> dict[str, float]:
    """Time appends of a turn to sessions of these lengths, in microseconds."""

    async def run() -> dict[str, float]:
        took: dict[str, float] = {}
        async with both(address) as (_, _, memory):
            for name, size in zip(("short", "long"), sizes, strict=True):
                session, turns = memory.session(name, max_tokens=BUDGET), history(size)
                for begin in range(0, len(turns), 200):
                    await session.add([message for turn in turns[begin : begin + 200] for message in turn])
                took[name] = median([await timed(lambda to=session, t=turn: to.add(t)) for turn in some(calls, seed=7)])
        return {**took, "ratio": took["long"] / took["short"]}

    return asyncio.run(run())


def contexts(address: str, size: int, calls: int) -> dict[str, float]:
    """Time contexts of a session of so many messages, by a memory that remembers none."""

    async def run() -> dict[str, float]:
        with watched() as sent:
            async with both(address, view_bytes=0) as (_, raw, memory):
                session, turns = memory.session("s", max_tokens=BUDGET), history(size)
                for begin in range(0, len(turns), 200):
                    await session.add([message for turn in turns[begin : begin + 200] for message in turn])
                await raw.fill(turns)
                await session.count()
                await session.context()
                shown = len((await session.context()).messages)
                last = (sum(map(len, turns)) - 1) // BUCKET
                sent.clear()
                theirs, ours = await alternated([(lambda: raw.window(shown, last), session.context)] * calls)
                found = {"ratio": median(ours) / median(theirs), "us": median(ours), "raw us": median(theirs)}
                return found | {"trips": len(sent) / calls, "messages": shown}

    return asyncio.run(run())


def bytes_of(address: str) -> float:
    """Return the bytes of documents for a byte of payload, with one append for each turn."""

    async def run() -> float:
        async with both(address) as (client, _, memory):
            session, turns = memory.session("s"), history(1_000)
            for turn in turns:
                await session.add(turn)
            await session.count()
            docs = await client[OURS]["palimpsest"].find().to_list()
            return sum(len(encode(doc)) for doc in docs) / payload(turns)

    return asyncio.run(run())


def crowded(address: str) -> dict[str, float]:
    """Serve many sessions at once."""

    async def run() -> dict[str, float]:
        async with both(address) as (_, _, memory):
            return await crowd(memory)

    return asyncio.run(run())


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", calls=200, large=100_000)
    try:
        return measured(given)
    except Unavailable as why:
        print(f"MongoDB: skipped, {why}")
        return 0


def measured(given: Any) -> int:
    """Measure and print, if there is a server. Raises Unavailable."""
    with server() as address:
        m = over_runs(given.runs, lambda: appends(address, given.calls))
        detail = f"{m['us']:.0f} / {m['raw us']:.0f} us"
        figures = [
            Figure("append, wall, median", m["median"], 1.5, detail),
            Figure("the same, in a bare insert", m["bare"], None, f"{m['us']:.0f} / {m['bare us']:.0f} us"),
            Figure("append, wall, mean, with what moves rows on", m["mean"], None, detail),
            Figure("round trips of an append, mean", m["trips"], 1.5),
        ]
        g, detail = growth(address), "{long:.0f} / {short:.0f} us"
        figures.append(Figure("append, time at 10,000 entries / at 200", g["ratio"], None, detail.format(**g)))
        flat = {}
        for size in (1_000, given.large):
            c = over_runs(given.runs if size == 1_000 else 1, lambda size=size: contexts(address, size, given.calls))
            flat[size], detail = c["ratio"], f"{c['us']:.0f} / {c['raw us']:.0f} us for {c['messages']:.0f} messages"
            figures.append(Figure(f"context, N = {size:,}, wall", c["ratio"], 2.0, detail))
            figures.append(Figure(f"round trips of a context, N = {size:,}", c["trips"], 1.0))
        name = f"context, in raw ones of that moment: at {given.large:,} / at 1,000"
        figures.append(Figure(name, flat[given.large] / flat[1_000], 1.25))
        figures.append(Figure("bytes of documents for a byte of payload, with counts", bytes_of(address), 1.6))
        figures += figures_of(over_runs(given.runs, lambda: crowded(address)))
    return report("MongoDB", figures, given, "In raw ones, on one connection of the same server.")


if __name__ == "__main__":
    sys.exit(main())

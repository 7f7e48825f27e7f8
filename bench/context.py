"""What a context of 8,000 tokens costs from a session with stored counts, beside a raw read of the same rows.

    python bench/context.py [--runs 3] [--calls 200] [--large 100000] [--json] [--gate]

The raw side reads the newest messages from its own table, adds up the counts that stand in the rows until its
budget is full, and decodes each row with `json`: exactly the messages of the context, old results whole where the
context shows a note. The window is measured in two states: just after a cut, and grown until the next turn would
cause another. The last turns are the same whatever N, so the windows are, too. Rows, bytes and calls are counts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from measure import (
    SESSION,
    Figure,
    alternate,
    alternate_async,
    arguments,
    memory_folder,
    over_runs,
    report,
    scratch,
    store,
)
from raw import RawLog
from workload import history, some

from palimpsest import AsyncMemory, Memory
from palimpsest.stores.engine import reading
from palimpsest.tokens.counter import Encoding

BUDGET = 8_000
SMALL = 1_000
CUT, FULL = "after a cut", "grown full"
LAST, NEXT = some(40, seed=501), some(40, seed=502)


class Place(NamedTuple):
    """A session and the raw log of the same messages."""

    path: Path
    raw: Path


class Counts:
    """What contexts read and counted while this watched."""

    def __init__(self) -> None:
        self.entries = self.bytes = self.calls = 0

    @contextmanager
    def watching(self) -> Iterator[Counts]:
        """Count entries decoded from rows, their bytes, and calls of a tokenizer."""
        read, encode, measure = reading.entry_of, Encoding.encode, Encoding.measure

        def decoding(body: bytes, *rest: Any) -> Any:
            self.entries += 1
            self.bytes += len(body)
            return read(body, *rest)

        def counting(original: Any) -> Any:
            def called(encoding: Encoding, text: str) -> Any:
                self.calls += 1
                return original(encoding, text)

            return called

        reading.entry_of, Encoding.encode, Encoding.measure = decoding, counting(encode), counting(measure)
        try:
            yield self
        finally:
            reading.entry_of, Encoding.encode, Encoding.measure = read, encode, measure


def fitting() -> int:
    """How many of the next turns fit into the window after its cut, before they would cause another."""
    with Memory.open("memory://") as memory:
        session = memory.session(SESSION, max_tokens=BUDGET)
        session.add([message for turn in LAST for message in turn])
        epoch = session.context().epoch
        for count, turn in enumerate(NEXT):
            session.add(turn)
            if session.context().epoch != epoch:
                return count
    raise AssertionError("forty turns do not fill the window")


def prepare(folder: Path, size: int, more: int) -> Place:
    """Write both sides: `size` messages, the common last turns, a cut, and `more` turns after it."""
    place = Place(folder / f"{size}-{more}.db", folder / f"{size}-{more}.raw")
    turns = history(size)
    store(place.path, turns, counted=True)
    with Memory.open(place.path) as memory:
        session = memory.session(SESSION, max_tokens=BUDGET)
        session.add([message for turn in LAST for message in turn])
        session.count()
        session.context()
        for turn in NEXT[:more]:
            session.add(turn)
        session.count()
    log = RawLog(place.raw)
    log.add(*turns, *LAST, *NEXT[:more])
    log.close()
    return place


def timed(place: Place, calls: int) -> dict[str, float]:
    """Time both sides: CPU of the synchronous context, wall of the asynchronous one."""
    log = RawLog(place.raw)
    with Memory.open(place.path) as memory:
        session = memory.session(SESSION, max_tokens=BUDGET)
        messages = len(session.context().messages)
        budget = log.budget_of(messages)
        assert len(log.window(budget)) == messages, "both sides read the same rows"
        sync = alternate(lambda _: log.window(budget), lambda _: session.context(), range(calls))

    async def asynchronous() -> float:
        async with AsyncMemory.open(place.path) as memory:
            session = memory.session(SESSION, max_tokens=BUDGET)
            await session.context()
            pair = await alternate_async(lambda _: log.window(budget), lambda _: session.context(), range(calls))
            return pair.ratio

    found = {"sync": sync.ratio, "us": sync.ours, "raw": sync.raw, "async": asyncio.run(asynchronous())}
    log.close()
    return found


def counted(place: Place) -> dict[str, float]:
    """Messages, rows, bytes and tokenizer calls of one context, and what the raw side reads for as many messages."""
    log = RawLog(place.raw)
    with Memory.open(place.path) as memory, Counts().watching() as counts:
        session = memory.session(SESSION, max_tokens=BUDGET)
        context = session.context()
        found = {"messages": len(context.messages), "shown": context.report.entries}
        found |= {"entries": counts.entries, "bytes": counts.bytes, "calls": counts.calls}
    found["raw bytes"] = log.bodies(len(context.messages))
    log.close()
    return found


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", calls=200, large=100_000)
    figures: list[Figure] = []
    with scratch(memory_folder() or given.disk) as folder:
        for state, more in ((CUT, 0), (FULL, fitting())):
            places = {size: prepare(folder, size, more) for size in (SMALL, given.large)}

            def run(places: dict[int, Place] = places) -> dict[str, float]:
                found: dict[str, float] = {}
                for size, place in places.items():
                    found |= {f"{name} {size}": value for name, value in timed(place, given.calls).items()}
                found["flat"] = found[f"us {given.large}"] / found[f"us {SMALL}"]
                return found

            m = over_runs(given.runs, run)
            for size, place in places.items():
                n, name = counted(place), f"{state}, N = {size:,}"
                us, raw, messages = m[f"us {size}"], m[f"raw {size}"], int(n["messages"])
                timing = f"{us:.0f} / {raw:.0f} us for {messages} messages on either side: "
                timing += f"{us / messages:.1f} / {raw / messages:.1f} us a message"
                amount = f"{n['bytes']:,.0f} / {n['raw bytes']:,.0f}"
                figures += [
                    Figure(f"{name}: synchronous", m[f"sync {size}"], 2.1, timing),
                    Figure(f"{name}: asynchronous", m[f"async {size}"], 3.3, "wall time"),
                    Figure(f"{name}: rows read", n["entries"], n["shown"], "the entries that it shows"),
                    Figure(f"{name}: bytes decoded", n["bytes"] / n["raw bytes"], None, amount),
                    Figure(f"{name}: tokenizer calls", n["calls"], 0),
                ]
            figures.append(Figure(f"{state}: time at {given.large:,} / at {SMALL:,}", m["flat"], 1.25))
    return report("A context of 8,000 tokens", figures, given, "CPU time (asynchronous: wall time), in raw ones.")


if __name__ == "__main__":
    sys.exit(main())

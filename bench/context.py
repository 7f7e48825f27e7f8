"""Measure what a context costs in a session with stored counts, beside a raw read of the same rows.

    python bench/context.py [--runs 3] [--calls 200] [--large 100000] [--json] [--gate]

Measured are the first context of 8,000 tokens, and the next ones, after a turn, of 8,000, 32,000 and 128,000.

The raw side reads the newest messages from its own table, adds up the counts that stand in the rows until its budget is
full, and decodes each row with `json`: exactly the messages of the context, old results whole where the context shows a
note. The window is measured in two states: just after a cut, and grown until the next turn would cause another. The
last turns are the same for every N, so the windows are, too. Rows, bytes and calls are counted.

A first context is made by a memory that remembers none (`view_bytes=0`). The next ones, each after a question and an
answer, are made by one that remembers, and by one that does not; the raw side reads its window again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
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

from palimpsest import AsyncMemory, Memory, Session
from palimpsest.sessions.remembered import VIEW_BYTES
from palimpsest.stores.engine import reading
from palimpsest.tokens.counter import Encoding

BUDGET = 8_000
SMALL = 1_000
NEXT_BUDGETS = (8_000, 32_000, 128_000)
FASTER = {8_000: 2, 32_000: None, 128_000: 5}
"""By budget, how many times as fast the next context must be if the one before is remembered; None: no target."""
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
        """Count the entries decoded from rows, their bytes, and the calls of a tokenizer."""
        read, encode, measure = reading.unpack, Encoding.encode, Encoding.measure

        def decoding(body: bytes, *rest: Any) -> Any:
            self.entries += 1
            self.bytes += len(body)
            return read(body, *rest)

        def counting(original: Any) -> Any:
            def called(encoding: Encoding, text: str) -> Any:
                self.calls += 1
                return original(encoding, text)

            return called

        reading.unpack, Encoding.encode, Encoding.measure = decoding, counting(encode), counting(measure)
        try:
            yield self
        finally:
            reading.unpack, Encoding.encode, Encoding.measure = read, encode, measure


def fitting() -> int:
    """Return how many of the next turns fit into the window after its cut, before they would cause another."""
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
    """Time both sides: processor time of the synchronous context, wall time of the asynchronous one."""
    log = RawLog(place.raw)
    with Memory.open(place.path, view_bytes=0) as memory:
        session = memory.session(SESSION, max_tokens=BUDGET)
        messages = len(session.context().messages)
        budget = log.budget_of(messages)
        assert len(log.window(budget)) == messages, "both sides read the same rows"
        sync = alternate(lambda _: log.window(budget), lambda _: session.context(), range(calls))

    async def asynchronous() -> float:
        async with AsyncMemory.open(place.path, view_bytes=0) as memory:
            session = memory.session(SESSION, max_tokens=BUDGET)
            await session.context()
            pair = await alternate_async(lambda _: log.window(budget), lambda _: session.context(), range(calls))
            return pair.ratio

    figures = {"sync": sync.ratio, "us": sync.ours, "raw": sync.raw, "async": asyncio.run(asynchronous())}
    log.close()
    return figures


def growing(folder: Path, budget: int, *, remembers: bool) -> tuple[Memory, Session, RawLog]:
    """Return a session whose window was cut and is two thirds full, with all counts stored, and the raw log of its
    turns."""
    name = f"next-{budget}-{remembers}"
    for old in folder.glob(f"{name}.*"):
        old.unlink()
    memory = Memory.open(folder / f"{name}.db", view_bytes=VIEW_BYTES if remembers else 0)
    session, log = memory.session(SESSION, max_tokens=budget), RawLog(folder / f"{name}.raw")
    step = max(budget // 16_000, 1)
    turns = [turn for number in range(200) for turn in some(20, seed=number)]
    for at in range(0, len(turns), step):
        session.add([message for turn in turns[at : at + step] for message in turn])
        log.add(*turns[at : at + step])
        context = session.context()
        if context.epoch and context.tokens > 0.66 * budget:
            break
    session.count()
    session.context()
    return memory, session, log


def following(folder: Path, budget: int, calls: int) -> dict[str, float]:
    """Time contexts after a turn each, and contexts with nothing new.

    By a memory that remembers, and by one that does not; beside the raw side's reading of its window.
    """
    figures: dict[str, float] = {}
    for remembers in (True, False):
        memory, session, log = growing(folder, budget, remembers=remembers)
        messages = len(session.context().messages)
        for kind in ("turn", "nothing"):
            pairs = []
            for number in range(calls):
                if kind == "turn":
                    turn = [{"role": "user", "content": f"and {number}?"}, {"role": "assistant", "content": "Yes."}]
                    session.add(turn)
                    log.add(turn)
                    messages += len(turn)
                room = log.budget_of(messages)
                pairs.append(alternate(partial(_windowed, log, room), partial(_given, session), [number]))
            figures[f"{kind} {remembers}"] = median(pair.ours for pair in pairs)
            figures[f"{kind} raw"] = median(pair.raw for pair in pairs)
        assert len(session.context().messages) == messages, "no cut came between"
        figures["messages"] = messages
        log.close()
        memory.close()
    return figures


def _given(session: Session, _: object) -> object:
    return session.context().messages


def _windowed(log: RawLog, room: int, _: object) -> object:
    return log.window(room)


def next_ones(folder: Path, given: Any) -> Iterator[Figure]:
    """Yield the figures of contexts that follow another one."""
    for budget in NEXT_BUDGETS:
        m = over_runs(given.runs, lambda budget=budget: following(folder, budget, min(given.calls, 60)))
        name, messages = f"the next one of {budget:,}", int(m["messages"])
        timing = f"{m['turn True']:.0f} / {m['turn False']:.0f} / {m['turn raw']:.0f} us for {messages} messages: "
        timing += "remembered / not / raw"
        least = FASTER[budget]
        yield Figure(
            f"{name}: not remembered / remembered", m["turn False"] / m["turn True"], least, timing, least=True
        )
        yield Figure(f"{name}: in raw ones", m["turn True"] / m["turn raw"], None)
        still = f"{m['nothing True']:.0f} us"
        yield Figure(f"{name}, of nothing new: in raw ones", m["nothing True"] / m["nothing raw"], None, still)


def counted(place: Place) -> dict[str, float]:
    """Count messages, rows, bytes and tokenizer calls of one context, and the raw bytes of as many messages."""
    log = RawLog(place.raw)
    with Memory.open(place.path) as memory, Counts().watching() as counts:
        session = memory.session(SESSION, max_tokens=BUDGET)
        context = session.context()
        counted = {"messages": len(context.messages), "shown": context.report.entries}
        counted |= {"entries": counts.entries, "bytes": counts.bytes, "calls": counts.calls}
    counted["raw bytes"] = log.bodies(len(context.messages))
    log.close()
    return counted


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
        figures += next_ones(folder, given)
    return report("Contexts", figures, given, "CPU time (asynchronous: wall time), in raw ones.")


if __name__ == "__main__":
    sys.exit(main())

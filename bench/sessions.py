"""Measure many sessions of one `AsyncMemory` that add turns and ask for contexts, beside `sqlite3` and openai-agents.

    python bench/sessions.py [--runs 3] [--cycles 200] [--disk FOLDER] [--json] [--gate]

A cycle is one turn added and one context of 8,000 tokens. Each session does its cycles one after the other, and all
sessions run at once. A single session does a block of turns, alternately with the other sides. These are
`SQLiteSession` of openai-agents on the same disk, which has no budget, and is asked for as many messages (`pip install
openai-agents`); and the table of `raw.py`, without an event loop.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import quantiles
from typing import Any

from measure import Figure, arguments, file_system, over_runs, report, scratch
from raw import RawLog
from workload import Turn, some

from palimpsest import AsyncMemory

BUDGET = 8_000
SHOWN = 40
"""How many messages the peer is asked for: about as many as 8,000 tokens."""

SIZES = (1, 100, 1_000)
BLOCK = 10
"""How many turns of each session one side takes before the other sides do."""

BEFORE = 4
"""How many turns each session has, with a context of them, before the clock runs."""

PEER = "agents"

Cycle = Callable[[Turn], Awaitable[float]]
"""Adds a turn, asks for a context, and returns when it asked."""


class Side:
    """One of the sides that are compared: its cycles, one for each session, and their times."""

    def __init__(self, cycles: list[Cycle]) -> None:
        self._cycles = cycles
        self._seconds = 0.0
        self._took: list[float] = []

    async def drive(self, given: list[list[Turn]]) -> None:
        """Run each session's turns, one after the other, in all sessions at once."""

        async def work(cycle: Cycle, turns: list[Turn]) -> None:
            for turn in turns:
                asked = await cycle(turn)
                self._took.append(time.perf_counter() - asked)

        begin = time.perf_counter()
        await asyncio.gather(*(work(cycle, turns) for cycle, turns in zip(self._cycles, given, strict=True)))
        self._seconds += time.perf_counter() - begin

    @property
    def rate(self) -> float:
        """Cycles a second."""
        return len(self._took) / self._seconds

    @property
    def slow(self) -> float:
        """The milliseconds within which 99 in 100 contexts were returned."""
        return quantiles(self._took, n=100)[98] * 1e3


@asynccontextmanager
async def ours(folder: Path, sessions: int) -> AsyncIterator[list[Cycle]]:
    """Yield the cycles of Palimpsest."""
    async with AsyncMemory.open(folder / "ours.db") as memory:
        cycles = list[Cycle]()
        for number in range(sessions):
            session = memory.session(f"s{number}", max_tokens=BUDGET)
            await session.add([message for turn in some(BEFORE, seed=number) for message in turn])
            await session.context()

            async def cycle(turn: Turn, session: Any = session) -> float:
                await session.add(turn)
                asked = time.perf_counter()
                await session.context()
                return asked

            cycles.append(cycle)
        yield cycles


@asynccontextmanager
async def theirs(folder: Path, sessions: int) -> AsyncIterator[list[Cycle]]:
    """Yield the cycles of openai-agents."""
    from agents import SQLiteSession

    opened = []
    cycles = list[Cycle]()
    for number in range(sessions):
        session = SQLiteSession(f"s{number}", folder / "theirs.db")
        opened.append(session)
        items: list[Any] = [message for turn in some(BEFORE, seed=number) for message in turn]
        await session.add_items(items)

        async def cycle(turn: Any, session: SQLiteSession = session) -> float:
            await session.add_items(turn)
            asked = time.perf_counter()
            await session.get_items(limit=SHOWN)
            return asked

        cycles.append(cycle)
    try:
        yield cycles
    finally:
        for session in opened:
            session.close()


@asynccontextmanager
async def raw(folder: Path, sessions: int) -> AsyncIterator[list[Cycle]]:
    """Yield the cycles of the raw table, which has one session."""
    assert sessions == 1, "it has one session"
    log = RawLog(folder / "raw.db")
    log.add(*some(BEFORE, seed=0))

    async def cycle(turn: Turn) -> float:
        log.add(turn)
        asked = time.perf_counter()
        log.window(BUDGET)
        return asked

    try:
        yield [cycle]
    finally:
        log.close()


async def compared(folder: Path, sessions: int, turns: int, seed: int, *, has_peer: bool) -> dict[str, float]:
    """Run all sides with so many sessions.

    They alternate in blocks of turns, since the speed of a disk varies over time.
    """
    figures: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        sides = {"rate": Side(await stack.enter_async_context(ours(folder, sessions)))}
        if has_peer:
            sides["peer"] = Side(await stack.enter_async_context(theirs(folder, sessions)))
        if sessions == 1:
            sides["raw"] = Side(await stack.enter_async_context(raw(folder, sessions)))
        given = [some(turns, seed=seed + number) for number in range(sessions)]  # made before the clock runs
        for number, first in enumerate(range(0, turns, BLOCK)):
            block = [session_turns[first : first + BLOCK] for session_turns in given]
            for side in list(sides.values())[:: 1 if number % 2 else -1]:
                await side.drive(block)
        for name, side in sides.items():
            figures |= {f"{name} {sessions}": side.rate, f"{name} p99 {sessions}": side.slow}
            figures[f"in {name} {sessions}"] = sides["rate"].rate / side.rate
    return figures


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", cycles=200)
    has_peer = find_spec(PEER) is not None
    with suppress(ValueError, OSError):  # the peer has a connection a session and thread
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    seeds = iter(range(1_000, 10**9, 10_000))

    def run() -> dict[str, float]:
        found: dict[str, float] = {}
        for sessions in SIZES:
            turns, seed = max(1, given.cycles // sessions), next(seeds)
            with scratch(given.disk) as folder:
                found |= asyncio.run(compared(folder, sessions, turns, seed, has_peer=has_peer))
        return found

    m = over_runs(given.runs, run)
    detail = f"{m['rate 1']:.0f} / {m['raw 1']:.0f} cycles/s"
    figures = [Figure("add and context, in raw ones", m["in raw 1"], 0.45, detail, least=True)]
    for sessions in SIZES:
        name, rate = f"{sessions:,} session{'s' * (sessions > 1)}", m[f"rate {sessions}"]
        if has_peer:
            peer = m[f"peer {sessions}"]
            detail = f"{rate:.0f} / {peer:.0f} cycles/s"
            figures.append(
                Figure(f"{name}: in those of openai-agents", m[f"in peer {sessions}"], 0.8, detail, least=True)
            )
        detail = f"openai-agents {m[f'peer p99 {sessions}']:.1f}" if has_peer else ""
        figures.append(Figure(f"{name}: p99 of a context, ms", m[f"rate p99 {sessions}"], 500, detail))
    with scratch(given.disk) as folder:
        where = f"On {file_system(folder)}, FULL mode."
    skipped = "" if has_peer else "openai-agents is skipped, for it is not installed: pip install openai-agents."
    return report("Sessions of one asynchronous memory", figures, given, where, *filter(None, [skipped]))


if __name__ == "__main__":
    sys.exit(main())

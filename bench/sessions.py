"""Many sessions of one `AsyncMemory` that add a turn and ask for a context, beside plain `sqlite3` and openai-agents.

    python bench/sessions.py [--runs 3] [--cycles 200] [--disk FOLDER] [--json] [--gate]

A cycle is one turn added and one context under 8,000 tokens; each session does its own one after the other, all
sessions at once. The other side is `SQLiteSession` of openai-agents on the same disk, which has no budget, with as many
messages asked for: `pip install openai-agents`. The raw side is the table of `raw.py`, without an event loop.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
"""Messages that the peer is asked for: about as many as 8,000 tokens are."""

SIZES = (1, 100, 1_000)
BEFORE = 4
"""Turns that each session has, and a context of them was given, before the clock runs."""

PEER = "agents"

Cycle = Callable[[Turn], Awaitable[float]]
"""Adds a turn, asks for a context, and says when it asked."""


async def driven(cycles: list[Cycle], turns: int, seed: int) -> tuple[float, float]:
    """Cycles a second, and the seconds within which 99 in 100 contexts were given."""
    took: list[float] = []
    given = [some(turns, seed=seed + number) for number in range(len(cycles))]  # made before the clock runs

    async def work(number: int, cycle: Cycle) -> None:
        for turn in given[number]:
            asked = await cycle(turn)
            took.append(time.perf_counter() - asked)

    begin = time.perf_counter()
    await asyncio.gather(*(work(number, cycle) for number, cycle in enumerate(cycles)))
    rate = len(took) / (time.perf_counter() - begin)
    return rate, quantiles(took, n=100)[98]


async def ours(folder: Path, sessions: int, turns: int, seed: int) -> tuple[float, float]:
    """The cycles of Palimpsest."""
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
        return await driven(cycles, turns, seed)


async def theirs(folder: Path, sessions: int, turns: int, seed: int) -> tuple[float, float]:
    """The cycles of openai-agents."""
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
        return await driven(cycles, turns, seed)
    finally:
        for session in opened:
            session.close()


def raw(folder: Path, turns: int, seed: int) -> float:
    """Cycles a second of the raw table."""
    log = RawLog(folder / "raw.db")
    try:
        log.add(*some(BEFORE, seed=0))
        work = some(turns, seed=seed)
        begin = time.perf_counter()
        for turn in work:
            log.add(turn)
            log.window(BUDGET)
        return turns / (time.perf_counter() - begin)
    finally:
        log.close()


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", cycles=200)
    there = find_spec(PEER) is not None
    with suppress(ValueError, OSError):  # the peer has a connection a session and thread
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    seeds = iter(range(1_000, 10**9, 10_000))

    def run() -> dict[str, float]:
        found: dict[str, float] = {}
        for sessions in SIZES:
            turns, seed = max(1, given.cycles // sessions), next(seeds)
            with scratch(given.disk) as folder:
                rate, slow = asyncio.run(ours(folder, sessions, turns, seed))
                found |= {f"rate {sessions}": rate, f"p99 {sessions}": slow * 1e3}
                if there:
                    peer, slow = asyncio.run(theirs(folder, sessions, turns, seed))
                    found |= {f"peer {sessions}": peer, f"peer p99 {sessions}": slow * 1e3}
                if sessions == 1:
                    found["raw"] = raw(folder, turns, seed)
        return found

    m = over_runs(given.runs, run)
    detail = f"{m['rate 1']:.0f} / {m['raw']:.0f} cycles/s"
    figures = [Figure("add and context, in raw ones", m["rate 1"] / m["raw"], 0.45, detail, least=True)]
    for sessions in SIZES:
        name, rate = f"{sessions:,} session{'s' * (sessions > 1)}", m[f"rate {sessions}"]
        if there:
            peer = m[f"peer {sessions}"]
            detail = f"{rate:.0f} / {peer:.0f} cycles/s"
            figures.append(Figure(f"{name}: in those of openai-agents", rate / peer, 0.8, detail, least=True))
        detail = f"openai-agents {m[f'peer p99 {sessions}']:.1f}" if there else ""
        figures.append(Figure(f"{name}: p99 of a context, ms", m[f"p99 {sessions}"], 500, detail))
    with scratch(given.disk) as folder:
        where = f"On {file_system(folder)}, FULL mode."
    skipped = "" if there else "openai-agents is skipped, for it is not installed: pip install openai-agents."
    return report("Sessions of one asynchronous memory", figures, given, where, *filter(None, [skipped]))


if __name__ == "__main__":
    sys.exit(main())

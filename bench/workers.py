"""Measure what an idle worker costs over many sessions, and how fast it looks at those that changed.

    python bench/workers.py [--sessions 10000] [--disk FOLDER] [--json] [--gate]

The store is an SQLite file with so many sessions of a declared memory, of one message each. An idle round reads no log,
and only the heads that were written at the newest mark, which lasts a second in SQLite. Here that is one session,
written two seconds after all others, so that any further head would be that of an idle session. A fresh worker goes on
from the mark that is stored. Then 200 sessions are written to.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from measure import Figure, arguments, file_system, report, scratch

from palimpsest.resources import AsyncResources

AT_ONCE, BUSY, ROUNDS = 500, 200, 20


def declared(path: Path) -> dict[str, Any]:
    """Return a memory whose sessions are compacted by workers only."""
    return {
        "resource": "memory",
        "id": "chat",
        "type": "token_based",
        "max_tokens": 1_000,
        "auto_compact": "off",
        "persistence": {"type": "sqlite", "path": str(path)},
    }


async def filled(path: Path, sessions: int) -> None:
    """Write the sessions, of one message each, the last one two seconds after the others.

    No append waits for the disk, since appends are not timed.
    """
    async with AsyncResources.load(declared(path), where=f"sqlite:///{path}?synchronous=NORMAL") as resources:
        for start in range(1, sessions, AT_ONCE):
            keys = range(start, min(start + AT_ONCE, sessions))
            await asyncio.gather(*(said(resources, number) for number in keys))
        await asyncio.sleep(2)
        await said(resources, 0)


async def said(resources: AsyncResources, number: int) -> None:
    """Add one message to a session."""
    await resources.session({"id": "chat", "key": f"k{number}"}).add_user_message("Where is my order?")


async def timed(path: Path, sessions: int) -> dict[str, float]:
    """Return milliseconds, and the number of heads read, of rounds."""
    await filled(path, sessions)
    async with AsyncResources.load(declared(path)) as resources:
        start = time.perf_counter()
        first_round = await resources.worker(duties=["compact"]).once()
        whole = time.perf_counter() - start
        worker = resources.worker(duties=["compact"])
        fresh_round = await worker.once()
        start = time.perf_counter()
        for _ in range(ROUNDS):
            idle_round = await worker.once()
        resting = (time.perf_counter() - start) / ROUNDS
        for number in range(BUSY):
            await said(resources, number)
        start = time.perf_counter()
        busy_round = await worker.once()
        working = time.perf_counter() - start
    assert (first_round.looked, idle_round.looked, busy_round.looked) == (sessions, 0, BUSY)
    return {
        "first": whole / sessions * 1e3,
        "anew": fresh_round.listed - 1,
        "idle": resting * 1e3,
        "heads": idle_round.listed - 1,
        "busy": working / BUSY * 1e3,
    }


def main() -> int:
    """Run the benchmark, and return the status."""
    given = arguments(__doc__ or "", runs=1, sessions=10_000)
    with scratch(given.disk) as folder:
        found = asyncio.run(timed(folder / "workers.db", given.sessions))
        system = file_system(folder)
    named = f"{given.sessions:,} sessions"
    figures = [
        Figure(f"{named}: an idle round, ms", found["idle"], 100, "the head of the session written last, and no log"),
        Figure(f"{named}: heads of idle sessions read in it", found["heads"], 0, "of all but that one"),
        Figure(f"{named}: the same by a fresh worker", found["anew"], 0, "it goes on from the mark that is stored"),
        Figure(f"{named}: the first pass, ms a session", found["first"], None, "each is looked at, once"),
        Figure(f"{BUSY} sessions that changed: ms a session", found["busy"], None, f"on {system}"),
    ]
    return report("Workers", figures, given)


if __name__ == "__main__":
    sys.exit(main())

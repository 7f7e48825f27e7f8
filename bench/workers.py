"""What a worker costs that has nothing to do, over many sessions, and how fast it looks at those that changed.

    python bench/workers.py [--sessions 10000] [--disk FOLDER] [--json] [--gate]

The store is a file of SQLite with so many sessions of a declared memory, of a message each. An idle round reads the
heads of those that were written to at the last mark, a second, and no log. A fresh worker goes on from the mark that is
stored. Then 200 sessions are written to.
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
    """A memory whose sessions are compacted by workers alone."""
    return {
        "resource": "memory",
        "id": "chat",
        "type": "token_based",
        "max_tokens": 1_000,
        "auto_compact": "off",
        "persistence": {"type": "sqlite", "path": str(path)},
    }


async def filled(resources: AsyncResources, sessions: int) -> None:
    """So many sessions of one message."""
    for start in range(0, sessions, AT_ONCE):
        keys = range(start, min(start + AT_ONCE, sessions))
        await asyncio.gather(*(said(resources, number) for number in keys))


async def said(resources: AsyncResources, number: int) -> None:
    """One more message of a session."""
    await resources.session({"id": "chat", "key": f"k{number}"}).add_user_message("Where is my order?")


async def timed(path: Path, sessions: int) -> dict[str, float]:
    """Milliseconds and heads of rounds."""
    async with AsyncResources.load(declared(path)) as resources:
        await filled(resources, sessions)
        begun = time.perf_counter()
        first = await resources.worker(duties=["compact"]).once()
        whole = time.perf_counter() - begun
        worker = resources.worker(duties=["compact"])
        anew = await worker.once()
        begun = time.perf_counter()
        for _ in range(ROUNDS):
            idle = await worker.once()
        resting = (time.perf_counter() - begun) / ROUNDS
        for number in range(BUSY):
            await said(resources, number)
        begun = time.perf_counter()
        busy = await worker.once()
        working = time.perf_counter() - begun
    assert (first.looked, idle.looked, busy.looked) == (sessions, 0, BUSY)
    return {
        "first": whole / sessions * 1e3,
        "anew": anew.listed,
        "idle": resting * 1e3,
        "heads": idle.listed,
        "busy": working / BUSY * 1e3,
    }


def main() -> int:
    """Run it, and return the status."""
    given = arguments(__doc__ or "", runs=1, sessions=10_000)
    with scratch(given.disk) as folder:
        found = asyncio.run(timed(folder / "workers.db", given.sessions))
        system = file_system(folder)
    named = f"{given.sessions:,} sessions"
    figures = [
        Figure(f"{named}: an idle round, ms", found["idle"], 100, f"{found['heads']:,.0f} heads read, no log"),
        Figure(f"{named}: heads that a fresh worker reads", found["anew"], None, "those of the last second"),
        Figure(f"{named}: the first pass, ms a session", found["first"], None, "each is looked at, once"),
        Figure(f"{BUSY} sessions that changed: ms a session", found["busy"], None, f"on {system}"),
    ]
    return report("Workers", figures, given)


if __name__ == "__main__":
    sys.exit(main())

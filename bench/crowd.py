"""Many sessions of one process, served by many tasks on its event loop at once: for the benches of servers."""

from __future__ import annotations

import asyncio
import time
from statistics import quantiles

from measure import Figure
from workload import some

from palimpsest import AsyncMemory

BUDGET = 8_000
SESSIONS, TASKS = 1_000, 50
TICK = 0.005
"""Seconds that the task sleeps which measures how late the loop is."""
LAG = 25
"""Milliseconds by which the loop may be late, in 95 of 100 cases."""


async def crowd(memory: AsyncMemory) -> dict[str, float]:
    """Sessions a second, a turn and a context each, and by how many milliseconds the loop was late meanwhile."""
    left, turns, late = iter(range(SESSIONS)), some(SESSIONS, seed=9), list[float]()
    await memory.session("warm").add_user_message("warm")

    async def one() -> None:
        for number in left:
            session = memory.session(f"s{number}", max_tokens=BUDGET)
            await session.add(turns[number])
            await session.context()

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(TICK)
            late.append(time.perf_counter() - begun - TICK)

    watching, begun = asyncio.create_task(watch()), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(TASKS)))
    took = time.perf_counter() - begun
    watching.cancel()
    lags = quantiles(late, n=100)
    return {"rate": SESSIONS / took, "lag": lags[94] * 1e3, "median lag": lags[49] * 1e3}


def figures_of(found: dict[str, float]) -> list[Figure]:
    """What is shown of that."""
    named = f"{SESSIONS:,} sessions, {TASKS} tasks"
    median = f"median {found['median lag']:.1f} ms"
    return [
        Figure(f"{named}: sessions/s", found["rate"], None, "no error"),
        Figure(f"{named}: by how much the event loop is late, p95, ms", found["lag"], LAG, median),
    ]

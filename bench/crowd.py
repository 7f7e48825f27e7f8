"""What the benches of servers share: many sessions of one process, served by many tasks on its event loop at once; and
one session as a program has it, a context after each turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import mean, median, quantiles
from typing import Any

from measure import Figure
from workload import Turn, some

from palimpsest import AsyncMemory

BUDGET = 8_000
SESSIONS, TASKS = 1_000, 50
TICK = 0.005
"""Seconds that the task sleeps which measures how late the loop is."""
LAG = 25
"""Milliseconds by which the loop may be late, in 95 of 100 cases."""


async def grown(
    memory: AsyncMemory,
    turns: list[Turn],
    raw_add: Callable[[Turn], Awaitable[object]],
    raw: Callable[[], Awaitable[object]],
) -> dict[str, float]:
    """A context after each of these turns, of which the raw side adds each, too, and reads its window.

    Only contexts are timed, and their round trips counted; the memory remembers what it may.
    """
    session, backend, trips = memory.session("s", max_tokens=BUDGET), memory.store.backend, list[int]()
    took: tuple[list[float], list[float]] = ([], [])
    for i, turn in enumerate(turns):
        await raw_add(turn)
        await session.add(turn)
        for side in (0, 1) if i % 2 else (1, 0):
            begun = time.perf_counter()
            await (session.context() if side else raw())
            took[side].append(time.perf_counter() - begun)
    for turn in turns[:50]:
        await session.add(turn)
        with counted(backend) as calls:
            await session.context()
        trips.append(len(calls))
    theirs, ours = (median(side) * 1e6 for side in took)
    return {"wall": ours / theirs, "us": ours, "raw us": theirs, "trips": mean(trips)}


@contextmanager
def counted(backend: Any) -> Iterator[list[str]]:
    """The calls of a backend's verbs that look or write, meanwhile."""
    calls = list[str]()

    def counting(name: str) -> Callable[..., Any]:
        own = getattr(backend, name)

        def call(*given: Any, **named: Any) -> Any:
            calls.append(name)
            return own(*given, **named)

        return call

    for name in ("look", "write"):
        setattr(backend, name, counting(name))
    try:
        yield calls
    finally:
        del backend.look, backend.write


def grown_figures(found: dict[str, float]) -> list[Figure]:
    """What is shown of that."""
    named, detail = "a context after each turn, remembered", f"{found['us']:.0f} / {found['raw us']:.0f} us"
    wall = Figure(f"{named}, wall", found["wall"], None, f"{detail}, which count nothing")
    return [wall, Figure(f"{named}, round trips, mean", found["trips"])]


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

"""Shared by the benchmarks of servers.

Many sessions of one process, served by many tasks on its event loop at once; and one session as a program uses it, with
a context after each turn.
"""

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
"""How long the task that measures the lag of the loop sleeps, in seconds."""
LAG = 25
"""The most milliseconds by which the loop may be late in 95 of 100 cases."""


async def grown(
    memory: AsyncMemory,
    turns: list[Turn],
    raw_add: Callable[[Turn], Awaitable[object]],
    raw: Callable[[], Awaitable[object]],
) -> dict[str, float]:
    """Time a context after each of these turns, beside the raw side, which adds each turn and reads its window.

    Only contexts are timed, and their round trips counted. The memory remembers what it may.
    """
    session, backend, trips = memory.session("s", max_tokens=BUDGET), memory.store.backend, list[int]()
    seconds: tuple[list[float], list[float]] = ([], [])
    for i, turn in enumerate(turns):
        await raw_add(turn)
        await session.add(turn)
        for side in (0, 1) if i % 2 else (1, 0):
            start = time.perf_counter()
            await (session.context() if side else raw())
            seconds[side].append(time.perf_counter() - start)
    for turn in turns[:50]:
        await session.add(turn)
        with counted(backend) as calls:
            await session.context()
        trips.append(len(calls))
    raw_us, our_us = (median(side) * 1e6 for side in seconds)
    return {"wall": our_us / raw_us, "us": our_us, "raw us": raw_us, "trips": mean(trips)}


@contextmanager
def counted(backend: Any) -> Iterator[list[str]]:
    """Yield a list that notes the calls of the backend's `look` and `write` in the block."""
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
    """Return the figures of `grown`."""
    named, detail = "a context after each turn, remembered", f"{found['us']:.0f} / {found['raw us']:.0f} us"
    wall = Figure(f"{named}, wall", found["wall"], None, f"{detail}, which count nothing")
    return [wall, Figure(f"{named}, round trips, mean", found["trips"])]


async def crowd(memory: AsyncMemory) -> dict[str, float]:
    """Serve all sessions, a turn and a context each.

    Returns the sessions a second, and by how many milliseconds the loop was late meanwhile.
    """
    numbers, turns, late = iter(range(SESSIONS)), some(SESSIONS, seed=9), list[float]()
    await memory.session("warm").add_user_message("warm")

    async def serve() -> None:
        for number in numbers:
            session = memory.session(f"s{number}", max_tokens=BUDGET)
            await session.add(turns[number])
            await session.context()

    async def watch() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(TICK)
            late.append(time.perf_counter() - start - TICK)

    watching, start = asyncio.create_task(watch()), time.perf_counter()
    await asyncio.gather(*(serve() for _ in range(TASKS)))
    seconds = time.perf_counter() - start
    watching.cancel()
    lags = quantiles(late, n=100)
    return {"rate": SESSIONS / seconds, "lag": lags[94] * 1e3, "median lag": lags[49] * 1e3}


def figures_of(found: dict[str, float]) -> list[Figure]:
    """Return the figures of `crowd`."""
    named = f"{SESSIONS:,} sessions, {TASKS} tasks"
    median = f"median {found['median lag']:.1f} ms"
    return [
        Figure(f"{named}: sessions/s", found["rate"], None, "no error"),
        Figure(f"{named}: by how much the event loop is late, p95, ms", found["lag"], LAG, median),
    ]

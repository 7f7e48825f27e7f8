"""Runs a coroutine like a synchronous memory does, without an event loop, or like an asynchronous one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from palimpsest.runtime.runner import Inline, Runner, drive
from palimpsest.runtime.threaded import Threaded

T = TypeVar("T")
Work = Callable[[Runner], Coroutine[Any, Any, T]]
Complete = Callable[[Work[Any]], Any]


def inline(work: Work[T]) -> T:
    """Run a coroutine that waits only by its runner, without an event loop."""
    runner = Inline()
    try:
        return drive(work(runner))
    finally:
        drive(runner.close())


def threaded(work: Work[T]) -> T:
    """Run the same coroutine under an event loop."""

    async def run() -> T:
        runner = Threaded()
        try:
            return await work(runner)
        finally:
            await runner.close()

    return asyncio.run(run())


WORLDS: tuple[Complete, ...] = (inline, threaded)

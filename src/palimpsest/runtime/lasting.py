"""Work that finishes even if its task is cancelled. This loads asyncio, so only asynchronous code imports it.

A task may be cancelled again and again: in a cancelled scope of anyio (web frameworks have one for each request) every
`await` raises. So work that has to finish runs in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from palimpsest.runtime.logs import Redact, log_failure

T = TypeVar("T")
Start = Callable[[], Coroutine[Any, Any, T]]


async def surely(start: Start[T], again: Start[T] | None = None, redact: Redact | None = None) -> T:
    """Run a coroutine to its end, however often the caller is cancelled; its cancellation is raised afterwards.

    A loop that shuts down cancels every task. If that hits the coroutine itself, `again` is run (None: `start` once
    more). When the caller gets its cancellation, an error of the coroutine is logged instead, redacted by `redact`.
    """
    task = asyncio.ensure_future(start())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await settled(task)
        if task.cancelled():
            task = asyncio.ensure_future((again or start)())
            await settled(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log_failure(redact, fault, "work that went on for a cancelled task failed")
        raise


async def settled(future: asyncio.Future[Any]) -> None:
    """Return when the future is done, however often the caller is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # marks it as retrieved, or asyncio would log it

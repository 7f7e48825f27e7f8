"""What is done to its end for tasks that are cancelled. It loads asyncio, so only what is asynchronous imports it.

A task may be cancelled again and again: inside a scope of anyio, as frameworks for the web have one for each request,
every `await` is cancelled anew. So what must be done is done in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from palimpsest.runtime.logs import Redact, log_failure

T = TypeVar("T")
Start = Callable[[], Coroutine[Any, Any, T]]


async def surely(start: Start[T], again: Start[T] | None = None, redact: Redact | None = None) -> T:
    """Run a coroutine to its end, however often the caller is cancelled, who learns of that afterwards.

    A loop that is ending cancels every task that it knows: then `again` is run, by default what was started before.
    What is raised is logged where the caller is told of his cancellation instead, without what `redact` finds in it.
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
            log_failure(redact, fault, "what was to be done for a task that was cancelled failed")
        raise


async def settled(future: asyncio.Future[Any]) -> None:
    """Return when the future is done, however often the caller is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # seen: whoever was cancelled is told of that alone

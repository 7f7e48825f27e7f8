"""A lease on a key that is being cleared or deleted, so that two callers who do so at once take turns.

Clearing a session is one step in its log, and needs no lease. Clearing a key may be several steps, the first of which
makes a backup: without a lease two callers would leave two backups of the same entries, or a backup of what the other
one has half destroyed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from palimpsest.runtime.runner import within
from palimpsest.sessions.lease import Lease, Renewals
from palimpsest.sessions.memory import AsyncMemory
from palimpsest.sessions.sync import Memory

WAIT_SECONDS = 5.0
"""The most seconds that a caller waits for another one."""


@asynccontextmanager
async def held(memory: AsyncMemory, session: str, seconds: float) -> AsyncIterator[None]:
    """Hold the lease on a session while the block runs, and renew it.

    Raises LockTimeout if another caller holds it for longer than `WAIT_SECONDS`.

    Args:
        memory: the session's memory, which is opened if it is not open yet.
        session: the session's id.
        seconds: how long the lease lasts after the last renewal, if the process is killed.
    """
    await memory.connect()
    scope = memory._scope  # noqa: SLF001 (a lease of one session, which has no verb of its own)
    renewals = Renewals(scope.runner, seconds)
    lease = Lease(scope.store, scope.runner, scope.key(session), "clear", seconds, scope.clock)
    try:
        if waited := await lease.take(renewals, WAIT_SECONDS):
            await scope.tell("lock:waited", session, lock="clear", seconds=waited)
        yield
    finally:
        await lease.give_back()
        renewals.close()


def held_inline(memory: Memory, session: str, seconds: float) -> AbstractContextManager[None]:
    """Hold the lease like `held`, for a program without an event loop."""
    return within(held(memory._core, session, seconds))  # noqa: SLF001 (as its face does)

"""Holding the key that is cleared or deleted: two that destroy at once what is under it go one after the other.

To clear is one step in a log, and needs no lease. By its key it may be several, of which a backup is the first: without
a lease two that come at once would leave two backups of the same, or one of what the other was destroying.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from palimpsest.runtime.runner import within
from palimpsest.sessions.lease import Lease, Renewals
from palimpsest.sessions.memory import AsyncMemory
from palimpsest.sessions.sync import Memory

WAIT_SECONDS = 5.0
"""How long one waits at most for another who is at it."""


@asynccontextmanager
async def held(memory: AsyncMemory, session: str, seconds: float) -> AsyncIterator[None]:
    """Hold what is destroyed for as long as the block lasts. The lease is renewed meanwhile; where the process is
    killed, it lasts for so many seconds. Raises LockTimeout where another holds it for longer than one waits.

    Args:
        memory: an open memory.
        session: the session's id.
        seconds: how long the lease lasts.
    """
    scope = memory._scope  # noqa: SLF001 (a lease of one session, which has no verb of its own)
    renewals = Renewals(scope.runner, seconds)
    lease = Lease(scope.store, scope.runner, scope.key(session), "clear", seconds, scope.clock)
    try:
        await lease.take(renewals, WAIT_SECONDS)
        yield
    finally:
        await lease.give_back()
        renewals.close()


def held_inline(memory: Memory, session: str, seconds: float) -> AbstractContextManager[None]:
    """The same for a program without an event loop."""
    return within(held(memory._core, session, seconds))  # noqa: SLF001 (as its face does)

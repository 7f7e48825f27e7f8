"""How many messages were added to a key, and how many of it are active.

Of a key that was counted before, only what is new is read.
"""

from __future__ import annotations

from collections.abc import Iterable

from palimpsest.log.entry import Entry
from palimpsest.runtime.runner import drive
from palimpsest.sessions.memory import AsyncMemory
from palimpsest.sessions.session import AsyncSession
from palimpsest.sessions.states import Tally, tallied
from palimpsest.sessions.sync import Memory, Session

KNOWN = 4096
"""The most sessions whose tally is kept."""


def stored(entries: Iterable[Entry]) -> int:
    """Return how many of these entries, as the verb that added them returned them, are in the log: a withheld entry is
    in none, so it has no place there."""
    return sum(entry.seq > 0 for entry in entries)


class Tallies:
    """The tallies of sessions that were counted. Threads may share them: the last one to count has its tally kept."""

    def __init__(self) -> None:
        self._kept = dict[str, Tally]()

    async def active(self, memory: AsyncMemory, session: AsyncSession) -> int:
        """Return how many entries of a session of this memory, which is opened if it is not, are active now."""
        await memory.connect()
        scope = session._scope  # noqa: SLF001 (a count for programs that know keys only has no verb of its own)
        before = self._kept.get(session.id, Tally())

        async def count() -> Tally:
            return await tallied(scope.store, scope.options, scope.clock(), before)

        now = await scope.store.together(count, reads=True)
        if len(self._kept) >= KNOWN:
            self._kept.clear()
        self._kept[session.id] = now
        return now.active

    def active_inline(self, memory: Memory, session: Session) -> int:
        """Count like `active`, for a program without an event loop."""
        return drive(self.active(memory._core, session._core))  # noqa: SLF001 (as their faces do)

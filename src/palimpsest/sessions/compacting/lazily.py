"""Automatic compaction, imported and created only when it is needed: a session that only adds loads none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palimpsest.sessions.parts import loaded
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.sessions.compacting.auto import AutoCompaction


class LazyAutoCompaction:
    """Creates the `AutoCompaction` of one session at its first use."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self._auto: AutoCompaction | None = None

    def __call__(self) -> AutoCompaction:
        """Return it, after importing it on the calling thread if this is the first use."""
        if self._auto is None:
            from palimpsest.sessions.compacting.auto import AutoCompaction  # forty milliseconds

            self._auto = AutoCompaction(self._scope)
        return self._auto

    async def loaded(self) -> AutoCompaction:
        """Return it, after importing it in a thread if there is an event loop that the import would block."""
        return await loaded(self._scope.runner, self) if self._auto is None else self._auto

    def begin_anew(self) -> None:
        """Forget everything about the session, because another log has taken its place."""
        self._auto = None

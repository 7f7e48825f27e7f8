"""Automatic compaction where it is not needed yet: a session that only adds loads nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palimpsest.sessions.parts import loaded
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.sessions.compacting.auto import AutoCompaction


class LazyAutoCompaction:
    """What watches one session: `auto()` gives it, made when it is first asked for."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self._made: AutoCompaction | None = None

    def __call__(self) -> AutoCompaction:
        if self._made is None:
            from palimpsest.sessions.compacting.auto import AutoCompaction  # forty milliseconds

            self._made = AutoCompaction(self._scope)
        return self._made

    async def there(self) -> AutoCompaction:
        """The same, loaded where no event loop waits for it."""
        return await loaded(self._scope.runner, self) if self._made is None else self._made

    def begin_anew(self) -> None:
        """Forget what is known of the session: another log is in its place."""
        self._made = None

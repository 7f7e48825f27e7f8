"""The description of a session (user, title, metadata, lifetime): reading and changing it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from palimpsest.errors import SessionNotFound
from palimpsest.log.change import Change
from palimpsest.log.head import About, Head
from palimpsest.sessions.scope import SessionScope
from palimpsest.stores import SessionInfo


class Describing:
    """Reads and changes the description of one session."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope

    async def info(self) -> SessionInfo:
        """Return the session as a listing shows it. Raises SessionNotFound."""
        scope = self._scope
        if (head := await scope.store.head(scope.key)) is None:
            raise SessionNotFound(scope.key.session)
        return SessionInfo.of(scope.key.session, head)

    async def describe(
        self,
        user: str | UnsetType | None,
        title: str | UnsetType | None,
        metadata: dict[str, Any] | UnsetType | None,
        lifetime: timedelta | float | str | UnsetType | None,
    ) -> SessionInfo:
        """Change the values that are given, and return the description as it is then."""
        scope = self._scope
        scope.may_write()
        values = {"user": user, "title": title, "metadata": metadata, "lifetime": lifetime}
        changes = scope.gate.admit_about({name: value for name, value in values.items() if value is not UNSET})
        stored = await scope.store.head(scope.key) if scope.about is not None or not changes else None
        head = stored or Head()
        if scope.about is not None and head.about is None and head.next_seq == 1:  # this creates the session
            changes = {**msgspec.structs.asdict(scope.about), **changes}
        before = await scope.head() if "user" in changes else None
        if changes:
            change = Change(kind="about", reason="about", about=About(**changes), said=tuple(changes))
            head = await scope.store.commit(scope.key, change)
        elif stored is None:
            raise SessionNotFound(scope.key.session)
        if before is not None and before.compaction and before.user != head.user:
            await (await scope.memory.keeper(joins=False)).handed_over(scope.key.session)
            scope.summaries_added.clear()
        if scope.about is not None:  # from now on this object expects the new user
            scope.about = msgspec.structs.replace(scope.about, user=head.user if scope.about.user else None)
        return SessionInfo.of(scope.key.session, head)

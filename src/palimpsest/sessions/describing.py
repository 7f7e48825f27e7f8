"""What is said of a session: read, and changed."""

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
    """What is said of one session."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope

    async def info(self) -> SessionInfo:
        """The session as a listing shows it."""
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
        """Say something else of the session."""
        scope = self._scope
        scope.may_write()
        values = {"user": user, "title": title, "metadata": metadata, "lifetime": lifetime}
        given = scope.gate.said({name: one for name, one in values.items() if one is not UNSET})
        there = await scope.store.head(scope.key) if scope.about is not None or not given else None
        head = there or Head()
        if scope.about is not None and head.about is None and head.next_seq == 1:
            given = {**msgspec.structs.asdict(scope.about), **given}
        before = await scope.head() if "user" in given else None
        if given:
            change = Change(kind="about", reason="about", about=About(**given), said=tuple(given))
            head = await scope.store.commit(scope.key, change)
        elif there is None:
            raise SessionNotFound(scope.key.session)
        if before is not None and before.compaction and before.user != head.user:
            await (await scope.memory.keeper(joins=False)).handed_over(scope.key.session)
            scope.brought.clear()
        if scope.about is not None:  # from now on it is taken for this one
            scope.about = msgspec.structs.replace(scope.about, user=head.user if scope.about.user else None)
        return SessionInfo.of(scope.key.session, head)

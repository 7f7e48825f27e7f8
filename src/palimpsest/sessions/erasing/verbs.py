"""The verbs of a session that destroy its content: erase, repair, clear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from palimpsest.errors import ConfigError, Conflict
from palimpsest.log import values
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.sessions.erased import Erased
from palimpsest.sessions.erasing.eraser import Eraser, checked_reason
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.erasing.selection import SelectedByQuery, SelectedDamaged, SelectedIds
from palimpsest.sessions.history import revision_of
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.context.result import Context
    from palimpsest.sessions.erasing.selection import Selection


class Erasing:
    """Erases entries of one session, or clears it."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope

    async def erase(self, what: Iterable[str | int | Entry] | str | int | Entry | Query, reason: str) -> Erased:
        """Destroy the content of these entries."""
        self._scope.may_write()
        selection = _selection(what)
        reason = checked_reason(self._scope.gate, reason, selection.mentions)
        eraser = Eraser(self._scope)
        report, lost = await eraser.erase(selection, reason)
        if isinstance(selection, SelectedByQuery):
            report += Erased(remains=selection.remains(self._scope.key.session))
        self._scope.let_go()
        return await eraser.finish(report, lost, selection.mentions)

    async def repair(self) -> Erased:
        """Erase every entry that cannot be read."""
        self._scope.may_write()
        eraser = Eraser(self._scope)
        done, lost = await eraser.erase(SelectedDamaged(), "damaged")
        self._scope.let_go()
        return await eraser.finish(done, lost, None)

    async def clear(self, seen: Context | int | None) -> int:
        """Destroy every entry of the session and return how many there were.

        Raises Conflict if `seen` is given and the session has changed since that revision.
        """
        self._scope.may_write()
        revision = None if seen is None else revision_of(seen)
        self._scope.let_go()
        head = await self._scope.head()
        if revision is not None and head.revision != revision:
            reason = f"is at revision {head.revision}, not {revision}: nothing was cleared"
            raise Conflict(f"session {self._scope.key.session!r}", reason)
        if head.next_seq == head.first_seq:
            return 0
        detail = {"entries": head.entries}
        change = Change(kind="clear", reason="cleared", created=head.created, detail=detail)
        async with self._scope.drop_derived(None) as unmaking:
            try:
                after = await self._scope.store.commit(self._scope.key, change, expect_revision=revision)
            except Conflict:
                if revision is not None:
                    raise
                return 0  # the session was deleted meanwhile
            if after.revision != head.revision + 1:
                # Entries added meanwhile were destroyed, too: remove what was derived from them.
                await unmaking.tell_again()
        records = await self._scope.store.records(self._scope.key, after=after.revision - 1, before=after.revision + 1)
        entries = (
            int(records[0].detail["entries"]) if records else head.entries
        )  # no record: it was cleared again since
        self._scope.sent = None
        await self._scope.memory.scrub(self._scope.store)
        await self._scope.tell("session:cleared", entries=entries)
        return entries


def _selection(what: Iterable[str | int | Entry] | str | int | Entry | Query) -> Selection:
    if isinstance(what, Query):
        return SelectedByQuery(what)
    if not isinstance(what, str | int | Entry) and not values.is_listed(what):
        raise ConfigError("ids", what, "ids of entries, or their numbers, or a Query")
    return SelectedIds([what] if isinstance(what, str | int | Entry) else what)

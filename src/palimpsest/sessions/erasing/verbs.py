"""Destroying what a session holds, as a session offers it. A part of `AsyncSession`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from palimpsest.errors import ConfigError, Conflict
from palimpsest.log.change import BY_REQUEST, Change
from palimpsest.sessions.compacting.flush import Flushing

if TYPE_CHECKING:
    from palimpsest.sessions.erased import Erased
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.selection import Selection


class Erasing(Flushing):
    """Erases entries, and clears the session."""

    async def erase(self, what: Iterable[str | int] | str | int | Query, *, reason: str = BY_REQUEST) -> Erased:
        """Destroy the content of these entries, by id or number, or of all that meet a `Query`; say what that took.

        Their place stays, as a tombstone with id, kind and time, in every branch that shares them. Summaries that held
        something of them lose their text, in every version, and are made anew from the rest; with the text of a query
        so does whatever else tells of it. One that is erased already is left as it is. `reason` is kept in the log.

        It ends beside others who never stop adding. All that is meant and was in the log when it was called is gone in
        one step; then what has come since is looked at, and goes, until a look finds nothing, at most 7 times more. A
        query cannot look into what is damaged: `remains` of the report names it.

        Raises EntryNotFound where one of them does not exist, ErasureFailed where what was made from them cannot be
        removed, ConfigError for what is not accepted: then nothing is erased.
        """
        from palimpsest.sessions.erased import Erased
        from palimpsest.sessions.erasing.eraser import Eraser, checked_reason
        from palimpsest.sessions.erasing.selection import SelectedByQuery

        self._scope.may_write()
        selection = _selection(what)
        reason = checked_reason(self._gate, reason, selection.mentions)
        eraser = Eraser(self._scope)
        done, lost = await eraser.erase(selection, reason)
        if isinstance(selection, SelectedByQuery):
            done += Erased(remains=selection.remains(self.id))
        self._scope.let_go()
        return await eraser.finished(done, lost, selection.mentions)

    async def repair(self) -> Erased:
        """Take out for good every entry that cannot be read, as `erase` does, and say what that took.

        Such an entry is named in the log of `palimpsest` when it is met, and set aside: contexts, listings and exports
        have a tombstone in its place, whose `damaged` is set, and all the rest goes on. `verify` lists them. Restore
        a backup first, if there is one.
        """
        from palimpsest.sessions.erasing.eraser import Eraser
        from palimpsest.sessions.erasing.selection import SelectedDamaged

        self._scope.may_write()
        eraser = Eraser(self._scope)
        done, lost = await eraser.erase(SelectedDamaged(), "damaged")
        self._scope.let_go()
        return await eraser.finished(done, lost, None)

    async def clear(self) -> int:
        """Destroy every entry of the session for good and return how many there were; the session stays.

        What others add until it is done goes, too. Clearing an empty or unknown session does nothing and returns 0.
        """
        self._scope.may_write()
        self._scope.let_go()
        head = await self._reader.head()
        if head.next_seq == head.first_seq:
            return 0
        detail = {"entries": head.entries}
        change = Change(kind="clear", reason="cleared", created=head.created, detail=detail)
        async with self._scope.drop_derived(None) as unmade:
            try:
                after = await self._scope.store.commit(self._scope.key, change)
            except Conflict:  # it was deleted meanwhile
                return 0
            if after.revision != head.revision + 1:
                await unmade.again()  # somebody added meanwhile: that went, too, and something was made of it
        told = await self._scope.store.records(self._scope.key, after=after.revision - 1, before=after.revision + 1)
        entries = int(told[0].detail["entries"]) if told else head.entries  # else it was cleared again
        self._scope.sent = None
        await self._scope.store.scrub(whole=False)
        await self._scope.tell("session:cleared", entries=entries)
        return entries


def _selection(what: Iterable[str | int] | str | int | Query) -> Selection:
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.selection import SelectedByQuery, SelectedIds

    if isinstance(what, Query):
        return SelectedByQuery(what)
    if not isinstance(what, str | int | Iterable):
        raise ConfigError("ids", what, "ids of entries, or their numbers, or a Query")
    return SelectedIds([what] if isinstance(what, str | int) else what)

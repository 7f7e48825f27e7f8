"""A session's past and its branches, and the session as a file: the half of `AsyncSession` that looks back."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

import msgspec

from palimpsest.errors import ConfigError, Conflict, SessionNotFound
from palimpsest.formats import find_format
from palimpsest.log import spans
from palimpsest.log.change import Change, Record
from palimpsest.log.checks import MAX_ID, check_file, check_whole
from palimpsest.log.head import Head
from palimpsest.log.summary import Spent
from palimpsest.sessions.adding.verbs import Writer
from palimpsest.sessions.history import kinds_since

if TYPE_CHECKING:
    from typing import IO

    from palimpsest.log.entry import Entry
    from palimpsest.log.head import Head
    from palimpsest.sessions.history import History, When
    from palimpsest.stores import Store
    from palimpsest.transfer.writing import Sink

SPOOLED = 1 << 20
"""Bytes of an export that are held in memory; more of it waits in a file without a name."""

PIECE = 64 * 1024
"""Bytes of an export that are written at once."""


class Timeline(Writer):
    """Forks, rewinds, history and exports."""

    @property
    def _past(self) -> History:
        from palimpsest.sessions.history import History  # few sessions look back

        return History(self._scope.store, self._scope.key)

    async def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return what happened to the session, oldest first, one record a revision.

        Additions (kind add, `seqs` are the new entries), cuts, erasures, pins, clears and rewinds, with their time,
        reason and figures; of all revisions, or of those between `after` and `before`, both exclusive.
        """
        check_whole(after, "after")
        check_whole(before, "before", or_none=True)
        return await self._past.history(await self._reader.head(), after, before)

    async def fork(self, session_id: str | None = None, *, at: When | None = None) -> Self:
        """Return a new session that branches off this one: now, at a revision, or right behind an entry.

        The branch shares every entry before that point, with id, number and counts, and goes its own way from
        there; neither sees what is added to the other. Erasing an entry that is shared erases it in every branch,
        while clearing or deleting a session leaves its branches whole. Without `session_id` one is made. Raises
        SessionNotFound for a session without entries, Conflict where `session_id` is taken.
        """
        self._scope.may_write()
        into = session_id if session_id is not None else f"{self.id[: MAX_ID - 9]}~{os.urandom(4).hex()}"
        other = self._scope.of(into)
        while True:
            head = await self._reader.head()
            if not head.revision:
                raise SessionNotFound(self.id)
            point = await self._past.point(head, at, "at")
            then, now = await self._past.head(head, point), self._scope.clock()
            usage = then.usage and msgspec.structs.replace(
                then.usage,
                stale=then.usage.stale
                or then.usage.revision > point.revision,  # of a context that the branch never had
                calls=0,
                total_input=0,
                total_output=0,
                total_cached=0,
            )
            attempts = then.attempts and msgspec.structs.replace(then.attempts, spent=Spent())
            branch = msgspec.structs.replace(
                then, forked_from=(self.id, point.revision), usage=usage, attempts=attempts, created=now, updated=now
            )
            try:
                await self._scope.store.fork(
                    self._scope.key, into, branch, expect_epoch=head.epoch, created=head.created
                )
                break
            except Conflict:
                if await self._scope.store.head(other.key) is not None:
                    raise
        from palimpsest.sessions.accesses import inherited

        await inherited(self._scope.store, self._options, other.options)
        await self._scope.tell("session:forked", branch=into, revision=point.revision, entries=branch.entries)
        return type(self)(other)

    async def rewind(self, to: When) -> int:
        """Go back to how the session was: at a revision, or right behind an entry. Return how many entries went.

        What came after is taken back, not destroyed: no context shows it and `entries()` leaves it out, but
        `entry(id)` finds it, exports hold it, and rewinding to a later revision brings it back. What was erased
        stays erased. Calls that were open then are open again. What others add until it is done is taken back, too.
        """
        self._scope.may_write()
        self._scope.let_go()
        looked: Head | None = None
        while True:
            head = await self._reader.head()
            if looked is None or not await self._still_past(looked, head):
                point, looked = await self._past.point(head, to, "to"), head
                then = await self._past.head(head, point)
                alive, gone = await self._past.alive(head, point.next_seq - 1)
                rewound = spans.hiding(then.rewound, point.next_seq, head.next_seq - 1)
                if rewound == head.rewound and then.compaction == head.compaction:
                    return 0
                # What is added from here on is hidden by the step itself.
                back = msgspec.structs.replace(
                    then, next_seq=head.next_seq, rewound=rewound, hidden=then.hidden + alive
                )
            reason, detail = f"to revision {point.revision}", {"entries": gone}
            change = Change(kind="rewind", reason=reason, created=head.created, back=back, detail=detail)
            try:
                after = await self._scope.store.commit(self._scope.key, change, expect_epoch=head.epoch)
                break
            except Conflict:  # somebody has begun an epoch: that may be nothing that was looked at
                continue
        gone += after.next_seq - looked.next_seq
        await self._scope.tell("session:rewound", revision=point.revision, entries=gone)
        return gone

    async def _still_past(self, looked: Head, now: Head) -> bool:
        """Whether a session's past, and what is hidden of it, is what it was when it was looked at."""
        kinds = await kinds_since(self._scope.store, self._scope.key, looked, now)
        return kinds is not None and kinds <= {"cut", "compact", "pin"}

    async def export(self) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records, usage.

        `memory.import_session` takes it back; tombstones stand for what was erased. Raises Conflict where others change
        the session faster than it can be read.
        """
        from palimpsest.sessions.accesses import access_order
        from palimpsest.transfer.writing import exported

        head, entries, records = await self._reader.settled(self._all)
        shown, accesses = self._gate.head(head), await access_order(self._scope.store, self._scope.key)
        return exported(self._scope.key, shown, entries, records, self._scope.clock(), accesses)

    async def _all(self, head: Head) -> tuple[Head, list[Entry], list[Record]]:
        """The session as it may leave this process: the head, all entries, all records."""
        entries = [entry async for entry in self._shown(self._past.entries(head))]
        return head, entries, [self._gate.record(record) async for record in self._past.records(head)]

    async def export_to(self, file: str | os.PathLike[str] | Sink, *, format: str = "palimpsest") -> int:
        """Write the session as JSON to a file, or to a path, whole or not at all; return the bytes written.

        The format `palimpsest` is what `export` returns, written a batch at a time, so that a log may be larger
        than memory. Any format of messages gives what a model would be sent without any budget, as the list that
        its provider takes (an object with the system text, where that is sent beside it; for `text` plain text):
        calls that are still open are left out, and so is what was erased, has expired or was rewound. Raises
        OSError where the path cannot be written, Conflict where others change the session faster than it can be read.
        """
        from tempfile import SpooledTemporaryFile

        from palimpsest.transfer.writing import partial

        check_file(file, "file", "write")
        if format != "palimpsest":
            try:
                find_format(format)
            except ConfigError as fault:
                raise ConfigError("format", format, f"palimpsest, {fault.allowed}", nearest=fault.nearest) from fault
        run, size = self._scope.runner.run, 0
        with SpooledTemporaryFile(SPOOLED) as spool:  # what is begun anew has gone nowhere yet
            await (self._listed(spool, format) if format != "palimpsest" else self._written(spool))
            await run(spool.seek, 0)
            with partial(file) as out:
                while piece := await run(spool.read, PIECE):
                    await run(out.write, piece)
                    size += len(piece)
        return size

    async def _written(self, spool: IO[bytes]) -> None:
        """Write what `export` returns."""
        from palimpsest.sessions.accesses import access_order
        from palimpsest.transfer.writing import written

        async def write(head: Head) -> None:
            spool.seek(0)
            spool.truncate()
            entries = self._shown(self._past.entries(head))
            records = (self._gate.record(record) async for record in self._past.records(head))
            shown, now = self._gate.head(head), self._scope.clock()
            accesses = await access_order(self._scope.store, self._scope.key)
            async for piece in written(self._scope.key, shown, entries, records, now, accesses):
                await self._scope.runner.run(spool.write, piece)

        await self._reader.settled(write)

    async def _listed(self, spool: IO[bytes], format: str) -> None:
        """Write what a model would be sent."""
        from palimpsest.sessions.contexts.builder import ContextBuilder
        from palimpsest.sessions.contexts.request import ContextRequest
        from palimpsest.transfer.writing import listed

        plain = type(self._options)(self._scope.key, format=format, counter=self._options.counter)
        builder = ContextBuilder(
            await self._shown_store(), plain, ContextRequest(view="export", dry_run=True), self._scope.clock()
        )
        spool.write(listed(await self._scope.runner.whole(builder.context, reads=True)))

    async def _shown(self, entries: AsyncIterator[Entry]) -> AsyncIterator[Entry]:
        """The entries as they may leave this process."""
        async for entry in entries:
            yield self._gate.shown([entry])[0]

    async def _shown_store(self) -> Store:
        """Where the session is as it may leave this process: the store itself, where there is no policy."""
        if self._gate.redactor is None:
            return self._scope.store
        from palimpsest.stores import Dump
        from palimpsest.stores.overlay import Overlay

        head, entries, records = await self._reader.settled(self._all)
        copy = Overlay(self._scope.store, self._scope.clock)
        await copy.load(self._scope.key, Dump(head=head, entries=tuple(entries), records=tuple(records)), replace=True)
        return copy

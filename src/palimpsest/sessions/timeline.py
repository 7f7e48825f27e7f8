"""The verbs of a session for its past and its branches: history, fork, rewind."""

from __future__ import annotations

import os

import msgspec

from palimpsest.errors import Conflict, SessionNotFound
from palimpsest.log import spans, values
from palimpsest.log.change import Change, Record
from palimpsest.log.head import Head
from palimpsest.log.ids import MAX_ID
from palimpsest.log.summary import Spent
from palimpsest.sessions.accesses import inherited
from palimpsest.sessions.copied_facts import copy_facts
from palimpsest.sessions.history import History, When, kinds_since
from palimpsest.sessions.scope import SessionScope


class Timeline:
    """Forks, rewinds and tells the history of one session."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._options = scope, scope.options

    @property
    def _past(self) -> History:
        return History(self._scope.store, self._scope.key)

    async def history(self, after: int, before: int | None) -> list[Record]:
        """Return what happened to the session between two revisions, oldest first."""
        values.whole("after", after, of="a revision")
        values.whole("before", before, none=True, of="a revision")
        return await self._past.history(await self._scope.head(), after, before)

    async def fork(self, session_id: str | None, at: When | None) -> SessionScope:
        """Make a branch of the session as it was at a time, and return its scope."""
        self._scope.may_write()
        origin = self._scope.key.session
        into = session_id if session_id is not None else f"{origin[: MAX_ID - 9]}~{os.urandom(4).hex()}"
        branch_scope = self._scope.of(into)
        while True:
            head = await self._scope.store.head(self._scope.key)
            if head is None:
                raise SessionNotFound(origin)
            point = await self._past.point(head, at, "at")
            past_head, now = await self._past.head(head, point), self._scope.clock()
            usage = past_head.usage and msgspec.structs.replace(
                past_head.usage,
                # Usage reported after this point is of a context that the branch never had.
                stale=past_head.usage.stale or past_head.usage.revision > point.revision,
                calls=0,
                total_input=0,
                total_output=0,
                total_cached=0,
            )
            attempts = past_head.attempts and msgspec.structs.replace(past_head.attempts, spent=Spent())
            branch = msgspec.structs.replace(
                past_head,
                forked_from=(origin, point.revision),
                usage=usage,
                attempts=attempts,
                created=now,
                updated=now,
            )
            try:
                await self._scope.store.fork(
                    self._scope.key, into, branch, expect_epoch=head.epoch, created=head.created
                )
                break
            except Conflict:
                if await self._scope.store.head(branch_scope.key) is not None:
                    raise
        await inherited(self._scope.store, self._options, branch_scope.options)
        await copy_facts(self._scope.store, self._scope.key.tenant, origin, into)
        await self._scope.tell("session:forked", branch=into, revision=point.revision, entries=branch.entries)
        return branch_scope

    async def rewind(self, to: When) -> int:
        """Go back to how the session was at a time. Return how many visible entries this hides."""
        self._scope.may_write()
        self._scope.let_go()
        planned_at: Head | None = None
        while True:
            head = await self._scope.head()
            if planned_at is None or not await self._still_past(planned_at, head):
                point, planned_at = await self._past.point(head, to, "to"), head
                past_head = await self._past.head(head, point)
                alive, hidden_entries = await self._past.alive(head, point.next_seq - 1)
                rewound = spans.hiding(past_head.rewound, point.next_seq, head.next_seq - 1)
                if rewound == head.rewound and past_head.compaction == head.compaction:
                    return 0
                # The commit also hides entries that others add after this look.
                back = msgspec.structs.replace(
                    past_head, next_seq=head.next_seq, rewound=rewound, hidden=past_head.hidden + alive
                )
            reason, detail = f"to revision {point.revision}", {"entries": hidden_entries}
            change = Change(kind="rewind", reason=reason, created=head.created, back=back, detail=detail)
            try:
                after = await self._scope.store.commit(self._scope.key, change, expect_epoch=head.epoch)
                break
            except Conflict:  # a new epoch began: the plan may still hold (see `_still_past`)
                continue
        hidden_entries += after.next_seq - planned_at.next_seq
        await self._scope.tell("session:rewound", revision=point.revision, entries=hidden_entries)
        return hidden_entries

    async def _still_past(self, looked: Head, now: Head) -> bool:
        """Return whether the session's past, and what is hidden of it, is unchanged since `looked`."""
        kinds = await kinds_since(self._scope.store, self._scope.key, looked, now)
        return kinds is not None and kinds <= {"cut", "compact", "pin"}

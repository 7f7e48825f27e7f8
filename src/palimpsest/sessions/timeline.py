"""A session's past and its branches: what its verbs for them do."""

from __future__ import annotations

import os

import msgspec

from palimpsest.errors import Conflict, SessionNotFound
from palimpsest.log import spans
from palimpsest.log.change import Change, Record
from palimpsest.log.checks import check_whole
from palimpsest.log.head import Head
from palimpsest.log.ids import MAX_ID
from palimpsest.log.summary import Spent
from palimpsest.sessions.accesses import inherited
from palimpsest.sessions.carried import copy_facts
from palimpsest.sessions.history import History, When, kinds_since
from palimpsest.sessions.scope import SessionScope


class Timeline:
    """Forks, rewinds, and history of one session."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._options = scope, scope.options

    @property
    def _past(self) -> History:
        return History(self._scope.store, self._scope.key)

    async def history(self, after: int, before: int | None) -> list[Record]:
        """What happened to the session."""
        check_whole(after, "after", of="a revision")
        check_whole(before, "before", or_none=True, of="a revision")
        return await self._past.history(await self._scope.head(), after, before)

    async def fork(self, session_id: str | None, at: When | None) -> SessionScope:
        """Make a branch, and return its scope."""
        self._scope.may_write()
        own = self._scope.key.session
        into = session_id if session_id is not None else f"{own[: MAX_ID - 9]}~{os.urandom(4).hex()}"
        other = self._scope.of(into)
        while True:
            head = await self._scope.store.head(self._scope.key)
            if head is None:
                raise SessionNotFound(own)
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
                then, forked_from=(own, point.revision), usage=usage, attempts=attempts, created=now, updated=now
            )
            try:
                await self._scope.store.fork(
                    self._scope.key, into, branch, expect_epoch=head.epoch, created=head.created
                )
                break
            except Conflict:
                if await self._scope.store.head(other.key) is not None:
                    raise
        await inherited(self._scope.store, self._options, other.options)
        await copy_facts(self._scope.store, self._scope.key.tenant, own, into)
        await self._scope.tell("session:forked", branch=into, revision=point.revision, entries=branch.entries)
        return other

    async def rewind(self, to: When) -> int:
        """Go back to how the session was."""
        self._scope.may_write()
        self._scope.let_go()
        looked: Head | None = None
        while True:
            head = await self._scope.head()
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

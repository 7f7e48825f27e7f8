"""Where a worker is at work: one tenant of a memory. How it comes by the sessions that are due.

Each session that was written to since the mark of a duty is given to one worker, whichever is first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.log.entry import moment
from palimpsest.log.head import SessionKey
from palimpsest.resources.claims import Claim, Claims, Mark, Open, Used, known_as
from palimpsest.resources.definition import Resource
from palimpsest.resources.opening import session_options
from palimpsest.resources.worked import Told, Worked, WorkReport
from palimpsest.runtime.logs import log_failure
from palimpsest.sessions.memory import AsyncMemory
from palimpsest.stores import SessionInfo
from palimpsest.stores.options import discreet_address

READ, TAKEN = 128, 16
"""Heads that are read at once, and sessions that a worker takes at a time: few, so that none waits for one worker while
others have nothing to do."""
KNOWN = 20_000
"""Sessions whose revision a worker remembers, so as not to look at what it has written itself."""
RETRY_SECONDS = 5
"""After how long at most a session is looked at again on which another is at work."""
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60, 3600
"""After how long a session is looked at again where that has failed, which doubles each time, and at most."""

Look = Callable[[str], Awaitable[int]]
"""Looks at a session, and does what is due. Returns when to look again (microseconds since 1970; 0: not before it is
written to)."""


class Workplace:
    """One tenant of a memory, the declared memories that are kept there, and what a worker knows of them.

    Args:
        memory: the tenant's memory.
        resources: what is declared of its sessions.
        given: options of sessions that hold in the place of what is declared.
        report: what is counted.
        tell: is called with what was done.
        lease: seconds for which sessions are taken; it is renewed meanwhile.
        clock: a function that returns microseconds since 1970.
    """

    def __init__(
        self,
        memory: AsyncMemory,
        resources: Sequence[Resource],
        given: Mapping[str, Any],
        report: WorkReport,
        tell: Told,
        lease: float,
        clock: Callable[[], int],
    ) -> None:
        self.memory, self.resources, self.report, self._told = memory, tuple(resources), report, tell
        self.stopping, self.once, self.now = False, False, clock
        self._given, self._lease = given, lease
        self._options: dict[str, dict[str, Any]] = {}
        self._known: dict[str, int] = {}
        self._waiting: dict[str, set[str]] = {}
        self._next: dict[str, int] = {}

    def pace(self, seconds: int) -> int:
        """How long after another worker a duty is done again: at once by one that goes through everything once."""
        return 0 if self.once else seconds

    def soon(self) -> int:
        """When a session is looked at again on which another is at work, or which has failed for the first time."""
        return self.now() + int(min(RETRY_SECONDS, self._lease / 3) * 1_000_000)

    def resource_of(self, session: str) -> Resource | None:
        """What is declared of a session; None: it is of no key of these memories."""
        for resource in self.resources:
            beginning = f"{resource.project}/{resource.id}/"
            if session.startswith(beginning) and not session.startswith("~", len(beginning)):  # a backup
                return resource
        return None

    def options(self, resource: Resource) -> dict[str, Any]:
        """The options of its sessions. A summarizer is made once, so that its breaker knows all its calls."""
        if resource.id not in self._options:
            self._options[resource.id] = {**session_options(resource), **self._given}
        return self._options[resource.id]

    @property
    def waiting(self) -> int:
        """How many sessions are to be looked at again, as was known last."""
        return sum(map(len, self._waiting.values()))

    # --- which sessions

    async def changed(
        self, duty: str, look: Look, *, wanted: Callable[[str], bool], name: str = "", delay: float = 0
    ) -> None:
        """Have `look` called for each session that is wanted and was written to since the mark of this duty and name.

        With `delay` those to which nobody has written for so many seconds since. What other workers have taken is left
        to them; what one has left behind that is no more is taken up. Nothing is read of sessions that nobody has
        written to. Where `look` raises, the session is looked at again later, which is told.
        """
        claims = Claims(self.memory.store, self.memory.tenant, duty)
        await self._left_behind(claims, look)
        while not self.stopping:
            mark, version = await claims.mark(name)
            given = {known for _, known in mark.seen}
            async for page in self._pages(mark, delay):
                fresh = [info for _, info in page if known_as(info) not in given]
                if not fresh and page[-1][0] <= mark.at:
                    continue
                due = [info.session for info in fresh if wanted(info.session) and (delay or not self._wrote(info))]
                mark = mark.after(page)
                moved = await claims.advance(name, version, mark, Claim(tuple(due), self._until() if due else 0))
                if moved is None:  # another worker was first
                    break
                version, mine = moved
                given.update(map(known_as, fresh))
                if due:
                    await self._worked(claims, mine, look)
                if self.now() >= self._next[duty]:  # there may be no end of what is new
                    await self._left_behind(claims, look)
                if self.stopping:
                    return
            else:
                return

    async def _pages(self, mark: Mark, delay: float) -> AsyncIterator[list[Used]]:
        """Yield the sessions written since the mark, those of the longest ago first: so few that one worker may have
        them."""
        store, tenant, at, after = self.memory.store, self.memory.tenant, mark.at, ""
        while page := await store.used(tenant, mark=at, after=after, limit=READ):
            self.report.listed += len(page)
            at, after = page[-1][0], page[-1][1].session
            until = self.now() - int(delay * 1_000_000)
            ripe = next((i for i, (_, info) in enumerate(page) if info.updated > until), len(page)) if delay else READ
            for i in range(0, min(ripe, len(page)), TAKEN):
                yield [one for one in page[i : min(i + TAKEN, ripe)] if not one[1].damaged]
            if len(page) < READ or ripe < len(page):
                return

    def _wrote(self, info: SessionInfo) -> bool:
        """Whether a session is as this worker has left it."""
        return self._known.get(info.session) == info.revision

    async def _left_behind(self, claims: Claims, look: Look) -> None:
        """Work on what was to be looked at again, and on what one has left who is no more. Note what still waits, and
        when to look for it once more."""
        waiting = set[str]()
        for known in await claims.open():
            mine = None
            if known.claim.due <= self.now() and not self.stopping:
                mine = await claims.hold(known, Claim(known.claim.sessions, self._until(), known.claim.tries))
            if mine is not None:
                await self._worked(claims, mine, look, again=True)
            elif known.claim.waits:
                waiting.update(known.claim.sessions)
        self._waiting[claims.duty], self._next[claims.duty] = waiting, self._until()

    def _until(self) -> int:
        return self.now() + int(self._lease * 1_000_000)

    # --- working on them

    async def _worked(self, claims: Claims, mine: Open, look: Look, *, again: bool = False) -> None:
        """Look at the sessions of a claim of ours, and leave what is to be looked at again.

        What waits already in another claim, which was left behind, need not wait in this one.
        """
        left, later, tries = list(mine.claim.sessions), dict[str, int](), 0
        waiting = self._waiting.setdefault(claims.duty, set())
        async with self._renewed(claims, mine) as held:
            while left and not self.stopping:
                when, failed = await self._looked(claims, look, left[0])
                if failed:
                    tries = mine.claim.tries + 1
                    when = self.now() + _pause(tries)
                if when and (again or left[0] not in waiting):
                    later[left[0]] = when
                left.pop(0)
        rest = Claim((*left, *later), 0 if left else min(later.values(), default=0), tries, waits=not left)
        if rest.sessions:
            waiting.update(later)
            await claims.hold(held[0], rest)
        else:
            await claims.done(held[0])

    @asynccontextmanager
    async def _renewed(self, claims: Claims, mine: Open) -> AsyncIterator[list[Open]]:
        """Keep a claim for as long as the block lasts. Where that ends early, it is given back as it is."""
        held, over = [mine], asyncio.Event()

        async def renew() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), self._lease / 3)
                    return
                with suppress(PalimpsestError):  # it is tried again, and else another may do the same once more
                    kept = await claims.hold(held[0], msgspec.structs.replace(mine.claim, due=self._until()))
                    if kept is None:
                        return
                    held[0] = kept

        async def give_back() -> None:
            await _ended(renewing, over)
            await _given_back(claims, held[0], msgspec.structs.replace(mine.claim, due=0))

        renewing = asyncio.create_task(renew())
        try:
            yield held
        except BaseException:
            await self.memory.runner.surely(give_back)
            raise
        finally:
            await _ended(renewing, over)

    async def _looked(self, claims: Claims, look: Look, session: str) -> tuple[int, bool]:
        """When a session is to be looked at again, and whether looking has failed, which is told."""
        self.report.looked += 1
        try:
            when = await look(session)
        except StoreUnavailable:  # so are all others
            raise
        except Exception as fault:  # noqa: BLE001 (whatever it is: one session keeps nobody from the others)
            log_failure(self.memory.runner.redact, fault, "working on session %s failed", session)
            self.tell(claims.duty, session, reason="failed", why=self._clean(str(fault)))
            return 0, True
        seen = self.memory.store.seen(SessionKey(self.memory.tenant, session))
        if seen is not None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[session] = seen.head.revision
        return when, False

    def tell(self, duty: str, session: str | None, **facts: Any) -> None:
        """Count what was done, and tell it. Where whoever is told raises, that is logged.

        Args:
            duty: the name of the duty.
            session: the id of the session; None: it is about the tenant.
            facts: what else `Worked` says.
        """
        resource = self.resource_of(session) if session is not None else None
        done = Worked(
            at=moment(self.now()),
            duty=duty,
            store=discreet_address(self.memory.store.url),
            tenant=self.memory.tenant,
            session=session,
            memory=resource.id if resource is not None else None,
            **facts,
        )
        self.report.failed += done.reason is not None
        try:
            self._told(done)
        except Exception as fault:  # noqa: BLE001 (the boundary: what observes must not break what it observes)
            log_failure(self.memory.runner.redact, fault, "one who is told what a worker does failed")

    def _clean(self, text: str) -> str:
        return self.memory.redact(text) if self.memory.redact is not None else text


async def _ended(renewing: asyncio.Task[None], over: asyncio.Event) -> None:
    """Wait for a renewal that is under way: one that were given up half way might have been written all the same."""
    over.set()
    await asyncio.wait([renewing])


async def _given_back(claims: Claims, known: Open, claim: Claim) -> None:
    with suppress(PalimpsestError):  # then it is taken up when its time is over
        await claims.hold(known, claim)


def _pause(tries: int) -> int:
    """How long to wait after so many failures, in microseconds."""
    return min(PAUSE_SECONDS << min(tries - 1, 10), LONGEST_PAUSE_SECONDS) * 1_000_000

"""`Workplace`: one tenant of a memory, as a worker sees it, and how the worker takes the sessions that are due.

Each session that was written to since the mark of a duty is given to one worker, the first that claims it.
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
"""How many heads are read at once, and how many sessions a worker claims at a time: few, so that none of them waits for
one worker while others are idle."""
KNOWN = 20_000
"""The most sessions whose revision a worker remembers, so that it does not look at what it has written itself."""
RETRY_SECONDS = 5
"""The most seconds after which a session is looked at again while somebody else is working on it."""
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60, 3600
"""Seconds until a session is looked at again after a first failure, which double with each further one, and the most.
"""

Look = Callable[[str], Awaitable[int]]
"""A function that looks at a session, by its id, and does what is due. It returns when to look again, in microseconds
since 1970; 0: when the session is written to."""


class Workplace:
    """One tenant of a memory, the declared memories that are kept there, and what a worker knows of them.

    Args:
        memory: the tenant's memory.
        resources: what is declared of its sessions.
        given: options of sessions that override what is declared.
        report: the figures that are counted up.
        tell: called with a `Worked` for each thing that was done.
        lease: seconds for which sessions are claimed; claims are renewed while they are worked on.
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
        """Return the seconds that must have passed since any worker did a duty: none for `Worker.once`."""
        return 0 if self.once else seconds

    def soon(self) -> int:
        """Return when to look again at a session on which somebody else is working, or that has just failed."""
        return self.now() + int(min(RETRY_SECONDS, self._lease / 3) * 1_000_000)

    def resource_of(self, session: str) -> Resource | None:
        """Return the declared memory that a session belongs to, by its id; None: it is the session of no key."""
        for resource in self.resources:
            prefix = f"{resource.project}/{resource.id}/"
            if session.startswith(prefix) and not session.startswith("~", len(prefix)):  # that would be a backup
                return resource
        return None

    def options(self, resource: Resource) -> dict[str, Any]:
        """Return the options of a memory's sessions. They are made once, so that the circuit breaker of a summarizer
        counts the calls of all of them."""
        if resource.id not in self._options:
            self._options[resource.id] = {**session_options(resource), **self._given}
        return self._options[resource.id]

    @property
    def waiting(self) -> int:
        """How many sessions are to be looked at again later, as last read."""
        return sum(map(len, self._waiting.values()))

    # --- which sessions

    async def changed(
        self, duty: str, look: Look, *, wanted: Callable[[str], bool], name: str = "", delay: float = 0
    ) -> None:
        """Call `look` for each session that is `wanted` and was written to since the mark of this duty and name.

        With a `delay`, only for those that nobody has written to for so many seconds. Sessions that other workers have
        claimed are left to them, until their claims are over. Sessions that were not written to are not read. If `look`
        raises, that is reported, and the session is looked at again later.
        """
        claims = Claims(self.memory.store, self.memory.tenant, duty)
        await self._take_over(claims, look)
        while not self.stopping:
            mark, version = await claims.mark(name)
            given_out = {digest for _, digest in mark.seen}
            async for page in self._pages(mark, delay):
                fresh = [info for _, info in page if known_as(info) not in given_out]
                if not fresh and page[-1][0] <= mark.at:
                    continue
                sound = [info for info in fresh if not info.damaged]  # a damaged one is passed by, with the mark
                due = [info.session for info in sound if wanted(info.session) and (delay or not self._wrote(info))]
                mark = mark.after(page)
                moved = await claims.advance(name, version, mark, Claim(tuple(due), self._until() if due else 0))
                if moved is None:  # another worker has moved the mark: read it again
                    break
                version, mine = moved
                given_out.update(map(known_as, fresh))
                if due:
                    await self._worked(claims, mine, look)
                if self.now() >= self._next[duty]:  # new sessions may keep coming, so not only at the beginning
                    await self._take_over(claims, look)
                if self.stopping:
                    return
            else:
                return

    async def _pages(self, mark: Mark, delay: float) -> AsyncIterator[list[Used]]:
        """Yield the sessions written since the mark, in the order of their last writes, as many as a worker claims at
        once. With a `delay`, only up to the first that was written less long ago."""
        store, tenant, at, after = self.memory.store, self.memory.tenant, mark.at, ""
        while page := await store.used(tenant, mark=at, after=after, limit=READ):
            self.report.listed += len(page)
            at, after = page[-1][0], page[-1][1].session
            until = self.now() - int(delay * 1_000_000)
            ripe = next((i for i, (_, info) in enumerate(page) if info.updated > until), len(page)) if delay else READ
            for i in range(0, min(ripe, len(page)), TAKEN):
                yield page[i : min(i + TAKEN, ripe)]
            if len(page) < READ or ripe < len(page):
                return

    def _wrote(self, info: SessionInfo) -> bool:
        """Whether the last write to a session was this worker's own."""
        return self._known.get(info.session) == info.revision

    async def _take_over(self, claims: Claims, look: Look) -> None:
        """Work on the claims that are due: those that wait to be looked at again, and those of killed workers.

        Notes which sessions still wait, and when to do this again.
        """
        waiting = set[str]()
        for found in await claims.open():
            mine = None
            if found.claim.due <= self.now() and not self.stopping:
                mine = await claims.hold(found, Claim(found.claim.sessions, self._until(), found.claim.tries))
            if mine is not None:
                await self._worked(claims, mine, look, again=True)
            elif found.claim.waits:
                waiting.update(found.claim.sessions)
        self._waiting[claims.duty], self._next[claims.duty] = waiting, self._until()

    def _until(self) -> int:
        """Return when a lease that begins now is over, in microseconds."""
        return self.now() + int(self._lease * 1_000_000)

    # --- working on them

    async def _worked(self, claims: Claims, mine: Open, look: Look, *, again: bool = False) -> None:
        """Look at the sessions of this worker's claim. It then waits for those to be looked at again, or is done.

        Sessions that a stop left out stay in the claim, which is due at once. `again` says that the claim was taken
        over. A session that already waits in another claim need not wait in a new one, too.
        """
        remaining, later, tries = list(mine.claim.sessions), dict[str, int](), 0
        waiting = self._waiting.setdefault(claims.duty, set())
        async with self._renewed(claims, mine) as held:
            while remaining and not self.stopping:
                when, failed = await self._looked(claims, look, remaining[0])
                if failed:
                    tries = mine.claim.tries + 1
                    when = self.now() + _pause(tries)
                if when and (again or remaining[0] not in waiting):
                    later[remaining[0]] = when
                remaining.pop(0)
        due = 0 if remaining else min(later.values(), default=0)
        rest = Claim((*remaining, *later), due, tries, waits=not remaining)
        if rest.sessions:
            waiting.update(later)
            await claims.hold(held[0], rest)
        else:
            await claims.done(held[0])

    @asynccontextmanager
    async def _renewed(self, claims: Claims, mine: Open) -> AsyncIterator[list[Open]]:
        """Renew a claim while the block runs; `held[0]` is its present version. If the block raises, the claim is given
        back: it is due at once."""
        held, over = [mine], asyncio.Event()

        async def renew() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), self._lease / 3)
                    return
                with suppress(PalimpsestError):  # the next renewal may succeed; else another worker repeats the work
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
        """Look at a session. Return when to look again (0: when it is written to), and whether this look failed, which
        is reported."""
        self.report.looked += 1
        try:
            when = await look(session)
        except StoreUnavailable:  # it would be the same for every other session
            raise
        except Exception as fault:  # noqa: BLE001 (whatever it is: one session keeps nobody from the others)
            log_failure(self.memory.runner.redact, fault, "the work on session %s failed", session)
            self.tell(claims.duty, session, reason="failed", why=self._clean(str(fault)))
            return 0, True
        seen = self.memory.store.seen(SessionKey(self.memory.tenant, session))
        if seen is not None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[session] = seen.head.revision
        return when, False

    def tell(self, duty: str, session: str | None, **facts: Any) -> None:
        """Report what was done, and count a failure. If the function that is told raises, that is logged.

        Args:
            duty: the name of the duty.
            session: the id of the session; None: it is about the tenant.
            facts: the other fields of `Worked`.
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
            log_failure(self.memory.runner.redact, fault, "a function that is told what the worker did has failed")

    def _clean(self, text: str) -> str:
        return self.memory.redact(text) if self.memory.redact is not None else text


async def _ended(renewing: asyncio.Task[None], over: asyncio.Event) -> None:
    """Stop renewing. A renewal under way is not cancelled: it could be written all the same, at an unknown version."""
    over.set()
    await asyncio.wait([renewing])


async def _given_back(claims: Claims, held: Open, claim: Claim) -> None:
    with suppress(PalimpsestError):  # then another worker takes it over when the lease ends
        await claims.hold(held, claim)


def _pause(tries: int) -> int:
    """Return how long to wait after so many failures, in microseconds."""
    return min(PAUSE_SECONDS << min(tries - 1, 10), LONGEST_PAUSE_SECONDS) * 1_000_000

"""Leases of one session: whoever holds one goes first. They order work and save some; correctness rests elsewhere.

A lease ends by itself, so that who is killed holds up nobody for long. What may last longer than a lease is renewed
meanwhile by a thread of its own, which is there while there is something to renew.
"""

from __future__ import annotations

import os
from _thread import allocate_lock  # `threading` costs a cold start a millisecond
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from palimpsest.errors import Closed, ConfigError, Conflict, LockTimeout, PalimpsestError
from palimpsest.log.entry import new_ids
from palimpsest.log.head import SessionKey
from palimpsest.runtime.logs import log_failure, warn
from palimpsest.runtime.runner import Runner
from palimpsest.runtime.threads import apart
from palimpsest.stores import Store

if TYPE_CHECKING:
    from threading import Event

TURN_SECONDS = 30.0
"""How long the lease of a turn lasts unless it is renewed, and so how long a turn whose process was killed holds up."""

COMPACTION_SECONDS = 300.0
"""The same of a compaction that pays for a summary."""

RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""

NESTED = "one turn at a time: inside the block add() alone, or hand on the session that the block gave"
"""What is said to who begins a turn in his own turn, for which he would wait for ever."""

PAUSES = (0.005, 0.2)
"""Seconds between the first two tries to take a lease, and the most between two."""


class Lease:
    """A lease in the session's own store, for `what` (a turn, a compaction). It ends by itself after `seconds`."""

    def __init__(
        self,
        store: Store,
        runner: Runner,
        key: SessionKey,
        what: str,
        seconds: float,
        clock: Callable[[], int],
    ) -> None:
        self._store, self._runner, self._key, self._seconds, self._clock = store, runner, key, seconds, clock
        self._until, self._until_here = 0, 0.0
        self._what, self._name = what, f"{what}:{key.session}"
        self._holder = new_ids(1, 0)[0]
        self._caller: object = None
        self._fence: int | None = None
        self._may_hold = False
        self._renewals: Renewals | None = None

    @property
    def held(self) -> bool:
        """Whether the lease was given to us."""
        return self._fence is not None

    async def try_to_take(self) -> bool:
        """Take the lease unless somebody else holds it, and say whether it is ours."""
        self._may_hold = True  # whoever is interrupted here never learns whether it was given to him
        ends = self._ends()
        self._fence = await self._store.lease(self._key.tenant, self._name, self._holder, self._seconds)
        self._may_hold = self.held
        self._until, self._until_here = ends
        return self.held

    def _ends(self) -> tuple[int, float]:
        """Until when at least a lease is ours that is asked for now: by the clock, which may be set back, and by one
        that may not, but stands still while the machine is suspended."""
        return self._clock() + int(self._seconds * 1_000_000), monotonic() + self._seconds

    async def take(self, renewals: Renewals, wait: float | None = None) -> None:
        """Wait until nobody else holds the lease, take it, and have it renewed until it is given back.

        Raises LockTimeout after waiting for `wait` seconds (None: however long the other one lives), ConfigError where
        the caller holds it himself, and so would wait for ever.
        """
        self._renewals, self._caller = renewals, self._runner.caller()
        if not await self.try_to_take():
            renewals.check(self)
            told = f"the {self._what} of session {self._key.session!r}"
            await waited_for(self.try_to_take, self._runner, told, wait)
        renewals.keep(self)

    async def take_at_once(self, renewals: Renewals) -> bool:
        """Take the lease, or keep it, unless somebody else holds it, and have it renewed; say whether it is ours."""
        if not (await self.renew() or await self.try_to_take()):
            return False
        self._renewals, self._caller = renewals, self._runner.caller()
        renewals.keep(self)
        return True

    def waits_for(self, other: Lease) -> bool:
        """Whether this is wanted by the caller who holds it as `other`."""
        return self.is_same(other) and self._caller is not None and self._caller == other._caller

    def is_same(self, other: Lease) -> bool:
        """Whether only one of the two can be held."""
        return (self._store, self._key, self._name) == (other._store, other._key, other._name)

    async def renew(self) -> bool:
        """Keep the lease for another while, where it is ours; say whether it still is."""
        if self._fence is None:
            return False
        tenant, fence, ends = self._key.tenant, self._fence, self._ends()
        if await self._store.lease(tenant, self._name, self._holder, self._seconds, fence=fence) is None:
            self._until = 0  # whatever the clock says from now on
            return False
        self._until, self._until_here = ends
        return True

    async def check(self) -> None:
        """See that the lease is ours still, for whoever is about to write under it. Raises Conflict where it is not.

        Where it was renewed in time, by both clocks, it is; else it is renewed now.
        """
        late = self._clock() >= self._until or monotonic() >= self._until_here
        if late and not await self.renew():
            told = "was taken over by another, since it could not be renewed in time: begin a new one"
            raise Conflict(f"the {self._what} of session {self._key.session!r}", told)

    def renew_beside(self) -> bool:
        """The same for a thread that the runner knows nothing of."""
        return self._runner.beside(self.renew, None if self._store.blocking else self._caller)

    async def give_back(self) -> None:
        """Let the next one in, whatever was interrupted before, and even where the caller is cancelled meanwhile."""
        if self._renewals is not None:
            self._renewals.drop(self)
        if self._may_hold:
            await self._runner.surely(self._given_back)

    async def end(self) -> None:
        """Let the next one in, where nothing of the runner's goes on that could interrupt it."""
        if self._may_hold:
            await self._given_back()

    async def _given_back(self) -> None:
        try:
            await self._store.lease(self._key.tenant, self._name, self._holder, 0)
        except PalimpsestError:  # the store cannot: the lease ends by itself
            self._fence, self._may_hold = None, False
            raise
        self._fence, self._may_hold = None, False

    def __str__(self) -> str:
        return f"the {self._what} of a session"


class Renewals:
    """What renews the leases that the users of a runner hold, each `RENEWALS` times in its `seconds`."""

    def __init__(self, runner: Runner, seconds: float) -> None:
        self._runner, self.seconds = runner, seconds
        self._lock = allocate_lock()
        self._held: set[Lease] = set()
        self._end: Event | None = None

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._lock:
            self._held.add(lease)
            if self._end is None:
                from threading import Event  # a millisecond, only for who holds a lease

                end = Event()
                apart(self._work, end)
                self._end = end

    def drop(self, lease: Lease) -> None:
        """Renew it no longer."""
        with self._lock:
            self._held.discard(lease)

    def check(self, wanted: Lease) -> None:
        """Raise ConfigError where who wants this lease would wait for himself."""
        with self._lock:
            if any(wanted.waits_for(lease) for lease in self._held):
                raise ConfigError("turn", "a turn inside a turn", NESTED)

    def renew(self) -> None:
        """Renew all of them now, from any thread."""
        with self._lock:
            held = tuple(self._held)
        for lease in held:
            try:
                if not lease.renew_beside() and self._still(lease):
                    warn("%s was taken over by another, since it could not be renewed in time", lease)
                    self.drop(lease)
            except Closed:
                self.drop(lease)
            except (PalimpsestError, TimeoutError) as fault:
                log_failure(self._runner.redact, fault, "%s could not be renewed; it is tried again", lease)

    def _still(self, lease: Lease) -> bool:
        with self._lock:
            return lease in self._held

    def _work(self, end: Event) -> None:
        while not end.wait(self.seconds / RENEWALS):
            with self._lock:
                if not self._held:
                    self._end = None
                    return
            self.renew()

    def close(self) -> tuple[Lease, ...]:
        """End the thread; return what is held still."""
        with self._lock:
            held = tuple(self._held)
            self._held.clear()
            if self._end is not None:
                self._end.set()
                self._end = None
        return held


async def end_all(held: Iterable[Lease]) -> None:
    """Let the next ones in, as far as that can be done now: whose lease it was will not write any more."""
    for lease in held:
        with suppress(PalimpsestError):  # it ends by itself
            await lease.end()


async def waited_for(attempt: Callable[[], Awaitable[bool]], runner: Runner, what: str, wait: float | None) -> float:
    """Try again and again until this succeeds, and return how many seconds that took. Raises LockTimeout, which names
    `what` is waited for, after `wait` seconds (None: never)."""
    waited, pause = 0.0, PAUSES[0]
    while not await attempt():
        if wait is not None and waited >= wait:
            raise LockTimeout(what, wait)
        step = pause * (0.5 + os.urandom(1)[0] / 512)  # so that those who wait do not all come at once
        step = step if wait is None else min(step, wait - waited)
        await runner.sleep(step)
        waited, pause = waited + step, min(pause * 2, PAUSES[1])
    return waited

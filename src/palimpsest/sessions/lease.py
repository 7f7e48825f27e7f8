"""Leases on a session, for a turn or a compaction. They put work in order and avoid doubled work; the correctness of
what is written does not depend on them.

A lease expires by itself, so a killed process does not keep others waiting for long. While a lease is held, a thread
renews it; the thread exists only while there are leases to renew.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from palimpsest.errors import Closed, ConfigError, Conflict, LockTimeout, PalimpsestError
from palimpsest.log.head import SessionKey
from palimpsest.log.ids import new_ids
from palimpsest.runtime.logs import log_failure, warn
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.runner import Runner
from palimpsest.runtime.threads import apart
from palimpsest.stores import Store

if TYPE_CHECKING:
    from threading import Event

TURN_SECONDS = 30.0
"""How long the lease of a turn lasts without renewal, and so how long the turn of a killed process blocks the next."""

COMPACTION_SECONDS = 300.0
"""How long the lease of a compaction that asks a summarizer lasts without renewal."""

RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""

NESTED = "one turn at a time: inside the block call add() directly, or pass on the session that the block gave"
"""The error text for a turn that is begun inside the caller's own turn, and so would wait for ever."""

PAUSES = (0.005, 0.2)
"""Seconds between the first two tries to take a lease, and the most seconds between any two."""


class Lease:
    """A lease in the session's own store, for `what` (a turn, a compaction). It expires after `seconds`."""

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
        self._until, self._until_monotonic = 0, 0.0
        self._what, self._name = what, f"{what}:{key.session}"
        self._holder = new_ids(1, 0)[0]
        self._caller: object = None
        self._fence: int | None = None
        self._may_hold = False
        self._renewals: Renewals | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lease, as far as it knows."""
        return self._fence is not None

    async def try_to_take(self) -> bool:
        """Take the lease unless another holder has it; return whether this object holds it."""
        self._may_hold = True  # an interrupt during the call leaves unknown whether the store granted the lease
        ends = self._earliest_end()
        self._fence = await self._store.lease(self._key.tenant, self._name, self._holder, self._seconds)
        self._may_hold = self.held
        self._until, self._until_monotonic = ends
        return self.held

    def _earliest_end(self) -> tuple[int, float]:
        """Return until when a lease that is requested now lasts at least, by two clocks.

        The wall clock may be set back; the monotonic clock stands still while the machine is suspended.
        """
        return self._clock() + int(self._seconds * 1_000_000), monotonic() + self._seconds

    async def take(self, renewals: Renewals, wait: float | None = None) -> float:
        """Take the lease as soon as no other holder has it, and have it renewed until it is given back. Returns how
        many seconds were waited for it.

        Raises LockTimeout after waiting for `wait` seconds (None: never), and ConfigError if the caller itself holds
        the lease already and so would wait for ever.
        """
        self._renewals, self._caller = renewals, self._runner.caller()
        waited = 0.0
        if not await self.try_to_take():
            renewals.check(self)
            waiting_for = f"the {self._what} of session {self._key.session!r}"
            waited = await waited_for(self.try_to_take, self._runner, waiting_for, wait)
        renewals.keep(self)
        return waited

    async def take_at_once(self, renewals: Renewals) -> bool:
        """Take the lease, or keep it, without waiting, and have it renewed; return whether this object holds it."""
        if not (await self.renew() or await self.try_to_take()):
            return False
        self._renewals, self._caller = renewals, self._runner.caller()
        renewals.keep(self)
        return True

    def waits_for(self, other: Lease) -> bool:
        """Whether the caller that wants this lease is the one that holds it as `other`."""
        return self.is_same(other) and self._caller is not None and self._caller == other._caller

    def is_same(self, other: Lease) -> bool:
        """Whether both objects are about the same lease, so that only one of them can hold it."""
        return (self._store, self._key, self._name) == (other._store, other._key, other._name)

    async def renew(self) -> bool:
        """Prolong the lease if this object holds it; return whether it still does."""
        if self._fence is None:
            return False
        tenant, fence, ends = self._key.tenant, self._fence, self._earliest_end()
        if await self._store.lease(tenant, self._name, self._holder, self._seconds, fence=fence) is None:
            self._until = 0  # so that `check` fails from now on, whatever the clocks say
            return False
        self._until, self._until_monotonic = ends
        return True

    async def check(self) -> None:
        """Raise Conflict if the lease was lost. Called before a write under it.

        If it was renewed in time by both clocks, it is held without asking the store; otherwise it is renewed now.
        """
        late = self._clock() >= self._until or monotonic() >= self._until_monotonic
        if late and not await self.renew():
            why = "was not renewed in time, and was taken over by another task or process: begin a new one"
            raise Conflict(f"the {self._what} of session {self._key.session!r}", why)

    def renew_beside(self) -> bool:
        """Renew from a thread that does not belong to the runner."""
        return self._runner.beside(self.renew, None if self._store.blocking else self._caller)

    async def give_back(self) -> None:
        """Give the lease back, even if taking it was interrupted, and even if the caller is cancelled meanwhile."""
        if self._renewals is not None:
            self._renewals.drop(self)
        if self._may_hold:
            await self._runner.surely(self._release)

    async def end(self) -> None:
        """Give the lease back while the memory closes, when no cancellation can interrupt it."""
        if self._may_hold:
            await self._release()

    async def _release(self) -> None:
        try:
            await self._store.lease(self._key.tenant, self._name, self._holder, 0)
        except PalimpsestError:  # the store failed: the lease will expire by itself
            self._fence, self._may_hold = None, False
            raise
        self._fence, self._may_hold = None, False

    def __str__(self) -> str:
        return f"the {self._what} of a session"


class Renewals:
    """Renews held leases from a thread, each `RENEWALS` times in its `seconds`."""

    def __init__(self, runner: Runner, seconds: float) -> None:
        self._runner, self.seconds = runner, seconds
        self._lock = new_lock()
        self._held: set[Lease] = set()
        self._end: Event | None = None

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._lock:
            self._held.add(lease)
            if self._end is None:
                from threading import Event  # a millisecond, only needed if a lease is held

                end = Event()
                apart(self._work, end)
                self._end = end

    def drop(self, lease: Lease) -> None:
        """Stop renewing this lease."""
        with self._lock:
            self._held.discard(lease)

    def check(self, wanted: Lease) -> None:
        """Raise ConfigError if the caller that wants this lease holds it itself."""
        with self._lock:
            if any(wanted.waits_for(lease) for lease in self._held):
                raise ConfigError("turn", "a turn inside a turn", NESTED)

    def renew(self) -> None:
        """Renew all leases now, from any thread."""
        with self._lock:
            held = tuple(self._held)
        for lease in held:
            try:
                if not lease.renew_beside() and self._is_kept(lease):
                    warn("%s was not renewed in time, and was taken over by another task or process", lease)
                    self.drop(lease)
            except Closed:
                self.drop(lease)
            except (PalimpsestError, TimeoutError) as fault:
                log_failure(self._runner.redact, fault, "%s could not be renewed; the next attempt follows", lease)

    def _is_kept(self, lease: Lease) -> bool:
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
        """End the thread; return the leases that are still held."""
        with self._lock:
            held = tuple(self._held)
            self._held.clear()
            if self._end is not None:
                self._end.set()
                self._end = None
        return held


async def end_all(held: Iterable[Lease]) -> None:
    """Give back these leases of a memory that closes, and so will not write any more under them."""
    for lease in held:
        with suppress(PalimpsestError):  # the lease will expire by itself
            await lease.end()


async def waited_for(attempt: Callable[[], Awaitable[bool]], runner: Runner, what: str, wait: float | None) -> float:
    """Repeat the attempt until it succeeds, and return how many seconds were waited.

    Raises LockTimeout, which names `what` is waited for, after `wait` seconds (None: never).
    """
    waited, pause = 0.0, PAUSES[0]
    while not await attempt():
        if wait is not None and waited >= wait:
            raise LockTimeout(what, wait)
        step = pause * (0.5 + os.urandom(1)[0] / 512)  # random, so that not all waiters try at the same moment
        step = step if wait is None else min(step, wait - waited)
        await runner.sleep(step)
        waited, pause = waited + step, min(pause * 2, PAUSES[1])
    return waited

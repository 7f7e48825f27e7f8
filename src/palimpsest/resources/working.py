"""`Worker`: does what is due in the stores of declared memories, beside any number of others, until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.log.ids import is_id
from palimpsest.resources.definition import Resource
from palimpsest.resources.duties import DUTIES
from palimpsest.resources.worked import Told, Worked, WorkReport
from palimpsest.resources.workplace import Workplace
from palimpsest.runtime.lasting import surely
from palimpsest.runtime.logs import log_failure
from palimpsest.sessions.memory import AsyncMemory

EVERY, LEASE, GRACE = 5.0, 60.0, 8.0
"""Seconds between two rounds, for which sessions are taken, and that what is under way may take after a stop."""
LONGEST_WAIT = 60.0
"""Seconds between two rounds at most while a store cannot be reached."""


class Worker:
    """Does what is due: compacts sessions of declared memories, destroys what has expired, keeps indexes current.

    Made by `AsyncResources.worker`. Any number of workers may run over one store, in one process or many: each session
    that is due is taken by one of them. A session to which nobody has written since is not read. One who is killed
    leaves nothing half done: what it had taken is free when its lease is over.

    `report` has the figures of all rounds so far. Raises ConfigError for what is not accepted.

    Args:
        memories: memories with what is declared of the sessions in each.
        tenants: whose sessions; None: those of all tenants that a store has.
        duties: what is done, by name: "compact", "sweep", "index"; None: all of it.
        lease: for how long sessions are taken by a worker that gives no sign of life: a timedelta, seconds, or text
            such as "60s" (default).
        told: called with a `Worked` for each thing that was done. One that raises is logged, and breaks nothing.
        options: options of sessions that hold in the place of what is declared, such as `summarizer`.
        clock: a function that returns microseconds since 1970, as the memories have it.
    """

    def __init__(
        self,
        memories: Iterable[tuple[AsyncMemory, Sequence[Resource]]],
        *,
        tenants: Sequence[str] | None,
        duties: Sequence[str] | None = None,
        lease: timedelta | float | str = LEASE,
        told: Told | None = None,
        options: Mapping[str, Any] | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        names = tuple(DUTIES) if duties is None else values.texts("duties", duties, "names of duties")
        for name in names:
            values.choice("duties", name, tuple(DUTIES))
        self._memories = [(memory, tuple(resources)) for memory, resources in memories]
        if told is not None and not callable(told):
            raise ConfigError("told", told, "a function of a Worked, or None")
        self._tenants = None if tenants is None else tuple(dict.fromkeys(values.texts("tenants", tenants, "tenants")))
        self._duties = {name: DUTIES[name] for name in names}
        self._lease = values.microseconds("lease", lease) / 1_000_000
        self._told, self._options, self._clock = told or _nobody, dict(options or {}), clock
        self._places: dict[tuple[int, str], Workplace] = {}
        self._stop = asyncio.Event()
        self.report = WorkReport()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Have `run` end when what is under way is done. From the event loop's own thread."""
        self._stop.set()
        for place in self._places.values():
            place.stopping = True

    async def once(self, *, grace: timedelta | float | str = GRACE) -> WorkReport:
        """Do all that is due now, and return the figures of it. A stop ends it as it ends `run`.

        Raises StoreUnavailable where a store cannot be reached, when all else is done. What fails with one session is
        told, counted, and tried again later.

        Args:
            grace: how long the session that is under way may take after a stop; "8s" by default.
        """
        patience = values.microseconds("grace", grace, zero=True) / 1_000_000
        before = msgspec.structs.replace(self.report)
        fault = await self._until_stopped(patience, once=True)
        if fault is not None:
            raise fault
        done = msgspec.structs.asdict(self.report)
        since = {name: number - getattr(before, name) for name, number in done.items()}
        return WorkReport(**{**since, "waiting": self.report.waiting})

    async def run(
        self, *, every: timedelta | float | str = EVERY, grace: timedelta | float | str = GRACE
    ) -> WorkReport:
        """Do what is due, again and again, until `stop` is called, or the task is cancelled; return the figures of all.

        A stop lets the session that is under way be done, for a while; what is left then is given back to others. Where
        a store cannot be reached that is logged, and tried again. Raises StoreUnavailable where none can at the start.

        Args:
            every: how long to wait between two rounds: a timedelta, seconds, or text such as "5s" (default).
            grace: how long the session that is under way may take after a stop; "8s" by default.
        """
        pause = values.microseconds("every", every) / 1_000_000
        patience = values.microseconds("grace", grace, zero=True) / 1_000_000
        for memory, _ in self._memories:
            await memory.connect()
        wait = pause
        while not self.stopping:
            fault = await self._until_stopped(patience)
            if fault is not None:
                log_failure(None, None, "the worker waits for %.0f seconds: %s", wait, fault)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait)
            wait = pause if fault is None else min(2 * wait, max(pause, LONGEST_WAIT))
        return self.report

    async def _until_stopped(self, patience: float, *, once: bool = False) -> PalimpsestError | None:
        """A round; where a stop comes meanwhile it is given a while, and cancelled then."""
        working, stopped = asyncio.create_task(self._round(once=once)), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await asyncio.wait({working}, timeout=patience)
        finally:
            stopped.cancel()
            if not working.done():
                working.cancel()
                await surely(partial(asyncio.wait, {working}))
        return None if working.cancelled() else working.result()

    async def _round(self, *, once: bool) -> PalimpsestError | None:
        """Go through all duties in all places; return what went wrong with a store, when all else is done."""
        self.report.rounds += 1
        found = None
        for memory, resources in self._memories:
            try:
                await self._go_through(memory, resources, once)
            except PalimpsestError as fault:
                found = found or fault
        self.report.waiting = sum(place.waiting for place in self._places.values())
        return found

    async def _go_through(self, memory: AsyncMemory, resources: Sequence[Resource], once: bool) -> None:
        """Go through all duties of a memory, tenant by tenant, until somebody says stop."""
        await memory.connect()
        for tenant in await self._tenants_of(memory):
            place = self._place(memory, resources, tenant)
            place.once = once
            for duty in self._duties.values():
                if not self.stopping:
                    await duty(place)

    async def _tenants_of(self, memory: AsyncMemory) -> Sequence[str]:
        if self._tenants is not None:
            return self._tenants
        found, last = list[str](), None
        while page := await memory.store.tenants(after=last):
            found += [name for name in page if is_id(name)]  # others are our own
            last = page[-1]
        return found

    def _place(self, memory: AsyncMemory, resources: Sequence[Resource], tenant: str) -> Workplace:
        key = id(memory), tenant
        if key not in self._places:
            own = memory if memory.tenant == tenant else memory.for_tenant(tenant)
            self._places[key] = Workplace(
                own, resources, self._options, self.report, self._told, self._lease, self._clock
            )
        return self._places[key]


def _nobody(_: Worked) -> None:
    """Tell nobody."""

"""`Worker`: does what is due in the stores of declared memories until it is stopped; any number may run at once."""

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
"""Defaults, in seconds: between two rounds; how long sessions are claimed; how long the work under way may take after a
stop."""
LONGEST_WAIT = 60.0
"""The most seconds between two rounds while a store cannot be reached."""


class Worker:
    """Does what is due: compacts sessions of declared memories, destroys what has expired, keeps indexes current.

    Made by `AsyncResources.worker`. Any number of workers may run over one store, in one process or many: each session
    that is due is claimed by one of them. Sessions that nobody has written to since are not read. A worker that is
    killed leaves nothing half done: others take its sessions over when its lease ends.

    `report` has the figures of all rounds so far. Raises ConfigError for an invalid argument.

    Args:
        memories: memories, each with the declared memories that are kept in it.
        tenants: the tenants whose sessions are worked on; None: all tenants that a store has.
        duties: the duties, by name: "compact", "sweep", "index"; None: all of them.
        lease: how long sessions stay claimed by a worker that gives no sign of life: a timedelta, seconds, or text such
            as "60s" (default).
        told: called with a `Worked` for each thing that was done. If it raises, that is logged, and work goes on.
        options: options of sessions that override what is declared, such as `summarizer`.
        clock: a function that returns microseconds since 1970, the same as that of the memories.
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
            raise ConfigError("told", told, "a function that takes a Worked, or None")
        self._tenants = None if tenants is None else tuple(dict.fromkeys(values.texts("tenants", tenants, "tenants")))
        self._duties = {name: DUTIES[name] for name in names}
        self._lease = values.microseconds("lease", lease) / 1_000_000
        self._told, self._options, self._clock = told or _ignored, dict(options or {}), clock
        self._places: dict[tuple[int, str], Workplace] = {}
        self._stop = asyncio.Event()
        self.report = WorkReport()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Have `run` end when the work under way is done. To be called from the event loop's own thread."""
        self._stop.set()
        for place in self._places.values():
            place.stopping = True

    async def once(self, *, grace: timedelta | float | str = GRACE) -> WorkReport:
        """Do all that is due now, and return the figures of this. `stop` ends it like `run`.

        Raises StoreUnavailable if a store cannot be reached, after all others are done. A failure with one session is
        reported and counted, and tried again later.

        Args:
            grace: how long the session being worked on may still take after a stop; "8s" by default.
        """
        patience = values.microseconds("grace", grace, zero=True) / 1_000_000
        before = msgspec.structs.replace(self.report)
        fault = await self._until_stopped(patience, once=True)
        if fault is not None:
            raise fault
        totals = msgspec.structs.asdict(self.report)
        since = {name: number - getattr(before, name) for name, number in totals.items()}
        return WorkReport(**{**since, "waiting": self.report.waiting})

    async def run(
        self, *, every: timedelta | float | str = EVERY, grace: timedelta | float | str = GRACE
    ) -> WorkReport:
        """Do what is due, round after round, until `stop` is called or the task is cancelled; return all figures.

        After a stop the session being worked on may end within `grace`; the remaining ones are given back to other
        workers. A store that cannot be reached is logged, and tried again. Raises StoreUnavailable if one cannot be
        reached at the start.

        Args:
            every: how long to wait between two rounds: a timedelta, seconds, or text such as "5s" (default).
            grace: how long the session being worked on may still take after a stop; "8s" by default.
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
        """Do a round. After a stop it may go on for `patience` seconds; then it is cancelled. Returns as `_round`."""
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
        """Do all duties for all memories. Return the first error of a store, after the other memories are done."""
        self.report.rounds += 1
        first_fault = None
        for memory, resources in self._memories:
            try:
                await self._go_through(memory, resources, once)
            except PalimpsestError as fault:
                first_fault = first_fault or fault
        self.report.waiting = sum(place.waiting for place in self._places.values())
        return first_fault

    async def _go_through(self, memory: AsyncMemory, resources: Sequence[Resource], once: bool) -> None:
        """Do all duties of a memory, tenant by tenant, until `stop` is called."""
        await memory.connect()
        for tenant in await self._tenants_of(memory):
            place = self._place(memory, resources, tenant)
            place.once = once
            for duty in self._duties.values():
                if not self.stopping:
                    await duty(place)

    async def _tenants_of(self, memory: AsyncMemory) -> Sequence[str]:
        """Return the tenants that were given, or all that the store has."""
        if self._tenants is not None:
            return self._tenants
        found, last = list[str](), None
        while page := await memory.store.tenants(after=last):
            found += [name for name in page if is_id(name)]  # the others are reserved tenants of Palimpsest
            last = page[-1]
        return found

    def _place(self, memory: AsyncMemory, resources: Sequence[Resource], tenant: str) -> Workplace:
        """Return the workplace of a tenant, which is made once, since it remembers what it has seen."""
        key = id(memory), tenant
        if key not in self._places:
            own = memory if memory.tenant == tenant else memory.for_tenant(tenant)
            self._places[key] = Workplace(
                own, resources, self._options, self.report, self._told, self._lease, self._clock
            )
        return self._places[key]


def _ignored(_: Worked) -> None:
    """Report to nobody."""

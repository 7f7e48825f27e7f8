"""A store with an asynchronous driver: every verb really suspends, some take long, and any can be stopped on its way.

Importing this registers it for addresses such as `suspending://`. Like a driver's connections it belongs to the first
event loop that used it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, Literal

from palimpsest import AsyncMemory, Memory
from palimpsest.errors import ForkedProcess
from palimpsest.runtime.loop_thread import LoopThread
from palimpsest.runtime.runner import Inline, within
from palimpsest.runtime.threads import Suspended, outcome
from palimpsest.stores import STORES, Store
from palimpsest.stores.backend import Backend, Range
from palimpsest.stores.bridged import BridgedBackend
from palimpsest.stores.memory import MemoryBackend

PATIENCE = 30.0
"""Seconds after which a verb that hangs is a failure."""

SLOW_EVERY, TURNS = 7, 20
"""Every so many verbs one waits for so many turns of the loop."""

Moment = Literal["before", "after"]


class Hold:
    """A verb that stands still before or after its step, until it is let go of or cancelled."""

    def __init__(self, verb: str, moment: Moment) -> None:
        self.verb, self.moment = verb, moment
        self.arrived, self.cancelled = threading.Event(), threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._open = asyncio.Event()

    async def pass_by(self) -> None:
        """Stand still."""
        self.loop = asyncio.get_running_loop()
        self.arrived.set()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def let_go(self) -> None:
        """Let it go on, from any thread."""
        assert self.loop is not None, "it has arrived"
        self.loop.call_soon_threadsafe(self._open.set)

    async def reached(self) -> None:
        """Wait, on a loop, until the verb stands still."""
        assert await asyncio.to_thread(self.arrived.wait, PATIENCE)


def _suspended(name: str) -> Any:
    @wraps(getattr(Backend, name), updated=())
    async def suspended(self: SuspendingBackend, *given: Any, **named: Any) -> Any:
        return await self.called(name, *given, **named)

    return suspended


def kind_of(verb: str, given: tuple[Any, ...]) -> str:
    """What of a session a verb is for: "lease", "append", "commit", "read"; else its own name."""
    if verb == "write":
        steps = [step for batch in given[0] for step in batch]
        tables = {table for step in steps for table, _ in step.put}
        if any(step.place.space == "lease" for step in steps):
            return "lease"
        return "append" if "entry" in tables else "commit" if "record" in tables else verb
    if verb == "look" and any(isinstance(one, Range) and one.table == "entry" for ask in given[0] for one in ask.rows):
        return "read"
    return verb


VERBS = ("look", "write", "places", "recent", "expired", "tenants", "scrub", "close")


class SuspendingBackend(Backend):
    """Dictionaries behind a driver that suspends."""

    url = "suspending://"

    def __init__(self) -> None:
        self._below = MemoryBackend(Inline())
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holds: list[Hold] = []
        self._refused: list[str] = []
        self.calls: list[str] = []

    def hold(self, verb: str, moment: Moment) -> Hold:
        """Stop the next call of this verb, before its step or after it."""
        hold = Hold(verb, moment)
        self._holds.append(hold)
        return hold

    def refuse(self, verb: str) -> None:
        """Have the driver cancel the next call of this verb by itself."""
        self._refused.append(verb)

    async def called(self, verb: str, *given: Any, **named: Any) -> Any:
        """Do what a driver does: send the verb, wait, and return what came back."""
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())
        self._loop = self._loop or asyncio.get_running_loop()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the driver is bound to a different event loop")
        kind = kind_of(verb, given)
        self.calls.append(kind)
        await asyncio.wait_for(asyncio.sleep(0), PATIENCE)
        for _ in range(TURNS if len(self.calls) % SLOW_EVERY == 0 else 0):
            await asyncio.sleep(0)
        if kind in self._refused:
            self._refused.remove(kind)
            raise asyncio.CancelledError
        await self._pass(kind, "before")
        result = await getattr(self._below, verb)(*given, **named)  # one atomic step
        await asyncio.sleep(0)
        await self._pass(kind, "after")
        return result

    async def _pass(self, verb: str, moment: Moment) -> None:
        for hold in self._holds:
            if (hold.verb, hold.moment) == (verb, moment):
                self._holds.remove(hold)
                await hold.pass_by()
                return

    vars().update({name: _suspended(name) for name in VERBS})


def open_suspending(url: str, runner: object) -> SuspendingBackend:
    """Open an empty one."""
    kind: Any = SuspendingBackend  # which has its verbs from the seam, where no type checker sees them
    made: SuspendingBackend = kind()
    return made


STORES.register("suspending", open_suspending)


# --- an `AsyncMemory` for tests that are written for `Memory`


class _Loop:
    """Runs what is awaited to its end on one event loop in a thread of its own, as the runner of a bridge."""

    def __init__(self) -> None:
        self._thread = LoopThread(self._stray)

    def _stray(self, fault: BaseException | None, message: str) -> None:
        warnings.warn(f"{message}: {fault!r}", stacklevel=2)

    def drive(self, awaitable: Awaitable[Any]) -> Any:
        async def whole() -> Any:
            return await awaitable

        doing = whole()
        try:
            begun = self._thread.submit(doing)
        except Suspended:
            doing.close()
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        return outcome(begun, PATIENCE)

    async def wait(self, awaitable: Awaitable[Any], timeout: float | None = None) -> Any:
        return self.drive(awaitable)

    def close(self) -> None:
        self._thread.close(PATIENCE)


class _Awaited(Memory):
    """A `Memory` whose verbs an `AsyncMemory` does on an event loop. Its `store` can be driven all the same."""

    def __init__(self, core: AsyncMemory, loop: Any) -> None:
        super().__init__(core)
        self._store = Store(BridgedBackend(core.store.backend, loop), core._scope.clock)

    @property
    def store(self) -> Store:
        return self._store


@contextmanager
def awaited(where: str, **options: Any) -> Iterator[Memory]:
    """Open an `AsyncMemory`, each verb of which is run to its end on one event loop."""
    import pytest  # here, so that processes which only want the store start sooner

    from palimpsest.sessions import knowledge_sync, working_sync

    loop = _Loop()
    with closing(loop), pytest.MonkeyPatch.context() as patch:
        face = sys.modules[Memory.__module__]
        for one in (face, working_sync, knowledge_sync):
            patch.setattr(one, "drive", loop.drive)
        # The runner's own `drive` stays: a module that is first imported here would keep what stands in its place.
        globals_ = {**vars(sys.modules[within.__module__]), "drive": loop.drive}
        own = inspect.unwrap(within)
        body = FunctionType(own.__code__, globals_, argdefs=own.__defaults__)
        patch.setattr(face, "within", contextmanager(body))
        core = AsyncMemory.open(where, **options)
        loop.drive(core.connect())
        with _Awaited(core, loop) as memory:
            yield memory

"""A store in memory behind an asynchronous driver: every verb suspends, some take long, and a test can hold any verb.

Embedded stores never suspend, so only this store shows what happens between the steps of a verb.
Importing the module registers the scheme `suspending://`. Like a driver's connections, a backend is bound to the first
event loop that uses it.
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
"""Seconds after which a hanging verb fails the test."""

SLOW_EVERY, TURNS = 7, 20
"""Every `SLOW_EVERY`th verb waits for `TURNS` turns of the event loop."""

Moment = Literal["before", "after"]


class Hold:
    """Stops a verb before or after its step, until the test lets it go on or cancels it."""

    def __init__(self, verb: str, moment: Moment) -> None:
        self.verb, self.moment = verb, moment
        self.arrived, self.cancelled = threading.Event(), threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._open = asyncio.Event()

    async def pass_by(self) -> None:
        """Note that the verb has arrived and wait until it is let go."""
        self.loop = asyncio.get_running_loop()
        self.arrived.set()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def let_go(self) -> None:
        """Let the verb go on; callable from any thread."""
        assert self.loop is not None, "it has arrived"
        self.loop.call_soon_threadsafe(self._open.set)

    async def reached(self) -> None:
        """Wait, on an event loop, until the verb has stopped here."""
        assert await asyncio.to_thread(self.arrived.wait, PATIENCE)


def _suspended(name: str) -> Any:
    @wraps(getattr(Backend, name), updated=())
    async def suspended(self: SuspendingBackend, *given: Any, **named: Any) -> Any:
        return await self.called(name, *given, **named)

    return suspended


def kind_of(verb: str, given: tuple[Any, ...]) -> str:
    """Return what a call does to a session, "lease", "append", "commit" or "read", or else the name of the verb."""
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
    """A backend in memory that answers like a driver of a server: later, and in order of the event loop."""

    url = "suspending://"

    def __init__(self) -> None:
        self._below = MemoryBackend(Inline())
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holds: list[Hold] = []
        self._refused: list[str] = []
        self.calls: list[str] = []

    def hold(self, verb: str, moment: Moment) -> Hold:
        """Stop the next call of this verb before or after its step."""
        hold = Hold(verb, moment)
        self._holds.append(hold)
        return hold

    def refuse(self, verb: str) -> None:
        """Let the next call of this verb raise CancelledError although nobody cancelled it."""
        self._refused.append(verb)

    async def called(self, verb: str, *given: Any, **named: Any) -> Any:
        """Act as a driver: send the verb, wait, and return the answer."""
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
    """Open an empty store."""
    kind: Any = SuspendingBackend  # its verbs are added by `vars().update`, which no type checker sees
    backend: SuspendingBackend = kind()
    return backend


STORES.register("suspending", open_suspending)


# --- an `AsyncMemory` behind the interface of `Memory`, for tests that are written for `Memory`


class _Loop:
    """Runs each awaitable to its end on one event loop in a thread of its own."""

    def __init__(self) -> None:
        self._thread = LoopThread(self._warn)

    def _warn(self, fault: BaseException | None, message: str) -> None:
        warnings.warn(f"{message}: {fault!r}", stacklevel=2)

    def drive(self, awaitable: Awaitable[Any]) -> Any:
        async def whole() -> Any:
            return await awaitable

        coroutine = whole()
        try:
            future = self._thread.submit(coroutine)
        except Suspended:
            coroutine.close()
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        return outcome(future, PATIENCE)

    async def wait(self, awaitable: Awaitable[Any], timeout: float | None = None) -> Any:
        return self.drive(awaitable)

    def close(self) -> None:
        self._thread.close(PATIENCE)


class _Awaited(Memory):
    """A `Memory` whose verbs an `AsyncMemory` runs on an event loop. The test's thread can drive its `store`, too."""

    def __init__(self, core: AsyncMemory, loop: Any) -> None:
        super().__init__(core)
        self._store = Store(BridgedBackend(core.store.backend, loop), core._scope.clock)

    @property
    def store(self) -> Store:
        return self._store


@contextmanager
def awaited(where: str, **options: Any) -> Iterator[Memory]:
    """Open an `AsyncMemory` and yield a `Memory` that runs each of its verbs to the end on one event loop."""
    import pytest  # imported here, so that processes which only need the store start sooner

    from palimpsest.sessions import knowledge_sync, working_sync

    loop = _Loop()
    with closing(loop), pytest.MonkeyPatch.context() as patch:
        face = sys.modules[Memory.__module__]
        for module in (face, working_sync, knowledge_sync):
            patch.setattr(module, "drive", loop.drive)
        # `drive` of the runner itself is not replaced: a module that is first imported now would keep the replacement.
        globals_ = {**vars(sys.modules[within.__module__]), "drive": loop.drive}
        original = inspect.unwrap(within)
        body = FunctionType(original.__code__, globals_, argdefs=original.__defaults__)
        patch.setattr(face, "within", contextmanager(body))
        core = AsyncMemory.open(where, **options)
        loop.drive(core.connect())
        with _Awaited(core, loop) as memory:
            yield memory

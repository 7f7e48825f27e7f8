"""What stores on servers share: addresses and options, connecting, deadlines, translating a driver's errors.

A driver belongs to one event loop and one process. So a store connects at the first verb, and refuses any other loop or
process afterwards.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from operator import methodcaller
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta

from palimpsest.errors import ForkedProcess, PalimpsestError, StoreUnavailable
from palimpsest.stores.backend import Backend, Due, Listed
from palimpsest.stores.options import CommonOptions, discreet_address, read_options, texts_in
from palimpsest.stores.rules import is_unsent

T = TypeVar("T")
Options = TypeVar("Options", bound="ServerOptions")
C = TypeVar("C")

NOT_TAKEN = "the driver does not take this address: look at its host and options"
"""What to tell the user where a driver refuses an address. Its own error may quote the address with the password."""


class ServerOptions(CommonOptions, frozen=True, kw_only=True):
    """The options of stores on servers.

    No call takes longer than `timeout_seconds`, whatever it waits for. A process has at most `pool_size` connections.
    """

    timeout_seconds: Annotated[float, Meta(gt=0, description="a number of seconds above 0")] = 30
    pool_size: Annotated[int, Meta(ge=1, le=1000, description="a whole number of connections, 1 to 1000")] = 10


def server_options(kind: type[Options], address: str, given: Mapping[str, Any]) -> tuple[str, Options]:
    """Return the address for the driver, and our options, whether they were in it or given beside it.

    Options given beside the address win. An option in the address that is not ours is the driver's, and stays in it.
    Raises ConfigError, which names it, for one that appears twice or is not accepted; no value of an address is quoted.
    """
    bare, _, query = address.partition("?")
    texts, rest = texts_in(query, kind)
    return "?".join(filter(None, (bare, "&".join(filter(None, rest))))), read_options(kind, given, texts)


class ServerBackend(Backend, Generic[C]):
    """A backend with an asynchronous driver. Its client (a pool of connections) is made by the first verb."""

    faults: tuple[type[BaseException], ...] = ()
    """The exceptions that the driver raises."""

    def __init__(self, address: str, options: ServerOptions) -> None:
        self.url, self.writable, self.large_bytes = discreet_address(address), not options.readonly, options.large_bytes
        self.address, self.seconds = address, options.timeout_seconds
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: C | None = None
        self._connecting: asyncio.Lock | None = None
        self._deadlines = Deadlines(self.seconds)

    @abstractmethod
    async def connect(self) -> C:
        """Make the client, and see that the store can be used: create whatever it lacks, unless it is read-only."""

    @abstractmethod
    def translate(self, fault: BaseException, writes: bool) -> PalimpsestError:
        """Return our error for an exception of the driver; `writes` says that a write was under way."""

    @abstractmethod
    async def list_with(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Return what `ask` gets from the object that lists places. That object has a method for each verb below."""

    async def places(self, *which: Any, **page: Any) -> list[Listed]:
        return await self.list_with(methodcaller("places", *which, **page))

    async def recent(self, *which: Any, **page: Any) -> list[Listed]:
        return await self.list_with(methodcaller("recent", *which, **page))

    async def newest(self, *which: Any, **page: Any) -> list[Listed]:
        return await self.list_with(methodcaller("newest", *which, **page))

    async def expired(self, *which: Any, **page: Any) -> list[Due]:
        return await self.list_with(methodcaller("expired", *which, **page))

    async def tenants(self, **page: Any) -> list[str]:
        return await self.list_with(methodcaller("tenants", **page))

    async def run(self, do: Callable[[C], Awaitable[T]], *, writes: bool = False) -> T:
        """Return the result of `do` with the client, within the time that a call may take.

        Raises StoreUnavailable when that time is over (with `written` None if a write was under way), and the errors
        into which `translate` turns the driver's exceptions.
        """
        loop, under_way = self._own_loop(), False
        call = self._deadlines.begin(loop)
        try:
            client = self._client if self._client is not None else await self._connected_client()
            under_way = writes
            return await do(client)
        except PalimpsestError:
            raise  # before `faults`, as some of our errors are OSErrors, too
        except asyncio.CancelledError as ended:
            if not call.is_late():
                raise
            raise self._late(under_way and not is_unsent(ended)) from TimeoutError()
        except TimeoutError as late:
            raise self._late(under_way) from late
        except self.faults as fault:
            raise self.translate(fault, under_way) from fault
        finally:
            call.end()

    def _late(self, under_way: bool) -> StoreUnavailable:
        problem = f"it has not answered within {self.seconds:g} seconds (timeout_seconds)"
        return StoreUnavailable(self.url, problem, written=None if under_way else False, late=True)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """Return the driver's event loop. Raises ForkedProcess in another process, StoreUnavailable on another loop."""
        if os.getpid() != self._process:
            raise ForkedProcess(self._process, os.getpid())
        self._loop = loop = self._running_loop()
        return loop

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop. Raises StoreUnavailable if the driver belongs to another."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop and self._loop is not None:
            problem = "it was opened on another event loop: open and close a memory inside each `asyncio.run`"
            raise StoreUnavailable(self.url, problem)
        return loop

    async def _connected_client(self) -> C:
        self._connecting = self._connecting or asyncio.Lock()
        async with self._connecting:
            if self._client is None:
                try:
                    self._client = await self.connect()
                except (OSError, TypeError, ValueError) as fault:
                    if isinstance(fault, (PalimpsestError, TimeoutError, *self.faults)):
                        raise
                    raise StoreUnavailable(self.url, NOT_TAKEN) from fault  # an option, or a host that is no name
            return self._client

    def release(self) -> C | None:
        """Give up the client to a caller that is about to close it; the next verb would make another.

        Raises StoreUnavailable on another event loop, where it cannot be closed.
        """
        if self._client is not None:
            self._running_loop()
        client, self._client = self._client, None
        self._deadlines.stop_if_idle()
        return client


class Unsent(Exception):
    """An exception of a driver (the cause) that came before anything was sent."""


class Line:
    """Callers that wait for something to become free. Whoever has waited longest is woken first."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self) -> None:
        """Wait until it is the caller's turn."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.wake()  # cancelled after its turn had come: the next waiter gets it
            elif turn in self._waiting:  # not if a `wake` has already skipped and removed the cancelled future
                self._waiting.remove(turn)
            raise

    def wake(self) -> None:
        """Give the next waiter its turn, skipping those that were cancelled."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class Deadlines:
    """The times at which the calls of one backend are cancelled, all equally long after they began.

    Deadlines come in the order in which calls begin, so one timer is enough: it fires for the oldest call. A timer for
    each call, as in `asyncio.timeout`, costs a tenth of an append.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[Call, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> Call:
        """Register a call that begins in the current task."""
        task = asyncio.current_task(loop)
        assert task is not None, "verbs are awaited in tasks"
        at = loop.time() + self._seconds
        call = Call(self._calls, task, at)
        self._calls[call] = None
        if self._timer is None:
            self._timer = loop.call_at(at, self._wake, loop)
        return call

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the calls whose time is over, and set the timer for the next."""
        self._timer, now = None, loop.time()
        for call in list(self._calls):
            if call.at > now:
                self._timer = loop.call_at(call.at, self._wake, loop)
                break
            call.cancel()

    def stop_if_idle(self) -> None:
        """Stop the timer if no call is under way."""
        if self._timer is not None and not self._calls:
            self._timer.cancel()
            self._timer = None


class Call:
    """A call in a task, which is cancelled at its deadline unless it has ended."""

    __slots__ = ("_before", "_calls", "_cancelled", "_task", "at")

    def __init__(self, calls: dict[Call, None], task: asyncio.Task[Any], at: float) -> None:
        self._calls, self._task, self.at = calls, task, at
        self._before, self._cancelled = task.cancelling(), False

    def cancel(self) -> None:
        """Cancel the call, as its time is over."""
        del self._calls[self]
        self._cancelled = True
        self._task.cancel()

    def is_late(self) -> bool:
        """Return whether the deadline, and nothing else, has cancelled the call."""
        return self._cancelled and self._task.cancelling() <= self._before + 1

    def end(self) -> None:
        """Remove the deadline."""
        if self._cancelled:
            self._task.uncancel()
        else:
            del self._calls[self]

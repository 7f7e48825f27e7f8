"""A backend around another one, which does whatever the outer one does not do itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import wraps
from typing import Any, TypeVar

from palimpsest.stores.backend import Backend, Scrubbed
from palimpsest.stores.values import Tables

T = TypeVar("T")


class RunsBelow(Backend):
    """A backend whose verbs run where those of the backend `below` run."""

    below: Backend

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await self.below.together(start, reads=reads)

    async def surely(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.below.surely(start)

    async def briefly(self, start: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        return await self.below.briefly(start, seconds)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self.below.apart(function, *arguments)


class Wrapper(RunsBelow):
    """A backend around `below`. Its verbs are its own; where they run, and how it ends, is as for `below`.

    It does not take over `large_bytes`, `companion` and `tables` unless it says so, as what it keeps may be sealed.
    """

    def __init__(self, below: Backend) -> None:
        self.below, self.url, self.writable, self.blocking = below, below.url, below.writable, below.blocking
        self.inline, self.gathers, self.remote = below.inline, below.gathers, below.remote

    async def pause(self, seconds: float) -> None:
        await self.below.pause(seconds)

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        return await self.below.scrub(whole=whole)

    async def unread(self, tenant: str | None = None) -> Mapping[str, Collection[str]]:
        return await self.below.unread(tenant)

    async def durability(self) -> str:
        return await self.below.durability()

    def give_up(self) -> None:
        self.below.give_up()

    async def close(self) -> None:
        await self.below.close()


def passed(verb: Callable[..., Awaitable[Any]]) -> Any:
    """Return a method that passes this verb on to the backend below."""
    name = verb.__name__

    @wraps(verb, updated=())
    async def passing(self: PassThrough, *given: Any, **named: Any) -> Any:
        return await self.pass_on(lambda: getattr(self.below, name)(*given, **named), writes=name == "write")

    return passing


class PassThrough(Wrapper):
    """A backend around another one that passes every call on to it, in a way of its own."""

    def __init__(self, below: Backend) -> None:
        super().__init__(below)
        self.large_bytes, self.companion = below.large_bytes, below.companion
        self.tables = PassThroughTables(below.tables, self) if below.tables is not None else None

    @abstractmethod
    async def pass_on(self, start: Callable[[], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        """Do something below; `writes` says that it may change what is stored there."""

    look = passed(Backend.look)
    write = passed(Backend.write)
    places = passed(Backend.places)
    recent = passed(Backend.recent)
    newest = passed(Backend.newest)
    expired = passed(Backend.expired)
    tenants = passed(Backend.tenants)
    unread = passed(Backend.unread)


class PassThroughTables:
    """The tables beside those of the store below; work on them is passed on in the same way."""

    def __init__(self, below: Tables, passing: PassThrough) -> None:
        self.schema, self._below, self._passing = below.schema, below, passing

    async def do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> T:
        return await self._passing.pass_on(lambda: self._below.do(work, writes=writes), writes=writes)

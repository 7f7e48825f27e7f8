"""A backend around another one, which does whatever the one around it does not do itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from palimpsest.stores.backend import Backend, Scrubbed

T = TypeVar("T")


class Around(Backend):
    """A backend around `below`. Its verbs are its own; where they run, and how it ends, is as it is with that one.

    What the other keeps beside its tables, or apart, it does not have, unless it says so: what it keeps may be sealed.
    """

    def __init__(self, below: Backend) -> None:
        self.below, self.url, self.writable, self.blocking = below, below.url, below.writable, below.blocking
        self.inline, self.gathers, self.crowded = below.inline, below.gathers, below.crowded

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await self.below.together(start, reads=reads)

    async def surely(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.below.surely(start)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self.below.apart(function, *arguments)

    async def pause(self, seconds: float) -> None:
        await self.below.pause(seconds)

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        return await self.below.scrub(whole=whole)

    async def durability(self) -> str:
        return await self.below.durability()

    def give_up(self) -> None:
        self.below.give_up()

    async def close(self) -> None:
        await self.below.close()

"""Backends that are unwell, for tests of what stands before them: opened by the name that each is given."""

from __future__ import annotations

import asyncio
from typing import Any

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Inline
from palimpsest.stores import STORES
from palimpsest.stores.memory import MemoryBackend


class Flaky(MemoryBackend):
    """Dictionaries that are away while `away` is set; `asked` counts the calls that reached them."""

    def __init__(self) -> None:
        super().__init__(Inline())
        self.away, self.asked = False, 0

    async def look(self, asks: Any) -> Any:
        """Look, where they are not away."""
        self.asked += 1
        if self.away:
            raise StoreUnavailable(self.url, "it is away")
        return await super().look(asks)


class Hanging(MemoryBackend):
    """Dictionaries behind a driver whose writes never end."""

    blocking = inline = False

    async def write(self, *given: Any, **named: Any) -> Any:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def together(self, start: Any, *, reads: bool = False) -> Any:
        """As a driver does it."""
        return await start()


def flaky(name: str) -> Flaky:
    """One that is away at times."""
    backend = Flaky()
    STORES.register(name, lambda url, runner, **options: backend)
    return backend


def hanging(name: str) -> None:
    """Have one that hangs under this name."""
    STORES.register(name, lambda url, runner, **options: Hanging(Inline()))

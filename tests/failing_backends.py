"""Backends that fail or hang, for tests of layers above them; each is registered under a scheme of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Inline
from palimpsest.stores import STORES
from palimpsest.stores.memory import MemoryBackend


class Flaky(MemoryBackend):
    """A memory backend that is unavailable while `away` is set; `asked` counts its looks."""

    def __init__(self) -> None:
        super().__init__(Inline())
        self.away, self.asked = False, 0

    async def look(self, asks: Any) -> Any:
        """Look, or raise StoreUnavailable."""
        self.asked += 1
        if self.away:
            raise StoreUnavailable(self.url, "it is away")
        return await super().look(asks)


class Hanging(MemoryBackend):
    """A memory backend behind an asynchronous driver whose writes never end."""

    blocking = inline = False

    async def write(self, *given: Any, **named: Any) -> Any:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def together(self, start: Any, *, reads: bool = False) -> Any:
        """Run `start` as the backend of an asynchronous driver does."""
        return await start()


def flaky(name: str) -> Flaky:
    """Register and return a `Flaky` backend under this scheme."""
    backend = Flaky()
    STORES.register(name, lambda url, runner, **options: backend)
    return backend


def hanging(name: str) -> None:
    """Register a `Hanging` backend under this scheme."""
    STORES.register(name, lambda url, runner, **options: Hanging(Inline()))

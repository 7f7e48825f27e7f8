"""A backend over another one that passes every verb except `close` through one method."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from palimpsest.stores.backend import Backend


class Stepping(Backend):
    """A backend that passes each verb to `_step`, which a subclass implements by calling the backend `_below`."""

    _below: Backend

    @abstractmethod
    async def _step(self, verb: str, *given: Any, **named: Any) -> Any:
        """Call a verb of the backend below."""

    async def look(self, *given: Any) -> Any:
        return await self._step("look", *given)

    async def write(self, *given: Any, **named: Any) -> Any:
        return await self._step("write", *given, **named)

    async def places(self, *given: Any, **named: Any) -> Any:
        return await self._step("places", *given, **named)

    async def recent(self, *given: Any, **named: Any) -> Any:
        return await self._step("recent", *given, **named)

    async def expired(self, *given: Any, **named: Any) -> Any:
        return await self._step("expired", *given, **named)

    async def tenants(self, **named: Any) -> Any:
        return await self._step("tenants", **named)

    async def close(self) -> None:
        pass

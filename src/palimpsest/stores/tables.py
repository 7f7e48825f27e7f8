"""The seam to a database in which a store keeps its tables, and others may keep some beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Tables(Protocol):
    """A database of PostgreSQL's with a schema, in which there may be other tables beside a store's."""

    schema: str

    def do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> Coroutine[Any, Any, T]:
        """Return what this does with a connection of the driver's, in the time that a call may take.

        It begins and ends its transactions by itself; one that it leaves is rolled back. Without `writes` it is done
        once more where the connection was lost. Raises what verbs of the store raise.
        """
        ...

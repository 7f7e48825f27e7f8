"""What runs the rules of backends, and what they ask: over one that is opened anew for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from palimpsest.runtime.runner import drive
from palimpsest.runtime.threads import apart, outcome
from palimpsest.stores.backend import (
    LAST_KEY,
    Ask,
    Backend,
    Named,
    Place,
    PlaceHead,
    Range,
    Refusal,
    Row,
    Step,
)

T = TypeVar("T")
BackendFactory = Callable[[], Backend]
"""Opens a backend that is empty."""

HOME = "home"
ONE = Place("tenant", HOME, "space", "one")
TWO = Place("tenant", HOME, "space", "two")
BESIDE = Place("tenant", HOME, "space", "beside")
AWAY = Place("tenant", "another home", "space", "one")
FOREIGN = Place("another tenant", HOME, "space", "one")
NOW = 1_700_000_000_000_000
PARTS = (0, 1, 2**32 - 1, 2**32, 7 << 32, 7 << 32 | 1, LAST_KEY)
"""Keys in different halves of what a key can be."""

Rule = Callable[[Any, Backend], Awaitable[None]]


def rule(body: Rule) -> Callable[[Any, BackendFactory], None]:
    """Make a test method of a coroutine method over an open backend."""

    async def whole(contract: Any, opened: BackendFactory) -> None:
        backend = opened()
        try:
            await body(contract, backend)
        finally:
            await backend.close()

    def test(self: Any, backend: BackendFactory) -> None:
        self.run(whole(self, backend))

    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


async def written(backend: Backend, *steps: Step, at: int = NOW) -> Refusal | None:
    """What came of one batch."""
    (refusal,) = await backend.write([steps], at)
    return refusal


async def head(backend: Backend, place: Place) -> PlaceHead | None:
    """The head of a place."""
    (seen,) = await backend.look([Ask(place)])
    assert list(seen.rows) == []
    return seen.head


async def rows(backend: Backend, place: Place, ask: Range | Named) -> list[Row]:
    """The rows of a place, without its head."""
    (seen,) = await backend.look([Ask(place, [ask], head=False)])
    assert seen.head is None
    return [Row(*row) for row in seen.rows[0]]


async def keys(backend: Backend, place: Place, ask: Range | Named) -> list[int]:
    """The keys of rows of a place."""
    return [row.key for row in await rows(backend, place, ask)]


def all_of(table: str = "t", **how: Any) -> Range:
    """All rows of a table."""
    return Range(table, [(0, LAST_KEY)], **how)


def filled(place: Place, many: Sequence[int], table: str = "t") -> Step:
    """A step that puts rows of these keys."""
    return Step(place, rows_only=True, put=[(table, [Row(key, b"%d" % key) for key in many])])


class BackendContract:
    """What runs the rules."""

    lasts = False
    """Whether what was written is there when the backend is opened again."""

    keeps: tuple[str, ...] = ()
    """What it says of bytes that are left after every erasure, where nobody who uses the store can change that."""

    refuses: tuple[str, ...] = ()
    """What it says beside that of the whole store's scrubbing, where the server does not do what it is asked for."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; here without an event loop, as backends of blocking functions allow."""
        return drive(coroutine)

    def beside(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run these at the same time: here each in a thread, as blocking functions are called."""
        for done in [apart(lambda job=job: self.run(job())) for job in jobs]:
            outcome(done, 60)

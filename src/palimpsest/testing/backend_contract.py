"""What the tests of the contract share: how they run, each over an empty backend, and short forms of the verbs."""

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
"""Opens a backend. On its first call in a test the backend is empty."""

HOME = "home"
ONE = Place("tenant", HOME, "space", "one")
TWO = Place("tenant", HOME, "space", "two")
BESIDE = Place("tenant", HOME, "space", "beside")
AWAY = Place("tenant", "another home", "space", "one")
FOREIGN = Place("another tenant", HOME, "space", "one")
NOW = 1_700_000_000_000_000
PARTS = (0, 1, 2**32 - 1, 2**32, 7 << 32, 7 << 32 | 1, LAST_KEY)
"""Keys with the same and with different upper halves, up to the greatest."""

Rule = Callable[[Any, Backend], Awaitable[None]]


def rule(body: Rule) -> Callable[[Any, BackendFactory], None]:
    """Turn a coroutine method that takes an open backend into a test method that takes a `BackendFactory`."""

    async def opened(contract: Any, factory: BackendFactory) -> None:
        backend = factory()
        try:
            await body(contract, backend)
        finally:
            await backend.close()

    def test(self: Any, backend: BackendFactory) -> None:
        self.run(opened(self, backend))

    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


async def written(backend: Backend, *steps: Step, at: int = NOW) -> Refusal | None:
    """Write one batch; return its refusal, None if it was done."""
    (refusal,) = await backend.write([steps], at)
    return refusal


async def head(backend: Backend, place: Place) -> PlaceHead | None:
    """Return the head of a place."""
    (seen,) = await backend.look([Ask(place)])
    assert list(seen.rows) == []
    return seen.head


async def rows(backend: Backend, place: Place, ask: Range | Named) -> list[Row]:
    """Return rows of a place, without looking at its head."""
    (seen,) = await backend.look([Ask(place, [ask], head=False)])
    assert seen.head is None
    return [Row(*row) for row in seen.rows[0]]


async def keys(backend: Backend, place: Place, ask: Range | Named) -> list[int]:
    """Return the keys of rows of a place."""
    return [row.key for row in await rows(backend, place, ask)]


def all_of(table: str = "t", **how: Any) -> Range:
    """Return a range of all rows of a table."""
    return Range(table, [(0, LAST_KEY)], **how)


def filled(place: Place, row_keys: Sequence[int], table: str = "t") -> Step:
    """Return a step that puts rows with these keys."""
    return Step(place, rows_only=True, put=[(table, [Row(key, b"%d" % key) for key in row_keys])])


class BackendContract:
    """What a subclass says about its backend, and how tests are run."""

    lasts = False
    """Whether what was written is still there when the backend is opened again."""

    keeps: tuple[str, ...] = ()
    """The sentences in `Scrubbed.remains` that every scrub returns, because the store cannot do better."""

    refuses: tuple[str, ...] = ()
    """Further such sentences of a scrub of the whole store, if the server does not do what it is asked."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Here without an event loop, which suits blocking backends."""
        return drive(coroutine)

    def beside(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run these at the same time. Here each in a thread, which suits blocking backends."""
        for future in [apart(lambda job=job: self.run(job())) for job in jobs]:
            outcome(future, 60)

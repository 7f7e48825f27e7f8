"""Turns a rule of the contract, a coroutine over an open store, into a test that needs no pytest plug-in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias, TypeVar

from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.ids import new_ids
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.testing.clock import FakeClock

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
StoreFactory: TypeAlias = Callable[[Callable[[], int]], Store]
"""Opens an empty store that uses the given clock."""

KEY = SessionKey("tenant", "session")
OTHER = SessionKey("tenant", "another session")
FOREIGN = SessionKey("another tenant", "session")


class OpenedStore(NamedTuple):
    """An open, empty store and its clock."""

    store: Store
    clock: FakeClock


class Contract:
    """Runs the rules: opens the store before each and closes it after it."""

    keeps: tuple[str, ...] = ()
    """What the store reports as remaining after every erasure, because its user cannot prevent that."""

    refuses: tuple[str, ...] = ()
    """What it reports in addition after scrubbing the whole store, if the server does not carry out a request."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; here without an event loop, which is enough for stores of blocking functions."""
        return drive(coroutine)


def rule(body: Callable[[Any, OpenedStore], Awaitable[None]]) -> Callable[[Contract, StoreFactory], None]:
    """Make a test method of a coroutine method that takes an open store."""

    async def whole(contract: Contract, opened: OpenedStore) -> None:
        try:
            await body(contract, opened)
        finally:
            await opened.store.close()

    def test(self: Contract, store: StoreFactory) -> None:
        clock = FakeClock()
        self.run(whole(self, OpenedStore(store(clock), clock)))

    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


async def refused(kind: type[E], doing: Awaitable[object]) -> E:
    """Return the error of this kind that the call raises; fail if it raises none."""
    try:
        await doing
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def said(*texts: str, **fields: Any) -> list[Entry]:
    """Return new human messages with unique ids."""
    ids = new_ids(len(texts), 1_700_000_000_000)
    return [Entry(id=id, content=text, **fields) for id, text in zip(ids, texts, strict=True)]


def texts(entries: list[Entry]) -> list[str]:
    """Return the entries' texts."""
    return [entry.text for entry in entries]

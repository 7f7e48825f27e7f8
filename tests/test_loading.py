"""A whole session that is loaded in pieces is never seen in part, leaves nothing if it fails, and blocks no writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from palimpsest.errors import Conflict, StoreUnavailable
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Dump, Store
from palimpsest.stores.backend import Again, Batch, Refusal
from palimpsest.stores.engine import loading
from palimpsest.stores.memory import MemoryBackend
from palimpsest.testing import FakeClock

KEY, OTHER = SessionKey("t", "one"), SessionKey("t", "other")
COUNT = 10
LONG = "x" * 100


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PIECE", 3)


class Watched(MemoryBackend):
    """A backend that counts writes, runs something after one of them, and goes away at one."""

    def __init__(self, away: int | None = None) -> None:
        super().__init__(Inline())
        self.writes, self.away, self._acts = 0, away, False
        self.after: dict[int, Callable[[], object]] = {}

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if self.away is not None and self.writes >= self.away:
            raise StoreUnavailable(self.url, "it is away")
        done = await super().write(batches, at, lasting=lasting)
        if not self._acts:
            self.writes += 1
            act = self.after.pop(self.writes, None)
            self._acts = True
            try:
                if act is not None:
                    act()
            finally:
                self._acts = False
        return done

    def rows(self) -> int:
        return sum(table.end for there in self._places.values() for table in there.tables.values())


def dump() -> Dump:
    """Return ten entries of another store, two of which share large content."""
    other = Store(MemoryBackend(Inline()), FakeClock())
    entries = [Entry(content=LONG if number in (4, 8) else str(number)) for number in range(COUNT)]
    drive(other.append(OTHER, entries))
    head = drive(other.head(OTHER))
    assert head is not None
    return Dump(head=head, entries=tuple(drive(other.read(OTHER))), records=())


def opened(backend: MemoryBackend, clock: FakeClock | None = None) -> Store:
    backend.large_bytes = 50
    return Store(backend, clock or FakeClock())


def texts(store: Store, key: SessionKey = KEY) -> list[str]:
    return [entry.text for entry in drive(store.read(key))]


def test_a_session_loaded_in_steps_is_visible_only_after_the_last() -> None:
    """A session loaded in four steps is visible after the last; others write in between."""
    backend = Watched()
    store = opened(backend)
    seen: list[tuple[Head | None, list[str]]] = []

    def look() -> None:
        seen.append((drive(store.head(KEY)), texts(store)))
        drive(store.append(OTHER, [Entry(content="in between")]))

    backend.after = dict.fromkeys((1, 2, 3), look)

    drive(store.load(KEY, dump()))

    assert seen == [(None, [])] * 3
    assert texts(store) == [LONG if number in (4, 8) else str(number) for number in range(COUNT)]
    assert set(texts(store, OTHER)) == {"in between"}


@pytest.mark.parametrize("replace", [False, True])
def test_loading_in_pieces_stores_the_same_rows(replace: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading in pieces stores the same rows as loading at once, in a new place or replacing a session."""
    came = []
    for piece in (3, 1000):
        monkeypatch.setattr(loading, "PIECE", piece)
        backend = Watched()
        store = opened(backend)
        if replace:
            drive(store.append(KEY, [Entry(content=LONG), Entry(content="before")]))

        drive(store.load(KEY, dump(), replace=replace))

        came.append((texts(store), drive(store.head(KEY)), backend.rows()))

    assert came[0] == came[1]


@pytest.mark.parametrize("away", range(4))
def test_a_sweep_removes_old_rows_of_a_failed_load(away: int) -> None:
    """Rows of a load that failed belong to no session, and a sweep removes them once they are old."""
    backend, clock = Watched(away), FakeClock()
    store = opened(backend, clock)
    with pytest.raises(StoreUnavailable):
        drive(store.load(KEY, dump()))
    left, backend.away = backend.rows(), None

    drive(store.sweep(KEY.tenant, clock()))
    unswept = backend.rows()
    clock.advance(3601)
    drive(store.sweep(KEY.tenant, clock()))

    assert (left > 0) == (away > 0)
    assert unswept == left  # it may still be under way
    assert backend.rows() == 0
    assert drive(store.head(KEY)) is None


def test_an_interrupted_load_removes_its_rows() -> None:
    """An interrupted load removes its rows."""
    backend = Watched()
    store = opened(backend)

    def interrupt() -> None:
        raise KeyboardInterrupt

    backend.after = {2: interrupt}

    with pytest.raises(KeyboardInterrupt):
        drive(store.load(KEY, dump()))

    assert backend.rows() == 0


def test_a_load_whose_rows_were_removed_raises_conflict() -> None:
    """A load whose rows were swept or cleared meanwhile raises Conflict and stores nothing."""
    backend = Watched()
    store = opened(backend)
    backend.after = {2: lambda: drive(store.clear_items("t"))}

    with pytest.raises(Conflict, match="load it again"):
        drive(store.load(KEY, dump()))

    assert backend.rows() == 0
    assert drive(store.head(KEY)) is None


def test_a_session_created_during_a_load_is_not_replaced() -> None:
    """A session that somebody creates during the load is kept."""
    backend = Watched()
    store = opened(backend)
    backend.after = {2: lambda: drive(store.append(KEY, [Entry(content="first")]))}

    with pytest.raises(Conflict, match="exists already"):
        drive(store.load(KEY, dump()))

    assert texts(store) == ["first"]
    assert backend.rows() == 1

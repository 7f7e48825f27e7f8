"""Encryption as a wrapper of a backend: it keeps the contract of backends, and only addresses are plain."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, now_us
from palimpsest.log.head import Head
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Item, Store
from palimpsest.stores.backend import Again, Ask, Backend, Batch, Refusal, Seen
from palimpsest.stores.encrypted.backend import unlocked_backend
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.options import DiskOptions
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.testing import BackendFactory, StoreConformance
from sealed import BOTH, KEY
from vaults import Vault, values_of


def sealed(below: Backend) -> Backend:
    """Return the encrypting backend over this one."""
    return drive(unlocked_backend(below, None, BOTH, now_us))


class TestSealedMemoryBackend(StoreConformance):
    """Encrypted dictionaries keep the contract of backends."""

    @pytest.fixture
    def backend(self) -> BackendFactory:
        return lambda: sealed(MemoryBackend(Inline()))


class TestSealedSQLiteBackend(StoreConformance):
    """An encrypted SQLite file keeps the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        path = str(tmp_path / "a.db")
        options = DiskOptions(synchronous="NORMAL")
        return lambda: sealed(SQLiteBackend(f"sqlite:///{path}", path, Inline(), options))


# --- what it costs, and what it shows


class Counting(MemoryBackend):
    """A memory backend that records each look and write."""

    def __init__(self) -> None:
        super().__init__(Inline())
        self.calls: list[str] = []

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        self.calls.append("look")
        return await super().look(asks)

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        self.calls.append("write")
        return await super().write(batches, at, lasting=lasting)


STEADY: dict[str, Callable[[Store], Coroutine[Any, Any, object]]] = {
    "append": lambda store: store.append(KEY, [Entry(content="more")]),
    "append of ids": lambda store: store.append(KEY, [Entry(content="more")], check_ids=True),
    "head": lambda store: store.head(KEY),
    "read": lambda store: store.read(KEY, counter="c"),
    "fetch": lambda store: store.fetch(KEY, [1, 2]),
    "records": lambda store: store.records(KEY),
    "count": lambda store: store.count(KEY, "c", {1: 1}),
    "pin": lambda store: store.commit(KEY, Change(kind="pin", reason="r", seqs=(1,))),
    "erase": lambda store: store.commit(KEY, Change(kind="erase", reason="r", seqs=(2,))),
    "item": lambda store: store.put_item("default", "notes", "k", b"again"),
    "lease": lambda store: store.lease("default", "l", "me", 60),
    "branches": lambda store: store.branches(KEY),
    "sharing": lambda store: store.sharing(KEY, [1]),
}


@pytest.mark.parametrize("verb", STEADY)
def test_each_verb_makes_as_many_store_calls_as_without_encryption(verb: str) -> None:
    """An encrypted store makes the same looks and writes as a plain one."""
    calls = []
    for below in (Counting(), Counting()):
        store = Store(sealed(below) if calls else below)
        drive(store.append(KEY, [Entry(content="hello"), Entry(content="to go")]))
        drive(store.put_item("default", "notes", "k", b"v"))
        drive(store.fork(KEY, "branch", drive(store.head(KEY)) or Head(), expect_epoch=0))
        below.calls.clear()
        drive(STEADY[verb](store))
        calls.append(below.calls)

    assert calls[0] == calls[1] != []


def test_a_session_deleted_by_another_process_can_be_created_again() -> None:
    """A session that another process deleted can be created again, whatever this process remembers of it."""
    below = MemoryBackend(Inline())
    one, other = (Store(sealed(below)) for _ in range(2))
    drive(one.append(KEY, [Entry(content="first")]))
    drive(one.put_item("default", "notes", "k", b"first"))
    drive(other.delete(KEY))
    drive(other.delete_item("default", "notes", "k"))

    drive(one.append(KEY, [Entry(content="second")]))
    drive(one.put_item("default", "notes", "k", b"second"))

    for store in (one, other):
        assert [entry.text for entry in drive(store.read(KEY))] == ["second"]
        assert (drive(store.get_item("default", "notes", "k")) or Item(key="", value=b"", version=0)).value == b"second"


def test_only_place_names_are_in_plain_text() -> None:
    """Ids, keys of items, kinds, links and times are not readable; tenants, sessions and namespaces are."""
    vault = Vault.of("memory", Path())
    with vault.memory(BOTH) as memory:
        session = memory.session("one")
        session.add_user_message("hello")
        session.add_entries([Entry(id="given-by-somebody", kind="context", name="notes.txt", content="text")])
        session.pin("given-by-somebody")
        drive(memory.store.put_item("default", "notes", "an item's key", b"value"))
        assert session.entry("given-by-somebody").text == "text"
    there = vault.contents()
    clear = {name for slot in there for name in (*slot.place, slot.table)}
    fields = [field for content in there.values() for field in values_of(content)]
    stored = b"".join(one if isinstance(one, bytes) else str(one).encode() for one in fields)

    names = {"default", "one", "session", "log", "", "entry", "record", "notes", "item/notes", "order"}
    (hidden,) = clear - names
    assert len(hidden) == 64  # the item's
    for word in ("given", "hello", "notes", 'kind"', "context", "value", "item's", "pinned", "tool_call"):
        assert word.encode() not in stored

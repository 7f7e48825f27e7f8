"""Store verbs, and a backend in which another writer's write runs ahead of each of their writes.

`test_overtaken.py` runs each verb (`VERBS`) against each kind of interfering write (`adding`, `forking`, `enlarging`,
`both`). A verb must start again from the new head and still do what it promises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from log_rules.rewriting import Saying
from palimpsest import Entry
from palimpsest.log.change import Change
from palimpsest.log.entry import now_us
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Dump, Store
from palimpsest.stores.backend import Again, Backend, Batch, Refusal
from palimpsest.stores.opening import unlocked
from palimpsest.stores.options import DiskOptions
from palimpsest.stores.sqlite.backend import SQLiteBackend
from sealed import BOTH, FIRST

KEY = SessionKey("t", "one")
WORD = "sesame1f"
LARGE = "x" * 2000
Meddling = Callable[[Store, int], Awaitable[object]]

LEFT: list[SQLiteBackend] = []
"""Backends that a test has opened and its fixture closes."""


class Overtaken(SQLiteBackend):
    """An SQLite backend in which `before`, another writer's complete write, runs ahead of each write."""

    def __init__(self, folder: Path) -> None:
        path = f"{folder}/a.db"
        super().__init__(f"sqlite:///{path}", path, Inline(), DiskOptions(synchronous="NORMAL"))
        self.large_bytes = 1000
        self.before: Callable[[int], Awaitable[object]] | None = None
        self.writes, self._inside = 0, False
        LEFT.append(self)

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if self.before is not None and not self._inside:
            self.writes += 1
            assert self.writes < 20, "the verb starts again for ever"
            self._inside = True
            try:
                await self.before(self.writes)
            finally:
                self._inside = False
        return await super().write(batches, at, lasting=lasting, again=again)


KINDS = {"plain": None, "encrypted": FIRST, "under an older key": BOTH}
"""The keys to open a file with: none, the only key, or two of which the older one encrypted the file."""


def opened(below: Backend, kind: str) -> Store:
    """Return a store over the backend."""
    keys = KINDS[kind]
    return Store(below) if keys is None else drive(unlocked(Store(below), keys, now_us))


def filled(below: Backend, kind: str) -> None:
    """Store a session with two short entries and a large one, and a branch of it."""
    store = opened(below, kind if KINDS[kind] is None else "encrypted")
    drive(store.append(KEY, [Entry(content=WORD), Entry(content="two"), Entry(content=f"{WORD} {LARGE}")]))
    drive(forking(store, 0))


async def adding(store: Store, _: int) -> None:
    """Add a message."""
    await store.append(KEY, [Entry(content="meanwhile")])


async def forking(store: Store, number: int) -> None:
    """Make a branch."""
    head = await store.head(KEY)
    assert head is not None
    await store.fork(KEY, f"branch {number}", head, expect_epoch=head.epoch, created=head.created)


async def enlarging(store: Store, number: int) -> None:
    """Add a message with large content."""
    await store.append(KEY, [Entry(content=f"{LARGE} {number}")])


async def both(store: Store, number: int) -> None:
    """Add a message and one with large content, and make a branch."""
    await adding(store, number)
    await enlarging(store, number)
    await forking(store, number)


async def head_of(store: Store) -> Head:
    head = await store.head(KEY)
    assert head is not None
    return head


async def erase(store: Store) -> None:
    """Erase two entries, one of which has large content."""
    await store.commit(KEY, Change(kind="erase", reason="r", seqs=(1, 3)))
    assert [entry.erased for entry in await store.read(KEY, after=0, before=4)] == [True, False, True]


async def flush(store: Store) -> None:
    """Erase as the persistence "flush" without `archive` does, which spares the current summaries."""
    await store.commit(KEY, Change(kind="erase", reason="r", seqs=(1, 3), spare=True, unshared=False))
    assert [entry.erased for entry in await store.read(KEY, after=0, before=4)] == [True, False, True]


async def clear(store: Store) -> None:
    """Clear the session."""
    head = await store.commit(KEY, Change(kind="clear", reason="r"))
    assert await store.read(KEY, before=head.first_seq) == []


async def delete(store: Store) -> None:
    """Delete the session."""
    assert await store.delete(KEY)
    assert await store.head(KEY) is None


async def fork(store: Store) -> None:
    """Make a branch."""
    head = await head_of(store)
    await store.fork(KEY, "mine", head, expect_epoch=head.epoch, created=head.created)
    assert [entry.text for entry in await store.read(KEY._replace(session="mine"))][:1] == [WORD]


async def pin(store: Store) -> None:
    """Pin an entry, which changes only the head."""
    await store.commit(KEY, Change(kind="pin", reason="r", seqs=(2,)))


async def rewrite(store: Store) -> None:
    """Rewrite the entries, as a scan does."""
    assert await store.rewrite(KEY, Saying(WORD, "-"), range(1, 4))
    assert [entry.text for entry in await store.read(KEY, after=0, before=3)] == ["-", "two"]


async def load(store: Store) -> None:
    """Replace the session by an imported one."""
    entries = (Entry(id="a", seq=1, content="new"), Entry(id="b", seq=2, content=f"new {LARGE}"))
    await store.load(KEY, Dump(head=Head(revision=1, next_seq=3), entries=entries, records=()), replace=True)
    assert [entry.id for entry in await store.read(KEY)] == ["a", "b"]


async def append(store: Store) -> None:
    """Add an entry."""
    await store.append(KEY, [Entry(content="mine")])


async def append_large(store: Store) -> None:
    """Add an entry with large content."""
    await store.append(KEY, [Entry(content="mine " + LARGE)])


async def append_named(store: Store) -> None:
    """Add an entry under a chosen id; adding it again is recognised by the id."""
    mine = Entry(id="mine", content="mine")
    assert (await store.append(KEY, [mine], check_ids=True)).added == 1
    assert (await store.append(KEY, [mine], check_ids=True)).added == 0


VERBS = (erase, flush, clear, delete, fork, pin, rewrite, load, append, append_large, append_named)

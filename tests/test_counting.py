"""Stored token counts: few rows for many entries, and each count belongs to the text that is there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from drivers import driven
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Inline
from palimpsest.stores import Store
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Place, Range, Row, Step
from palimpsest.stores.memory import MemoryBackend
from stored_counts import tallied

KEY = SessionKey("tenant", "one")
LOGS = Place("tenant", "one", "log", "")


def counted(entry: Entry) -> int:
    """Return the count of an entry in these tests."""
    return 3 * len(entry.text) + 1


def said(*texts: str) -> list[Entry]:
    return [Entry(content=text) for text in texts]


async def kept(store: Store, key: SessionKey, seqs: Sequence[int] | None = None) -> None:
    """Store the counts of these entries, or of all without one."""
    entries = (await store.uncounted(key, "c"))[1]
    some = {entry.seq: counted(entry) for entry in entries if not entry.erased and (not seqs or entry.seq in seqs)}
    await store.count(key, "c", some)


async def rows_of(backend: Any, table: str = "tokens/c") -> Sequence[Cells]:
    (seen,) = await backend.look([Ask(LOGS, [Range(table, [(0, LAST_KEY)])], head=False)])
    return list(seen.rows[0])


def test_counts_stored_together_share_rows() -> None:
    """Counts stored together share rows: a hundred entries take four or five."""

    async def work() -> None:
        backend = MemoryBackend(Inline())
        store = Store(backend)
        await store.append(KEY, said(*"x" * 100))
        await kept(store, KEY)
        assert len(await rows_of(backend)) == 4
        window = await store.read(KEY, newest_first=True, limit=40, counter="c")
        assert [entry.tokens for entry in window] == [4] * 40

    asyncio.run(work())


def test_an_erasure_removes_counts_in_shared_rows_but_keeps_fetch_counts() -> None:
    """A row of counts goes with any of its entries; how often a neighbour was fetched cannot be counted again."""

    async def work() -> None:
        backend = MemoryBackend(Inline())
        store = Store(backend)
        await store.append(KEY, said(*(f"text {number}" for number in range(70))))
        await kept(store, KEY)
        await store.note(KEY, {"fetches": {3: 2, 4: 1, 5: 7}, "when": {4: 9}})

        await store.commit(KEY, Change(kind="erase", reason="r", seqs=(4,)))

        assert set(await tallied(store, KEY, "c")) == set(range(32, 71))
        assert await store.noted(KEY, "fetches") == {3: 2, 5: 7}
        assert await store.noted(KEY, "fetches", after=3) == {5: 7}
        assert await store.noted(KEY, "when") == {}
        await store.note(KEY, {"fetches": {4: 1, 5: 8, 99: 1}})
        assert await store.noted(KEY, "fetches") == {3: 2, 5: 8}
        await kept(store, KEY)
        assert len(await tallied(store, KEY, "c")) == 69

    asyncio.run(work())


def test_counts_stored_one_by_one_are_found_from_either_end() -> None:
    """Counts stored one by one are all found, from either end and with any limit."""

    async def work() -> None:
        store = Store(MemoryBackend(Inline()))
        await store.append(KEY, said(*"x" * 64))
        for seq in range(1, 65):
            await store.count(KEY, "c", {seq: seq})
        for first in range(1, 65):
            forwards = await store.read(KEY, after=first - 1, limit=5, counter="c")
            assert [entry.tokens for entry in forwards] == [entry.seq for entry in forwards]
            back = await store.read(KEY, before=first + 1, limit=5, newest_first=True, counter="c")
            assert [entry.tokens for entry in back] == [entry.seq for entry in back]
        assert await tallied(store, KEY, "c", after=10, before=14) == {11: 11, 12: 12, 13: 13}

    asyncio.run(work())


def test_a_branch_takes_no_count_of_its_origins_entry_of_the_same_seq() -> None:
    """A branch takes no count of its origin for its own entry of the same seq."""

    async def work() -> None:
        store = Store(MemoryBackend(Inline()))
        await store.append(KEY, said("a", "b", "c", "d"))
        await kept(store, KEY)
        head = await store.head(KEY)
        assert head is not None
        branch = KEY._replace(session="two")
        await store.fork(KEY, "two", await at(store, 3), expect_epoch=head.epoch)
        await store.append(branch, said("longer", "longest"))

        assert [entry.tokens for entry in await store.read(branch, counter="c")] == [4, 4, None, None]
        assert await tallied(store, branch, "c") == {1: 4, 2: 4}
        assert [entry.seq for entry in (await store.uncounted(branch, "c"))[1]] == [3, 4]
        await kept(store, branch)
        assert await tallied(store, branch, "c") == {1: 4, 2: 4, 3: 19, 4: 22}
        assert await tallied(store, KEY, "c") == {1: 4, 2: 4, 3: 4, 4: 4}

    asyncio.run(work())


async def at(store: Store, next_seq: int) -> Any:
    """Return the head with which a branch before an entry begins."""
    head = await store.head(KEY)
    assert head is not None
    return replace(head, next_seq=next_seq, calls=(), group=0, forked_from=("one", head.revision))


@pytest.mark.parametrize("flip", range(12))
def test_a_damaged_row_of_counts_is_dropped_alone(flip: int) -> None:
    """A damaged row of counts is dropped, even if its figures look valid, and no other row is."""

    async def work() -> None:
        backend = MemoryBackend(Inline())
        store = Store(backend)
        await store.append(KEY, said(*"x" * 40))
        await kept(store, KEY)
        first, _ = await rows_of(backend)
        value = bytearray(first[1])
        value[flip * len(value) // 12] ^= 1
        spoilt = [("tokens/c", [Row(first[0], bytes(value))])]
        await backend.write([[Step(LOGS, rows_only=True, put=spoilt)]], 0)
        counts = await tallied(store, KEY, "c")
        assert set(counts) == set(range(32, 41))

    asyncio.run(work())


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(60))
def test_a_count_is_always_of_the_current_text(seed: int) -> None:
    """Appends, erasures, branches, counts of some, clears: no read gives another count than that of the text."""
    dice = random.Random(seed)

    async def step(store: Store, names: list[str]) -> None:
        key = KEY._replace(session=dice.choice(names))
        head = await store.head(key)
        last = head.next_seq - 1 if head is not None else 0
        what = dice.choice(["append", "append", "count", "count", "some", "erase", "fork", "clear"])
        if what == "append":
            await store.append(key, said(*("x" * dice.randrange(1, 50) for _ in range(dice.randrange(1, 40)))))
        elif what == "count":
            await kept(store, key)
        elif what == "some" and last:
            await kept(store, key, dice.sample(range(1, last + 1), min(last, 5)))
        elif what == "erase" and last:
            await store.commit(key, Change(kind="erase", reason="r", seqs=(dice.randrange(1, last + 1),)))
        elif what == "fork" and head is not None and len(names) < 4:
            names.append(f"branch {len(names)}")
            await store.fork(key, names[-1], head, expect_epoch=head.epoch)
        elif what == "clear" and dice.random() < 0.3:
            await store.commit(key, Change(kind="clear", reason="r"))

    async def work() -> None:
        store, names = Store(dice.choice([driven, lambda: MemoryBackend(Inline())])()), ["one"]
        for _ in range(30):
            await step(store, names)
            for name in names:
                key = KEY._replace(session=name)
                entries = await store.read(key, counter="c")
                living = [entry for entry in entries if not entry.erased]
                assert all(entry.tokens in (None, counted(entry)) for entry in living)
                missing = [entry.seq for entry in entries if entry.tokens is None]
                assert [e.seq for e in (await store.uncounted(key, "c"))[1]] == missing
                limit = dice.randrange(1, 60)
                newest = await store.read(key, counter="c", newest_first=True, limit=limit)
                assert newest == entries[::-1][:limit]
        for name in names:
            key = KEY._replace(session=name)
            await kept(store, key)
            assert all(e.tokens is not None or e.erased for e in await store.read(key, counter="c"))

    asyncio.run(work())

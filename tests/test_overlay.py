"""An overlay keeps the contract of stores over any store below, and never changes that store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from filestore import everything
from log_rules import LogConformance, StoreFactory
from log_rules.compactions import covering, state_of, summaries
from palimpsest.errors import Closed, ForkedProcess
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, now_us
from palimpsest.log.head import Cut, Head, SessionKey
from palimpsest.log.summary import Compaction
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores import Dump, Store
from palimpsest.stores.backend import Ask, Cells, Seen
from palimpsest.stores.encrypted import Keys
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.opening import open_store, unlocked
from palimpsest.stores.overlay import OverBackend, Overlay
from palimpsest.testing import BackendFactory, FakeClock, StoreConformance
from processes import at_once
from stored_counts import summed
from test_stores_model import KEYS, NAMES, TwoStores, entries

KEY, OTHER = SessionKey("owner", "one"), SessionKey("owner", "two")
WRITES = (
    "append",
    "commit",
    "fork",
    "load",
    "delete",
    "count",
    "put_item",
    "delete_item",
    "clear_items",
    "lease",
    "sweep",
    "rewrite",
)


def said(*texts: str) -> list[Entry]:
    return [Entry(content=text) for text in texts]


def texts(store: Store, key: SessionKey = KEY, **how: Any) -> list[str]:
    return [entry.text for entry in drive(store.read(key, **how))]


def filled(store: Store) -> None:
    """Put every kind of thing, with a branch and items, into a store."""
    drive(store.append(KEY, said("a", "b", "c", "d")))
    drive(store.count(KEY, "words", {1: 10}))
    drive(store.count(KEY, "words", {2: 20}))
    drive(store.commit(KEY, Change(kind="cut", reason="r", view="main", cut=Cut(start=2))))
    state = Compaction()
    for text, place in (("first", 1), ("second", 2)):
        state = covering(state, text, (place, place))
        drive(store.commit(KEY, Change(kind="compact", reason="compaction", compaction=state)))
        state = drive(state_of(store, KEY))
    head = drive(store.head(KEY))
    drive(store.fork(KEY, OTHER.session, replace(head, forked_from=("one", 4)), expect_epoch=head.epoch))
    for name in ("k", "l"):
        drive(store.put_item("owner", "n", name, name.encode()))


@pytest.fixture
def below(tmp_path: Path) -> Iterator[Store]:
    """A store of files filled by `filled`."""
    store = open_store(tmp_path / "below.db", Inline(), clock=FakeClock(), synchronous="NORMAL")
    filled(store)
    yield store
    drive(store.close())


# --- the contract


class TestOverABackend(StoreConformance):
    """An overlay's backend keeps the contract of backends."""

    @pytest.fixture
    def backend(self) -> BackendFactory:
        return lambda: OverBackend(MemoryBackend(Inline()))


class TestOverNothing(LogConformance):
    """An overlay of an empty store keeps the contract."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        return lambda clock: Overlay(open_store("memory://", Inline(), clock=clock), clock)


class TestOverAReadOnlyStore(LogConformance):
    """An overlay of a read-only store with other sessions keeps the contract."""

    @pytest.fixture
    def store(self, below: Store, tmp_path: Path) -> Iterator[StoreFactory]:
        opened = open_store(tmp_path / "below.db", Inline(), readonly=True)
        yield lambda clock: Overlay(opened, clock)
        drive(opened.close())


class Begun:
    """A store whose first writes go to the store below, before the overlay is made."""

    def __init__(self, store: Store, clock: FakeClock, writes: int) -> None:
        self.below, self.over, self.left = store, Overlay(store, clock), writes

    def __getattr__(self, name: str) -> Any:
        if not self.left or name == "close":
            return getattr(self.over, name)
        self.left -= name in WRITES
        return getattr(self.below, name)


APART = ("lease", "holder", "renewing", "sweep", "expires", "every_branch", "branches_are", "closed")
"""Words in the names of rules about what an overlay has of its own: leases, sweeps, branches that were made here."""

RULES = [name for name in dir(LogConformance) if name.startswith("test_") and not any(word in name for word in APART)]


@pytest.mark.sampled
@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("name", RULES)
def test_the_contract_holds_for_any_split_between_overlay_and_below(name: str, writes: int, tmp_path: Path) -> None:
    """The contract holds however many of a rule's writes were made below."""
    stores: list[Store] = []

    def opened(clock: FakeClock) -> Any:
        stores.append(open_store(tmp_path / "a.db", Inline(), clock=clock, synchronous="NORMAL"))
        return Begun(stores[0], clock, writes)

    getattr(LogConformance(), name)(opened)
    drive(stores[0].close())


class TwoStoresOneLaidOver(TwoStores):
    """The memory store beside an overlay of an SQLite file with drawn contents."""

    @initialize(data=st.data(), steps=st.integers(0, 8))
    def begin(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            what = data.draw(st.sampled_from(["append", "append", "compact", "summary", "count", "item"]))
            key = data.draw(KEYS)
            if what == "append":
                batch = data.draw(st.lists(entries(), min_size=1, max_size=4, unique_by=lambda entry: entry.id))
                self.append(key=key, batch=[replace(entry, expires_at=None) for entry in batch])
            elif what == "compact":
                kind, seqs = data.draw(st.sampled_from(["cut", "erase", "pin"])), {data.draw(st.integers(1, 9))}
                self.compact(key, kind, seqs, unpin=False, start=1, view="main", revision=None, epoch=None)
            elif what == "summary":
                seqs = data.draw(st.sets(st.integers(1, 9), min_size=1, max_size=4))
                self.compact_by_summary(key=key, seqs=seqs, how="cover", epoch=None)
            elif what == "count":
                self.count(key=key, counter="words", counts={data.draw(st.integers(1, 9)): 5})
            else:
                names = {"namespace": data.draw(NAMES), "key": data.draw(NAMES)}
                self.put_item(tenant=key.tenant, value=b"below", seconds=None, expect=None, **names)
        self.disk, self.file = self.file, Overlay(self.file, self.clock)

    @rule()
    def reopen(self) -> None:
        """Do nothing, since an overlay is in memory."""

    def teardown(self) -> None:
        drive(self.disk.close())
        super().teardown()


@pytest.mark.wide
@pytest.mark.parametrize("examples", [13, pytest.param(40, marks=pytest.mark.slow)], ids=["short", "long"])
def test_an_overlay_behaves_as_the_memory_store(examples: int) -> None:
    """An overlay answers any sequence of calls like the memory store."""
    run_state_machine_as_test(
        TwoStoresOneLaidOver, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )


# --- what is below


def snapshot(path: Path) -> bytes:
    """Return every byte of the database and its journal."""
    return b"".join(file.read_bytes() for name in ("", "-wal") if (file := Path(f"{path}{name}")).exists())


def write_everything(store: Store) -> None:
    """Call every verb that writes, on contents of the store below and on new ones."""
    new = SessionKey("owner", "new")
    for key in (KEY, new):
        drive(store.append(key, said("x", "y")))
        drive(store.count(key, "words", {1: 5, 3: 7}))
        drive(store.commit(key, Change(kind="erase", reason="r", seqs=(1,))))
        drive(store.commit(key, Change(kind="pin", reason="r", seqs=(2,))))
    drive(store.commit(KEY, Change(kind="compact", reason="r", compaction=Compaction(evicted=((3, 3),)))))
    head, records = drive(store.head(KEY)), tuple(drive(store.records(KEY)))
    drive(store.fork(KEY, "branch", head, expect_epoch=head.epoch))
    drive(store.commit(SessionKey("owner", "branch"), Change(kind="clear", reason="r")))
    drive(store.load(KEY, Dump(head=head, entries=tuple(drive(store.read(KEY))), records=records), replace=True))
    drive(store.delete(OTHER))
    drive(store.put_item("owner", "n", "k", b"new"))
    drive(store.delete_item("owner", "n", "l"))
    drive(store.commit(KEY, Change(kind="erase", reason="r", silence=(2, 3, 4))))
    drive(store.clear_items("owner"))
    drive(store.scrub())
    drive(store.lease("owner", "turn", "me", 5))
    drive(store.sweep("owner", 2**60))


@pytest.mark.parametrize("readonly", [False, True])
def test_the_store_below_stays_byte_identical(below: Store, tmp_path: Path, readonly: bool) -> None:
    """Whatever is written to an overlay, no byte of the store below changes."""
    before, seen = snapshot(tmp_path / "below.db"), drive(below.read(KEY))
    store = open_store(tmp_path / "below.db", Inline(), readonly=readonly)
    overlay = Overlay(store)

    assert overlay.writable
    write_everything(overlay)

    assert snapshot(tmp_path / "below.db") == before
    assert drive(below.read(KEY)) == seen
    assert [one.session for one in drive(overlay.sessions("owner"))] == ["branch", "new", "one"]
    assert [one.session for one in drive(below.sessions("owner"))] == ["one", "two"]
    drive(overlay.close())
    assert texts(store) == ["a", "b", "c", "d"]
    drive(store.close())


def test_files_below_stay_byte_identical(tmp_path: Path) -> None:
    """A folder of files under an overlay stays as it is, to the last byte and name."""
    store = open_store(f"file://{tmp_path}/logs", Inline(), synchronous="NORMAL")
    filled(store)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}

    write_everything(Overlay(store))

    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
    assert b'"content":"x"' not in everything(tmp_path)


def test_a_session_in_an_overlay_branches_off_at_its_first_use(below: Store) -> None:
    """From its first use in an overlay a session no longer sees later appends below; an unused one does."""
    overlay = Overlay(below)
    assert drive(overlay.head(KEY)) == drive(below.head(KEY))
    drive(below.append(KEY, said("theirs")))
    drive(below.append(OTHER, said("seen")))

    mine = drive(overlay.append(KEY, said("mine"))).entries[0]

    assert mine.seq == 5
    assert texts(overlay) == ["a", "b", "c", "d", "mine"]
    assert texts(overlay, newest_first=True, limit=2) == ["mine", "d"]
    assert drive(overlay.fetch(KEY, [5])) == [mine]
    assert texts(overlay, OTHER) == ["a", "b", "c", "d", "seen"]
    assert texts(below) == ["a", "b", "c", "d", "theirs"]


def test_an_erasure_below_is_seen_in_the_overlay(below: Store) -> None:
    """An erasure below is seen in the overlay, in entries and summaries."""
    overlay = Overlay(below)
    assert [made.text for made in drive(summaries(overlay, KEY)).values()] == ["first", "second"]

    drive(below.commit(KEY, Change(kind="erase", reason="r", seqs=(1,))))

    assert texts(overlay) == ["", "b", "c", "d"]
    assert [made.text for made in drive(summaries(overlay, KEY)).values()] == ["", "second"]


@pytest.mark.parametrize("how", ["clear", "delete", "replace"])
def test_the_overlay_reads_nothing_of_a_session_replaced_below(below: Store, how: str) -> None:
    """After a clear, delete or import below the overlay reads nothing of the old session, even if a branch keeps it."""
    overlay = Overlay(below)
    mine = drive(overlay.append(KEY, said("mine"))).entries[0]

    if how == "clear":
        drive(below.commit(KEY, Change(kind="clear", reason="r")))
    elif how == "delete":
        drive(below.delete(KEY))
    else:
        drive(below.load(KEY, Dump(head=Head(), entries=(), records=()), replace=True))
    drive(below.append(KEY, said("theirs", "others")))

    assert texts(overlay) == ["mine"]
    assert drive(overlay.fetch(KEY, [1, 5])) == [mine]
    assert drive(summed(overlay, KEY, "words")) == (0, 0)
    assert texts(overlay, OTHER) == texts(below, OTHER) == ["a", "b", "c", "d"]


def test_an_encrypted_store_below_stays_as_it_is(tmp_path: Path) -> None:
    """An overlay of an encrypted store reads it and writes nothing of it anywhere."""
    path, keys = tmp_path / "below.db", Keys({"one": bytes(range(32))})
    store = drive(unlocked(open_store(path, Inline(), synchronous="NORMAL"), keys, now_us))
    filled(store)
    before = snapshot(path)
    overlay = Overlay(store)

    drive(overlay.append(KEY, said("x")))
    drive(overlay.commit(KEY, Change(kind="erase", reason="r", seqs=(1,))))

    assert texts(overlay) == ["", "b", "c", "d", "x"]
    assert [made.text for made in drive(summaries(overlay, KEY)).values()] == ["", "second"]
    assert texts(overlay, OTHER) == ["", "b", "c", "d"]
    write_everything(Overlay(store))
    assert snapshot(path) == before
    assert texts(store) == ["a", "b", "c", "d"]
    drive(store.close())


def test_an_erasure_in_the_overlay_leaves_the_store_below_alone(below: Store) -> None:
    """Entries and summaries of below are gone in the session and in all its branches here; below they stay."""
    overlay = Overlay(below)
    head = drive(overlay.head(KEY))
    drive(overlay.fork(KEY, "branch", head, expect_epoch=head.epoch))
    branch = SessionKey("owner", "branch")
    assert drive(overlay.branches(KEY)) == ["branch", OTHER.session]

    drive(overlay.commit(branch, Change(kind="erase", reason="r", seqs=(2,))))

    for key in (KEY, branch, OTHER):
        assert texts(overlay, key) == ["a", "", "c", "d"]
        assert [made.text for made in drive(summaries(overlay, key)).values()] == ["first", ""]
        assert drive(summed(overlay, key, "words")) == (1, 10)
    for key in (KEY, OTHER):
        assert texts(below, key) == ["a", "b", "c", "d"]
        assert [made.text for made in drive(summaries(below, key)).values()] == ["first", "second"]
    drive(overlay.commit(KEY, Change(kind="clear", reason="r")))
    assert drive(overlay.branches(OTHER)) == ["branch"]
    assert drive(below.branches(OTHER)) == [KEY.session]


def test_an_overlay_reads_only_the_window_of_a_long_log_below(below: Store) -> None:
    """An overlay reads no more of a long log below than it is asked for."""
    drive(below.append(KEY, said(*map(str, range(5_000)))))
    read: list[Cells] = []
    real = below.backend.look

    async def looking(asks: Sequence[Ask]) -> list[Seen]:
        found = await real(asks)
        read.extend(row for seen in found for rows in seen.rows for row in rows)
        return found

    below.backend.look = looking  # type: ignore[method-assign]
    overlay = Overlay(below)
    drive(overlay.append(KEY, said("x")))
    drive(overlay.commit(KEY, Change(kind="erase", reason="r", seqs=(4_990, 5_001))))

    found = drive(overlay.read(KEY, limit=50, newest_first=True, counter="words"))
    drive(overlay.read(KEY, after=100, limit=50))

    assert [entry.seq for entry in found] == list(range(5_005, 4_955, -1))
    assert [entry.seq for entry in found if entry.erased] == [5_001, 4_990]
    assert 100 <= len(read) <= 150
    drive(overlay.commit(KEY, Change(kind="erase", reason="r", seqs=tuple(range(1, 3_001)))))
    read.clear()

    assert [entry.seq for entry in drive(overlay.read(KEY, limit=50)) if entry.erased] == list(range(1, 51))
    drive(overlay.read(KEY, before=2_000, limit=50, newest_first=True))
    assert len(read) <= 150


# --- threads, loops, ends


def test_threads_may_share_an_overlay(below: Store) -> None:
    """Appends, with ids looked up below, and erasures from several threads all happen, each whole and once."""
    overlay = Overlay(below)

    def work(name: int) -> None:
        for number in range(25):
            batch = [Entry(id=f"{name}.{number}.{i}", content="x") for i in range(2)]
            drive(overlay.append(KEY, batch, check_ids=True))
            drive(overlay.append(KEY, batch, check_ids=True))
            if number == 10:
                drive(overlay.commit(KEY, Change(kind="erase", reason="r", seqs=(name + 1,))))

    at_once(work, 4)

    entries = drive(overlay.read(KEY))
    assert [entry.seq for entry in entries] == list(range(1, 205))
    assert [entry.erased for entry in entries[:5]] == [True] * 4 + [False]
    assert len({entry.id for entry in entries}) == 204
    assert drive(overlay.head(KEY)).erased == 4


def test_tasks_may_share_an_overlay(below: Store, tmp_path: Path) -> None:
    """Appends, deletions and forks of many tasks on an overlay do not mix."""

    async def main() -> None:
        runner = Threaded()
        store = open_store(tmp_path / "below.db", runner)
        overlay = Overlay(store)
        batches = [[Entry(id=f"{number}.{i}", content="x") for i in range(3)] for number in range(40)]
        await asyncio.gather(*(overlay.append(KEY, batch, check_ids=True) for batch in [*batches, *batches]))
        found = await overlay.read(KEY, after=4)
        assert sorted(entry.id for entry in found) == sorted(entry.id for batch in batches for entry in batch)
        assert len({entry.revision for entry in found}) == 40
        head = await overlay.head(KEY) or Head()
        await asyncio.gather(
            overlay.delete(KEY),
            overlay.append(KEY, said("anew")),
            overlay.fork(KEY, "branch", head, expect_epoch=head.epoch),
            return_exceptions=True,
        )
        assert len(await overlay.read(SessionKey("owner", "branch"))) in (0, 124)
        await store.close()
        await runner.close()

    asyncio.run(main())


def test_closing_leaves_the_store_below_open(below: Store) -> None:
    """A closed overlay refuses every verb, and the store below can still be read."""
    overlay = Overlay(below)
    drive(overlay.append(KEY, said("x")))

    drive(overlay.close())

    for ask in (
        overlay.head(KEY),
        overlay.sessions("owner"),
        overlay.get_item("owner", "n", "k"),
        overlay.sweep("owner", 0),
    ):
        with pytest.raises(Closed, match="an overlay of sqlite"):
            drive(ask)
    assert texts(below) == ["a", "b", "c", "d"]


def test_an_overlay_refuses_every_verb_in_a_forked_child(below: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forked child an overlay refuses every verb, even those that need not ask the store below."""
    overlay = Overlay(below)
    drive(overlay.append(SessionKey("owner", "new"), said("x")))
    monkeypatch.setattr("os.getpid", lambda: -1)

    with pytest.raises(ForkedProcess):
        drive(overlay.head(SessionKey("owner", "new")))

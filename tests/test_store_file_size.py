"""What the file store keeps and removes: erased text, large contents and counts; and what a long log costs."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from filestore import BIG, KEY, OTHER, add, erase, everything, files, fork, log_of, opened, quick, texts
from palimpsest import (
    Entry,
)
from palimpsest.log.change import Change
from palimpsest.log.entry import moment
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores import Dump, Store
from palimpsest.stores.backend import Named
from palimpsest.stores.file.lines import RowLine
from palimpsest.stores.file.table import WIDTH, Table
from palimpsest.testing import FakeClock
from stored_counts import summed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a test's store."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path, clock: FakeClock) -> Iterator[Store]:
    """Yield an empty store in that folder, whose clock stands still."""
    store = opened(folder, clock=clock)
    yield store
    drive(store.close())


# --- what is erased is gone


def test_erased_text_is_in_no_file(store: Store, folder: Path) -> None:
    """After an erasure no byte of the folder has the text, name, arguments or large content, in any branch."""
    secret = [
        Entry(content="sesame"),
        Entry(kind="context", name="sesame.md", content="open"),
        Entry(kind="tool_call", role="assistant", name="sesame_tool", call_id="sesame_id", content='{"a":"sesame"}'),
        Entry(kind="tool_result", role="tool", call_id="sesame_id", content="sesame " * 20_000),
    ]
    drive(store.append(KEY, secret))
    add(store, "after")
    fork(store)
    add(store, "more")
    digest = sha256(("sesame " * 20_000).encode()).hexdigest()
    assert b"sesame" in everything(folder)
    assert digest.encode() in everything(folder)

    erase(store, 1, 2, 3, 4)
    assert drive(store.scrub(whole=False)).remains == ()

    remaining = everything(folder) + "".join(map(str, folder.rglob("*"))).encode()
    assert b"sesame" not in remaining
    assert digest.encode() not in remaining
    assert texts(store, OTHER) == ["", "", "", "", "after"]
    assert texts(store) == ["", "", "", "", "after", "more"]


def test_an_erasure_follows_links(store: Store, folder: Path, tmp_path: Path) -> None:
    """A log that is a link to another place is rewritten and removed in that place."""
    for key in (KEY, OTHER):
        add(store, "sesame", "after", key=key)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for key in (KEY, OTHER):
        log = log_of(folder, key)
        log.rename(elsewhere / log.name)
        log.symlink_to(elsewhere / log.name)

    erase(store, 1)
    drive(store.delete(OTHER))
    assert drive(store.scrub(whole=False)).remains == ()

    assert b"sesame" not in everything(folder) + everything(elsewhere)
    assert texts(store) == ["", "after"]
    assert log_of(folder).is_symlink()
    assert not log_of(folder, OTHER).is_symlink()
    assert [file.name for file in elsewhere.iterdir()] == [log_of(folder).name]


@pytest.mark.parametrize("end", ["clear", "delete", "replace"])
def test_a_session_that_is_over_leaves_nothing(store: Store, folder: Path, end: str) -> None:
    """After a clear, a deletion or an import in its place, no text, content or count of the old log is left."""
    add(store, "sesame", "sesame " * 20_000)
    drive(store.count(KEY, "words", {1: 7, 2: 8}))
    if end == "clear":
        drive(store.commit(KEY, Change(kind="clear", reason="asked")))
    elif end == "delete":
        drive(store.delete(KEY))
    else:
        dump = Dump(head=Head(revision=1), entries=(), records=())
        drive(store.load(KEY, dump, replace=True))
    assert len(files(folder, "*.jsonl")) == (end != "delete")
    assert drive(store.scrub()).remains == ()

    assert b"sesame" not in everything(folder)
    assert b"words" not in everything(folder)
    assert len(files(folder, "*.jsonl")) == (end != "delete")


# --- large contents


def test_a_large_content_is_kept_once_for_all_branches(store: Store, folder: Path) -> None:
    """Entries of a session and of its branches share one content, which goes with the last one that refers to it."""
    branch = KEY._replace(session="branch")
    add(store, BIG, "a", BIG)
    fork(store, KEY, "branch")
    add(store, BIG, key=branch)

    def kept() -> int:
        assert drive(store.scrub()).remains == ()
        return everything(folder).count(BIG.encode())

    assert kept() == 1
    erase(store, 1)
    assert texts(store, branch) == ["", "a", BIG, BIG]
    drive(store.delete(KEY))
    assert texts(store, branch) == ["", "a", BIG, BIG]
    assert kept() == 1
    drive(store.commit(branch, Change(kind="clear", reason="asked")))

    assert kept() == 0


@pytest.mark.parametrize("damage", [b"y", b'"', b"a longer text"])
def test_a_damaged_content_is_named_and_costs_nothing_else(
    store: Store, folder: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An entry whose large content is damaged is set aside and named with file and line; other entries are read."""
    add(store, "a", BIG, "c")
    log = log_of(folder)
    log.write_bytes(log.read_bytes().replace(b"picture", damage, 1))
    store = opened(folder)

    assert [entry.damaged for entry in drive(store.read(KEY))] == [False, True, False]
    assert "entry 2 of session 'one'" in caplog.text
    assert f"{log}, line 2" in caplog.text
    assert texts(store, before=2) == ["a"]

    erase(store, 2)
    assert drive(store.scrub()).remains == ()
    assert damage + b" of many" not in log.read_bytes()
    assert [entry.damaged for entry in drive(store.read(KEY))] == [False, False, False]


def test_the_limit_of_what_is_large_can_be_set(folder: Path) -> None:
    """A text above `large_bytes` is stored once, and a store with another limit reads it."""
    add(opened(folder, large_bytes=64), *["x" * 65] * 3, *["y" * 64] * 3)

    stored = everything(folder)
    assert (stored.count(b"x" * 65), stored.count(b"y" * 64)) == (1, 3)
    assert texts(opened(folder)) == ["x" * 65] * 3 + ["y" * 64] * 3


def test_a_scrub_removes_what_killed_writers_left(store: Store, folder: Path) -> None:
    """A scrub removes half-written logs, also of sessions that do not exist."""
    add(store, BIG)
    tenant, log = log_of(folder).parent, log_of(folder)
    (tenant / "gone-1.jsonl.new").write_bytes(b"sesame")
    Path(f"{log}.new").write_bytes(b"sesame")

    assert drive(opened(folder).scrub()).remains == ()

    assert b"sesame" not in everything(folder)
    assert files(folder, "*.jsonl*") == [log]
    assert texts(store) == [BIG]


# --- counts


def test_a_lost_entry_leaves_no_count_to_the_next_one(store: Store, folder: Path) -> None:
    """If a loss of power took an entry and its count, the entry that gets its place has no count."""
    add(store, "a")
    drive(store.count(KEY, "words", {1: 10}))
    keep = log_of(folder).stat().st_size
    add(store, "b")
    drive(store.count(KEY, "words", {2: 20}))
    os.truncate(log_of(folder), keep)

    reopened = opened(folder)
    add(reopened, "c")

    assert [entry.tokens for entry in drive(reopened.read(KEY, counter="words"))] == [10, None]
    assert drive(summed(reopened, KEY, "words")) == (1, 10)


def test_lost_counts_are_counted_again(store: Store, folder: Path) -> None:
    """A damaged line of counts costs no more than its counts, also after it was written anew."""
    add(store, "a", "b", "c")
    drive(store.count(KEY, "words", {1: 10}))
    drive(store.count(KEY, "words", {2: 20, 3: 30}))
    log = log_of(folder)
    log.write_bytes(log.read_bytes().replace(b'"20 30', b'"20 31'))
    store = opened(folder)
    assert [entry.tokens for entry in drive(store.read(KEY, counter="words"))] == [10, None, None]
    assert drive(summed(store, KEY, "words")) == (1, 10)

    erase(store, 2)
    drive(store.scrub())
    log.write_bytes(log.read_bytes().replace(b'"10', b'"11'))
    store = opened(folder)

    assert drive(summed(store, KEY, "words")) == (0, 0)
    assert [entry.text for entry in drive(store.uncounted(KEY, "words"))[1]] == ["a", "", "c"]


# --- growth


def grown(store: Store, number: int, batch: int = 50) -> None:
    """Make a session of so many entries, with a few in each line."""
    for start in range(0, number, batch):
        add(store, *(f"text {i} " + "x" * 40 for i in range(start, start + batch)))


VERBS: dict[str, Callable[[Store, int], object]] = {
    "head": lambda store, _: drive(store.head(KEY)),
    "window": lambda store, _: drive(store.read(KEY, limit=100, newest_first=True)),
    "tail": lambda store, n: drive(store.read(KEY, after=n - 100)),
    "middle": lambda store, n: drive(store.read(KEY, after=n // 2, limit=20)),
    "fetch": lambda store, n: drive(store.fetch(KEY, [n // 3, n])),
    "append": lambda store, _: add(store, "more"),
    "listing": lambda store, _: drive(store.sessions(KEY.tenant)),
    "count": lambda store, n: drive(store.count(KEY, "words", {n - 1: 3})),
    "cut": lambda store, _: drive(store.commit(KEY, Change(kind="pin", reason="r", seqs=()))),
    "records": lambda store, n: drive(store.records(KEY, after=n // 50)),
}


def bytes_read(store: Store, n: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how many bytes of its files each verb reads."""
    pread, sizes = os.pread, []

    def counting(fd: int, size: int, offset: int) -> bytes:
        data = pread(fd, size, offset)
        sizes.append(len(data))
        return data

    read = {}
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", counting)
        for name, verb in VERBS.items():
            sizes.clear()
            verb(store, n)
            read[name] = sum(sizes)
    return read


def test_no_verb_reads_more_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log of 20,000 entries each verb reads little more than in one of 1,000: the steps of a binary search."""
    short, long = quick(tmp_path / "short"), quick(tmp_path / "long")
    grown(short, 1000)
    grown(long, 20_000)

    few, many = bytes_read(short, 1000, monkeypatch), bytes_read(long, 20_000, monkeypatch)

    for name in VERBS:
        assert many[name] <= few[name] + 250_000, name
    for name in ("head", "append", "window", "listing", "cut"):
        assert many[name] <= few[name] * 1.5, name


@pytest.mark.wide
@pytest.mark.parametrize("number", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_log(folder: Path, number: int) -> None:
    """A long log is opened, read, appended to, forked, erased in, cleared and deleted with little memory.

    Beside a few lines there are 16 bytes for each entry, and copies of those for a moment.
    """
    grown(quick(folder), number)
    size = log_of(folder).stat().st_size
    assert size > number * 150

    store = quick(folder)
    tracemalloc.start()
    for verb in VERBS.values():
        verb(store, number)
    fork(store)
    erase(store, number // 2)
    drive(store.scrub())
    drive(store.commit(OTHER, Change(kind="clear", reason="r")))
    drive(store.delete(KEY))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1_500_000 + 64 * number
    assert drive(store.sessions(KEY.tenant))[0].entries == 0


def test_the_index_of_ids_reads_no_more_than_what_is_new(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first keyed append scans the log once; the next ones read its end, whoever has written meanwhile."""
    store, other = (quick(folder) for _ in range(2))
    ids = [f"given {number}" for number in range(3000)]
    drive(store.append(KEY, [Entry(id=id, content=id) for id in ids]))
    grown(store, 5000)
    assert drive(other.append(KEY, [Entry(id="given 7", content="given 7")], check_ids=True)).added == 0
    add(store, "meanwhile", id="theirs")

    pread, sizes = os.pread, []
    monkeypatch.setattr(os, "pread", lambda *how: sizes.append(how[1]) or pread(*how))
    repeated = drive(other.append(KEY, [Entry(id="theirs", content="meanwhile")], check_ids=True))
    new = drive(other.append(KEY, [Entry(id="mine", content="new")], check_ids=True))

    assert (repeated.added, new.added) == (0, 1)
    assert sum(sizes) < 300_000
    assert log_of(folder).stat().st_size > 800_000


def test_ids_are_found_in_the_log_as_it_is_now(store: Store, folder: Path) -> None:
    """After erasures and clears by another store, a known id is known, and a free one is free."""
    other, dice = opened(folder), random.Random(5)
    drive(other.append(KEY, [Entry(id=f"id {n}", content=str(n)) for n in range(40)], check_ids=True))
    for _ in range(10):
        number = dice.randrange(40)
        erase(store, number + 1)
        assert drive(other.append(KEY, [Entry(id=f"id {number}", content="?")], check_ids=True)).added == 0
        assert drive(other.append(KEY, [Entry(id="id 0", content="0")], check_ids=True)).added == 0
    drive(store.commit(KEY, Change(kind="clear", reason="asked")))

    assert drive(other.append(KEY, [Entry(id="id 0", content="new")], check_ids=True)).added == 1
    assert [entry.text for entry in drive(store.fetch(KEY, ids=["id 0", "id 1"]))] == ["new"]


def test_an_expired_entry_goes_whichever_store_wrote_it(store: Store, folder: Path, clock: FakeClock) -> None:
    """A sweep erases what has expired in a tenant, items included, whichever store has written it."""
    soon = moment(clock.now + 1_000_000)
    add(store, "sesame", "stays", expires_at=soon)
    add(store, "sesame", key=SessionKey("another", "one"), expires_at=soon)
    drive(store.put_item("third", "n", "k", b"sesame", expires=clock.now + 1_000_000))
    erase(store, 2)

    other = opened(folder)
    for tenant in ("another", "third", KEY.tenant):
        assert drive(other.sweep(tenant, clock.now + 2_000_000)) == 1
    assert drive(other.scrub()).remains == ()

    assert b"sesame" not in everything(folder)


def test_a_row_takes_little_memory() -> None:
    """A row takes 163 bytes of memory: its place, and its id once.

    Lists of keys for each id, and a dictionary of ids beside, took 272.
    """
    rows = 20_000
    tracemalloc.start()
    table = Table(fleeting=False)
    try:
        for key in range(rows):
            table.put(RowLine(key, 900, f"01a22465-fbcd-71e1-825e-{key:012x}", None), key * 1000 << WIDTH | 900)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 200 * rows


def test_an_id_finds_the_rows_that_have_it_now() -> None:
    """An id finds all rows that have it now, and none that were given another id or are gone."""
    table = Table(fleeting=False)
    for key, id in ((1, "a"), (3, "b"), (2, "a"), (4, "c"), (3, "d"), (5, ""), (4, "c")):
        table.put(RowLine(key, 9, id, None), key << WIDTH | 9)
    table.drop(4, 4)

    def found(*ids: str) -> list[int]:
        return [table.keys[i] for i in table.meant(Named("entry", ids))]

    assert [table.names[i] for i in range(len(table.keys))] == ["a", "a", "d", ""]
    assert (found("a"), found("b"), found("c"), found("d", "a")) == ([1, 2], [], [], [1, 2, 3])
    table.put(RowLine(4, 9, "c", None), 4 << WIDTH | 9)
    assert found("c") == [4]

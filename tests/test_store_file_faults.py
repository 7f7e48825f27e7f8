"""Writes to the file store that are torn, refused or killed lose nothing that was acknowledged."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from filestore import KEY, OTHER, add, erase, fork, lines_of, log_of, opened, quick, readable, texts
from palimpsest import (
    Keys,
    Memory,
    PalimpsestError,
    StoreUnavailable,
)
from palimpsest.log.change import Change
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.file import lines
from palimpsest.stores.file.lines import RowLine
from palimpsest.stores.file.table import OURS, WIDTH, Table, length_of
from processes import filled, integrity, stuff, tried
from stored_counts import summed
from writer import SESSION, turn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a test's store."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """Yield an empty store in that folder, quick because it does not wait for the disk."""
    store = quick(folder)
    yield store
    drive(store.close())


# --- torn ends


def test_a_torn_last_line_is_ignored_and_cut_off(store: Store, folder: Path) -> None:
    """A torn last line is ignored wherever it ends, and the next append takes its place."""
    add(store, "a", "b")
    drive(store.commit(KEY, Change(kind="pin", reason="r", seqs=(1,))))
    log = log_of(folder)
    whole = log.read_bytes()
    head = drive(store.head(KEY))
    add(store, "torn", "line")
    last = log.read_bytes()[len(whole) :]

    for length in range(len(last)):
        log.write_bytes(whole + last[:length])

        assert drive(store.head(KEY)) == head
        assert texts(store) == ["a", "b"]
        assert texts(store, newest_first=True) == ["b", "a"]
        assert len(drive(store.records(KEY))) == 1
        add(store, "next")
        assert texts(store) == ["a", "b", "next"]
        assert log.read_bytes().startswith(whole)
        assert len([json.loads(line)["at"] for line in lines_of(folder)[1:]]) == 3
        assert drive(store.head(KEY)).revision == 3


def test_an_unfinished_log_is_not_a_session(store: Store, folder: Path) -> None:
    """If the first write of a new log was torn, there is no session, and one can be begun."""
    add(store, "torn")
    log = log_of(folder)
    whole = log.read_bytes()
    for length in range(len(whole)):
        log.write_bytes(whole[:length])

        assert drive(store.head(KEY)) is None
        assert texts(store) == []
        assert drive(store.sessions(KEY.tenant)) == []
        add(store, "first")
        assert texts(store) == ["first"]
        assert drive(store.head(KEY)).revision == 1


@pytest.mark.parametrize("ends", ["sweep", "vacuum"])
def test_a_torn_end_of_a_log_is_swept(folder: Path, ends: str) -> None:
    """A sweep or a vacuum removes what a killed writer left of an unacknowledged line."""
    store = quick(folder)
    add(store, "kept")
    log = log_of(folder)
    whole = log.read_bytes()
    add(store, "zanzibar" * 100)
    torn = log.read_bytes()[:-20]
    drive(store.close())
    for left in (torn, torn[: len(whole) + 9], whole + bytes(512), torn[: len(whole) // 2]):
        log.write_bytes(left)
        with Memory.open(f"file:{folder}", tenant=KEY.tenant) as memory:
            memory.sweep() if ends == "sweep" else memory.vacuum()
            entries = memory.session(KEY.session).entries()
        assert [entry.text for entry in entries] == (["kept"] if len(left) > len(whole) else [])
        lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
        assert all(line.endswith(b"\n") and b"\0" not in line and b"zanzi" not in line for line in lines)


def test_a_write_in_progress_is_not_swept(folder: Path) -> None:
    """A sweep waits for a writer whose line is half written, and removes nothing of that line."""
    with Memory.open(f"file:{folder}") as memory, Memory.open(f"file:{folder}") as other:
        session = memory.session("s")
        session.add_user_message("one")
        (log,) = folder.rglob("*.jsonl")
        session.add_user_message("two")
        whole = log.read_bytes()
        log.write_bytes(whole[:-20])
        assert len(other.session("s").entries()) == 1
        log.write_bytes(whole)
        other.sweep()
        assert [entry.text for entry in other.session("s").entries()] == ["one", "two"]
        assert log.read_bytes() == whole


@pytest.mark.parametrize("number", [1, 2])
def test_zeros_at_the_end_of_a_log_cost_nothing_else(folder: Path, number: int) -> None:
    """Zeros that a loss of power left at the end of a log hide no earlier entry and no later append."""
    store = quick(folder)
    for text in ("one", "two"):
        add(store, text)
    before = log_of(folder).stat().st_size
    for text in ("three", "four")[:number]:
        add(store, text)
    whole = log_of(folder).read_bytes()

    for at in (*range(before, len(whole) - 40, 11), *range(len(whole) - 40, len(whole))):
        log_of(folder).write_bytes(whole[:at] + b"\0" * (len(whole) - at))
        read, write = quick(folder), quick(folder)
        remaining = texts(read)
        assert remaining[:2] == ["one", "two"]
        add(write, "new")
        assert texts(read) == texts(write) == texts(quick(folder)) == [*remaining, "new"]
    assert remaining[2:] == ["three", "four"][:number]


@pytest.mark.parametrize("last", [b"\0", b"\x0b", b"\r"])
def test_a_changed_last_line_break_loses_nothing(folder: Path, last: bytes) -> None:
    """If the last byte of a log is changed, its last line is read as it is, and appends begin a line of their own."""
    store = quick(folder)
    for text in ("one", "two"):
        add(store, text)
    log_of(folder).write_bytes(log_of(folder).read_bytes()[:-1] + last)

    for read in (store, quick(folder), quick(folder)):
        assert texts(read) == ["one", "two"]
    add(store, "three")
    add(quick(folder), "four")

    assert texts(store) == texts(quick(folder)) == ["one", "two", "three", "four"]
    assert last not in log_of(folder).read_bytes()


def test_zeros_inside_the_last_line_are_a_torn_end(store: Store, folder: Path) -> None:
    """Zeros inside the last line are a torn end; zeros further up are damage."""
    add(store, "a")
    keep = log_of(folder).stat().st_size
    add(store, "b" * 2000)
    log = log_of(folder)
    whole = log.read_bytes()
    for begin, end in ((keep, keep + 512), (keep + 700, keep + 1212), (keep + 900, len(whole)), (keep, len(whole) - 1)):
        log.write_bytes(whole[:begin] + bytes(end - begin) + whole[end:])
        after = quick(folder)  # another store, like a process after the writer was killed

        assert texts(after) == ["a"]
        add(after, "c")
        assert texts(after) == texts(store) == ["a", "c"]

    log.write_bytes(whole)
    add(quick(folder), "c")
    log.write_bytes(whole[: keep + 700] + bytes(512) + log.read_bytes()[keep + 1212 :])
    assert [entry.damaged for entry in drive(quick(folder).read(KEY))] == [False, True, False]


def test_a_log_cut_anywhere_holds_whole_commits(store: Store, folder: Path, dice: random.Random) -> None:
    """A log that is cut off at any byte holds the commits before it, each whole, and takes new ones."""
    expected = [[]]
    for number in range(12):
        add(store, *(f"{number}.{i} ☂" for i in range(number % 4 + 1)))
        expected.append(texts(store))
    whole = log_of(folder).read_bytes()
    for cut in (0, 1, *(dice.randrange(len(whole)) for _ in range(60))):
        log_of(folder).write_bytes(whole[:cut])

        remaining = texts(store)
        assert remaining in expected
        assert texts(quick(folder)) == remaining
        add(quick(folder), "next")
        assert texts(store) == texts(quick(folder)) == [*remaining, "next"]


# --- a write that fails


def test_an_erasure_that_fails_leaves_all_branches_as_they_were(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure that fails leaves all branches as they were.

    If only its bytes cannot be removed, `scrub` says so, and the next scrub removes them.
    """
    store = opened(folder)
    add(store, "sesame", "b")
    for name in ("second", "third"):
        fork(store, into=name)
    head = drive(store.head(KEY))

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            erase(store, 1)
    assert drive(store.head(KEY)) == head
    for name in (KEY.session, "second", "third"):
        assert texts(store, KEY._replace(session=name)) == ["sesame", "b"]

    erase(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        (remainder,) = drive(store.scrub()).remains
    assert str(log_of(folder)) in remainder
    assert drive(store.scrub()).remains == ()

    for name in (KEY.session, "second", "third"):
        assert texts(store, KEY._replace(session=name)) == ["", "b"]
    assert b"sesame" not in b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_failed_fork_leaves_its_id_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork that failed, a session that takes its id has neither counts nor erasures of the other session."""
    store = opened(folder)
    add(store, "a", "b")
    drive(store.count(KEY, "words", {1: 5, 2: 6}))

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(StoreUnavailable):
            fork(store)
    assert [info.session for info in drive(store.sessions("tenant"))] == [KEY.session]

    add(store, "mine", "too", key=OTHER)
    assert drive(summed(store, OTHER, "words")) == (0, 0)
    erase(store, 1)
    assert texts(store, OTHER) == ["mine", "too"]


def test_an_append_that_cannot_reach_the_disk_is_taken_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk does not confirm a write, it raises StoreUnavailable with the file's name and stores nothing."""
    store = opened(folder, large_bytes=64)
    add(store, "a")
    before = log_of(folder).read_bytes()

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        for attempt in (
            lambda: add(store, "b"),
            lambda: add(store, "large " * 50),
            lambda: add(store, "b", key=OTHER),
            lambda: erase(store, 1),
        ):
            with pytest.raises(StoreUnavailable, match=r"Input/output error: .*(one|other)-"):
                attempt()

    assert log_of(folder).read_bytes() == before
    assert not log_of(folder, OTHER).exists()
    add(store, "c")
    assert texts(store) == texts(quick(folder)) == ["a", "c"]


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="this system has no fdatasync")
def test_an_acknowledged_append_is_on_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default an append waits for the disk once, and for the folder of a new log.

    Counts, and a store with `NORMAL`, do not wait.
    """
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append("file"))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append("folder"))
    full = opened(folder)
    normal = quick(folder)
    synced.clear()

    add(full, "a")
    assert synced[-2:] == ["file", "folder"]
    synced.clear()
    add(full, "b")
    assert synced == ["file"]
    drive(full.count(KEY, "words", {1: 1}))
    add(normal, "c")
    assert synced == ["file"]


def test_a_full_disk_refuses_a_write_and_loses_nothing(small_disk: Path) -> None:
    """On a full disk `add` raises StoreUnavailable and stores nothing; with room again the open session goes on."""
    address = f"file://{small_disk}/logs"
    with Memory.open(address) as memory:
        session = memory.session(SESSION)
        session.add(turn("before"))
        ballast = stuff(small_disk)

        for messages in ([{"role": "user", "content": "x" * 4000}] * 300, [{"role": "user", "content": "y" * 100_000}]):
            with pytest.raises(StoreUnavailable, match=r"full.*nothing was written; make room and try again"):
                session.add(messages)
        with contextlib.suppress(StoreUnavailable):
            while True:  # until the last block of the log has no room for a line
                session.add([{"role": "user", "content": "z"}])
        before = session.entries()
        for write in (lambda: session.erase([before[0].id]), session.clear, session.fork):
            with pytest.raises(StoreUnavailable, match="full"):
                write()

        assert session.entries() == before
        assert integrity(address) == "ok"
        assert [info.session for info in memory.sessions()] == [SESSION]
        assert not list((small_disk / "logs").rglob("*.new"))
        ballast.unlink()
        session.add(turn("after"))
        session.erase([before[0].id])
        with Memory.open(address, readonly=True) as other:
            assert len(other.session(SESSION).entries()) == len(before) + 6


def test_a_full_disk_stops_no_context(small_disk: Path) -> None:
    """On a full disk a context that is due for a cut is still returned, with a note that the cut was not stored."""
    with Memory.open(f"file://{small_disk}/logs") as memory:
        session = memory.session(SESSION, max_tokens=200)
        for number in range(30):
            session.add(turn(str(number)))
        stuff(small_disk)
        with contextlib.suppress(StoreUnavailable):
            while True:  # until the last block of the log has no room for a line
                session.add([{"role": "user", "content": "z"}])

        context = session.context()

        assert context.tokens <= 200
        assert context.epoch is None
        assert "not stored" in context.report.notes[-1]


@pytest.mark.parametrize("keys", [None, Keys({"a": Keys.new()})], ids=["plain", "sealed"])
@pytest.mark.parametrize("text", ["x" * 9000, "\x01" * 1500], ids=["long", "escaped"])
def test_a_value_too_long_for_the_index_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, keys: Keys | None
) -> None:
    """A value that is too long for the index of a log is refused and not stored; others are stored beside it."""
    monkeypatch.setattr(lines, "LONGEST", 8192)
    with Memory.open(f"file://{folder}", encryption=keys) as memory:
        session = memory.session("s")
        session.add_user_message("before")
        for where in ("s", "new"):
            with pytest.raises(StoreUnavailable, match="longer than 8,192") as refused:
                memory.session(where).add_user_message(text)
            assert refused.value.written is False
        session.add_user_message("after")
        assert [info.session for info in memory.sessions()] == ["s"]
        assert not list(folder.rglob("new-*.jsonl"))
    with Memory.open(f"file://{folder}", encryption=keys) as memory:
        assert [(entry.text, entry.damaged) for entry in memory.session("s").entries()] == [
            ("before", False),
            ("after", False),
        ]


def test_a_log_too_long_for_its_index_takes_no_more(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that would make a log longer than its index can address is refused, and what is there stays."""
    add(store, "there")
    monkeypatch.setattr(lines, "FARTHEST", log_of(folder).stat().st_size + 1000)

    with pytest.raises(StoreUnavailable, match="would be longer"):
        add(store, "x" * 1000)

    assert texts(store) == ["there"]


def test_a_table_addresses_the_longest_value_at_the_farthest_place() -> None:
    """A table keeps the longest value of a log at the last byte of the longest log."""
    table, spot = Table(fleeting=False), lines.FARTHEST << WIDTH | lines.LONGEST | OURS
    table.put(RowLine(1, -lines.LONGEST), spot)

    assert length_of(table.spots[0]) == lines.LONGEST
    assert table.spots[0] >> WIDTH == lines.FARTHEST
    assert table.drop(1, 1) == lines.LONGEST


@pytest.mark.parametrize("how", ["log", "folder"])
def test_a_store_without_write_permission_says_so(shelf: Path, how: str) -> None:
    """A log or a folder without permission to write is read, and a write raises StoreUnavailable that says so."""
    address = f"file://{shelf}/logs"
    expected = filled(address)
    readable(shelf / "logs")
    (log,) = shelf.rglob("*.jsonl")
    before = log.read_bytes()
    for path in (log, *shelf.rglob("*")) if how == "folder" else (log,):
        path.chmod(0o555 if path.is_dir() else 0o444)

    outcome = tried(address, "writable")

    assert "written" not in outcome
    assert outcome["read"] == expected
    assert outcome["error"] == "StoreUnavailable"
    assert str(log) in outcome["text"]
    assert "permissions" in outcome["text"]
    assert log.read_bytes() == before


def test_a_store_with_read_permission_alone_opens_readonly(shelf: Path) -> None:
    """A folder with read permission alone opens with `readonly=True`; where nothing may be made, opening raises."""
    expected = filled(f"file://{shelf}/logs")
    readable(shelf / "logs")
    shelf.chmod(0o555)

    assert tried(f"file://{shelf}/logs", "readonly")["read"] == expected
    outcome = tried(f"file://{shelf}/inner/logs", "writable")
    assert outcome["error"] == "StoreUnavailable"
    assert "ermission" in outcome["text"]


def test_the_next_write_removes_what_a_killed_erasure_left(store: Store, folder: Path) -> None:
    """A half-written file beside a log is never read, and a store's first write to the session removes it."""
    add(store, "a")
    store = quick(folder)
    left = Path(f"{log_of(folder)}.new")
    left.write_bytes(b"half of a")

    assert texts(quick(folder)) == ["a"]
    add(store, "b")

    assert not left.exists()
    assert texts(store) == ["a", "b"]


def test_system_errors_become_errors_of_the_library(store: Store, folder: Path) -> None:
    """A folder in the place of a log raises StoreUnavailable with its name."""
    add(store, "a")
    log_of(folder).unlink()
    log_of(folder).mkdir()

    for attempt in (lambda: drive(store.head(KEY)), lambda: add(store, "b"), lambda: drive(store.delete(KEY))):
        with pytest.raises(PalimpsestError, match="one-") as caught:
            attempt()
        assert isinstance(caught.value, StoreUnavailable)

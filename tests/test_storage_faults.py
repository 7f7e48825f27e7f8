"""Full disks, read-only places, and damaged or foreign files."""

from __future__ import annotations

import contextlib
import os
import random
import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory, PalimpsestError, StoreUnavailable
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.stores.sqlite.layout import APPLICATION_ID, FIRST
from processes import filled, integrity, run, stuff, tried
from sqlitestore import connection, of
from writer import SESSION, quarters, turn

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits and users")

DISKS = {"sqlite": "sqlite:///{}/log.db", "file": "file://{}/logs"}
"""The address of a store of each kind on a disk, in a folder."""


# --- a full disk


def test_a_full_disk_refuses_a_write_and_loses_nothing(small_disk: Path) -> None:
    """On a full disk an add raises StoreUnavailable and stores nothing; earlier entries can be read."""
    path = small_disk / "log.db"
    with Memory.open(path) as memory:
        session = memory.session(SESSION)
        session.add(turn("before"))
        before = session.entries()
        stuff(small_disk)

        with pytest.raises(StoreUnavailable, match=r"full.*nothing was written; make room and try again"):
            session.add([{"role": "user", "content": "x" * 4000}] * 300)

        assert session.entries() == before
        assert integrity(path) == "ok"


def test_a_full_disk_stops_no_context(small_disk: Path) -> None:
    """On a full disk a context that needs a cut is returned, with a note of what was not stored."""
    with Memory.open(small_disk / "log.db") as memory:
        session = memory.session(SESSION, max_tokens=200)
        for number in range(30):
            session.add(turn(str(number)))
        revision = session.stats().revision
        connection(memory).execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that no room is left in the journal
        stuff(small_disk)

        context = session.context()

        assert context.tokens <= 200
        assert context.epoch is None
        assert "the cut was not stored" in context.report.notes[-1]
        assert session.stats().revision == revision


def test_a_write_works_once_there_is_room_again(small_disk: Path) -> None:
    """Once there is room, the same open session can write again."""
    path = small_disk / "log.db"
    with Memory.open(path) as memory:
        session = memory.session(SESSION)
        ballast = stuff(small_disk)
        with pytest.raises(StoreUnavailable):
            session.add([{"role": "user", "content": "x" * 4000}] * 300)

        ballast.unlink()
        session.add(turn("after"))

        with Memory.open(path, readonly=True) as other:
            assert len(other.session(SESSION).entries()) == 6
    assert integrity(path) == "ok"


@pytest.mark.parametrize("kind", DISKS)
def test_a_full_disk_refuses_a_new_store(small_disk: Path, kind: str) -> None:
    """A new store on a full disk acknowledges nothing, and opens once there is room."""
    where, ballast = DISKS[kind].format(small_disk), stuff(small_disk)

    with pytest.raises(StoreUnavailable), Memory.open(where) as memory:
        memory.session(SESSION).add(turn("one"))

    ballast.unlink()
    with Memory.open(where) as memory:
        memory.session(SESSION).add(turn("after"))
        assert memory.session(SESSION).stats().total_entries == 6


@posix
@pytest.mark.parametrize("kind", DISKS)
def test_a_file_that_may_not_grow_refuses_a_write_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    """A limit of the file's size raises StoreUnavailable; without it writing works again."""
    where = DISKS[kind].format(tmp_path)
    error, intact = run("limited", where)

    assert error[0] == "StoreUnavailable"
    assert "disk" in error[1]
    assert intact is True
    assert integrity(where) == "ok"


# --- where nothing may be written


@posix
@pytest.mark.parametrize("how", ["file", "folder"])
def test_a_file_without_write_permission_is_refused_with_the_reason(shelf: Path, how: str) -> None:
    """A file or a folder without permission to write gives StoreUnavailable that says so; the content stays."""
    path = shelf / "log.db"
    filled(path)
    path.chmod(0o444)
    if how == "folder":
        shelf.chmod(0o555)
    before = path.read_bytes()

    outcome = tried(path, "writable")

    assert "written" not in outcome
    assert outcome["error"] == "StoreUnavailable"
    assert str(path) in outcome["text"]
    assert any(word in outcome["text"] for word in ("cannot be written", "permissions"))
    assert path.read_bytes() == before


@posix
def test_a_new_file_in_a_folder_that_may_not_be_written_is_refused(shelf: Path) -> None:
    """Opening a new store where nothing may be created gives StoreUnavailable that names the path."""
    shelf.chmod(0o555)

    outcome = tried(shelf / "inner" / "log.db", "writable")

    assert outcome["error"] == "StoreUnavailable"
    assert "ermission" in outcome["text"]


def test_a_readonly_memory_reads_and_refuses_to_write(tmp_path: Path) -> None:
    """A read-only memory reads everything and refuses each write with the reason."""
    path = tmp_path / "log.db"
    texts = filled(path)
    before = path.read_bytes()

    with Memory.open(path, readonly=True) as memory:
        session = memory.session(SESSION)
        first = session.entries()[0]
        assert [entry.text for entry in session.entries()] == texts
        for write in (
            lambda: session.add_user_message("no"),
            lambda: session.add(turn("no"), key="key"),
            lambda: session.pin(first.id),
            lambda: session.erase([first.id]),
            session.clear,
            lambda: session.record_usage(input_tokens=1),
            lambda: memory.delete_session(SESSION),
            memory.sweep,
            lambda: memory.import_session(session.export(), session_id="copy"),
        ):
            with pytest.raises(StoreUnavailable, match=r"read-?only|cannot be written"):
                write()
        assert [entry.text for entry in session.entries()] == texts

    assert path.read_bytes() == before


def test_a_readonly_memory_computes_contexts_and_stores_no_cut(tmp_path: Path) -> None:
    """A cut that is due is made for the caller and not stored, with that reason; no count is written back."""
    path = tmp_path / "log.db"
    filled(path, turns=40)
    before = path.read_bytes()

    with Memory.open(path, readonly=True) as memory:
        session = memory.session(SESSION, max_tokens=600, counter=quarters)
        given = session.context()
        stats = session.stats()

        assert given.tokens <= 600
        assert given.epoch is None
        assert "read-only" in given.report.notes
        assert session.context().messages == given.messages
        assert stats.epoch == 0
        assert {record.kind for record in session.history()} == {"add"}

    assert path.read_bytes() == before


def test_readonly_creates_no_store(tmp_path: Path) -> None:
    """`readonly=True` raises StoreUnavailable for a missing file and makes none."""
    with pytest.raises(StoreUnavailable):
        Memory.open(tmp_path / "none" / "log.db", readonly=True)

    assert list(tmp_path.iterdir()) == []


# --- files that are not what they should be


def text_file(path: Path) -> None:
    path.write_bytes(b"Dear diary, this is no database at all.\n" * 100)


def other_program(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE photo(name TEXT)")


def other_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=1")


def other_owner(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA application_id=1234")


def cut_short(path: Path) -> None:
    filled(path, turns=40)
    os.truncate(path, path.stat().st_size // 2)


def beheaded(path: Path) -> None:
    filled(path)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (text_file, "not a Palimpsest store"),
        (other_program, "another program"),
        (other_version, "another program"),
        (other_owner, "another program"),
        (cut_short, "damaged"),
        (beheaded, "not a Palimpsest store"),
    ],
)
@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], says: str, readonly: bool
) -> None:
    """A file that is no store raises StoreCorrupt, says what it is, and stays unchanged."""
    path = tmp_path / "log.db"
    make(path)
    before = path.read_bytes()

    with pytest.raises(StoreCorrupt, match=says) as caught:
        Memory.open(path, readonly=readonly)

    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    if not readonly:  # SQLite itself leaves an empty journal where it may only read
        assert [file.name for file in tmp_path.iterdir()] == ["log.db"]


@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_store_is_refused_by_its_number(tmp_path: Path, readonly: bool) -> None:
    """A store of a newer schema raises StoreTooNew with both numbers, and no byte of it changes."""
    path = tmp_path / "log.db"
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=999")
    before = path.read_bytes()

    with pytest.raises(StoreTooNew, match=r"999.*upgrade") as caught:
        Memory.open(path, readonly=readonly)

    assert caught.value.found == 999
    assert caught.value.known < 999
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM entry WHERE pos = (1 << 32) + 2", "'broken' are missing"),
        ("UPDATE place SET hot = substr(hot, 1, 20) WHERE name = 'broken'", "session 'broken'"),
        ("UPDATE place SET hot = x'00ff' WHERE name = 'broken'", "session 'broken'"),
        ("UPDATE cold SET body = substr(body, 1, 20) WHERE place = 1", "session 'broken'"),
        ("DELETE FROM cold WHERE place = 1", "session 'broken'"),
        ("DELETE FROM part WHERE number = 1", "'broken' are missing"),
    ],
)
def test_a_damaged_session_is_named_and_others_can_be_read(tmp_path: Path, statement: str, says: str) -> None:
    """Damage inside one session raises StoreCorrupt that names it; the other sessions are as before."""
    path = tmp_path / "log.db"
    filled(path, sessions=("broken", "sound"))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()

    with Memory.open(path) as memory:
        with pytest.raises(StoreCorrupt, match=says):
            memory.session("broken").context()
        with pytest.raises(StoreCorrupt):
            memory.session("broken").export()
        assert len(memory.session("sound").context().messages) == 15
        memory.session("sound").add(turn("more"))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    """A record that cannot be read raises StoreCorrupt; the entries can still be read."""
    path = tmp_path / "log.db"
    texts = filled(path)
    with Memory.open(path) as memory:
        memory.session(SESSION).pin(1)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE other SET value = x'7b7b' WHERE {of('record')}")
        db.commit()

    with Memory.open(path) as memory:
        with pytest.raises(StoreCorrupt, match="record"):
            memory.session(SESSION).history()
        assert [entry.text for entry in memory.session(SESSION).entries()] == texts


def test_a_row_with_a_changed_number_is_reported(tmp_path: Path) -> None:
    """SQLite gives rows as they lie in the table: one whose number was changed there is not taken for another."""
    path = tmp_path / "log.db"
    filled(path)
    number = (1 << 32 | 5).to_bytes(5)  # as SQLite writes it: seven bits a byte
    spelled = bytes([0x80 | (int.from_bytes(number) >> shift) & 0x7F for shift in (28, 21, 14, 7)] + [5])
    page = path.read_bytes()
    assert page.count(spelled + b"\x06") >= 1

    path.write_bytes(page.replace(spelled + b"\x06", spelled[:-1] + b"\x02\x06"))

    with Memory.open(path) as memory, pytest.raises(StoreCorrupt, match="not in its place, but has the number 2"):
        memory.session(SESSION).entries()


def test_a_session_missing_from_a_damaged_index_is_reported(tmp_path: Path) -> None:
    """A session that SQLite's damaged index does not lead to is reported as damaged, not as missing."""
    path = tmp_path / "log.db"
    filled(path, sessions=("one", "two"))
    page = path.read_bytes()
    assert page.count(b"defaultsessiononeone") == 1

    path.write_bytes(page.replace(b"defaultsessiononeone", b"defaultsessiononeond"))

    with Memory.open(path) as memory:
        session = memory.session("one")
        for verb in (session.entries, session.context, lambda: session.add_user_message("new"), session.fork):
            with pytest.raises(StoreCorrupt, match="the index lacks session/one"):
                verb()
        assert len(memory.session("two").entries()) == 18


def test_records_missing_from_a_damaged_index_are_reported(tmp_path: Path) -> None:
    """Records that a damaged index does not lead to are reported as damaged."""
    path = tmp_path / "log.db"
    filled(path)
    with Memory.open(path) as memory:
        memory.session(SESSION).pin(1)
        done = memory.session(SESSION).history()
    with contextlib.closing(sqlite3.connect(path)) as db:
        (high,) = db.execute("SELECT high FROM part WHERE name = 'record'").fetchone()
    page = path.read_bytes()
    size = next(size for size in (1, 2, 3, 4) if high < 1 << 8 * size - 1)  # SQLite takes no more bytes than it needs
    key = b"record" + high.to_bytes(size)  # as it stands in the table and in its index, which has it first
    assert page.count(key) == 2
    refused: list[str] = []

    for found in re.finditer(re.escape(key), page):
        changed = bytearray(page)
        changed[found.start()] ^= 1
        path.write_bytes(changed)

        with Memory.open(path) as memory:
            try:
                assert memory.session(SESSION).history() == done
            except StoreCorrupt as fault:
                refused.append(fault.reason)
    assert ["the index lacks rows of record" in reason for reason in refused] == [True]


@pytest.mark.parametrize("flips", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path: Path, flips: int) -> None:
    """After a flipped bit anywhere in the file, reads raise an error of the library or return what was written."""
    path, sound = tmp_path / "log.db", tmp_path / "sound.db"
    filled(sound, turns=8, sessions=("one", "two"))
    with Memory.open(sound) as memory:
        written = seen(memory)
    original, dice, refused = sound.read_bytes(), random.Random(7), 0
    used = [place for place, byte in enumerate(original) if byte]  # most of the file is empty pages
    for i in range(flips):
        damaged = bytearray(original)
        damaged[dice.choice(used) if i % 2 else dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)

        try:
            with Memory.open(path) as memory:
                read = seen(memory)
        except PalimpsestError:
            refused += 1
        else:
            assert all(map(is_as_written, read, written))
        for rest in tmp_path.glob("log.db*"):
            rest.unlink()
    assert refused


def seen(memory: Memory) -> list:
    """Return all that can be read of two sessions, the listing last."""
    sessions = [memory.session(name) for name in ("one", "two")]
    found = [(one.entries(), one.context(dry_run=True).messages, one.history()) for one in sessions]
    return [(info.session, info.entries, *one) for info, one in zip(memory.sessions(), found, strict=True)]


def is_as_written(read: tuple[Any, ...], written: tuple[Any, ...]) -> bool:
    """Whether a session is as it was, apart from entries reported as damaged."""
    aside = {entry.seq for entry in read[2] if entry.damaged}
    sound = [[entry for entry in one[2] if entry.seq not in aside] for one in (read, written)]
    return sound[0] == sound[1] and len(read[2]) == len(written[2]) and (bool(aside) or read == written)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET value = CAST(replace(CAST(value AS TEXT), 'stion', 'Stion') AS BLOB) WHERE pos & 255 = 1",
        "UPDATE entry SET value = CAST('{' || substr(value, 3) AS BLOB) WHERE pos = (1 << 32) + 1",
        "UPDATE entry SET value = CAST(x'ff' || substr(value, 2) AS BLOB) WHERE pos = (1 << 32) + 1",
        "UPDATE entry SET value = CAST(value || x'ff' AS TEXT) WHERE pos = (1 << 32) + 1",
        "UPDATE entry SET value = x'' WHERE pos = (1 << 32) + 1",
        "UPDATE entry SET value = 7 WHERE pos = (1 << 32) + 1",
        "UPDATE entry SET id = zeroblob(16) WHERE pos = (1 << 32) + 1",
        "UPDATE entry SET id = CAST(x'ff' AS TEXT) WHERE pos = (1 << 32) + 1",
        "UPDATE entry SET id = 'text' WHERE pos = (1 << 32) + 1",
    ],
)
def test_an_entry_whose_row_was_changed_is_set_aside(tmp_path: Path, statement: str) -> None:
    """An entry whose row was changed is set aside without its text; `repair` removes it."""
    path = tmp_path / "log.db"
    texts = filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute(statement).rowcount == 1
        db.commit()

    with Memory.open(path) as memory:
        session = memory.session(SESSION)

        assert [entry.text for entry in session.entries()] == ["", *texts[1:]]
        assert [entry.seq for entry in session.entries() if entry.damaged] == [1]
        assert session.repair().entries == 1
        assert session.verify().ok
        assert session.context().messages


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET pos = pos + 100 WHERE pos = (1 << 32) + 3",
        "DELETE FROM entry WHERE pos = (1 << 32) + 3",
        "UPDATE place SET hot = CAST(replace(CAST(hot AS TEXT), ',3,', ',2,') AS BLOB) WHERE hot IS NOT NULL",
        "UPDATE cold SET body = CAST(replace(CAST(body AS TEXT), '\"created\":1', '\"created\":2') AS BLOB)",
    ],
)
def test_a_changed_but_readable_row_is_reported_as_damage(tmp_path: Path, statement: str) -> None:
    """A row that still can be read, but not as it was written, is StoreCorrupt all the same."""
    path = tmp_path / "log.db"
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute(statement).rowcount
        db.commit()

    with Memory.open(path) as memory, pytest.raises(StoreCorrupt, match=r"checksum|missing|out of date"):
        memory.session(SESSION).context()


@pytest.mark.parametrize("version", range(1, FIRST))
@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_of_an_earlier_layout_is_refused_by_its_number(tmp_path: Path, version: int, readonly: bool) -> None:
    """A store of an unsupported version raises StoreCorrupt with the version and the way across, and stays
    unchanged."""
    path = tmp_path / "log.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE session(number INTEGER PRIMARY KEY, tenant TEXT, id TEXT, head TEXT)")
        db.execute("INSERT INTO session VALUES(1, 'default', 'old', '{}')")
        db.execute(f"PRAGMA user_version={version}")
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.commit()
    before = path.read_bytes()

    with pytest.raises(StoreCorrupt, match=rf"schema version {version}.*Export.*import") as caught:
        Memory.open(path, readonly=readonly)

    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["log.db"]

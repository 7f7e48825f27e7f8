"""Killed processes, lost, damaged or locked index files, full disks: entries are found, and adding goes on."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import postgresstore
from indexer import SCRIPT
from palimpsest import Memory, PalimpsestError, StoreUnavailable
from palimpsest.errors import ForkedProcess
from palimpsest.recall.follower import BLOCKED
from palimpsest.runtime.runner import drive
from palimpsest.testing import FakeClock
from processes import Process, stuff
from proxy import network
from recall_helpers import companion, finds, index_bytes, marks, place_of, traces
from servers import with_options
from test_recall_races import recall_of

KINDS = ("sqlite", "file")
EACH = pytest.mark.parametrize("kind", KINDS)


def filled(place: str, words: list[str], sessions: int = 1) -> None:
    with Memory.open(place, synchronous="NORMAL") as memory:
        for number, word in enumerate(words):
            name = "one" if sessions == 1 else f"s{number % sessions}"
            memory.session(name).add_user_message(f"said {word}")


# --- killed


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("file", marks=pytest.mark.wide)])
@pytest.mark.parametrize("pages", [0, 1, 3])
def test_a_kill_during_indexing_loses_no_hits(tmp_path: Path, kind: str, pages: int) -> None:
    """After a kill during indexing, the next search continues and finds everything."""
    words, place = marks("killed", 120), place_of(kind, tmp_path)
    filled(place, words)
    with Process("index", place, script=SCRIPT) as indexing:
        for _ in range(pages):
            assert indexing.hear()[0] == "page"
        indexing.kill()
    with Memory.open(place) as memory:
        assert [word for word in words if not finds(memory, word)] == []
        assert drive(recall_of(memory).index.size()).entries == len(words)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("file", marks=pytest.mark.wide)])
@pytest.mark.parametrize("sessions", [1, 4])
def test_a_kill_during_a_rebuild_loses_and_doubles_no_hits(tmp_path: Path, kind: str, sessions: int) -> None:
    """After a kill during a rebuild, everything is found, once."""
    words, place = marks("anew", 60), place_of(kind, tmp_path)
    filled(place, words, 6)
    with Process("rebuild", place, script=SCRIPT) as rebuilding:
        for _ in range(sessions + 6):
            rebuilding.hear()
        rebuilding.kill()
    with Memory.open(place) as memory:
        assert [word for word in words if not finds(memory, word)] == []
        assert drive(recall_of(memory).index.size()).entries == len(words)


@pytest.mark.sampled
@EACH
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_killed_erasure_is_undone_or_completed(tmp_path: Path, kind: str, where: str) -> None:
    """Entries whose erasure was killed before its commit are found again after a while; later, they never are.

    Nothing stays blocked in either case.
    """
    words, place = marks(where, 5), place_of(kind, tmp_path)
    filled(place, words)
    with Memory.open(place) as memory:
        assert finds(memory, words[1])
    with Process("erase_until", place, where, "2,4", script=SCRIPT) as erasing:
        assert erasing.hear() == "now"
        erasing.kill()
    clock = FakeClock(time.time_ns() // 1000)
    with Memory.open(place, clock=clock) as memory:
        at_once = [finds(memory, word) for word in words]
        clock.advance(BLOCKED / 1e6 + 1)
        later = [finds(memory, word) for word in words]
        memory.session("one").add_user_message("albatross")
        assert finds(memory, "albatross")
        blocked = drive(recall_of(memory).index.blocked(clock() + 10**12))
    assert at_once == [True, False, True, False, True]
    assert later == ([True] * 5 if where == "before" else at_once)
    assert blocked == {}
    if where == "after":
        assert traces(words, index_bytes(kind, tmp_path)) == [words[0], words[2], words[4]]


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(4))
def test_searches_match_the_log_after_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    """After kills of a searching and an erasing process, exactly what the log holds is found."""
    place = place_of("sqlite", tmp_path)
    with Memory.open(place) as memory:
        memory.session("one").add_user_message("begun")
    for number in range(4):
        with (
            Process("search", place, seed, script=SCRIPT) as one,
            Process("erase", place, seed * 10 + number, script=SCRIPT) as two,
        ):
            assert one.hear() == two.hear() == "ready"
            one.tell()
            two.tell()
            with Memory.open(place) as memory:
                for _ in range(number * 3 + 1):
                    memory.session("mine").add_user_message("pelican")
            two.kill()
            one.kill()
    with Memory.open(place, clock=later()) as memory:
        said = {
            entry.text.split()[-1]
            for info in memory.sessions()
            for entry in memory.session(info.session).entries()
            if not entry.erased
        }
        assert [word for word in said if not finds(memory, word)] == []
        assert drive(recall_of(memory).index.blocked(10**18)) == {}
        size = drive(recall_of(memory).index.size())
        assert size.entries == sum(info.entries for info in memory.sessions())


def later() -> Any:
    """Return a clock by which killed processes count as dead."""
    return lambda: time.time_ns() // 1000 + BLOCKED + 5_000_000


# --- the file


def delete(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)


DAMAGE: dict[str, Any] = {
    "deleted": delete,
    "deleted without its log": lambda path: path.unlink(),
    "without its log": lambda path: path.with_name(f"{path.name}-wal").unlink(missing_ok=True),
    "emptied": lambda path: os.truncate(path, 0),
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut to its beginning": lambda path: os.truncate(path, 50),
    "garbage": lambda path: path.write_bytes(b"no database " * 5000),
    "garbage behind its beginning": lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 30_000),
    "another format": lambda path: run(path, "UPDATE meta SET value = 999"),
    "without its tables": lambda path: run(path, "DROP TABLE entry_1"),
    "without its words": lambda path: run(path, "DROP TABLE words_1"),
    "without a number": lambda path: run(path, "DELETE FROM tenant"),
    "a kind that is none": lambda path: run(path, "UPDATE entry_1 SET kind = 99"),
    "a time that is text": lambda path: run(path, "UPDATE entry_1 SET at = 'soon'"),
    "a length that is bytes": lambda path: run(path, "UPDATE entry_1 SET chars = x'00ff'"),
    "a record that is none": lambda path: run(path, "UPDATE session_1 SET cursor = '[}'"),
    "a record that is a number": lambda path: run(path, "UPDATE session_1 SET cursor = 3"),
    "a count that is text": lambda path: run(path, "UPDATE tenant SET parts = 'x'"),
}


def run(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()


@pytest.mark.sampled
@EACH
@pytest.mark.parametrize("while_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_index_is_rebuilt(tmp_path: Path, kind: str, how: str, while_open: bool) -> None:
    """A damaged index file, even an open one, is made again: searches, erasures and adds succeed."""
    words, place = marks("damage", 30), place_of(kind, tmp_path)
    filled(place, words, 3)
    path = companion(kind, tmp_path)
    memory = Memory.open(place)
    assert finds(memory, words[0])
    if not while_open:
        memory.close()
    DAMAGE[how](path)
    if not while_open:
        memory = Memory.open(place)
    with memory:
        memory.session("s0").add_user_message("added afterwards, albatross")
        assert [word for word in words if not finds(memory, word)] == []
        assert finds(memory, "albatross")
        memory.forget(matches=words[4])
        assert not finds(memory, words[4])
        assert traces(words[4:6], index_bytes(kind, tmp_path)) == words[5:6]
        assert memory.session("s0").verify().ok


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("file", marks=pytest.mark.wide), "postgres"])
def test_an_index_damaged_again_and_again_finds_every_session(tmp_path: Path, kind: str) -> None:
    """However often the words of an index are lost while it is open, a search that notices it with one new entry finds
    the entries of every session."""
    words, place = marks("again", 9), place_of(kind, tmp_path)
    with Memory.open(place) as memory:
        for number, word in enumerate(words):
            memory.session(f"s{number}").add_user_message(f"said {word}")
        assert finds(memory, words[0])
        for number, new in enumerate(marks("new", 3)):
            if kind == "postgres":
                postgresstore.asked(place, f"DROP TABLE {postgresstore.schema_of('recalls')}.recall_parts")
            else:
                DAMAGE["without its words"](companion(kind, tmp_path))
            memory.session(f"s{number}").add_user_message(f"said {new}")
            assert [word for word in (new, *words) if not finds(memory, word)] == []


@pytest.mark.sampled
@pytest.mark.parametrize("how", DAMAGE)
def test_an_erasure_is_what_meets_the_damage(tmp_path: Path, how: str) -> None:
    """An erasure that first notices the damage erases, and the other entries are found."""
    words, place = marks("met", 6), place_of("sqlite", tmp_path)
    filled(place, words)
    with Memory.open(place) as memory:
        assert finds(memory, words[0])
        DAMAGE[how](companion("sqlite", tmp_path))

        memory.session("one").erase([2])
        memory.delete_session("none")

        assert [finds(memory, word) for word in words] == [True, False, True, True, True, True]
        assert traces([words[1]], index_bytes("sqlite", tmp_path)) == []


def test_an_erasure_reaches_an_index_replaced_by_another_process(tmp_path: Path) -> None:
    """If another process replaced the index file, an erasure reaches the new file."""
    words, place = marks("other file", 3), place_of("sqlite", tmp_path)
    filled(place, words)
    with Memory.open(place) as memory, Memory.open(place) as other:
        assert finds(memory, words[0])
        delete(companion("sqlite", tmp_path))
        assert finds(other, words[0])

        memory.session("one").erase([1])

        assert traces(words, index_bytes("sqlite", tmp_path)) == words[1:]
        assert [finds(one, word) for one in (memory, other) for word in words] == [False, True, True] * 2


def test_a_foreign_database_in_the_place_of_the_index_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program's database in the place of the index is left alone; the search runs in memory and logs that."""
    place, path = place_of("sqlite", tmp_path), companion("sqlite", tmp_path)
    filled(place, ["pelican"])
    run(path, "CREATE TABLE meta(mine TEXT)")
    run(path, "INSERT INTO meta VALUES('precious')")
    with Memory.open(place) as memory:
        assert finds(memory, "pelican")
    assert "in memory" in caplog.text
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM meta").fetchall() == [("precious",)]


def test_a_folder_in_the_place_of_the_index_makes_searches_run_in_memory(tmp_path: Path) -> None:
    """If a folder is in the place of the index, searches run in memory."""
    place = place_of("sqlite", tmp_path)
    filled(place, ["pelican"])
    companion("sqlite", tmp_path).mkdir()
    with Memory.open(place) as memory:
        assert finds(memory, "pelican")
        memory.session("one").add_user_message("albatross")
        assert finds(memory, "albatross")
        assert memory.session("one").erase([1]).entries == 1
        assert not finds(memory, "pelican")
    with Memory.open(place, readonly=True) as reader:
        assert finds(reader, "albatross")
        assert not reader.index_status().is_kept


def test_an_erasure_leaves_a_note_for_an_unreachable_index(tmp_path: Path) -> None:
    """An erasure reports what an unreachable index still holds; it is removed when the index can be opened."""
    words, place, path = marks("note", 2), place_of("sqlite", tmp_path), companion("sqlite", tmp_path)
    filled(place, words)
    with Memory.open(place) as memory:
        assert finds(memory, words[0])
    aside = tmp_path / "aside"
    path.rename(aside)
    path.mkdir()
    with Memory.open(place) as memory:
        assert finds(memory, words[0])
        (told,) = memory.session("one").erase([1]).remains
        assert "palimpsest.recall" in told
        assert not finds(memory, words[0])
    path.rmdir()
    aside.rename(path)
    assert traces(words, index_bytes("sqlite", tmp_path)) == words
    with Memory.open(place) as memory:
        assert [finds(memory, word) for word in words] == [False, True]
    assert traces(words, index_bytes("sqlite", tmp_path)) == words[1:]


def test_a_locked_index_fails_searches_and_erasures_but_no_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked index does not affect adding; searches and erasures raise an error that names the file."""
    monkeypatch.setattr("palimpsest.recall.sqlite.index.File.__init__.__defaults__", ("", 0.1, ""))
    place, path = place_of("sqlite", tmp_path), companion("sqlite", tmp_path)
    filled(place, ["pelican"])
    with Memory.open(place) as memory, closing(sqlite3.connect(path, isolation_level=None)) as other:
        assert finds(memory, "pelican")
        other.execute("BEGIN IMMEDIATE")
        memory.session("one").add_user_message("albatross")
        with pytest.raises(PalimpsestError, match="recall"):
            memory.recall("albatross")
        with pytest.raises(PalimpsestError, match="nothing was erased"):
            memory.session("one").erase([1])
        other.execute("COMMIT")
        assert finds(memory, "albatross")
        assert finds(memory, "pelican")
        assert memory.session("one").erase([1]).remains == ()


# --- no room


def test_a_search_on_a_full_disk_fails_clearly_or_needs_no_index(small_disk: Path) -> None:
    """On a full disk a search raises one clear error or finds without the index; with room it finds everything."""
    words = marks("room", 8)
    place = f"sqlite:///{small_disk}/log.db"
    filled(place, words)
    with Memory.open(place) as memory:
        assert finds(memory, words[0])
        for number in range(20):
            memory.session("more").add_user_message(f"albatross {number} " + " ".join(marks(number, 10)))
        ballast = stuff(small_disk)
        for _ in range(2):
            with pytest.raises(PalimpsestError, match=r"recall.*make room") as told:
                memory.recall("albatross")
            assert "albatross" not in str(told.value)
        ballast.unlink()
        assert finds(memory, "albatross")
        assert all(finds(memory, word) for word in words)
        memory.forget(matches=words[0])
        assert not finds(memory, words[0])


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@EACH
def test_a_forked_child_opens_its_own_index(tmp_path: Path, kind: str) -> None:
    """A forked child cannot use the inherited memory; it opens, searches and erases with its own."""
    words, place = marks("fork", 4), place_of(kind, tmp_path)
    filled(place, words)
    with Memory.open(place) as memory:
        assert finds(memory, words[0])
        child = os.fork()
        if not child:
            ended = 1
            try:
                with pytest.raises(ForkedProcess):
                    memory.recall(words[1])
                with Memory.open(place) as own:
                    assert finds(own, words[1])
                    own.session("one").erase([1])
                    assert not finds(own, words[0])
                    own.session("child").add_user_message("albatross")
                ended = 0
            finally:
                traceback.print_exc()
                os._exit(ended)
        assert os.waitpid(child, 0)[1] == 0
        assert [finds(memory, word) for word in words] == [False, True, True, True]
        assert finds(memory, "albatross")
        assert traces(words, index_bytes(kind, tmp_path)) == words[1:]
        with closing(sqlite3.connect(companion(kind, tmp_path))) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_index_with_a_damaged_schema_is_rebuilt(tmp_path: Path) -> None:
    """An index with a damaged schema is made again by the next search."""
    place, path = place_of("sqlite", tmp_path), companion("sqlite", tmp_path)
    filled(place, ["pelican"])
    with Memory.open(place) as memory:
        assert finds(memory, "pelican")
    before = path.read_bytes()
    for name in (b"CREATE TABLE session_1", b"CREATE TABLE 'words_1_data'", b"tablewords_1"):
        path.write_bytes(before.replace(name, name[:-2] + b"\xff" + name[-1:]))
        with Memory.open(place) as memory:
            assert finds(memory, "pelican"), name


# --- over a server


@pytest.mark.parametrize("how", ["stalls", "drops"])
def test_an_index_on_a_server_that_did_not_answer_is_used_later(how: Any) -> None:
    """A search whose index cannot be reached fails, and the next finds the index on the server, not one in memory."""
    address = postgresstore.address_of("recall_away", timeout_seconds=1)
    port = urlsplit(address).port
    assert port is not None
    with network(port) as between, Memory.open(address.replace(f":{port}/", f":{between.port}/")) as memory:
        memory.session("one").add_user_message("said pelicans")
        between.becomes(how)
        with pytest.raises(StoreUnavailable):
            memory.recall("pelicans")
        between.becomes("passes")

        assert finds(memory, "pelicans")
        status = memory.index_status()
        assert (status.is_kept, status.entries) == (True, 1)


def test_an_index_that_may_not_be_made_on_a_server_is_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    """If the user of the address may not create tables, searches use an index in memory, and a warning says so."""
    schema = postgresstore.schema_of("recall_rights")
    address = postgresstore.address_of("recall_rights")
    with Memory.open(address) as memory:
        memory.session("one").add_user_message("said pelicans")
    role = f"{schema}_reader"
    postgresstore.asked(
        address,
        f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
    )

    with Memory.open(with_options(address, role=role)) as memory:
        assert finds(memory, "pelicans")
        assert not memory.index_status().is_kept
    assert "permission denied" in caplog.text

"""After an erasure no file of the store has a byte of the text, wherever it lay."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Image, Keys, Memory, Query, Session, Text
from palimpsest.log.change import Change
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores.sqlite.scrubbing import note
from palimpsest.testing import FakeClock
from processes import remains
from sqlitestore import connection
from writer import quarters

KINDS = ("sqlite", "file", "sealed sqlite", "sealed file")


def where(kind: str, folder: Path) -> Any:
    """Return the address of a store of this kind."""
    return f"file://{folder}/logs" if "file" in kind else folder / "log.db"


def options(kind: str) -> dict[str, Any]:
    """Return the options to open it with."""
    keys = {"encryption": Keys({"a": b"k" * 32})} if "sealed" in kind else {}
    return {"synchronous": "NORMAL", **keys}


def every_byte(place: Any) -> bytes:
    """Return all bytes of the store's files, and the names in its folder."""
    if isinstance(place, Path):
        return b"".join(file.read_bytes() for file in place.parent.iterdir() if file.is_file())
    return remains(place)


MARKERS = {
    "short": "zq9xkv7wpt",
    "umlauts": "Zürzäckerlöß-ζητα-漢字漢字",
    "escaped": 'zq"9\\x\nkv\t7wpt',
    "beyond 16 bits": "zq9\U0001f600kv\U0001f680wpt",
    "of some kilobytes": "zq9xkv7wpt" * 500,
    "kept apart": "zq9xkv7wpt" * 10_000,
}


def forms(marker: str) -> list[bytes]:
    """Return the forms in which a marker can be in a file: UTF-8, and JSON-escaped once and twice."""
    piece = marker[:16]
    once = json.dumps(piece)[1:-1]
    return [
        piece.encode(),
        once.encode(),
        json.dumps(piece, ensure_ascii=False)[1:-1].encode(),
        json.dumps(once)[1:-1].encode(),
    ]


def fill(memory: Memory, marker: str) -> Session:
    """Make a session with a marker on every surface, beside other entries."""
    session = memory.session("one", counter=quarters)
    session.add_user_message("kept from the beginning")
    session.add_user_message(f"I said {marker}", name=marker[:64], metadata={"deep": [{marker[:64]: marker}]})
    session.add_tool_call("look", {"at": marker}, call_id="c1")
    session.add_tool_result("look", {"found": marker}, call_id="c1")
    session.add_assistant_message([Text(text=marker), Image(source="data:image/png;base64," + "QUJD" * 20)])
    session.add({"role": "user", "content": "short", "odd": {"inside": json.dumps({"deeper": marker})}})
    session.add_context(marker, name=f"{marker[:30]}.txt")
    for number in range(30):
        session.add_user_message(f"kept {number} " * (1 + number * 7 % 40))
        memory.session(f"other {number % 3}", counter=quarters).add_user_message(f"beside it {number} " * (1 + number))
    session.stats()
    session.context(max_tokens=2_000)
    return session


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("marker", MARKERS.values(), ids=MARKERS)
def test_erased_text_of_any_length_is_in_no_file(tmp_path: Path, kind: str, marker: str) -> None:
    """Text of 10 bytes to 100 kB, on any surface, is gone from every file, and other entries are there."""
    place = where(kind, tmp_path)
    with Memory.open(place, **options(kind)) as memory:
        session = fill(memory, marker)
        branch = session.fork("branch")
        branch.add_user_message(f"said again: {marker}")
        session.rewind(to=3)

        done = memory.forget(matches=marker[:30] if len(marker) > 64 else marker)

        assert done.entries == 7
        assert done.remains == ()
        for form in forms(marker):
            assert form not in every_byte(place)
        assert marker[:16] not in json.dumps([session.export(), branch.export()], ensure_ascii=False)
        assert [session.verify().problems, branch.verify().problems] == [(), ()]
        assert "kept from the beginning" in session.entry(1).text
    for form in forms(marker):
        assert form not in every_byte(place)
    assert ("sealed" in kind) is (b"kept from the beginning" not in every_byte(place))


DESTROYERS = ("erase", "query", "clear", "delete", "replace", "neuralyzer", "flush", "forget", "sweep")


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("how", DESTROYERS)
def test_every_destroying_verb_leaves_no_byte(tmp_path: Path, kind: str, how: str, clock: FakeClock) -> None:
    """Every verb that destroys entries removes all bytes of their text, even after rows moved between pages."""
    dice, place = random.Random(how), where(kind, tmp_path)
    with Memory.open(place, clock=clock, synchronous="NORMAL") as memory:
        flushes: dict[str, Any] = {"persistence": "flush", "archive": False, "max_messages": 10}
        session = memory.session("one", counter=quarters, **(flushes if how == "flush" else {}))
        expiry = session.add_user_message("first").created_at.replace(year=2100) if how == "sweep" else None
        data = session.export()
        words = [f"m{number:04}rk" for number in range(120)]
        said = []
        for number, word in enumerate(words):
            said.append(session.add_user_message(f"{word} " * dice.choice([1, 3, 20, 200]), expires_at=expiry))
            session.add_assistant_message("yes" * dice.randrange(40))
            beside = memory.session(f"beside {dice.randrange(9)}")
            beside.add_user_message("beside " * dice.choice([1, 30, 300]))
            if number % 9 == 8:
                session.erase([said.pop(dice.randrange(len(said))).id])

        if how == "erase":
            session.erase([entry.id for entry in said])
        elif how == "query":
            session.erase(Query(where="contains(message.content, 'rk ')"))
        elif how == "clear":
            session.clear()
        elif how == "delete":
            memory.delete_session("one")
        elif how == "replace":
            memory.import_session({**data, "session_id": "one"}, on_conflict="replace")
        elif how == "neuralyzer":
            session.compact(
                {"long_term_memory_id": "neuralyzer", "interaction_keep": 0, "interaction_threshold_qty": 1}
            )
        elif how == "flush":
            session.compact("simple_fifo")
            session.end_turn()
        elif how == "forget":
            memory.forget(session="one")
        else:
            clock.advance(80 * 366 * 86400)
            memory.sweep()

        everything = every_byte(place)
        alive = {entry.text[:7] for entry in session.entries(rewound=True) if not entry.erased}
        assert [word for word in words if word.encode() in everything and word not in alive] == []
        assert len(alive.intersection(words)) == (2 if how == "flush" else 0)


def test_a_scrub_prevented_by_a_reader_is_reported_and_repeated(tmp_path: Path) -> None:
    """If another reader keeps the write-ahead log from being truncated, that is reported and made up for later."""
    path = tmp_path / "log.db"
    with Memory.open(path, synchronous="NORMAL", busy_seconds=0.2) as memory:
        session = memory.session("one", counter=quarters)
        session.add_user_message("zanzibar " * 50)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entry").fetchone()

            done = session.erase(Query(text="zanzibar"))

            assert done.entries == 1
            assert len(done.remains) == 1
            assert "write-ahead log" in done.remains[0]
            assert b"zanzibar" in remains(path)
        session.add_user_message("another secret")
        assert session.erase([2]).remains == ()
        assert b"zanzibar" not in remains(path)


@pytest.mark.parametrize("by", ["closing", "opening"])
def test_closing_or_opening_finishes_a_pending_scrub(tmp_path: Path, by: str) -> None:
    """Closing the store, or opening it again, finishes what a reader was in the way of."""
    path = tmp_path / "log.db"
    memory, reader = Memory.open(path, busy_seconds=0.2), sqlite3.connect(path)
    other = sqlite3.connect(path)  # keeps the file open, so that the last to close it is not us
    other.execute("SELECT count(*) FROM entry").fetchone()
    session = memory.session("one", counter=quarters)
    session.add_user_message("zanzibar " * 50)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entry").fetchone()
    session.erase([1])
    if by == "closing":
        reader.close()
        memory.close()
    else:
        memory.close()
        reader.close()
        assert b"zanzibar" in remains(path)
        Memory.open(path).close()

    assert b"zanzibar" not in remains(path)
    other.close()


def test_the_next_process_finishes_the_scrub_of_a_killed_one(tmp_path: Path) -> None:
    """If a process is killed between commit and scrubbing, the next one to open the file scrubs it."""
    path = tmp_path / "log.db"
    memory = Memory.open(path)
    memory.session("one").add_user_message("zanzibar " * 50)
    change = Change(kind="erase", reason="r", seqs=(1,))
    drive(memory.store.commit(SessionKey("default", "one"), change))  # the store alone does not scrub
    assert b"zanzibar" in remains(path)

    Memory.open(path).close()

    assert b"zanzibar" not in remains(path)
    memory.close()


@pytest.mark.parametrize("other", ["is in the way", "destroys something"])
def test_an_unremovable_scrub_note_fails_no_erasure_and_stays(tmp_path: Path, other: str) -> None:
    """If the note of a pending scrub cannot be removed, the erasure succeeds and the note stays."""
    path, meddled = tmp_path / "log.db", []
    with Memory.open(path) as memory, closing(sqlite3.connect(path, isolation_level=None)) as second:
        session = memory.session("one")
        session.add_user_message("zanzibar " * 50)

        def meddle(statement: str) -> None:
            if statement.startswith("DELETE FROM meta") and not meddled:
                meddled.append(statement)
                second.execute("BEGIN IMMEDIATE")
                if other == "destroys something":
                    note(second)
                    second.execute("COMMIT")

        connection(memory).set_trace_callback(meddle)
        done = session.erase([1])
        connection(memory).set_trace_callback(None)
        noted = second.execute("SELECT 1 FROM meta WHERE name = 'scrub'").fetchone()
        if second.in_transaction:
            second.execute("ROLLBACK")

    assert meddled
    assert (done.entries, done.remains) == (1, ())
    assert noted is not None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Treat a file as large from 64 kB on."""
    monkeypatch.setattr("palimpsest.stores.sqlite.scrubbing.SMALL", 1 << 16)
    return None


def test_a_large_file_is_rewritten_by_vacuum_alone(tmp_path: Path, small: None) -> None:
    """An erasure in a large file says what may remain, how many bytes are free and what to do; that leaves nothing."""
    with Memory.open(tmp_path / "log.db", synchronous="NORMAL") as memory:
        session = memory.session("one", counter=quarters)
        for number in range(200):
            session.add_user_message(f"zanzibar {number} " * 40)

        done = session.erase([3])
        assert re.search(
            "with [0-9,]+ bytes, of which [0-9,]+ are free, .* `palimpsest vacuum` rewrite it", done.remains[0]
        )
        assert len(memory.forget(matches="zanzibar 1 ").remains) == 1
        assert memory.vacuum().remains == ()
        assert session.erase([5]).remains != ()
    size = (tmp_path / "log.db").stat().st_size
    assert b"zanzibar 1 " not in remains(tmp_path / "log.db")
    assert size > 1 << 16


def test_other_processes_write_while_an_erasure_waits_for_a_reader(tmp_path: Path) -> None:
    """While an erasure waits for a reader, other processes can write."""
    path = tmp_path / "log.db"
    with Memory.open(path, synchronous="NORMAL") as memory, Memory.open(path, busy_seconds=0) as other:
        session = memory.session("one", counter=quarters)
        session.add_user_message("zanzibar " * 50)
        tries: list[str] = []

        def watch(statement: str) -> None:
            if "wal_checkpoint" in statement:
                tries.append(statement)
                if len(tries) == 3:
                    other.session("two").add_user_message("meanwhile")
                    reader.execute("COMMIT")

        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entry").fetchone()
            connection(memory).set_trace_callback(watch)
            done = session.erase([1])
            connection(memory).set_trace_callback(None)

        assert len(tries) >= 3
        assert done.remains == ()
        assert len(other.session("two").entries()) == 1
    assert b"zanzibar" not in remains(path)

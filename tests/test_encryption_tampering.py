"""Whoever can write to an encrypted store, and has no key, changes nothing of what is read without being noticed.

Checksums are mended with every change, as such a person would do. What cannot be noticed is named at the end.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from palimpsest.stores.sqlite.rows import checksum

from palimpsest import Memory, Session, StoreCorrupt, WrongKey
from palimpsest.log.change import Change
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores.file.lines import seal
from sealed import FIRST, KEY, address, play, session_of
from test_damage import tamper
from test_rewriting import WORD, rewritten
from writer import quarters

Row = dict[str, Any]
OTHERS = ("one", "branch", "two")


def told(memory: Memory, name: str) -> dict[str, Any]:
    """All that a session says: its entries, its records, its head and what is sent of it."""
    session = memory.session(name, counter=quarters, max_tokens=100_000, auto_compact="off")
    key = SessionKey("default", name)
    return {
        "head": drive(memory.store.head(key)),
        "entries": [msgspec.structs.replace(entry, tokens=None) for entry in session.entries(rewound=True)],
        "records": drive(memory.store.records(key)),
        "context": session.context(dry_run=True).messages if name != "two" else None,
        "info": memory.info(name),
    }


def everything(path: Path) -> dict[str, Any]:
    """All that the sessions say, to a process that has just opened the store."""
    with Memory.open(path, encryption=FIRST, readonly=True) as memory:
        return {name: told(memory, name) for name in OTHERS}


def built(path: Path) -> None:
    """A store with all that there is: compactions, cuts, an erasure, a rewriting, a branch, another session."""
    with Memory.open(path, encryption=FIRST, synchronous="NORMAL") as memory:
        play(memory)
        session = session_of(memory)
        session.add_user_message(f"{WORD} to be rewritten")
        session.pin(session.add_user_message("pinned").id)
        session.record_usage(100)
        rewritten(memory.store, KEY)
        other: Session = session_of(memory, "two")
        for number in range(8):
            other.add_user_message(f"other {number}")
        other.context(max_tokens=1000)
        other.rewind(3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that nobody has open."""
    path = tmp_path_factory.mktemp("built") / "a.db"
    built(path)
    return path


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copy(store, tmp_path / "a.db"))


def notices(path: Path, before: dict[str, Any]) -> bool:
    """Whether reading all says that something is wrong; what is read must be unchanged otherwise."""
    try:
        now = everything(path)
    except (StoreCorrupt, WrongKey):
        return True
    if any(entry.damaged for session in now.values() for entry in session["entries"]):
        return True
    assert now == before, "it reads other than it was written, and nobody says so"
    return False


def bodies(db: sqlite3.Connection, table: str) -> list[Row]:
    """The rows of a table, their JSON decoded."""
    db.row_factory = sqlite3.Row
    column = "head" if table == "session" else "body"
    return (
        [dict(row) | {"json": json.loads(row[column])} for row in db.execute(f"SELECT rowid, * FROM {table}")]  # noqa: S608
        if (table != "record")
        else [dict(row) | {"json": json.loads(row["body"])} for row in db.execute("SELECT * FROM record")]
    )


def put(db: sqlite3.Connection, table: str, row: Row, body: bytes) -> None:
    """Put this body into the row's place, with its checksum."""
    if table == "session":
        db.execute("UPDATE session SET head = ?, sum = ? WHERE number = ?", (body, checksum(body), row["number"]))
    elif table == "entry":
        total = checksum(body, row["pos"], row["id"])
        db.execute("UPDATE entry SET body = ?, sum = ? WHERE pos = ?", (body, total, row["pos"]))
    else:
        place = (row["number"], row["revision"])
        total = checksum(body, row["revision"])
        db.execute("UPDATE record SET body = ?, sum = ? WHERE number = ? AND revision = ?", (body, total, *place))


def variants(value: Any) -> Iterator[Any]:
    """JSON values that differ from this one: each part of it is changed, taken away or doubled."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {key: one for key, one in value.items() if key != name}
            for changed in variants(inner):
                yield {**value, name: changed}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield value[:at] + value[at + 1 :]
            yield value[: at + 1] + value[at:]
            for changed in variants(inner):
                yield [*value[:at], changed, *value[at + 1 :]]
        if len(value) > 1:
            yield value[::-1]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        if value:
            yield value - 1
    elif isinstance(value, str):
        yield value[:-1] + ("A" if value[-1:] != "A" else "B")


def sampled(found: list[Any], most: int) -> list[Any]:
    """At most so many of them, spread over all."""
    return found[:: max(1, -(-len(found) // most))]


@pytest.mark.parametrize("table", ["session", "entry", "record"])
def test_no_field_of_a_row_can_be_changed(table: str, copy: Path, store: Path) -> None:
    """Each field of heads, entries and records is changed, dropped, doubled or turned round: reading says so."""
    before, noticed, tried = everything(copy), 0, 0
    db = sqlite3.connect(copy, isolation_level=None)
    rows = bodies(db, table)
    chosen = rows if table == "session" else sampled(rows, 12)
    for row in chosen:
        was = row["head" if table == "session" else "body"]
        changes = [v for v in variants(row["json"]) if v != row["json"]]
        for changed in sampled(changes, 40 if table == "session" else 12):
            put(db, table, row, json.dumps(changed, separators=(",", ":")).encode())
            tried += 1
            noticed += notices(copy, before)
            put(db, table, row, was)
    db.close()

    assert tried > 60
    assert noticed >= 0.9 * tried  # the others are tokens that the store below links by, which nobody reads
    assert everything(copy) == before


def whole_rows(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table."""
    db.row_factory = None
    return db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608


@pytest.mark.parametrize("table", ["entry", "record", "share"])
def test_no_row_can_be_dropped(table: str, copy: Path) -> None:
    """Whichever row of entries, records or shares is taken away: reading says so."""
    before, unnoticed = everything(copy), []
    db = sqlite3.connect(copy, isolation_level=None)
    key = (
        "pos = ?"
        if table == "entry"
        else "number = ? AND last = ?"
        if table == "share"
        else "number = ? AND revision = ?"
    )
    for row in sampled(whole_rows(db, table), 25):
        place = row[: key.count("?")]
        db.execute(f"DELETE FROM {table} WHERE {key}", place)  # noqa: S608
        if not notices(copy, before):
            unnoticed.append(place)
        db.execute(f"INSERT INTO {table} VALUES({','.join('?' * len(row))})", row)
    db.close()

    assert unnoticed == []
    assert everything(copy) == before


def test_no_two_rows_can_change_places(copy: Path) -> None:
    """Heads of two sessions, entries and records, of one session or of two: exchanged, they are refused."""
    before, unnoticed = everything(copy), []
    db = sqlite3.connect(copy, isolation_level=None)
    for table in ("session", "entry", "record"):
        rows = sampled(bodies(db, table), 10)
        column = "head" if table == "session" else "body"
        for one, other in pairwise(rows):
            put(db, table, one, other[column])
            put(db, table, other, one[column])
            if not notices(copy, before):
                unnoticed.append((table, one["json"], other["json"]))
            put(db, table, one, one[column])
            put(db, table, other, other[column])
    db.close()

    assert unnoticed == []


def erased(session: Session) -> None:
    """An entry goes."""
    session.erase([2])


def redacted(_: Session, memory: Memory) -> None:
    """A text is rewritten."""
    rewritten(memory.store, KEY)


STEPS: dict[str, Callable[[Session, Memory], object]] = {
    "append": lambda session, _: session.add_user_message("more"),
    "erase": lambda session, _: session.erase([3]),
    "redact": redacted,
    "pin": lambda session, _: session.pin(1),
    "rewind": lambda session, _: session.rewind(2),
    "clear": lambda session, _: session.clear(),
    "replace": lambda session, memory: memory.import_session(session.export(), on_conflict="replace"),
    "delete and begin again": lambda session, memory: (
        memory.delete_session("one"),
        session.add_user_message("anew"),
        session.add_user_message("anew"),
    ),
    "an erasure that takes a summary along": lambda session, _: session.erase([1]),
}


@pytest.mark.parametrize("step", STEPS)
def test_no_old_row_can_be_put_back(step: str, tmp_path: Path) -> None:
    """One row of before, a head, an entry, a record, in its own place again, or where there is none now: it is seen.

    But for an entry before the place where the log begins since it was cleared: that is not read at all.
    """
    path = tmp_path / "a.db"

    def summarizer(_: str) -> str:
        return "A summary.\n\n## Facts\n- something [1]\n"

    with Memory.open(path, encryption=FIRST, synchronous="NORMAL") as memory:
        session = memory.session("one", counter=quarters, max_tokens=100_000, summarizer=summarizer)
        for number in range(6):
            session.add_user_message(f"{number} {WORD} " + "many words " * 20)
            session.add_assistant_message("answer " * 20)
        session.compact({"strategy": "summarizer", "interaction_keep": 2, "cod_max_loops": 0, "summary_floor": 1})
        assert session.summaries()
        session.context()
        drive(memory.store.commit(KEY, Change(kind="pin", reason="r", seqs=(7,), detail={"why": WORD})))
        session_of(memory, "two").add_user_message("unrelated")
        session_of(memory, "branch").add_user_message("unrelated")
    first = Path(shutil.copy(path, tmp_path / "first.db"))
    with Memory.open(path, encryption=FIRST, synchronous="NORMAL") as memory:
        STEPS[step](session_of(memory), memory)
        begins = (drive(memory.store.head(KEY)) or Head()).first_seq
    before, unnoticed, tried = everything(path), [], 0

    old, db = sqlite3.connect(first), sqlite3.connect(path, isolation_level=None)
    number = db.execute("SELECT number FROM session WHERE id = 'one'").fetchone()[0]
    number_then = old.execute("SELECT number FROM session WHERE id = 'one'").fetchone()[0]
    moved = number_then != number
    for table, place in (("session", ("number",)), ("entry", ("pos",)), ("record", ("number", "revision"))):
        columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
        where = " AND ".join(f"{name} = ?" for name in place)
        for row in old.execute(f"SELECT * FROM {table}"):  # noqa: S608
            now = dict(zip(columns, row, strict=True))
            if table == "entry" and now["pos"] >> 32 == number_then:
                now["pos"] += (number - number_then) << 32
            elif table != "entry" and now["number"] == number_then:
                now["number"] = number
            at = [now[name] for name in place]
            there = db.execute(f"SELECT * FROM {table} WHERE {where}", at).fetchone()  # noqa: S608
            if there == tuple(now.values()):
                continue
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES({','.join('?' * len(now))})", list(now.values()))
            tried += 1
            is_cleared = table == "entry" and number << 32 < at[0] < (number << 32) + begins
            if not notices(path, before) and not is_cleared:
                unnoticed.append((table, at))
            db.execute(f"DELETE FROM {table} WHERE {where}", at)  # noqa: S608
            if there is not None:
                db.execute(f"INSERT INTO {table} VALUES({','.join('?' * len(there))})", there)
    old.close()
    db.close()

    assert tried >= 1 + moved
    assert unnoticed == []
    assert everything(path) == before


def test_a_head_that_was_seen_is_not_taken_back(tmp_path: Path) -> None:
    """A process that has seen a later head notices an earlier one, though nothing but the head had moved since."""
    path = tmp_path / "a.db"
    with Memory.open(path, encryption=FIRST) as memory:
        session = session_of(memory)
        session.add_user_message("hello")
        db = sqlite3.connect(path, isolation_level=None)
        first = db.execute("SELECT head, sum, number FROM session").fetchone()
        session.record_usage(100)
        db.execute("UPDATE session SET head = ?, sum = ? WHERE number = ?", first)
        db.close()

        with pytest.raises(StoreCorrupt, match="the head of session 'one' is of an earlier time"):
            session.stats()


def test_no_line_of_a_file_can_be_changed_dropped_or_moved(tmp_path: Path) -> None:
    """In a log of the file store each line is changed, dropped, doubled or exchanged, with its sum: reading says so."""
    where = f"file://{tmp_path}/logs"

    def read() -> dict[str, Any]:
        with Memory.open(where, encryption=FIRST, readonly=True) as memory:
            return told(memory, "one")

    with Memory.open(where, encryption=FIRST, synchronous="NORMAL") as memory:
        session = session_of(memory)
        for number in range(5):
            session.add_user_message(f"{number}")
        session.pin(2)
        session.erase([3])
        session.add_user_message("last")
        session.pin(4)
    (path,) = (tmp_path / "logs").rglob("one-*.jsonl")
    good, before, unnoticed = path.read_bytes(), read(), []
    lines = good.splitlines(keepends=True)
    tampered: list[tuple[str, list[bytes]]] = []
    for at in range(1, len(lines)):
        if at < len(lines) - 1:  # without its last line it is what it was before that was written
            tampered.append((f"without line {at}", lines[:at] + lines[at + 1 :]))
        tampered.append((f"line {at} twice", lines[: at + 1] + lines[at:]))
        if at > 1:
            tampered.append((f"line {at} before", [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]]))
        value = json.loads(lines[at])
        value.pop("sum")
        for changed in sampled([v for v in variants(value) if v != value and list(v)[:3] == list(value)[:3]], 15):
            line = seal(json.dumps(changed, separators=(",", ":")).encode()[:-1])
            tampered.append((f"line {at} is {line[:200]!r}", [*lines[:at], line, *lines[at + 1 :]]))
    for what, now in tampered:
        path.write_bytes(b"".join(now))
        try:
            found = read()
        except StoreCorrupt:
            continue
        if found != before and not any(entry.damaged for entry in found["entries"]):
            unnoticed.append(what)
    path.write_bytes(good)

    assert len(tampered) > 60
    assert unnoticed == []
    assert read() == before


# --- what is set aside

Stored = dict[str, Any]


def other_text(one: Stored, _: Stored) -> Stored:
    """Another ciphertext."""
    head, _colon, text = str(one["content"]).rpartition(":")
    return one | {"content": f"{head}:{text[::-1]}"}


def in_clear(one: Stored, _: Stored) -> Stored:
    """A text that nobody has sealed."""
    return one | {"content": "forged"}


def of_another(one: Stored, other: Stored) -> Stored:
    """What is stored of another entry, in this place and under this id."""
    return other | {name: one[name] for name in ("id", "seq") if name in one}


def as_erased(one: Stored, _: Stored) -> Stored:
    """A tombstone that no erasure made."""
    return one | {"content": "", "erased": True}


def as_if_never_erased(one: Stored, _: Stored) -> Stored:
    """A tombstone that is none any more."""
    return {name: value for name, value in one.items() if name != "erased"} | {"content": "forged"}


def linked(one: Stored, _: Stored) -> Stored:
    """Other links: of the first group and turn, an answer to the first entry."""
    return one | {"group": 1, "turn": 1, "answers": 1, "kind": "tool_result", "role": "tool"}


def renamed(one: Stored, _: Stored) -> Stored:
    """Another role and another time."""
    return one | {"role": "system", "at": 1}


TAMPERINGS = (other_text, in_clear, of_another, as_erased, as_if_never_erased, linked, renamed)


def talked(where: str) -> None:
    """A session with all kinds of entries, one of them erased, one written anew, and a branch."""
    with Memory.open(where, encryption=FIRST, synchronous="NORMAL") as memory:
        session = session_of(memory)
        for number in range(2):
            session.add_user_message(f"question {number} {WORD if number else 'of old'}")
            session.add_context(f"version {number}", name="file")
            session.add_tool_call("look", {}, call_id=f"call {number}")
            session.add_tool_result(None, "found", call_id=f"call {number}")
            session.add_assistant_message(f"answer {number}")
        session.add_user_message("to go")
        session.erase([11])
        session.fork("branch").add_user_message("another")
        rewritten(memory.store, KEY)
        session.add_tool_call("look", {}, call_id="open")


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("how", TAMPERINGS)
def test_whatever_an_entry_became_it_is_set_aside_and_taken_out(
    how: Callable, kind: str, step: int, tmp_path: Path
) -> None:
    """Each entry in turn is changed, with its checksum: it is named, what is left is as it was, and repair ends it."""
    began = tmp_path / "began"
    began.mkdir()
    talked(address(kind, began))
    with Memory.open(address(kind, began), encryption=FIRST) as memory:
        good = {name: session_of(memory, name).entries() for name in ("one", "branch")}
    for seq in range(1 + TAMPERINGS.index(how) % step, 13, step) if how is not as_if_never_erased else [11]:
        folder = tmp_path / str(seq)
        shutil.copytree(began, folder)
        rows: dict[int, Stored] = {}
        tamper(folder, lambda at, one, rows=rows: rows.setdefault(at, one) and None)
        neighbour = rows[seq + 1 if seq < 12 else 1]
        tamper(folder, lambda at, one, seq=seq, neighbour=neighbour: how(one, neighbour) if at == seq else None, "one")

        with Memory.open(address(kind, folder), encryption=FIRST) as memory:
            session = session_of(memory)
            found = session.entries()
            assert [entry.seq for entry in found if entry.damaged] == [seq]
            assert [entry for entry in found if entry.seq != seq] == [one for one in good["one"] if one.seq != seq]
            assert "forged" not in repr((found, session.context().messages, session.export()))
            assert f"entry {seq} is damaged and cannot be read" in session.verify().problems
            session.add_context("version 3", name="file")
            assert session.repair().entries == 1
            session_of(memory, "branch").repair()  # in a database its own entry of this number was changed, too

        with Memory.open(address(kind, folder), encryption=FIRST) as memory:
            for name, entries in good.items():
                session = session_of(memory, name)
                shared = {entry.seq: entry for entry in session.entries() if entry.seq <= len(entries)}
                gone = [at for at, entry in shared.items() if entry.text != entries[at - 1].text]
                assert gone in ([], [seq])
                assert session.verify().problems == ()
                assert session.context().messages


@pytest.mark.parametrize("change", ["version = version + 1", "expires = 9999999999999999", "namespace = 'other'"])
def test_an_item_is_bound_to_its_version_and_expiry(change: str, tmp_path: Path) -> None:
    """What stands in clear beside the value of an item cannot be changed either."""
    path = tmp_path / "a.db"
    with Memory.open(path, encryption=FIRST) as memory:
        for value in (b"first", b"second"):
            drive(memory.store.put_item("default", "notes", "k", value, expires=8888888888888888))
        assert drive(memory.store.get_item("default", "notes", "k")).value == b"second"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"UPDATE item SET {change} WHERE tenant = 'default'")  # noqa: S608 (of the test)
    db.close()

    namespace = "other" if "other" in change else "notes"
    with Memory.open(path, encryption=FIRST) as memory, pytest.raises(StoreCorrupt, match="the item"):
        drive(memory.store.list_items("default", namespace))


def test_what_cannot_be_noticed(tmp_path: Path) -> None:
    """An old copy of all of a session, or of the store, is a store; and a session that is gone was never there."""
    path = tmp_path / "a.db"
    with Memory.open(path, encryption=FIRST) as memory:
        session_of(memory).add_user_message("first")
        session_of(memory, "two").add_user_message("first")
    first = Path(shutil.copy(path, tmp_path / "first.db"))
    with Memory.open(path, encryption=FIRST) as memory:
        session_of(memory).add_user_message("second")

    shutil.copy(first, path)
    with Memory.open(path, encryption=FIRST) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["first"]
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("DELETE FROM session WHERE id = 'two'")
    db.close()
    with Memory.open(path, encryption=FIRST) as memory:
        assert [one.session for one in memory.sessions()] == ["one"]


def test_the_ledger_is_small_however_much_is_erased(tmp_path: Path) -> None:
    """Of what is erased together a head keeps a few bytes; of what is erased here and there, a few bytes each."""
    with Memory.open(tmp_path / "a.db", encryption=FIRST, synchronous="NORMAL") as memory:
        session = session_of(memory)
        session.add([{"role": "user", "content": "x"}] * 2_000)
        session.erase(list(range(1, 1_001)))
        stored: Head = drive(memory.store.below.head(KEY))
        assert stored.seal is not None
        assert len(stored.seal.graves) < 10
        session.erase(list(range(1_001, 2_001, 2)))

        stored = drive(memory.store.below.head(KEY))
        assert stored.seal is not None
        assert len(stored.seal.graves) < 3 * 500

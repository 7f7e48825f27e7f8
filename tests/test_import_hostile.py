"""Hostile values anywhere in an imported file: kept or reported, never a crash, alike on every store."""

from __future__ import annotations

import io
import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import ImportFailed, Memory
from palimpsest.transfer.sources.limits import Limits
from palimpsest.transfer.sources.values import loads
from test_import_damage import FILES, OPTIONS, damaged, places
from test_import_identity import STORES, agents, opened

HOSTILE: list[Any] = [
    "\ud800",
    "a\0b",
    "x" * 6_000,
    "\u202e\x1b[2J",
    {"\ud800": "\udfff"},
    {"\0": 1},
    2**64,
    -(2**63) - 1,
    float("nan"),
    float("inf"),
    253_402_300_799.999,
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00",
]


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[dict[str, Memory]]:
    """Yield a memory on each kind of store, plain and encrypted."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(opened(name, tmp_path / name.replace(" ", "-"))) for name in STORES}


def outcome(memory: Memory, body: bytes, source: str, session: str) -> Any:
    """Import a file twice and return what came of it; the second time must add nothing."""
    options = OPTIONS.get(source, {"branches": True})
    try:
        first = memory.import_file(io.BytesIO(body), source=source, session_id=session, **options)
    except ImportFailed as fault:
        return str(fault)
    repeated = memory.import_file(io.BytesIO(body), source=source, session_id=session, **options)
    assert sum(item.added for item in repeated.sessions.values()) == 0
    if not first.sessions:
        return first
    imported = memory.session(session, max_tokens=60_000)
    entries = [
        (entry.kind, entry.role, entry.text, entry.name, entry.call_id, entry.at) for entry in imported.entries()
    ]
    dated = [item for item in entries if item[-1] < 1_700_000_000_000_000 * 4]  # others have the time of the import
    return first, len(entries), [item[:-1] for item in dated], len(imported.context().messages)


def cases(source: str, count: int, dice: random.Random) -> list[bytes]:
    """Return `count` files that have a hostile value at a random place."""
    all_places = list(places(FILES[source]))
    files = []
    for _ in range(count):
        value = damaged(FILES[source], dice.choice(all_places), dice.choice(HOSTILE))
        files.append(json.dumps(value).encode())
    return files


def check(memories: dict[str, Memory], source: str, count: int, dice: random.Random) -> None:
    """Assert that hostile files have the same outcome on every store."""
    for number, body in enumerate(cases(source, count, dice)):
        outcomes = {name: outcome(memory, body, source, f"s{number}") for name, memory in memories.items()}
        assert all(outcome_ == outcomes["sqlite"] for outcome_ in outcomes.values()), body


@pytest.mark.sampled
@pytest.mark.parametrize("source", FILES)
def test_hostile_values_are_alike_on_every_store(memories: dict[str, Memory], source: str, dice: random.Random) -> None:
    """A hostile value anywhere in a file has the same outcome on every store, and importing again adds nothing."""
    check(memories, source, 12, dice)


@pytest.mark.slow
@pytest.mark.parametrize("source", FILES)
def test_many_hostile_values_are_alike_on_every_store(
    memories: dict[str, Memory], source: str, dice: random.Random
) -> None:
    """Hundreds of hostile values have the same outcome on every store."""
    check(memories, source, 400, dice)


@pytest.mark.parametrize("source", FILES)
def test_strict_stores_nothing_of_what_would_be_refused(source: str, dice: random.Random) -> None:
    """With `strict` a file of which a plain import refuses anything is refused, and nothing of it is stored."""
    options = {"source": source, "session_id": "talk", **OPTIONS.get(source, {"branches": True})}
    for body in cases(source, 40, dice):
        with Memory.open("memory://") as memory, Memory.open("memory://") as strict:
            try:
                refused = bool(memory.import_file(io.BytesIO(body), **options).refused)
            except ImportFailed:
                refused = True
            try:
                strict.import_file(io.BytesIO(body), strict=True, **options)
            except ImportFailed:
                assert (refused, strict.sessions()) == (True, []), body
            else:
                assert not refused, body


def test_strict_finds_a_name_that_no_store_can_keep(memory: Memory) -> None:
    """A tool's name with a lone surrogate at the end of a file is found before the beginning is stored."""
    call = {"id": "c", "type": "function", "function": {"name": "t\ud800", "arguments": "{}"}}
    said = [{"role": "user", "content": f"{i}"} for i in range(300)]
    body = json.dumps([*said, {"role": "assistant", "content": None, "tool_calls": [call]}]).encode()

    with pytest.raises(ImportFailed, match="lone surrogate"):
        memory.import_file(io.BytesIO(body), session_id="talk", strict=True)

    assert memory.sessions() == []


def test_a_message_that_cannot_be_stored_costs_no_other(memories: dict[str, Memory]) -> None:
    """A call whose names have no UTF-8 is stored or reported; the messages around it are stored."""
    call = {"id": "c\ud800", "type": "function", "function": {"name": "t\ud800", "arguments": "{}"}}
    given = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c\ud800", "content": "found"},
        {"role": "user", "content": "last \ud800"},
    ]
    body = "\n".join(map(json.dumps, given)).encode()

    outcomes = {name: outcome(memory, body, "messages", "talk") for name, memory in memories.items()}

    assert all(one == outcomes["sqlite"] for one in outcomes.values())
    for memory in memories.values():
        texts = [entry.text for entry in memory.session("talk").entries()]
        assert (texts[0], texts[-1]) == ("first", "last \ud800")


# --- databases


def table(path: Path, schema: str, *rows: tuple[Any, ...]) -> Path:
    """Make a database with this schema and these rows."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(schema)
        for row in rows:
            db.execute("INSERT INTO agent_messages VALUES (?, ?, ?, ?)", row)
        db.commit()
    return path


GOOD = '{"role": "user", "content": "good"}'


@pytest.mark.parametrize(
    "row",
    [
        (2, "talk", b"\xff\xfe", "now"),
        (2, "talk", None, None),
        (2, "talk", 7, 7.5),
        (2, "talk", '{"role": "user", "content": "\\ud800"}', b"\xff"),
        (2, "talk", "[" * 5000, "2026-01-01"),
        (2, "talk", '{"role": "user", "content": 1e999}', "9999-99-99"),
        (2, b"\xff", GOOD, "2026-01-01"),
        (2, None, GOOD, "2026-01-01"),
        (2, 5, GOOD, "2026-01-01"),
        (2, "a\0b", GOOD, "2026-01-01"),
        (2, "x" * 6000, GOOD, "2026-01-01"),
        ("\ud7ff", "talk", GOOD, "0001-01-01T00:00:00+14:00"),
        (1, "talk", '{"role": "user", "content": "other of the same id"}', None),
    ],
    ids=repr,
)
def test_rows_of_any_kind_are_imported_or_reported(memory: Memory, tmp_path: Path, row: tuple[Any, ...]) -> None:
    """A row with any values, in a table without types, is imported or reported and costs no other."""
    schema = "CREATE TABLE agent_messages (id, session_id, message_data, created_at)"
    path = table(tmp_path / "a.db", schema, (1, "talk", GOOD, "2026-01-01"), row, (3, "talk", GOOD, "2026-01-01"))

    first = memory.import_file(path)
    again = memory.import_file(path)

    texts = [entry.text for entry in memory.session("talk").entries()]
    assert texts.count("good") >= 2
    assert sum(one.added for one in first.sessions.values()) + len(first.refused) >= 3
    assert sum(one.added for one in again.sessions.values()) == 0


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE agent_messages (other)",
        "CREATE TABLE agent_messages (id PRIMARY KEY, session_id, message_data, created_at) WITHOUT ROWID",
        "CREATE VIEW agent_messages AS SELECT 1 id, 'talk' session_id, 'x' message_data, 1 created_at",
        "CREATE TABLE agent_messages (id, session_id AS (zeroblob(200000000)), message_data, created_at)",
    ],
)
def test_tables_of_another_make_are_reported(memory: Memory, tmp_path: Path, schema: str) -> None:
    """A table with the right name and wrong columns ends in a report or is refused."""
    path = table(tmp_path / "a.db", schema)
    with closing(sqlite3.connect(path)) as db:
        if "zeroblob" in schema:
            db.execute("INSERT INTO agent_messages (id) VALUES (1)")
            db.commit()

    try:
        report = memory.import_file(path)
    except ImportFailed:
        return
    assert report.sessions == {}
    assert report.refused or "other" not in schema


@pytest.mark.sampled
@pytest.mark.parametrize("damage", range(24))
def test_a_damaged_database_ends_in_a_report(memory: Memory, damage: int, tmp_path: Path) -> None:
    """A database with changed bytes ends in a report or is refused; what can be read is imported."""
    body = bytearray(agents([f"message {number}" for number in range(60)]))
    dice = random.Random(damage)
    for _ in range(dice.choice([1, 30, 400])):
        body[dice.randrange(len(body))] = dice.randrange(256)
    path = tmp_path / "a.db"
    path.write_bytes(body)

    for source in (path, io.BytesIO(bytes(body))):
        try:
            memory.import_file(source, session_id="talk")
        except ImportFailed:
            continue


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
PIECES = st.sampled_from(
    [*"{}[],:.eE+- 0\n", '"', '"a"', '"\\ud8', '00"', "null", "true", "NaN", "Infinity", "é", "\ud800", "\x01", "\\"]
)
TEXTS = st.recursive(
    NUMBERS | st.text(st.characters(), max_size=6).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda some: f"[{', '.join(some)}]")
        | st.lists(st.tuples(st.sampled_from("ab"), inner), max_size=3).map(
            lambda some: "{" + ",".join(f'"{key}": {value}' for key, value in some) + "}"
        )
    ),
    max_leaves=8,
)


def told(read: Any, text: bytes) -> str:
    """Return the value read with types and order as text, or "refused"."""
    try:
        return repr(read(text))
    except ValueError:
        return "refused"


@pytest.mark.wide
@settings(max_examples=examples(1_500))
@given(TEXTS | st.lists(PIECES, max_size=8).map("".join), st.integers(0, 60), st.text(max_size=2))
@example("1" * 5_000, 0, "")
@example("[" * 290 + "]" * 290, 0, "")
@example('"\\ud800"', 0, "")
@example("18446744073709551616", 0, "")
@example('{"a": 1, "a": 2}', 0, "")
def test_json_is_read_as_python_reads_it(text: str, place: int, put: str) -> None:
    """Our JSON reader gives the value that Python's reader gives, or refuses what that refuses, for any bytes."""
    for given_text in (text, text[:place] + put + text[place:], text[:place] + text[place + 1 :]):
        body = given_text.encode("utf-8", "surrogatepass")

        assert told(lambda body: loads(body, Limits()), body) == told(json.loads, body)

"""Databases of the OpenAI Agents SDK, written by its own sessions, as they come into a memory."""

from __future__ import annotations

import asyncio
import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from palimpsest import ImportFailed, Memory
from palimpsest.formats import find_format
from sdks import load

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is order 7?"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look it up."}]},
    {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"order": 7}', "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c1", "output": "On its way."},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "It is on its way.", "annotations": []}],
    },
]
TEXTS = ["Where is order 7?", "Look it up.", '{"order": 7}', "On its way.", "It is on its way."]

Write = Callable[[str, list[dict[str, Any]]], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database is."""
    return tmp_path / "agents.db"


@pytest.fixture
def write(path: Path) -> Write:
    """Adds items to a session, through the SDK."""

    def written(session_id: str, items: list[dict[str, Any]]) -> None:
        async def add() -> None:
            session = load("agents").SQLiteSession(session_id, path)
            await session.add_items(items)
            session.close()

        asyncio.run(add())

    return written


def texts(memory: Memory, session: str) -> list[str]:
    return [entry.text for entry in memory.session(session).entries()]


def test_each_session_comes_in_with_its_items(memory: Memory, path: Path, write: Write) -> None:
    """Items are items of the Responses API: roles, calls with their results, thoughts, and when they were written."""
    write("one", ITEMS)
    write("two", ITEMS[:1])
    write("one", [{"role": "user", "content": "Thanks."}])

    report = memory.import_file(path)

    assert (report.source, report.format) == ("openai-agents", "openai-responses")
    assert {name: one.added for name, one in report.sessions.items()} == {"one": 6, "two": 1}
    entries = memory.session("one").entries()
    assert [entry.text for entry in entries] == [*TEXTS, "Thanks."]
    assert [entry.kind for entry in entries][2:4] == ["tool_call", "tool_result"]
    assert entries[3].answers == 3
    assert find_format("openai-responses").encode(entries) == [*ITEMS, {"role": "user", "content": "Thanks."}]
    assert all(entry.at > 1_600_000_000_000_000 for entry in entries)
    assert entries[0].at % 1_000_000 == 0  # the SDK writes whole seconds


def test_items_are_tied_as_if_they_had_been_added_together(memory: Memory, path: Path, write: Write) -> None:
    """Reading row by row gives the entries that the format makes of the whole list."""
    write("one", ITEMS)

    memory.import_file(path)

    together = memory.session("together").add(ITEMS, format="openai-responses")
    assert [(entry.continues, entry.group) for entry in memory.session("one").entries()] == [
        (entry.continues, entry.group) for entry in together
    ]


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses", "text"])
def test_contexts_of_imported_sessions_are_valid(memory: Memory, path: Path, write: Write, format: str) -> None:
    """What came in can be sent: the context breaks no rule of its provider."""
    write("one", ITEMS)
    memory.import_file(path)

    context = memory.session("one", max_tokens=8000).context(format=format)

    assert find_format(format).validate(context.messages) == []


def test_importing_again_adds_nothing_and_a_grown_database_what_is_new(
    memory: Memory, path: Path, write: Write
) -> None:
    """Rows are known by their ids: whatever else was written meanwhile, only new rows are added."""
    figures = []
    for items in (ITEMS[:2], [], ITEMS[2:]):
        write("one", items)
        write("other", items)
        report = memory.import_file(path, strict=True)
        figures.append((report.sessions["one"].added, report.sessions["one"].already_there))

    assert figures == [(2, 0), (0, 2), (3, 2)]
    assert texts(memory, "one") == TEXTS


def test_nothing_is_written_and_nothing_left_beside_the_database(memory: Memory, path: Path, write: Write) -> None:
    """The file is byte for byte what it was, and the folder holds nothing else."""
    write("one", ITEMS)
    before = path.read_bytes()

    memory.import_file(path)

    assert path.read_bytes() == before
    assert [file.name for file in path.parent.glob("agents*")] == ["agents.db"]


def test_a_database_that_is_in_use_is_read_with_its_log(memory: Memory, path: Path) -> None:
    """What the SDK has written and not yet moved into the file is there, too; so it is in a stream that was copied."""
    session = load("agents").SQLiteSession("one", path)
    asyncio.run(session.add_items(ITEMS))
    assert path.with_name("agents.db-wal").exists()

    memory.import_file(path)
    session.close()

    assert texts(memory, "one") == TEXTS


def test_a_stream_is_read_as_well(memory: Memory, path: Path, write: Write) -> None:
    """A database that comes as a stream is copied to a temporary file first."""
    write("one", ITEMS)

    memory.import_file(io.BytesIO(path.read_bytes()))

    assert texts(memory, "one") == TEXTS


def test_a_damaged_row_is_named_and_the_rest_is_taken(memory: Memory, path: Path, write: Write) -> None:
    """Rows that are no JSON, no UTF-8 or no items are told with their ids."""
    write("one", [*ITEMS, *ITEMS[:1]])
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE agent_messages SET message_data = '{broken' WHERE id = 2")
        db.execute("UPDATE agent_messages SET message_data = CAST(x'22ff22' AS TEXT) WHERE id = 5")
        db.execute("""UPDATE agent_messages SET message_data = '{"role": "alien", "content": ""}' WHERE id = 6""")
        db.commit()

    report = memory.import_file(path)

    assert [one.place for one in report.refused] == [f"agent_messages.id={id}" for id in (2, 5, 6)]
    assert report.refused[0].reason.startswith("message_data: no JSON")
    assert texts(memory, "one") == [TEXTS[0], *TEXTS[2:4]]


def test_two_databases_do_not_get_in_each_others_way(memory: Memory, path: Path, write: Write) -> None:
    """Sessions of one id from two databases are both taken, though their rows have the same ids."""
    write("one", [{"role": "user", "content": "from a"}])
    first = path.rename(path.with_name("first.db"))
    write("one", [{"role": "user", "content": "from b"}])

    for _ in range(2):
        memory.import_file(first)
        memory.import_file(path)

    assert texts(memory, "one") == ["from a", "from b"]


def test_branches_of_advanced_sessions(memory: Memory, path: Path) -> None:
    """Of a session with branches `main` is the conversation; the others are counted, or come when asked for."""

    async def add() -> None:
        session = load("agents.extensions.memory.advanced_sqlite_session").AdvancedSQLiteSession(
            session_id="one", db_path=path, create_tables=True
        )
        await session.add_items([{"role": "user", "content": "first"}, {"role": "assistant", "content": "answer"}])
        await session.add_items([{"role": "user", "content": "second"}, {"role": "assistant", "content": "again"}])
        await session.create_branch_from_turn(2, "other")
        await session.add_items([{"role": "user", "content": "instead"}])
        session.close()

    asyncio.run(add())

    plain = memory.import_file(path)
    memory.import_file(path, branches=True)

    assert plain.left_out == {"messages in other branches": 1}
    assert texts(memory, "one") == ["first", "answer", "second", "again"]
    assert texts(memory, "one~2") == ["first", "answer", "instead"]


def test_other_databases_are_refused(memory: Memory, tmp_path: Path) -> None:
    """A database without the SDK's tables is refused with those that it has; so is a file that is no database."""
    with Memory.open(tmp_path / "store.db") as store:
        store.session("x").add_user_message("hi")
    (tmp_path / "text.db").write_text("hello")

    with pytest.raises(ImportFailed, match="has no table agent_messages"):
        memory.import_file(tmp_path / "store.db")
    with pytest.raises(ImportFailed, match="is no SQLite database"):
        memory.import_file(tmp_path / "text.db", source="openai-agents")
    with pytest.raises(ImportFailed, match="is an SQLite database"):
        memory.import_file(tmp_path / "store.db", source="chatgpt")

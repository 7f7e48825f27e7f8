"""Importing databases of the OpenAI Agents SDK, written by its own sessions."""

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
    """Return the path of the database."""
    return tmp_path / "agents.db"


@pytest.fixture
def write(path: Path) -> Write:
    """Return a function that adds items to a session through the SDK."""

    def written(session_id: str, items: list[dict[str, Any]]) -> None:
        async def add() -> None:
            session = load("agents").SQLiteSession(session_id, path)
            await session.add_items(items)
            session.close()

        asyncio.run(add())

    return written


def texts(memory: Memory, session: str) -> list[str]:
    """Return the texts of a session's entries."""
    return [entry.text for entry in memory.session(session).entries()]


def test_each_session_is_imported_with_its_items(memory: Memory, path: Path, write: Write) -> None:
    """Each session of a database is imported with its items, in the Responses format, and their times."""
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


def _call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "find", "arguments": "{}"}


_ASKS = {"role": "user", "content": "Where is it?"}
_THINKS = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2Vj"}
_SAYS = {"role": "assistant", "content": "I look."}
_FOUND = [{"type": "function_call_output", "call_id": call_id, "output": "found"} for call_id in ("c1", "c2")]


@pytest.mark.parametrize(
    "items",
    [
        ITEMS,
        [_ASKS, _call("c1"), _SAYS, _call("c2"), *_FOUND, _SAYS, _SAYS],
        [_ASKS, _call("c1"), _call("c2"), _SAYS, *_FOUND, _SAYS],
        [_ASKS, _call("c1"), _THINKS, _call("c2"), *_FOUND, _SAYS],
        [_ASKS, _THINKS, _SAYS, _call("c1"), _SAYS, _call("c2"), *_FOUND, _SAYS],
    ],
)
def test_items_are_linked_as_if_added_together(memory: Memory, path: Path, write: Write, items: list[Any]) -> None:
    """Reading row by row links items as adding the whole list would, whatever the model says between its calls."""
    write("one", items)

    memory.import_file(path)

    together = memory.session("together").add(items, format="openai-responses")
    assert [(entry.continues, entry.group) for entry in memory.session("one").entries()] == [
        (entry.continues, entry.group) for entry in together
    ]


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses", "text"])
def test_contexts_of_imported_sessions_are_valid(memory: Memory, path: Path, write: Write, format: str) -> None:
    """Contexts of imported sessions are valid for each provider."""
    write("one", ITEMS)
    memory.import_file(path)

    context = memory.session("one", max_tokens=8000).context(format=format)

    assert find_format(format).validate(context.messages) == []


def test_importing_again_adds_nothing_and_a_grown_database_its_new_rows(
    memory: Memory, path: Path, write: Write
) -> None:
    """Rows are recognized by their ids: importing a grown database adds only its new rows."""
    figures = []
    for items in (ITEMS[:2], [], ITEMS[2:]):
        write("one", items)
        write("other", items)
        report = memory.import_file(path, strict=True)
        figures.append((report.sessions["one"].added, report.sessions["one"].already_there))

    assert figures == [(2, 0), (0, 2), (3, 2)]
    assert texts(memory, "one") == TEXTS


def test_importing_leaves_the_database_unchanged(memory: Memory, path: Path, write: Write) -> None:
    """The database is unchanged byte for byte, and no file is left beside it."""
    write("one", ITEMS)
    before = path.read_bytes()

    memory.import_file(path)

    assert path.read_bytes() == before
    assert [file.name for file in path.parent.glob("agents*")] == ["agents.db"]


def test_a_database_in_use_is_read_with_its_journal(memory: Memory, path: Path) -> None:
    """What the SDK has written and not yet moved from the journal into the file is imported."""
    session = load("agents").SQLiteSession("one", path)
    asyncio.run(session.add_items(ITEMS))
    assert path.with_name("agents.db-wal").exists()

    memory.import_file(path)
    session.close()

    assert texts(memory, "one") == TEXTS


def test_a_stream_is_read_too(memory: Memory, path: Path, write: Write) -> None:
    """A database is also imported from a stream."""
    write("one", ITEMS)

    memory.import_file(io.BytesIO(path.read_bytes()))

    assert texts(memory, "one") == TEXTS


def test_a_damaged_row_is_named_and_the_rest_imported(memory: Memory, path: Path, write: Write) -> None:
    """Rows that are no JSON, no UTF-8 or no items are reported with their ids; the rest is imported."""
    write("one", [*ITEMS, *ITEMS[:1]])
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE agent_messages SET message_data = '{broken' WHERE id = 2")
        db.execute("UPDATE agent_messages SET message_data = CAST(x'22ff22' AS TEXT) WHERE id = 5")
        db.execute("""UPDATE agent_messages SET message_data = '{"role": "alien", "content": ""}' WHERE id = 6""")
        db.commit()

    report = memory.import_file(path)

    assert [one.place for one in report.refused] == [f"agent_messages.id={id}" for id in (2, 5, 6)]
    assert report.refused[0].reason.startswith("message_data: not valid JSON")
    assert texts(memory, "one") == [TEXTS[0], *TEXTS[2:4]]


def test_two_databases_with_the_same_ids_are_both_imported(memory: Memory, path: Path, write: Write) -> None:
    """Sessions with the same id in two databases are both imported, although their rows share ids."""
    write("one", [{"role": "user", "content": "from a"}])
    first = path.rename(path.with_name("first.db"))
    write("one", [{"role": "user", "content": "from b"}])

    for _ in range(2):
        memory.import_file(first)
        memory.import_file(path)

    assert texts(memory, "one") == ["from a", "from b"]


def test_branches_of_advanced_sessions_are_counted_or_imported(memory: Memory, path: Path) -> None:
    """Of a session with branches only `main` is imported; others are counted, or imported with `branches`."""

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
    """A database without the SDK's tables, and a file that is no database, are refused."""
    with Memory.open(tmp_path / "store.db") as store:
        store.session("x").add_user_message("hi")
    (tmp_path / "text.db").write_text("hello")

    with pytest.raises(ImportFailed, match="has no table agent_messages"):
        memory.import_file(tmp_path / "store.db")
    with pytest.raises(ImportFailed, match="is not an SQLite database"):
        memory.import_file(tmp_path / "text.db", source="openai-agents")
    with pytest.raises(ImportFailed, match="is an SQLite database"):
        memory.import_file(tmp_path / "store.db", source="chatgpt")

"""What type checkers infer for the public names. Never run: `mypy --strict` reads it with the tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, assert_type

from palimpsest import (
    Answer,
    AsyncMemory,
    AsyncSession,
    Budget,
    BudgetImpossible,
    ConfigError,
    Context,
    Entry,
    Memory,
    PalimpsestError,
    Session,
    Text,
    Usage,
)
from palimpsest.strategies import MaxTokens
from palimpsest.types import Erased, Interaction, Report, Stats, TurnEnd


def synchronous() -> None:
    """A program without an event loop."""
    with Memory.open("sqlite:///agent.db", tenant="acme", synchronous="NORMAL") as memory:
        assert_type(memory, Memory)
        session = memory.session("one", model="gpt-4o", max_tokens=8000, short_term=[MaxTokens()])
        assert_type(session, Session)
        assert_type(session.id, str)
        assert_type(session.add_user_message("hello"), Entry)
        assert_type(session.add_user_message([Text(text="hello")]), Entry)
        assert_type(session.add_tool_call("look", {"at": 1}), Entry)
        assert_type(session.add({"role": "user", "content": "hello"}, key="k"), tuple[Entry, ...])
        assert_type(session.add(object()), tuple[Entry, ...])
        assert_type(session.record_usage(object()), Usage)
        assert_type(session.record_usage(input_tokens=1, output_tokens=2), Usage)
        with session.stream(cut_off="drop", key="k") as answer:
            assert_type(answer, Answer)
            assert_type(answer.feed(object()), str)
            assert_type(answer.entries, tuple[Entry, ...])
        assert_type(session.entries(after=1, limit=2), list[Entry])
        assert_type(session.entry(1), Entry)
        assert_type(session.entry("id"), Entry)
        assert_type(session.interactions(), list[Interaction])
        assert_type(session.stats(), Stats)
        assert_type(session.erase(["id", 2]), Erased)
        assert_type(session.clear(), int)
        assert_type(session.export(), dict[str, Any])
        assert_type(memory.import_session({}, on_conflict="merge"), str)
        assert_type(memory.on("cut", handler), Callable[[], None])
        context = session.context(system="be brief", tools=[{"type": "function"}])
        assert_type(context, Context)
        assert_type(context.messages, list[Any])
        assert_type(context.budget, Budget | None)
        assert_type(context.tokens, int)
        assert_type(context.report, Report)
        assert_type(context.request(), dict[str, Any])
        with session.turn(atomic=True) as turn:
            assert_type(turn, Session)
            assert_type(turn.end_turn(), TurnEnd)


async def asynchronous() -> None:
    """A program with an event loop."""
    async with AsyncMemory.open("memory://") as memory:
        assert_type(memory, AsyncMemory)
        session = memory.session("one")
        assert_type(session, AsyncSession)
        assert_type(await session.add_user_message("hello"), Entry)
        assert_type(await session.context(), Context)
        assert_type(await session.stats(), Stats)
        async with session.turn() as turn:
            assert_type(turn, AsyncSession)
            assert_type(await turn.end_turn(), TurnEnd)


async def awaited(session: str, facts: dict[str, Any]) -> None:
    """An event handler that is a coroutine."""


def handler(session: str, facts: dict[str, Any]) -> None:
    """An event handler that is a function."""


def handlers(memory: Memory) -> None:
    """Functions and coroutine functions may be event handlers."""
    memory.on("entry:added", handler)
    memory.on("entry:added", awaited)


def facts(entry: Entry, impossible: BudgetImpossible, wrong: ConfigError) -> None:
    """Records and errors have typed fields."""
    assert_type(entry.seq, int)
    assert_type(entry.text, str)
    assert_type(entry.created_at, datetime)
    assert_type(entry.metadata, dict[str, Any] | None)
    assert_type(impossible.needed, int)
    assert_type(wrong.nearest, str | None)


def refused(memory: Memory, session: Session, entry: Entry) -> None:
    """Calls that a type checker refuses; if it accepted one, mypy would report its comment as unused."""
    session.add_user_message("hello", importnace=1)  # type: ignore[call-arg]
    session.add_tool_result("look", 1, status="fine")  # type: ignore[arg-type]
    memory.session("s", format="opnai")  # type: ignore[arg-type]
    memory.session("s", persistence="never")  # type: ignore[arg-type]
    memory.session("s", auto_compact="later", long_term="lrv")  # type: ignore[arg-type]
    memory.on("entry:add", handler)  # type: ignore[arg-type]
    memory.import_session({}, on_conflict="both")  # type: ignore[arg-type]
    memory.import_file("x", source="gpt")  # type: ignore[arg-type]
    Memory.open("memory://", synchronous="OFF")  # type: ignore[arg-type]
    Memory.open("memory://", sync="FULL")  # type: ignore[call-arg]
    session.compact("lrv")  # type: ignore[arg-type]
    session.export_to("x", format="markdown")  # type: ignore[arg-type]
    session.context("be brief")  # type: ignore[call-arg]
    entry.text = "changed"  # type: ignore[misc]
    entry.seq = 2  # type: ignore[misc]


def roots(error: ConfigError) -> tuple[PalimpsestError, ValueError]:
    """An error is a PalimpsestError and also a built-in error of its kind."""
    return error, error

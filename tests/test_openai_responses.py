"""The format `openai-responses`: the vendor's types, and sessions of its SDK. `test_formats` has the shared rules."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import rules_openai_responses as responses
from palimpsest import InvalidEntry, Memory
from palimpsest.context.result import Context
from palimpsest.formats import find_format
from palimpsest.formats.openai_responses_items import SHAPES
from palimpsest.sessions.sync import Session
from samples_openai_responses import (
    ANSWER,
    APPROVE,
    APPROVED,
    CALL,
    COMPUTER,
    RESULT,
    SEARCH,
    SHOT,
    THOUGHT,
    USER,
)

FORMAT = find_format("openai-responses")


def responses_session(memory: Memory) -> Session:
    """Return a session whose format is `openai-responses`."""
    return memory.session("s", format="openai-responses")


def check(ctx: Context) -> None:
    """Assert that a context is valid by the rules and by the vendor's types."""
    assert responses.faults(ctx.messages) == []
    assert responses.sdk_faults(ctx.request()) == []


def test_our_table_of_item_types_equals_the_vendors() -> None:
    """The table of item types has the keys, required and allowed, of the installed library's types."""
    published = responses.shapes()

    assert {kind: (set(shape.needed) | {"type"}, set(shape.known)) for kind, shape in SHAPES.items()} == {
        kind: (needed | {"type"}, known) for kind, (needed, known) in published.items()
    }


def test_a_whole_response_comes_back_equal_and_goes_out_valid() -> None:
    """`model_dump()` of a response's output is stored with its nulls; a context leaves the nulls out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from openai.types.responses import Response
    output = [THOUGHT, {**SEARCH, "action": {"type": "search", "query": "it"}}, {**THOUGHT, "id": "rs_2"}, ANSWER]
    output += [{**CALL, "id": "fc_1"}, COMPUTER, APPROVE]
    given = {"id": "resp_1", "created_at": 1, "model": "m", "object": "response", "output": output}
    given |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    dumped = Response.model_validate(given).model_dump()["output"]
    assert dumped[-3]["async_"] is None

    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER, *dumped])
        assert FORMAT.encode(session.entries()) == [USER, *dumped]
        session.add([RESULT, SHOT, APPROVED])
        ctx = session.context()

        check(ctx)
        types = [item.get("type") for item in ctx.messages]
        assert types[:7] == [
            None,
            "reasoning",
            "web_search_call",
            "reasoning",
            "message",
            "function_call",
            "computer_call",
        ]
        assert ctx.messages[2] == {**SEARCH, "action": {"type": "search", "query": "it"}}


def test_a_session_of_the_agents_sdk_comes_back_equal(tmp_path: Path) -> None:
    """Items that the SDK's own session stored and returned are stored equal and give a valid context."""
    import asyncio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from agents.memory import SQLiteSession

    async def through(given: list[Any]) -> list[Any]:
        kept = SQLiteSession("conversation", tmp_path / "agents.db")
        try:
            await kept.add_items(given)
            return await kept.get_items()
        finally:
            kept.close()

    given = [USER, {**THOUGHT, "content": None}, {**CALL, "id": "fc_1", "status": "completed"}, RESULT, ANSWER]
    given += [{**ANSWER, "id": "__fake_id__", "provider_data": {"model": "m"}}, SEARCH, COMPUTER, SHOT]
    stored = asyncio.run(through(given))

    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(stored, format="openai-responses")

        assert FORMAT.encode(session.entries()) == stored == given
        check(session.context(format="openai-responses"))


ODD: tuple[Any, ...] = (None, [], {}, 7, 1.5, True, "", [[]], [{}], {"type": "program", "caller_id": []}, "x" * 70)
PLAIN: dict[str, Any] = {
    "id": "x_1", "call_id": "c1", "name": "f", "arguments": "{}", "output": "o", "input": "i", "code": "c",
    "action": {"type": "exec"}, "status": "completed", "pending_safety_checks": [], "operation": {"type": "x"},
    "server_label": "s", "approval_request_id": "x_1", "approve": True, "tools": [], "summary": [], "queries": [],
    "container_id": "k", "outputs": [], "result": "r", "fingerprint": "f", "role": "developer",
    "encrypted_content": "e",
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_an_item_with_an_odd_value_is_refused_or_sent_within_the_rules(kind: str) -> None:
    """An item with an odd value under any key is refused, or sent within the rules."""
    for key in sorted(SHAPES[kind].known - {"type"}):
        for odd in ODD:
            item = {"type": kind, **{needed: PLAIN[needed] for needed in SHAPES[kind].needed}, key: odd}
            with Memory.open("memory://") as memory:
                session = responses_session(memory)
                try:
                    session.add([{"role": "user", "content": "hi"}, item])
                except InvalidEntry:
                    continue
                assert responses.faults(session.context(system="x", dry_run=True).messages) == [], (key, odd)


@pytest.mark.parametrize("between", [ANSWER, THOUGHT, SEARCH, APPROVE], ids=lambda item: item["type"])
@pytest.mark.parametrize("ends_with_call", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_results_find_their_calls_whatever_the_model_says_between_the_calls(
    memory: Memory, between: dict[str, Any], ends_with_call: bool, at_once: bool
) -> None:
    """Calls of one answer are answered together, also if other items of that answer stand between or behind them."""
    other = {**CALL, "call_id": "c2"}
    asked = [CALL, between, *([other] if ends_with_call or between is THOUGHT else [])]
    answered = [{**RESULT, "call_id": item["call_id"]} for item in asked if item["type"] == "function_call"]
    answered += [APPROVED] if between is APPROVE else []
    session = responses_session(memory)

    for batch in [[USER, *asked, *answered]] if at_once else [[USER], asked, answered]:
        session.add(batch)

    shown = session.context().messages
    assert not responses.faults(shown)
    assert [(item.get("type"), item.get("call_id")) for item in shown] == [
        (item.get("type", None if item is USER else "message"), item.get("call_id"))
        for item in [USER, *asked, *answered]
    ]


def test_a_reasoning_item_before_a_reference_to_itself_is_sent_as_text() -> None:
    """A reasoning item before a reference to itself is sent as text.

    The reference is left out, since its id appears already, and reasoning cannot stand alone.
    """
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER, THOUGHT, {"type": "item_reference", "id": THOUGHT["id"]}])

        check(session.context(dry_run=True))


def test_an_item_without_role_and_type_must_be_a_reference() -> None:
    """An item without role and type is a reference, if it has nothing but an id; otherwise it is refused."""
    assert FORMAT.decode([{"id": "rs_1"}], "messages")
    with pytest.raises(InvalidEntry, match="role"):
        FORMAT.decode([{"id": "rs_1", "output": []}], "messages")

"""The format `openai-responses`: items come back key for key, and what is malformed is refused with its place."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rules_openai_responses as responses
import strategies
import strategies_openai_responses as items
from laws import examples
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import InvalidEntry
from palimpsest.formats import find_format
from palimpsest.formats.openai_responses_items import SHAPES
from palimpsest.log.head import Head
from palimpsest.log.linking import link
from palimpsest.sessions.sync import Session
from samples_openai_responses import (
    ANSWER,
    APPROVE,
    APPROVED,
    CALL,
    COMPUTER,
    EQUAL,
    RESULT,
    SEARCH,
    SHOT,
    THOUGHT,
    USER,
)

FORMAT = find_format("openai-responses")


def responses_session(memory: Memory) -> Session:
    return memory.session("s", format="openai-responses")


def check(ctx: Context) -> None:
    assert responses.faults(ctx.messages) == []
    assert responses.sdk_faults(ctx.request()) == []


@pytest.mark.parametrize("given", EQUAL.values(), ids=EQUAL)
def test_decoding_and_encoding_gives_the_equal_items(given: list[dict[str, Any]]) -> None:
    """Key for key, with nulls, empty values and keys that nobody knows; the input is left alone."""
    before = copy.deepcopy(given)

    assert FORMAT.encode(FORMAT.decode(given, "messages")) == given
    assert given == before


@pytest.mark.parametrize("given", EQUAL.values(), ids=EQUAL)
def test_what_was_stored_comes_back_equal(given: list[dict[str, Any]]) -> None:
    """The same through a store, where results have taken over what their calls know."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        strategies.taken_in(session, given)

        assert FORMAT.encode(session.entries()) == given


MALFORMED: dict[str, tuple[Any, str]] = {
    "text": ("hello", "messages"),
    "a mapping": ({"role": "user"}, "messages"),
    "no mapping inside": (["hello"], "messages[0]"),
    "nothing to go by": ([{"content": "hi"}], "messages[0].role"),
    "a type that is a list": ([{"type": []}], "messages[0].type"),
    "unknown role": ([USER, {"role": "tool", "content": "b"}], "messages[1].role"),
    "a role that is a list": ([{"role": [], "content": "b"}], "messages[0].role"),
    "a message without role": ([{"type": "message", "content": "b"}], "messages[0].role"),
    "no content": ([{"role": "assistant"}], "messages[0].content"),
    "content is null": ([{"role": "assistant", "content": None}], "messages[0].content"),
    "a part that is text": ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
    "a part without type": ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0].content[0]"),
    "a call without id": ([{**CALL, "call_id": None}], "messages[0].call_id"),
    "a call without name": ([{**CALL, "name": 5}], "messages[0].name"),
    "arguments that are a mapping": ([{**CALL, "arguments": {}}], "messages[0].arguments"),
    "an approval without id": ([{**APPROVE, "id": None}], "messages[0].id"),
    "a result without call": ([{"type": "custom_tool_call_output", "output": "x"}], "messages[0].call_id"),
    "an answer to no approval": ([{**APPROVED, "approval_request_id": 1}], "messages[0].approval_request_id"),
    "a local result without id": ([{"type": "local_shell_call_output", "output": "x"}], "messages[0].id"),
    "a result whose call is a number": ([{**RESULT, "call_id": 5}], "messages[0].call_id"),
    "a result without output": ([{"type": "function_call_output", "call_id": "c"}], "messages[0].output"),
    "a result of numbers": ([{**RESULT, "output": [5]}], "messages[0].output[0]"),
    "a screenshot that is text": ([{**SHOT, "output": "x"}], "messages[0].output"),
    "not a number": ([{**USER, "score": float("nan")}], "messages[0].score"),
    "a set": ([{"type": "hologram", "tags": {1}}], "messages[0].tags"),
    "a key that is a number": ([{**USER, 5: 1}], "messages[0]"),
}


@pytest.mark.parametrize(("given", "where"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused_with_its_place(given: Any, where: str) -> None:
    """InvalidEntry names the place in the input, and nothing of the batch is stored."""
    with pytest.raises(InvalidEntry) as refusal:
        FORMAT.decode(given, "messages")
    assert refusal.value.where == where

    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        with pytest.raises(InvalidEntry):
            session.add([USER, *(given if isinstance(given, list) else [given])])
        assert session.entries() == []


KEYS = [
    "type",
    "role",
    "content",
    "id",
    "status",
    "phase",
    "call_id",
    "name",
    "arguments",
    "input",
    "output",
    "action",
    "operation",
    "tools",
    "summary",
    "text",
    "refusal",
    "encrypted_content",
    "image_url",
    "file_id",
    "file_data",
    "detail",
    "execution",
    "approve",
    "approval_request_id",
    "caller",
    "annotations",
    "x",
]
TYPES = ["message", "reasoning", "item_reference", "web_search_call", "program", *responses.OUTPUTS]
TYPES += [*responses.OUTPUTS.values(), "compaction_trigger", "image_generation_call", "hologram"]
PARTS = ["input_text", "output_text", "refusal", "input_image", "input_file", "input_audio", "summary_text", "x"]


def looks_like_items() -> st.SearchStrategy[Any]:
    """JSON in which the keys and values that matter are frequent."""
    words = st.sampled_from(
        ["user", "assistant", "system", "developer", "tool", "c1", "msg_1", "completed", "server", ""]
    )
    leaves = words | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=6,
    )
    part = st.fixed_dictionaries(
        {"type": st.sampled_from(PARTS)},
        optional={
            "text": words | leaves,
            "refusal": words,
            "image_url": words,
            "file_id": words,
            "annotations": values,
        },
    )
    content = words | values | st.lists(part, max_size=3)
    given: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(KEYS, words | values)
    given |= {"content": content, "output": content, "summary": content, "type": st.sampled_from(TYPES) | leaves}
    item = st.fixed_dictionaries(
        {"type": st.sampled_from(TYPES)}, optional={k: v for k, v in given.items() if k != "type"}
    )
    message = st.fixed_dictionaries(
        {"role": words, "content": content}, optional={"id": words, "type": leaves, "x": values}
    )
    return st.lists(item | message | values, max_size=3) | values


@settings(max_examples=examples(300), deadline=None)
@given(data=looks_like_items())
def test_arbitrary_json_is_refused_or_comes_back_equal(data: Any) -> None:
    """Whatever is handed in raises InvalidEntry and nothing else, or is accepted, comes back equal and can be shown."""
    before = copy.deepcopy(data)
    try:
        entries = FORMAT.decode(data, "messages")
    except InvalidEntry:
        return

    again = FORMAT.encode(entries)

    assert again == before
    assert json.dumps(again, sort_keys=True) == json.dumps(before, sort_keys=True)  # 1, 1.0 and True differ here
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        strategies.taken_in(session, data, "openai-responses")
        assert FORMAT.encode(session.entries()) == before
        assert FORMAT.validate(session.context().messages) == []
        for other in ("openai", "text"):
            session.context(format=other)


@settings(max_examples=examples(50), deadline=None)
@given(batches=st.lists(items.batches(), max_size=4))
def test_batches_of_items_come_back_equal(batches: list[list[dict[str, Any]]]) -> None:
    """Linked into one log, with ids repeated from batch to batch, items come back as they came."""
    given = [item for batch in batches for item in batch]
    _, entries = link(Head(), FORMAT.decode(given, "messages"), 1)

    assert FORMAT.encode(entries) == given


# --- the vendor's types


def test_the_keys_of_items_are_those_that_the_vendor_publishes() -> None:
    """The table of item types equals the types of the installed library: what is needed, and what there may be."""
    published = responses.shapes()

    assert {kind: (set(shape.needed) | {"type"}, set(shape.known)) for kind, shape in SHAPES.items()} == {
        kind: (needed | {"type"}, known) for kind, (needed, known) in published.items()
    }


def test_a_whole_response_comes_back_equal_and_goes_out_valid() -> None:
    """`model_dump()` of a response's output, with its nulls, is taken as it is; a context leaves the nulls out."""
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
    """Items that the SDK's own session stored and gave back are taken, encoded equally and shown validly."""
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

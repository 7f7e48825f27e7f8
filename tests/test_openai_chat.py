"""The format `openai`: messages come back key for key, and what is malformed is refused with its place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from laws import examples
from palimpsest import Image, Memory, Reasoning, Text
from palimpsest.errors import InvalidEntry
from palimpsest.formats import find_format
from palimpsest.log.entry import Part
from palimpsest.log.head import Head
from palimpsest.log.linking import link

FORMAT = find_format("openai")
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
CUSTOM = {"id": "c2", "type": "custom", "custom": {"name": "paint", "input": "a house"}}

EQUAL: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
    "empty content": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    "null content beside calls": [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
    "no content beside calls": [{"role": "assistant", "tool_calls": [CALL]}],
    "empty content beside calls": [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
    "text beside calls": [{"role": "assistant", "content": "wait", "tool_calls": [CALL, {**CALL, "id": "c3"}]}],
    "null content without calls": [{"role": "assistant", "content": None}],
    "no content without calls": [{"role": "assistant"}],
    "null calls": [{"role": "assistant", "content": "hi", "tool_calls": None}],
    "empty calls": [{"role": "assistant", "content": "hi", "tool_calls": []}],
    "unknown keys": [{"role": "assistant", "content": "hi", "x": {"y": [1, 2.5, None, True]}, "annotations": []}],
    "unknown keys beside calls": [{"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]}],
    "refusal": [{"role": "assistant", "content": None, "refusal": "no"}],
    "function_call": [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}],
    "developer": [{"role": "developer", "content": "be kind"}],
    "system": [{"role": "system", "content": "be kind", "name": "boss"}],
    "names": [{"role": "user", "content": "hi", "name": "ann"}, {"role": "assistant", "content": "x", "name": "bot"}],
    "null and empty names": [
        {"role": "user", "content": "a", "name": None},
        {"role": "user", "content": "b", "name": ""},
    ],
    "a name beside calls": [{"role": "assistant", "content": None, "name": "bot", "tool_calls": [CALL]}],
    "result": [{"role": "tool", "tool_call_id": "c1", "content": "found"}],
    "empty result": [{"role": "tool", "tool_call_id": "c1", "content": ""}],
    "named result": [{"role": "tool", "tool_call_id": "c1", "name": "find", "content": "found"}],
    "result of parts": [{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "found"}]}],
    "result with more keys": [{"role": "tool", "tool_call_id": "c1", "content": "x", "is_error": True}],
    "function": [{"role": "function", "name": "find", "content": "found"}],
    "function without text": [{"role": "function", "name": "find", "content": None}],
    "custom call": [{"role": "assistant", "content": None, "tool_calls": [CUSTOM]}],
    "call with more keys": [{"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}]}],
    "call without type": [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": CALL["function"]}]}
    ],
    "repeated ids": [
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ],
    "empty ids": [
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": ""}]},
        {"role": "tool", "tool_call_id": "", "content": "1"},
    ],
    "empty tool name": [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "", "arguments": ""}}]}],
    "arguments that are no JSON": [
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}
    ],
    "parts": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?", "cache": True},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                {"type": "file", "file": {"file_id": "f1"}},
                {"type": "file", "file": {"file_data": "data:,", "filename": "a.pdf"}},
                {"type": "hologram", "scene": {"depth": 3}},
            ],
        }
    ],
    "parts of unexpected shape": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": 5},
                {"type": "text"},
                {"type": "image_url", "image_url": "https://example.com/a.png"},
                {"type": "image_url", "image_url": {"url": "x", "size": 3}},
                {"type": "input_audio", "input_audio": {"data": "AA=="}},
                {"type": "file", "file": {}},
                {"type": "refusal", "refusal": "no"},
                {"type": "type"},
            ],
        }
    ],
    "no parts": [{"role": "user", "content": []}],
    "odd text": [{"role": "user", "content": "a\x00b \ud800 \u2028 ☂"}],
}


@pytest.mark.parametrize("messages", EQUAL.values(), ids=EQUAL)
def test_decoding_and_encoding_gives_the_equal_messages(messages: list[dict[str, Any]]) -> None:
    """Key for key, with nulls, empty values and keys that nobody knows; the input is left alone."""
    before = copy.deepcopy(messages)

    assert FORMAT.encode(FORMAT.decode(messages, "messages")) == messages
    assert messages == before


@pytest.mark.parametrize("messages", EQUAL.values(), ids=EQUAL)
def test_what_was_stored_comes_back_equal(messages: list[dict[str, Any]]) -> None:
    """The same through a store, where results have taken over what their calls know."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        strategies.taken_in(session, messages)

        assert FORMAT.encode(session.entries()) == messages


MALFORMED: dict[str, tuple[Any, str]] = {
    "text": ("hello", "messages"),
    "a mapping": ({"role": "user"}, "messages"),
    "no mapping inside": (["hello"], "messages[0]"),
    "no role": ([{"content": "hi"}], "messages[0].role"),
    "unknown role": ([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}], "messages[1].role"),
    "a role that is a list": ([{"role": [], "content": "b"}], "messages[0].role"),
    "content of a user is null": ([{"role": "user", "content": None}], "messages[0].content"),
    "content is a number": ([{"role": "user", "content": 5}], "messages[0].content"),
    "a part that is text": ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
    "a part without type": ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0].content[0]"),
    "a name that is a number": ([{"role": "user", "content": "a", "name": 5}], "messages[0].name"),
    "calls of a user": ([{"role": "user", "content": "a", "tool_calls": [CALL]}], "messages[0].tool_calls"),
    "a call that is text": ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0]"),
    "calls that are a number": ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
    "calls that are a mapping": ([{"role": "assistant", "tool_calls": {"a": 1}}], "messages[0].tool_calls"),
    "a call without id": (
        [{"role": "assistant", "tool_calls": [CALL, {**CALL, "id": None}]}],
        "messages[0].tool_calls[1].id",
    ),
    "a call without function": (
        [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}],
        "messages[0].tool_calls[0].function",
    ),
    "arguments that are a mapping": (
        [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}],
        "messages[0].tool_calls[0].function",
    ),
    "a result without call": ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    "a result without content": ([{"role": "tool", "tool_call_id": "c"}], "messages[0].content"),
    "a function without name": ([{"role": "function", "content": "x"}], "messages[0].name"),
    "not a number": ([{"role": "user", "content": "x", "score": float("nan")}], "messages[0].score"),
    "a set": ([{"role": "user", "content": "x", "tags": {1}}], "messages[0].tags"),
    "a key that is a number": ([{"role": "user", "content": "x", 5: 1}], "messages[0]"),
}


@pytest.mark.parametrize(("messages", "where"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused_with_its_place(messages: Any, where: str) -> None:
    """InvalidEntry names the place in the input, and nothing of the batch is stored."""
    with pytest.raises(InvalidEntry) as refusal:
        FORMAT.decode(messages, "messages")
    assert refusal.value.where == where

    with Memory.open("memory://") as memory:
        batch = messages if isinstance(messages, list) else [messages]
        with pytest.raises(InvalidEntry):
            memory.session("s").add([{"role": "user", "content": "first"}, *batch])
        assert memory.session("s").entries() == []


ROLES = ("user", "assistant", "system", "developer", "tool", "function")
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "id", "function", "arguments", "refusal")
PART_KEYS = ("type", "text", "image_url", "url", "detail", "input_audio", "file", "custom", "input")


def looks_like_messages() -> st.SearchStrategy[Any]:
    """JSON in which the keys and values that matter are frequent."""
    words = st.sampled_from([*ROLES, "text", "image_url", "custom", "file", "c1", ""])
    keys = st.sampled_from([*MESSAGE_KEYS, *PART_KEYS, "x"])
    leaves = words | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
    )
    call = st.fixed_dictionaries(
        {"id": st.sampled_from(["c1", "c1", ""]) | leaves},
        optional={
            "type": st.sampled_from(["function", "custom"]) | leaves,
            "function": st.fixed_dictionaries({"name": words, "arguments": words}) | values,
            "custom": st.fixed_dictionaries({"name": words, "input": words}) | values,
            "x": values,
        },
    )
    part = st.fixed_dictionaries({"type": words}, optional={"text": leaves, "image_url": values, "file": values})
    optional: dict[Any, st.SearchStrategy[Any]] = {
        "content": words | values | st.lists(part, max_size=3),
        "name": words | leaves,
        "tool_calls": st.lists(call, max_size=3) | values,
        "tool_call_id": words | leaves,
        "refusal": leaves,
        "x": values,
    }
    message = st.fixed_dictionaries({"role": words | leaves}, optional=optional)
    return st.lists(message | values, max_size=3) | values


@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": 5}])
def test_a_text_part_without_text_is_kept_and_not_sent(part: dict[str, Any]) -> None:
    """The API would refuse the whole request."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        said = [{"type": "text", "text": "hello"}]
        session.add([{"role": "user", "content": [part, *said]}])

        assert session.context(format="openai").messages == [{"role": "user", "content": said}]
        assert FORMAT.encode(session.entries()) == [{"role": "user", "content": [part, *said]}]


@settings(max_examples=examples(600))
@given(data=looks_like_messages())
def test_arbitrary_json_is_refused_or_comes_back_equal(data: Any) -> None:
    """Whatever is handed in raises InvalidEntry and nothing else, or is accepted and comes back equal."""
    before = copy.deepcopy(data)
    try:
        entries = FORMAT.decode(data, "messages")
    except InvalidEntry:
        return

    again = FORMAT.encode(entries)

    assert again == before
    assert [list(map(type, one.values())) for one in again] == [
        [type(before[i][key]) for key in one] for i, one in enumerate(again)
    ]
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        strategies.taken_in(session, data)
        assert FORMAT.encode(session.entries()) == before
        assert FORMAT.validate(session.context().messages) == []


@given(batches=st.lists(strategies.provider_batches(), max_size=4))
def test_batches_of_provider_messages_come_back_equal(batches: list[strategies.Batch]) -> None:
    """Linked into one log, with ids repeated from batch to batch, messages come back as they came."""
    messages = [message for batch in batches for message in batch.messages]
    _, entries = link(Head(), FORMAT.decode(messages, "messages"), 1)

    assert FORMAT.encode(entries) == messages


def test_a_message_of_no_parts_is_left_out_of_a_context() -> None:
    """The provider refuses content that says nothing, be it text or parts; the log keeps it."""
    empty = [{"role": "user", "content": []}, {"role": "user", "content": [{"type": "text", "text": ""}]}]
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        strategies.taken_in(session, [*empty, {"role": "user", "content": "hello"}])

        assert session.context().messages == [{"role": "user", "content": "hello"}]
        assert FORMAT.encode(session.entries())[:2] == empty


def test_a_call_without_id_or_name_gets_them_in_a_context() -> None:
    """The provider refuses empty ids and names, so a context has the place for the one, "unknown" for the other."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(
            [
                {"role": "assistant", "tool_calls": [{**CALL, "id": "", "function": {"name": "", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "", "content": "found"},
            ]
        )

        asked, result = session.context().messages

        assert asked["tool_calls"][0]["id"] == result["tool_call_id"] == "call_1"
        assert asked["tool_calls"][0]["function"]["name"] == "unknown"


def test_calls_that_share_an_id_are_renamed_in_a_context() -> None:
    """The provider refuses repeated ids in one message, so a context names the second by its place."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(EQUAL["repeated ids"])

        asked, *results = session.context().messages

        ids = [call["id"] for call in asked["tool_calls"]]
        assert len(set(ids)) == 2
        assert {message["tool_call_id"]: message["content"] for message in results} == {ids[1]: "1", ids[0]: "2"}


@pytest.mark.parametrize("beside", [Text(text="a"), Image(source="data:image/png;base64,aGk=")], ids=["text", "image"])
def test_an_empty_thought_is_no_part_of_a_message(beside: Part) -> None:
    """The API takes no empty text: a thought without words, as imports have them, leaves what stands beside it."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="openai")
        session.add_user_message("q")
        session.add_assistant_message([Reasoning(text=""), beside])

        said = session.context().messages[-1]["content"]

    assert all(part["text"] for part in said)
    assert len(said) == 1

"""Messages of Chat Completions for several tests: some must come back equal, some are refused, some are random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

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
                {"type": "image_url", "image_url": {"url": "x", "size": 3}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav", "id": None}},
                {"type": "file", "file": {"file_id": "f1", "filename": None}},
                {"type": "refusal", "refusal": "no"},
                {"type": "type"},
            ],
        }
    ],
    "no parts": [{"role": "user", "content": []}],
    "odd text": [{"role": "user", "content": "a\x00b \ud800 \u2028 ☂"}],
}


BROKEN: tuple[dict[str, Any], ...] = (
    *({"type": "image_url", "image_url": held} for held in ("http://x/a.png", {}, {"url": 3}, {"url": ""})),
    {"type": "image_url"},
    *({"type": "file", "file": held} for held in ({}, "x", {"file_id": None, "filename": "x"})),
    *({"type": "input_audio", "input_audio": held} for held in ({"data": "AA=="}, {"format": "wav"}, None)),
)
"""Parts of known types with missing or invalid fields."""


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
    **{
        f"a part of a known kind: {part}": (
            [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}],
            f"messages[0].content[1].{part['type']}",
        )
        for part in BROKEN
    },
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


ROLES = ("user", "assistant", "system", "developer", "tool", "function")


MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "id", "function", "arguments", "refusal")


PART_KEYS = ("type", "text", "image_url", "url", "detail", "input_audio", "file", "custom", "input")


def likely() -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values in which the keys and values that the format knows are frequent."""
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

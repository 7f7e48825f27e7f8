"""Messages of the Messages API for several tests: some must come back equal, some are refused, some are random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from blocks_anthropic import (
    CALL,
    FOUND,
    MARK,
    PDF,
    PIXEL,
    REDACTED,
    RESULT,
    SEARCH,
    TEXT,
    THOUGHT,
    assistant,
    user,
)

INPUTS: tuple[Any, ...] = ({}, {"b": 1, "a": [1.0, 1, None, True, "é", ""]}, [], "text", "", 5, 1.5, None, False, 2**63)

EQUAL: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
    "empty content": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    "no blocks": [{"role": "user", "content": []}, {"role": "assistant", "content": []}],
    "one block of text": [user(TEXT), assistant(TEXT)],
    "empty block of text": [user({"type": "text", "text": ""}), assistant({"type": "text", "text": ""}, CALL)],
    "a whole answer": [
        {
            **assistant({"type": "text", "text": "hi", "citations": None}),
            "id": "msg_1",
            "type": "message",
            "model": "claude",
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "container": None,
            "usage": {"input_tokens": 1, "output_tokens": 2, "cache_creation": None},
        }
    ],
    "a whole answer that begins with a call": [
        {**assistant({**CALL, "caller": None, "toolset_name": None}), "id": "msg_1", "stop_reason": "tool_use"}
    ],
    "interleaved": [
        assistant(TEXT, CALL, {"type": "text", "text": "and"}, {**CALL, "id": "toolu_2"}, THOUGHT, {**TEXT}),
        user(RESULT, {**RESULT, "tool_use_id": "toolu_2"}, TEXT),
    ],
    "call alone": [assistant(CALL)],
    "marks and citations": [
        user({**TEXT, "cache_control": MARK}),
        assistant({**TEXT, "citations": [{"type": "char_location", "cited_text": "x", "document_index": 0}]}),
        assistant({**CALL, "cache_control": {"type": "ephemeral", "ttl": "1h"}}),
        user({**RESULT, "cache_control": None}),
    ],
    "inputs of any JSON": [assistant({**CALL, "input": value}) for value in INPUTS],
    "key order of the input": [assistant({**CALL, "input": {"z": 1, "a": 2, "m": {"y": 1, "b": 2}}})],
    "results": [
        user(
            RESULT,
            {**RESULT, "content": ""},
            {"type": "tool_result", "tool_use_id": "toolu_1"},
            {**RESULT, "content": []},
            {**RESULT, "content": None},
            {**RESULT, "content": [TEXT, {"type": "image", "source": PIXEL}, {"type": "hologram"}]},
            {**RESULT, "content": [{**TEXT, "cache_control": MARK}]},
            {**RESULT, "x": [1]},
        )
    ],
    "errors": [user(*({**RESULT, "is_error": flag} for flag in (True, False, None, 1, "yes")))],
    "an error without content": [user({"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True})],
    "a message of results with keys of its own": [{**user({"type": "tool_result", "tool_use_id": "t"}), "id": 5}],
    "empty ids and names": [assistant({**CALL, "id": "", "name": ""}), user({**RESULT, "tool_use_id": ""})],
    "repeated ids": [assistant(CALL, CALL), user(RESULT, {**RESULT, "content": "2"}), assistant(CALL)],
    "text before results": [assistant(CALL), user(TEXT, RESULT)],
    "images": [
        user(
            {"type": "image", "source": PIXEL},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}, "cache_control": MARK},
            {"type": "image", "source": {"type": "url", "url": "data:image/png;base64,AA=="}},
            {"type": "image", "source": {"type": "url", "url": "data:image/png;charset=x;base64,AA=="}},
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "image", "source": {**PIXEL, "media_type": "a;b"}},
            {"type": "image", "source": {**PIXEL, "data": "x;base64,y"}},
            {"type": "image", "source": {"type": "newer"}},
        )
    ],
    "documents": [
        user(
            {"type": "document", "source": PDF},
            {
                "type": "document",
                "source": PDF,
                "title": "a.pdf",
                "context": "a report",
                "citations": {"enabled": True},
            },
            {"type": "document", "source": PDF, "title": None},
            {"type": "document", "source": PDF, "title": ""},
            {"type": "document", "source": PDF, "title": 5},
            {"type": "document", "source": {**PDF, "media_type": "text/plain"}, "title": "a.txt"},
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
            {"type": "document", "source": {"type": "content", "content": [TEXT]}},
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        )
    ],
    "thinking": [
        assistant(THOUGHT, REDACTED, TEXT),
        assistant({"type": "thinking", "thinking": "hm"}, {**THOUGHT, "x": 1}, {"type": "thinking", "thinking": 5}),
        assistant({**THOUGHT, "thinking": ""}, CALL),
        user(THOUGHT, REDACTED),
    ],
    "tools of the provider": [
        assistant(SEARCH, FOUND, TEXT, CALL, {"type": "mcp_tool_use", "id": "m", "name": "x", "input": {}}),
        assistant({"type": "mcp_tool_result", "tool_use_id": "m", "content": [TEXT]}),
    ],
    "blocks that nobody knows": [user({"type": "hologram", "scene": {"depth": 3}}), assistant({"type": ""})],
    "blocks of unexpected shape": [user({"type": "text", "text": 5}, {"type": "text"}, {"type": "type"})],
    "system messages": [
        {"role": "system", "content": "be kind"},
        {"role": "system", "content": [{**TEXT, "cache_control": MARK}, {"type": "tool_removal", "name": "x"}]},
        {"role": "system", "output_config": {"effort": "low"}},
    ],
    "unknown keys": [{"role": "user", "content": "hi", "x": {"y": [1, 2.5, None, True]}, "empty": {}}],
    "odd text": [{"role": "user", "content": "a\x00b \ud800 \u2028 ☂"}, assistant({**CALL, "input": {"\ud800": "☂"}})],
}


MALFORMED: dict[str, tuple[Any, str]] = {
    "text": ("hello", "messages"),
    "a mapping": ({"role": "user"}, "messages"),
    "no mapping inside": (["hello"], "messages[0]"),
    "no role": ([{"content": "hi"}], "messages[0].role"),
    "unknown role": ([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}], "messages[1].role"),
    "a role of chat completions": ([{"role": "tool", "content": "b"}], "messages[0].role"),
    "a role that is a list": ([{"role": [], "content": "b"}], "messages[0].role"),
    "no content": ([{"role": "user"}], "messages[0].content"),
    "no content and nothing else of a system": ([{"role": "system"}], "messages[0].content"),
    "content is null": ([{"role": "assistant", "content": None}], "messages[0].content"),
    "content is a number": ([{"role": "user", "content": 5}], "messages[0].content"),
    "a block that is text": ([user("hi")], "messages[0].content[0]"),
    "a block without type": ([user(TEXT, {"text": "hi"})], "messages[0].content[1]"),
    "a call of a user": ([user(CALL)], "messages[0].content[0].type"),
    "a result of an assistant": ([assistant(TEXT, RESULT)], "messages[0].content[1].type"),
    "a result in a system message": ([{"role": "system", "content": [RESULT]}], "messages[0].content[0].type"),
    "a call without id": ([assistant(TEXT, {**CALL, "id": None})], "messages[0].content[1].id"),
    "a call without name": ([assistant({**CALL, "name": 5})], "messages[0].content[0].name"),
    "a call without input": ([assistant({"type": "tool_use", "id": "t", "name": "f"})], "messages[0].content[0].input"),
    "a result without call": ([user({"type": "tool_result"})], "messages[0].content[0].tool_use_id"),
    "a result that is a number": ([user({**RESULT, "content": 5})], "messages[0].content[0].content"),
    "a result of texts": ([user({**RESULT, "content": ["x"]})], "messages[0].content[0].content[0]"),
    **{
        f"an image of {source}": ([user(TEXT, {"type": "image", "source": source})], f"messages[0].content[1].{where}")
        for source, where in (
            ("somewhere", "source"),
            (None, "source"),
            ({}, "source"),
            ({"type": "url"}, "source.url"),
            ({"type": "url", "url": ""}, "source.url"),
            ({**PIXEL, "data": 5}, "source.data"),
            ({"type": "base64", "data": "AA=="}, "source.media_type"),
        )
    },
    "a document without an id": (
        [user({"type": "document", "source": {"type": "file"}})],
        "messages[0].content[0].source.file_id",
    ),
    "not a number": ([{"role": "user", "content": "x", "score": float("nan")}], "messages[0].score"),
    "not a number in an input": (
        [assistant({**CALL, "input": {"x": float("inf")}})],
        "messages[0].content[0].input.x",
    ),
    "a set": ([user({**TEXT, "tags": {1}})], "messages[0].content[0].tags"),
    "a key that is a number": ([{"role": "user", "content": "x", 5: 1}], "messages[0]"),
}


BLOCK_TYPES = ("text", "tool_use", "tool_result", "thinking", "image", "document", "redacted_thinking", "hologram")


def likely() -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values in which the keys and values that the format knows are frequent."""
    words = st.sampled_from([*BLOCK_TYPES, "user", "assistant", "system", "base64", "url", "application/pdf", "t1", ""])
    keys = st.sampled_from(["type", "text", "source", "data", "media_type", "url", "content", "cache_control", "x"])
    leaves = words | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
    )
    source = st.fixed_dictionaries(
        {"type": st.sampled_from(["base64", "url"]) | leaves},
        optional={"media_type": words | leaves, "data": words | leaves, "url": words | leaves, "x": leaves},
    )
    block = st.fixed_dictionaries(
        {"type": st.sampled_from(BLOCK_TYPES) | leaves},
        optional={
            "text": words | leaves,
            "id": words,
            "name": words,
            "input": values,
            "tool_use_id": words,
            "content": words | values,
            "is_error": leaves,
            "thinking": words | leaves,
            "signature": words | leaves,
            "data": words | leaves,
            "source": source | values,
            "title": leaves,
            "cache_control": leaves,
            "x": values,
        },
    )
    roles = st.sampled_from(["user", "assistant", "assistant", "system"]) | leaves
    content = words | values | st.lists(block, max_size=4)
    message = st.fixed_dictionaries({"role": roles, "content": content}, optional={"id": leaves, "x": values})
    return st.lists(message | values, max_size=3) | values

"""The format `anthropic`: messages come back key for key, and the API accepts every context."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import rules_anthropic
import strategies
import strategies_anthropic
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
from laws import examples
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import InvalidEntry
from palimpsest.formats import find_format
from palimpsest.log.entry import File, Image, Opaque, Reasoning, Text
from palimpsest.tokens.counter import encoding
from worlds import attempt

FORMAT = find_format("anthropic")
law = settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


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
    "inputs of any JSON": [
        assistant({**CALL, "input": value})
        for value in ({}, {"b": 1, "a": [1.0, 1, None, True, "é", ""]}, [], "text", "", 5, 1.5, None, False, 2**63)
    ],
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
            {"type": "image", "source": {**PIXEL, "data": 5}},
            {"type": "image", "source": "somewhere"},
            {"type": "image"},
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


@pytest.mark.parametrize("messages", EQUAL.values(), ids=EQUAL)
def test_decoding_and_encoding_gives_the_equal_messages(messages: list[dict[str, Any]]) -> None:
    """Key for key and in the order of the blocks, with keys that nobody knows; the input is left alone."""
    before = copy.deepcopy(messages)

    again = FORMAT.encode(FORMAT.decode(messages, "messages"))

    assert again == messages == before
    assert json.dumps(again, sort_keys=True) == json.dumps(before, sort_keys=True)


@pytest.mark.parametrize("messages", EQUAL.values(), ids=EQUAL)
def test_what_was_stored_comes_back_equal(messages: list[dict[str, Any]]) -> None:
    """The same through a store, where results have taken over what their calls know."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic")
        strategies.taken_in(session, messages)

        assert FORMAT.encode(session.entries()) == messages


def test_key_order_of_an_input_is_kept() -> None:
    """What a tool is asked with comes back in the order in which the model wrote it."""
    again = FORMAT.encode(FORMAT.decode(EQUAL["key order of the input"], "messages"))

    assert list(again[0]["content"][0]["input"]) == ["z", "a", "m"]


def test_an_own_field_means_nothing_native() -> None:
    """Plain texts, blocks of text, media, calls and results keep nothing beside the fields of their entries."""
    messages = [
        {"role": "user", "content": "hi"},
        user(TEXT, {"type": "image", "source": PIXEL}, {"type": "document", "source": PDF, "title": "a.pdf"}),
        assistant(TEXT, CALL),
        user({**RESULT, "is_error": True}, TEXT),
    ]

    entries = FORMAT.decode(messages, "messages")

    assert all(entry.native is None for entry in entries)
    assert [entry.kind for entry in entries] == [
        *("message", "message", "message", "tool_call", "tool_result", "message")
    ]
    assert entries[1].content == (
        Text(text="hi"),
        Image(source=f"data:image/png;base64,{PIXEL['data']}"),
        File(data=f"data:application/pdf;base64,{PDF['data']}", filename="a.pdf"),
    )
    assert (entries[3].name, entries[3].call_id, json.loads(entries[3].text)) == ("find", "toolu_1", {"what": "x"})
    assert (entries[4].status, entries[4].role) == ("error", "tool")


def test_thinking_becomes_reasoning_that_keeps_its_signature() -> None:
    """A thinking block is a reasoning part; what is encrypted is kept whole."""
    (entry,) = FORMAT.decode([assistant(THOUGHT, REDACTED, TEXT)], "messages")

    assert entry.content == (
        Reasoning(text="hm", extra={"signature": "c2ln"}),
        Opaque(item=REDACTED),
        Text(text="hi"),
    )


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
    "not a number": ([{"role": "user", "content": "x", "score": float("nan")}], "messages[0].score"),
    "not a number in an input": (
        [assistant({**CALL, "input": {"x": float("inf")}})],
        "messages[0].content[0].input.x",
    ),
    "a set": ([user({**TEXT, "tags": {1}})], "messages[0].content[0].tags"),
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
            memory.session("s", format="anthropic").add([{"role": "user", "content": "first"}, *batch])
        assert memory.session("s").entries() == []


def test_a_message_of_role_tool_is_told_where_results_go() -> None:
    """Who hands in a tool message of another provider is told how results look here."""
    with pytest.raises(InvalidEntry, match="tool_result blocks of a user message"):
        FORMAT.decode([{"role": "tool", "tool_call_id": "x", "content": "y"}], "messages")


# --- whatever is handed in


BLOCK_TYPES = ("text", "tool_use", "tool_result", "thinking", "image", "document", "redacted_thinking", "hologram")


def looks_like_messages() -> st.SearchStrategy[Any]:
    """JSON in which the keys and values that matter are frequent."""
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


@settings(law, max_examples=examples(500))
@given(data=looks_like_messages())
def test_arbitrary_json_is_refused_or_comes_back_equal(data: Any) -> None:
    """Whatever is handed in raises InvalidEntry and nothing else, or comes back equal and gives a valid context."""
    before = copy.deepcopy(data)
    try:
        entries = FORMAT.decode(data, "messages")
    except InvalidEntry:
        return

    again = FORMAT.encode(entries)

    assert again == before
    assert json.dumps(again, sort_keys=True) == json.dumps(before, sort_keys=True)
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", counter=strategies.WORDS)
        strategies.taken_in(session, data)
        assert FORMAT.encode(session.entries()) == before
        ctx = session.context(system="be kind")
        assert FORMAT.validate(ctx.messages) == []
        assert rules_anthropic.faults(ctx.messages) == []


@law
@given(batches=st.lists(strategies_anthropic.batches(), max_size=4))
def test_batches_come_back_equal(batches: list[list[dict[str, Any]]]) -> None:
    """Added one after the other to one log, messages come back as they came."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic")
        for batch in batches:
            strategies.taken_in(session, batch)

        assert FORMAT.encode(session.entries()) == [message for batch in batches for message in batch]


@law
@given(
    batches=st.lists(strategies_anthropic.batches(), max_size=6),
    budget=st.none() | st.integers(10, 900),
    system=st.sampled_from([None, "be kind", " "]),
)
def test_contexts_are_accepted_and_begin_alike(
    batches: list[list[dict[str, Any]]], budget: int | None, system: str | None
) -> None:
    """After every batch the context is valid, also by the vendor's types, and begins with the blocks of the last."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=budget, counter=strategies.WORDS)
        earlier: Context | None = None
        for batch in batches:
            strategies.taken_in(session, batch)
            ctx = attempt(session, system=system)
            if ctx is None:
                continue
            for request in (ctx.request(), ctx.request(cache_breakpoints=False)):
                assert rules_anthropic.faults(request["messages"]) == []
                assert rules_anthropic.sdk_faults(request) == []
                assert len(list(rules_anthropic.marks(request))) <= rules_anthropic.MARKS
            if earlier is not None and earlier.epoch == ctx.epoch:
                before, after = (rules_anthropic.blocks(one.messages) for one in (earlier, ctx))
                assert rules.is_prefix(before, after)
            earlier = ctx


@law
@given(
    batches=st.lists(strategies_anthropic.batches(), min_size=1, max_size=5),
    budget=st.none() | st.integers(60, 3000),
    system=st.sampled_from([None, "be kind"]),
)
def test_no_context_says_more_than_it_counts(
    batches: list[list[dict[str, Any]]], budget: int | None, system: str | None
) -> None:
    """Everything that a request says, fences and wrappers included, costs at most what the context claims."""
    counter = encoding("o200k_base")
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=budget)
        for batch in batches:
            strategies.taken_in(session, batch)
        ctx = attempt(session, system=system)
        if ctx is None:
            return

        assert sum(map(counter.count, rules_anthropic.texts(ctx.request()))) <= ctx.tokens
        assert budget is None or ctx.tokens <= budget


@law
@given(batches=st.lists(strategies_anthropic.batches(), min_size=1, max_size=5), budget=st.integers(20, 900))
def test_words_are_counted_too(batches: list[list[dict[str, Any]]], budget: int) -> None:
    """A counter that is a plain function sees every word but those that Palimpsest puts around what others said."""
    ours = 8  # the longest note that stands for one block
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=budget, counter=strategies.WORDS)
        for batch in batches:
            strategies.taken_in(session, batch)
        ctx = attempt(session)
        if ctx is None:
            return

        texts = rules_anthropic.texts(ctx.request())
        assert sum(max(strategies.WORDS.count(text) - ours, 0) for text in texts) <= ctx.tokens <= budget


@law
@given(log=strategies.logs(), budget=st.none() | st.integers(20, 300), request=strategies.requests)
def test_a_log_of_chat_completions_is_accepted(log: list[Any], budget: int | None, request: dict[str, Any]) -> None:
    """What came in another provider's form, or by the verbs, gives valid contexts, and within an epoch a prefix."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=budget, counter=strategies.WORDS)
        earlier: Context | None = None
        for operation in log:
            strategies.perform(session, operation)
            ctx = attempt(session, format="anthropic", system=request["system"])
            if ctx is None:
                continue
            assert rules_anthropic.faults(ctx.messages) == []
            assert rules_anthropic.sdk_faults(ctx.request(cache_breakpoints=True)) == []
            if earlier is not None and earlier.epoch == ctx.epoch:
                before, after = (rules_anthropic.blocks(one.messages) for one in (earlier, ctx))
                assert rules.is_prefix(before, after)
            earlier = ctx


@law
@given(log=strategies.logs())
def test_every_human_text_of_another_format_is_said(log: list[Any]) -> None:
    """Without a budget, each text that a human said in another provider's form is in the request, unaltered."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", counter=strategies.WORDS)
        for operation in log:
            strategies.perform(session, operation)
        entries = [entry for entry in session.entries() if entry.is_human and entry.expires_at is None]

        request = session.context(format="anthropic").request()
        said = [rules.plain(text) for text in rules_anthropic.texts(request)]

        for entry in entries:
            texts = (
                [entry.content]
                if isinstance(entry.content, str)
                else [part.text for part in entry.content if isinstance(part, Text)]
            )
            assert all(rules.plain(text) in said for text in texts if text.strip())


@law
@given(log=strategies.logs(), budget=st.none() | st.integers(200, 2000))
def test_a_log_of_another_format_costs_what_is_claimed(log: list[Any], budget: int | None) -> None:
    """Fences, wrapped inputs, new names: what other formats' items become here is covered by the count."""
    counter = encoding("o200k_base")
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=budget)
        for operation in log:
            strategies.perform(session, operation)
        ctx = attempt(session, format="anthropic")
        if ctx is not None:
            assert sum(map(counter.count, rules_anthropic.texts(ctx.request()))) <= ctx.tokens

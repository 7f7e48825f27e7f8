"""Marks for Anthropic's prompt cache, and the rules of its API that `validate` checks."""

from __future__ import annotations

from typing import Any

import pytest

import rules_anthropic
from blocks_anthropic import (
    CALL,
    FOUND,
    MARK,
    PIXEL,
    RESULT,
    SEARCH,
    TEXT,
    THOUGHT,
    assistant,
    context,
    user,
)
from palimpsest.formats import find_format

FORMAT = find_format("anthropic")


# --- marks for the prompt cache

TOOLS = [
    {"name": "find", "description": "Find a thing.", "input_schema": {"type": "object"}},
    {"name": "book", "description": "Book a place.", "input_schema": {"type": "object"}},
]
TALK = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    assistant(CALL),
    user(RESULT),
]


def test_cache_marks_are_set_unless_turned_off() -> None:
    """A request marks the last tool, the end of the system text and the ends of the last two user messages."""
    ctx = context(*TALK, system="be kind", tools=TOOLS)

    plain = ctx.request(cache_breakpoints=False)
    assert plain == {"messages": ctx.messages, "system": "be kind", "tools": TOOLS}
    marked = ctx.request()
    assert marked["tools"] == [TOOLS[0], {**TOOLS[1], "cache_control": MARK}]
    assert marked["system"] == [{"type": "text", "text": "be kind", "cache_control": MARK}]
    assert [len(list(rules_anthropic.marks(message))) for message in marked["messages"]] == [0, 0, 1, 0, 1]
    assert marked["messages"][4] == user({**RESULT, "cache_control": MARK})
    assert list(rules_anthropic.marks([ctx.messages, TOOLS])) == []
    assert rules_anthropic.sdk_faults(marked) == []


def test_marks_that_exist_count_towards_the_four() -> None:
    """At most four marks are set, those of the log and of the caller's tools included; a marked block is left alone."""
    old = {**TEXT, "cache_control": MARK}
    ctx = context(user(old), assistant(TEXT), *TALK, system="be kind", tools=[{**TOOLS[0], "cache_control": MARK}])

    marked = ctx.request(cache_breakpoints=True)

    assert marked["tools"][0]["cache_control"] == MARK
    assert marked["system"] == "be kind"
    assert [len(list(rules_anthropic.marks(message))) for message in marked["messages"]] == [1, 0, 0, 0, 1, 0, 1]


def test_of_too_many_marks_the_first_are_kept() -> None:
    """A log with too many marks gives messages with the first four; a request may mark the last messages instead."""
    turns = [message for _ in range(6) for message in (user({**TEXT, "cache_control": MARK}), assistant(TEXT))]
    ctx = context(*turns, tools=[{**TOOLS[0], "cache_control": MARK}])

    assert [len(list(rules_anthropic.marks(message))) for message in ctx.messages[::2]] == [1, 1, 1, 1, 0, 0]
    plain = ctx.request(cache_breakpoints=False)
    assert len(list(rules_anthropic.marks(plain))) == rules_anthropic.MARKS
    request = ctx.request(cache_breakpoints=True)
    assert len(list(rules_anthropic.marks(request))) == rules_anthropic.MARKS
    marked = [len(list(rules_anthropic.marks(message))) for message in request["messages"][::2]]
    assert marked == [0, 0, 1, 0, 1, 1]


def test_later_marks_change_no_earlier_block() -> None:
    """Blocks that an earlier context showed stay the same to the byte, however many marked blocks follow."""
    turns: list[Any] = []
    before: list[bytes] = []
    for number in range(8):
        turns += [user({**TEXT, "text": f"q{number}", "cache_control": MARK}), assistant(TEXT)]

        current = rules_anthropic.blocks(context(*turns).messages)

        assert current[: len(before)] == before
        before = current


def test_marks_in_nested_blocks_count() -> None:
    """Marks on blocks inside results and documents count towards the limit, and are left out beyond it."""
    inner = {**TEXT, "cache_control": MARK}
    document = {"type": "document", "source": {"type": "content", "content": [inner, inner, inner]}}
    ctx = context(user(document), assistant(CALL), user({**RESULT, "content": [inner, inner]}))

    assert [len(list(rules_anthropic.marks(message))) for message in ctx.messages] == [3, 0, 0]


def test_no_short_mark_is_set_before_an_hour_mark() -> None:
    """No five-minute mark is set before a one-hour mark, an order that the API refuses."""
    long = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ctx = context(user(long), assistant(TEXT), user(TEXT), system="be kind", tools=TOOLS)

    marked = ctx.request(cache_breakpoints=True)

    assert marked["tools"] == TOOLS
    assert marked["system"] == "be kind"
    assert marked["messages"][0] == user(long)
    assert marked["messages"][2] == user({**TEXT, "cache_control": MARK})


def test_no_short_mark_is_set_around_an_hour_mark() -> None:
    """No five-minute mark is set on a block that holds a one-hour mark: marks in one block have to be alike."""
    inner = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    asked = [assistant(CALL), user({**RESULT, "content": [inner]})]

    marked = context(user(TEXT), *asked).request(cache_breakpoints=True)

    assert rules_anthropic.in_order(marked["messages"])
    assert marked["messages"][1:] == asked


def test_an_hour_mark_after_a_short_one_becomes_short() -> None:
    """A one-hour mark that follows a five-minute mark becomes a five-minute mark; the API refuses that order.

    What comes before it stays the same to the byte.
    """
    hour = {"type": "ephemeral", "ttl": "1h"}
    turns: list[Any] = [user({**TEXT, "cache_control": MARK}), assistant(TEXT)]
    before = rules_anthropic.blocks(context(*turns).messages)
    document = {"type": "document", "source": {"type": "content", "content": [{**TEXT, "cache_control": hour}]}}

    ctx = context(*turns, user({**TEXT, "cache_control": hour}, document), tools=[{**TOOLS[0], "cache_control": hour}])

    assert rules_anthropic.blocks(ctx.messages)[: len(before)] == before
    for request in (ctx.request(), ctx.request(cache_breakpoints=False)):
        assert rules_anthropic.in_order([request["tools"], request["messages"]])
        assert list(rules_anthropic.marks(request["messages"])) == [MARK, MARK, MARK]
        assert request["tools"][0]["cache_control"] == hour


def test_only_blocks_that_may_hold_a_mark_are_marked() -> None:
    """A mark goes to the last block that may hold one: not thinking, a deferred tool or an unknown block."""
    later = {**TOOLS[1], "defer_loading": True}
    ctx = context(user(TEXT, {"type": "hologram"}), tools=[TOOLS[0], later])

    marked = ctx.request(cache_breakpoints=True)

    assert marked["tools"] == [{**TOOLS[0], "cache_control": MARK}, later]
    assert marked["messages"] == [user({**TEXT, "cache_control": MARK}, {"type": "hologram"})]


# --- what validate finds

BROKEN: dict[str, tuple[list[Any], str]] = {
    "no mapping": (["hi"], "a message must be a mapping"),
    "unknown role": ([{"role": "tool", "content": "x"}], "unknown role 'tool'"),
    "system": ([{"role": "system", "content": "x"}], "beside the messages"),
    "first role": ([{"role": "assistant", "content": "x"}], "the first message must have the role user"),
    "alternation": ([user(TEXT), user(TEXT)], "in a row"),
    "no content": ([user()], "not empty"),
    "blocks": ([user("x")], "a list of blocks with a type"),
    "white space": ([{"role": "user", "content": " "}], "empty or only white space"),
    "white space in a block": ([user(TEXT, {"type": "text", "text": "\n"})], "empty or only white space"),
    "the end": ([user(TEXT), {"role": "assistant", "content": "x "}], "must not end with white space"),
    "no result": ([user(TEXT), assistant(CALL)], "without a tool_result"),
    "result too late": ([user(TEXT), assistant(CALL), user(TEXT), assistant(TEXT), user(RESULT)], "does not call"),
    "some results": (
        [user(TEXT), assistant(CALL, {**CALL, "id": "b"}), user(RESULT)],
        "without a tool_result in the next message: ['b']",
    ),
    "text before results": ([user(TEXT), assistant(CALL), user(TEXT, RESULT)], "before all other blocks"),
    "two results": ([user(TEXT), assistant(CALL), user(RESULT, RESULT)], "two tool_result blocks for one call"),
    "orphan": ([user(RESULT)], "does not call"),
    "id": ([user(TEXT), assistant({**CALL, "id": "a b"}), user({**RESULT, "tool_use_id": "a b"})], "letters"),
    "repeated id": (
        [user(TEXT), assistant(CALL), user(RESULT), assistant(CALL), user(RESULT)],
        "share the id 'toolu_1'",
    ),
    "name": ([user(TEXT), assistant({**CALL, "name": "a b"}), user(RESULT)], "name 'a b'"),
    "input": ([user(TEXT), assistant({**CALL, "input": []}), user(RESULT)], "must be an object"),
    "call of a user": ([user(CALL)], "a tool_use block in a message that is not the assistant's"),
    "unsigned": ([user(TEXT), assistant({"type": "thinking", "thinking": "x"}, TEXT)], "without its signature"),
    "redacted": ([user(TEXT), assistant({"type": "redacted_thinking"}, TEXT)], "without its data"),
    "thinking of a user": ([user(THOUGHT)], "not the assistant's"),
    "thinking at the end": ([user(TEXT), assistant(TEXT, THOUGHT)], "must not end with thinking"),
    "silent failure": ([user(TEXT), assistant(CALL), user({**RESULT, "content": "", "is_error": True})], "says why"),
    "failure in pictures": (
        [
            user(TEXT),
            assistant(CALL),
            user({**RESULT, "content": [{"type": "image", "source": PIXEL}], "is_error": True}),
        ],
        "may have only text",
    ),
    "empty text in a result": (
        [user(TEXT), assistant(CALL), user({**RESULT, "content": [{"type": "text", "text": ""}]})],
        "empty or only white space",
    ),
    "a result that is a number": (
        [user(TEXT), assistant(CALL), user({**RESULT, "content": 5})],
        "text or a list of blocks",
    ),
    "the order of marks": (
        [user({**TEXT, "cache_control": MARK}, {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}})],
        "of an hour follows",
    ),
    "marks": ([user(*[{**TEXT, "cache_control": MARK}] * 5)], "5 blocks with cache_control"),
}


@pytest.mark.parametrize(("messages", "rule"), BROKEN.values(), ids=BROKEN)
def test_validate_names_the_rule(messages: list[Any], rule: str) -> None:
    """`validate` finds each broken rule of the API and names it."""
    problems = FORMAT.validate(messages)

    assert any(rule in str(problem) for problem in problems), problems


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "hi"}],
        [user(TEXT), assistant(THOUGHT, TEXT, CALL, TEXT), user(RESULT, TEXT), assistant(SEARCH, FOUND)],
        [user(TEXT), assistant(CALL), user({"type": "tool_result", "tool_use_id": "toolu_1"})],
    ],
)
def test_validate_finds_no_fault_in_valid_messages(messages: list[dict[str, Any]]) -> None:
    """Messages that the API accepts have no problems."""
    assert FORMAT.validate(messages) == []

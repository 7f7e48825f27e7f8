"""Marks for Anthropic's prompt cache, and the rules of its API that `validate` names."""

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


def test_breakpoints_are_set_unless_they_are_turned_off() -> None:
    """They mark the last tool, the end of the system text and the ends of the last two user messages."""
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


def test_breakpoints_leave_room_for_marks_that_are_there() -> None:
    """Four in all: those of the log and of the caller's tools count, and a block that is marked is left alone."""
    old = {**TEXT, "cache_control": MARK}
    ctx = context(user(old), assistant(TEXT), *TALK, system="be kind", tools=[{**TOOLS[0], "cache_control": MARK}])

    marked = ctx.request(cache_breakpoints=True)

    assert marked["tools"][0]["cache_control"] == MARK
    assert marked["system"] == "be kind"
    assert [len(list(rules_anthropic.marks(message))) for message in marked["messages"]] == [1, 0, 0, 0, 1, 0, 1]


def test_of_too_many_marks_the_first_stay() -> None:
    """A log that was marked turn by turn gives a valid context; a request may mark the last messages instead."""
    turns = [message for _ in range(6) for message in (user({**TEXT, "cache_control": MARK}), assistant(TEXT))]
    ctx = context(*turns, tools=[{**TOOLS[0], "cache_control": MARK}])

    assert [len(list(rules_anthropic.marks(message))) for message in ctx.messages[::2]] == [1, 1, 1, 1, 0, 0]
    plain = ctx.request(cache_breakpoints=False)
    assert len(list(rules_anthropic.marks(plain))) == rules_anthropic.MARKS
    request = ctx.request(cache_breakpoints=True)
    assert len(list(rules_anthropic.marks(request))) == rules_anthropic.MARKS
    marked = [len(list(rules_anthropic.marks(message))) for message in request["messages"][::2]]
    assert marked == [0, 0, 1, 0, 1, 1]


def test_later_marks_move_none_of_those_before() -> None:
    """However many blocks come in marked, what an earlier context has shown stays the same to the byte."""
    turns: list[Any] = []
    before: list[bytes] = []
    for number in range(8):
        turns += [user({**TEXT, "text": f"q{number}", "cache_control": MARK}), assistant(TEXT)]

        now = rules_anthropic.blocks(context(*turns).messages)

        assert now[: len(before)] == before
        before = now


def test_marks_inside_results_and_documents_count() -> None:
    """Blocks in blocks may hold marks; they are found, and left out when there are too many."""
    inner = {**TEXT, "cache_control": MARK}
    document = {"type": "document", "source": {"type": "content", "content": [inner, inner, inner]}}
    ctx = context(user(document), assistant(CALL), user({**RESULT, "content": [inner, inner]}))

    assert [len(list(rules_anthropic.marks(message))) for message in ctx.messages] == [3, 0, 0]


def test_no_short_mark_is_set_before_one_that_lives_for_an_hour() -> None:
    """The API refuses a shorter life before a longer one: breakpoints are only set behind it."""
    long = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ctx = context(user(long), assistant(TEXT), user(TEXT), system="be kind", tools=TOOLS)

    marked = ctx.request(cache_breakpoints=True)

    assert marked["tools"] == TOOLS
    assert marked["system"] == "be kind"
    assert marked["messages"][0] == user(long)
    assert marked["messages"][2] == user({**TEXT, "cache_control": MARK})


def test_no_mark_for_an_hour_stands_behind_a_shorter_one() -> None:
    """The API refuses that order, which a log has whose program once marked for five minutes: the later mark is short,
    and what comes before it stays the same to the byte."""
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


def test_thinking_tools_that_load_later_and_unknown_blocks_are_not_marked() -> None:
    """A mark goes to the last block that may hold one."""
    later = {**TOOLS[1], "defer_loading": True}
    ctx = context(user(TEXT, {"type": "hologram"}), tools=[TOOLS[0], later])

    marked = ctx.request(cache_breakpoints=True)

    assert marked["tools"] == [{**TOOLS[0], "cache_control": MARK}, later]
    assert marked["messages"] == [user({**TEXT, "cache_control": MARK}, {"type": "hologram"})]


# --- what validate finds

BROKEN: dict[str, tuple[list[Any], str]] = {
    "no mapping": (["hi"], "a message is a mapping"),
    "unknown role": ([{"role": "tool", "content": "x"}], "unknown role 'tool'"),
    "system": ([{"role": "system", "content": "x"}], "beside the messages"),
    "first role": ([{"role": "assistant", "content": "x"}], "the first message is the user's"),
    "alternation": ([user(TEXT), user(TEXT)], "in a row"),
    "no content": ([user()], "not empty"),
    "blocks": ([user("x")], "blocks with a type"),
    "white space": ([{"role": "user", "content": " "}], "empty or white space"),
    "white space in a block": ([user(TEXT, {"type": "text", "text": "\n"})], "empty or white space"),
    "the end": ([user(TEXT), {"role": "assistant", "content": "x "}], "ends with white space"),
    "no result": ([user(TEXT), assistant(CALL)], "without a result"),
    "result too late": ([user(TEXT), assistant(CALL), user(TEXT), assistant(TEXT), user(RESULT)], "does not call"),
    "some results": (
        [user(TEXT), assistant(CALL, {**CALL, "id": "b"}), user(RESULT)],
        "without a result in the next message: ['b']",
    ),
    "text before results": ([user(TEXT), assistant(CALL), user(TEXT, RESULT)], "before anything else"),
    "two results": ([user(TEXT), assistant(CALL), user(RESULT, RESULT)], "two results of one call"),
    "orphan": ([user(RESULT)], "does not call"),
    "id": ([user(TEXT), assistant({**CALL, "id": "a b"}), user({**RESULT, "tool_use_id": "a b"})], "letters"),
    "repeated id": (
        [user(TEXT), assistant(CALL), user(RESULT), assistant(CALL), user(RESULT)],
        "share the id 'toolu_1'",
    ),
    "name": ([user(TEXT), assistant({**CALL, "name": "a b"}), user(RESULT)], "name 'a b'"),
    "input": ([user(TEXT), assistant({**CALL, "input": []}), user(RESULT)], "is an object"),
    "call of a user": ([user(CALL)], "only the assistant"),
    "unsigned": ([user(TEXT), assistant({"type": "thinking", "thinking": "x"}, TEXT)], "without its signature"),
    "redacted": ([user(TEXT), assistant({"type": "redacted_thinking"}, TEXT)], "without its data"),
    "thinking of a user": ([user(THOUGHT)], "not the assistant's"),
    "thinking at the end": ([user(TEXT), assistant(TEXT, THOUGHT)], "ends with thinking"),
    "silent failure": ([user(TEXT), assistant(CALL), user({**RESULT, "content": "", "is_error": True})], "says why"),
    "failure in pictures": (
        [
            user(TEXT),
            assistant(CALL),
            user({**RESULT, "content": [{"type": "image", "source": PIXEL}], "is_error": True}),
        ],
        "nothing but text",
    ),
    "empty text in a result": (
        [user(TEXT), assistant(CALL), user({**RESULT, "content": [{"type": "text", "text": ""}]})],
        "empty or white space",
    ),
    "a result that is a number": ([user(TEXT), assistant(CALL), user({**RESULT, "content": 5})], "text or blocks"),
    "the order of marks": (
        [user({**TEXT, "cache_control": MARK}, {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}})],
        "for an hour behind",
    ),
    "marks": ([user(*[{**TEXT, "cache_control": MARK}] * 5)], "5 blocks with cache_control"),
}


@pytest.mark.parametrize(("messages", "rule"), BROKEN.values(), ids=BROKEN)
def test_validate_names_the_rule(messages: list[Any], rule: str) -> None:
    """Each rule that messages break is found, with its source."""
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
def test_validate_finds_nothing_in_what_the_api_takes(messages: list[dict[str, Any]]) -> None:
    """What is in order has no problems."""
    assert FORMAT.validate(messages) == []

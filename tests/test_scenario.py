"""The demonstration's conversation is long, varied, valid, and the same in every run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from palimpsest.cli import scenario

Message = dict[str, Any]


@pytest.fixture(scope="module")
def turns() -> list[list[Message]]:
    return scenario.conversation()


@pytest.fixture(scope="module")
def messages(turns: list[list[Message]]) -> list[Message]:
    return [message for turn in turns for message in turn]


def calls_of(messages: list[Message]) -> Iterator[Message]:
    return (call for message in messages for call in message.get("tool_calls", ()))


def test_the_scenario_has_150_turns(turns: list[list[Message]]) -> None:
    """There are at least 150 human turns, and about half of them use tools."""
    with_tools = sum(len(turn) > 2 for turn in turns)

    assert len(turns) >= 150
    assert 0.4 <= with_tools / len(turns) <= 0.6


def test_the_scenario_is_the_same_every_time(turns: list[list[Message]]) -> None:
    """Two calls give equal conversations that share no list."""
    again = scenario.conversation()

    assert again == turns
    assert again[0] is not turns[0]


def test_a_turn_begins_with_the_customer_and_ends_with_the_agent(turns: list[list[Message]]) -> None:
    """A turn is one human message, steps with tools, and a closing answer in words."""
    for turn in turns:
        roles = [message["role"] for message in turn]

        assert roles[0] == "user"
        assert "user" not in roles[1:]
        assert turn[-1]["role"] == "assistant"
        assert turn[-1]["content"]
        assert "tool_calls" not in turn[-1]


def test_every_call_is_answered_right_after(messages: list[Message]) -> None:
    """The results follow the message that asked for them, one for each call and in the same order."""
    answered = 0
    for place, message in enumerate(messages):
        ids = [call["id"] for call in message.get("tool_calls", ())]
        following = messages[place + 1 : place + 1 + len(ids)]

        assert [result.get("tool_call_id") for result in following] == ids
        answered += len(ids)

    assert answered == sum(message["role"] == "tool" for message in messages)


def test_call_ids_are_unique_and_count_upwards(messages: list[Message]) -> None:
    """Ids are call_0001, call_0002 and so on."""
    ids = [call["id"] for call in calls_of(messages)]

    assert ids == [f"call_{number:04}" for number in range(1, len(ids) + 1)]


def test_arguments_follow_the_schemas(messages: list[Message]) -> None:
    """Arguments are JSON objects with every required key of a known tool, and no key that it does not have."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in scenario.tools()}

    for call in calls_of(messages):
        schema, arguments = schemas[call["function"]["name"]], json.loads(call["function"]["arguments"])

        assert set(schema["required"]) <= set(arguments) <= set(schema["properties"])

    assert {call["function"]["name"] for call in calls_of(messages)} == set(schemas)


def test_results_are_json_but_for_one_empty_text(messages: list[Message]) -> None:
    """Tools answer with JSON objects; some report errors, and one returns nothing."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    decoded = [json.loads(result) for result in results if result]

    assert len(results) - len(decoded) == 1
    assert sum("error" in result for result in decoded) >= 5
    assert all(200 <= len(result) <= 3600 for result in results if result)


def test_some_calls_are_parallel(messages: list[Message]) -> None:
    """Now and then the agent asks two things at once."""
    assert sum(len(message.get("tool_calls", ())) == 2 for message in messages) >= 5


def test_no_question_or_answer_is_repeated(turns: list[list[Message]]) -> None:
    """No two questions and no two answers are equal."""
    assert len({turn[0]["content"] for turn in turns}) == len(turns)
    assert len({turn[-1]["content"] for turn in turns}) == len(turns)


def test_every_placeholder_is_filled(messages: list[Message]) -> None:
    """No text has braces left in it."""
    said = [message["content"] for message in messages if message["role"] != "tool" and message["content"]]

    assert not [text for text in said if "{" in text or "}" in text]


def test_the_early_fact_is_said_once(turns: list[list[Message]], messages: list[Message]) -> None:
    """The early fact is stated in the third turn only, and the last question asks for it."""
    saying = [message for message in messages if scenario.EARLY_FACT_TEXT in (message["content"] or "")]

    assert saying == [turns[scenario.EARLY_FACT_TURN - 1][0]]
    assert "how thick" in turns[-1][0]["content"]
    assert [place for place, turn in enumerate(turns, 1) if "4417-B" in json.dumps(turn)] == [
        scenario.EARLY_FACT_TURN,
        len(turns),
    ]

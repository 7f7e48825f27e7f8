"""Services that want a model's thoughts back with its calls of tools: DeepSeek and Kimi. Others refuse them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from openai import OpenAI

from palimpsest import Memory, Session
from palimpsest.formats.openai_chat_answers import wants_thoughts
from palimpsest.integrations.openai import remember
from streams import StreamServer, answers
from writer import quarters

Message = dict[str, Any]

WANTING = [
    "deepseek-v4-pro",
    "deepseek-chat",
    "deepseek/deepseek-v4-flash",
    "openrouter:deepseek/deepseek-reasoner",
    "deepseek/deepseek-v4-pro:free",
]
KIMI = ["kimi-k3", "moonshotai/kimi-k2.6", "Kimi-K2-Thinking"]
NOT_WANTING = ["gpt-4o", "gpt-5", "deepseek-r1", "deepseek/deepseek-r1-0528:free", "deepseekers", "kimono-2", None]


def call(number: int, thought: str | None, content: str | None = None) -> Message:
    """An answer that calls a tool, as a service sends it."""
    function = {"name": "look", "arguments": json.dumps({"at": number})}
    answer = {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function, "index": 0}],
    }
    return answer if thought is None else {**answer, "reasoning_content": thought}


def result(number: int) -> Message:
    """The result of that call."""
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": f"seen {number}"}


def faults(messages: list[Message], given: dict[str, str]) -> list[str]:
    """Return what DeepSeek or Kimi would refuse: a call without thoughts, or with others than those it was made with.

    `given` are the thoughts by the id of the first call of their answer.
    """
    found = []
    for message in messages:
        if message["role"] != "assistant" or not message.get("tool_calls"):
            continue
        id = message["tool_calls"][0]["id"]
        if message.get("reasoning_content") != given.get(id, ""):
            found.append(f"{id}: {message.get('reasoning_content')!r}")
    return found


@pytest.mark.parametrize("name", [*WANTING, *KIMI])
def test_models_that_want_thoughts_back_are_known_by_name(name: str) -> None:
    """The names of DeepSeek's and Kimi's models are known, with a provider before them and in any letter case."""
    assert wants_thoughts(name)


@pytest.mark.parametrize("name", NOT_WANTING)
def test_other_models_get_no_thoughts_back(name: str | None) -> None:
    """Other models, R1, which refused them, and models without a name get no thoughts back."""
    assert not wants_thoughts(name)
    with Memory.open("memory://") as memory:
        session = memory.session("s", model=name if name in {"gpt-4o", "gpt-5"} else None, counter=quarters)
        session.add([{"role": "user", "content": "Look."}, call(1, "I look."), result(1)])
        context = session.context()

    assert all("reasoning_content" not in message for message in context.messages)
    assert [note.what for note in context.report.adapted] == ["reasoning_content left out"]


@pytest.mark.parametrize(
    "model", ["deepseek-v4-pro", pytest.param("kimi-k3", marks=pytest.mark.filterwarnings("ignore"))]
)
def test_thoughts_go_back_with_their_calls(model: str) -> None:
    """An answer goes back with its thoughts; a call that was made without any has empty ones, as the services ask."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", model=model)
        session.add([{"role": "user", "content": "Look twice."}, call(1, "First here.", "I begin."), result(1)])
        session.add_tool_call("look", {"at": 2}, call_id="call_2")
        session.add_tool_result("look", "seen 2", call_id="call_2")
        session.add({"role": "assistant", "content": "Done.", "reasoning_content": "Enough."})
        session.add_user_message("Thanks.")
        context = session.context()

    assistants = [message for message in context.messages if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in assistants] == ["First here.", "", "Enough."]
    assert assistants[0]["content"] == "I begin."
    assert "index" not in assistants[0]["tool_calls"][0]
    assert context.report.adapted == ()


def _played(session: Session, dice: random.Random, given: dict[str, str], number: int) -> None:
    """Add one interaction with calls, of which some have thoughts."""
    session.add_user_message(f"Question {number}. " + "words " * dice.randrange(40))
    for step in range(dice.randrange(1, 4)):
        id, thought = number * 10 + step, dice.choice([None, "", f"thought {number}.{step} " * dice.randrange(1, 9)])
        session.add(call(id, thought, dice.choice([None, "I look."])))
        if thought:
            given[f"call_{id}"] = thought
        session.add(result(id))
    session.add({"role": "assistant", "content": f"Answer {number}.", "reasoning_content": "Enough."})


@pytest.mark.parametrize("seed", range(12))
def test_every_call_sent_to_such_a_model_has_its_thoughts(seed: int) -> None:
    """Law: whatever is cut, masked or compacted, each call that a context shows has its own thoughts, earlier messages
    stay the same until the next cut, and the budget holds with the thoughts."""
    dice, given = random.Random(seed), dict[str, str]()
    with Memory.open("memory://") as memory:
        session = memory.session("s", model="deepseek-v4-pro", max_tokens=600, reserve=0)
        before, epoch = "", -1
        for number in range(1, 25):
            _played(session, dice, given, number)
            if not dice.randrange(8):
                session.compact("simple_fifo")
            context = session.context()
            text = json.dumps(context.messages)
            assert faults(context.messages, given) == []
            assert context.tokens <= 600
            if context.epoch == epoch:
                assert text[:-1].startswith(before)
            before, epoch = text[:-1], context.epoch


@pytest.mark.parametrize(
    "model", ["deepseek-v4-pro", pytest.param("kimi-k3", marks=pytest.mark.filterwarnings("ignore"))]
)
def test_a_remembering_client_sends_thoughts_back(model: str) -> None:
    """A remembering client knows the model from the call, also one that the table of models lacks."""
    first = {"choices": [{"index": 0, "message": call(1, "I look."), "finish_reason": "tool_calls"}]}
    second = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Seen."}, "finish_reason": "stop"}]}
    about = {"id": "c", "object": "chat.completion", "created": 1, "model": model}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    with StreamServer(answers({**about, **first}), answers({**about, **second})) as server:
        with Memory.open("memory://") as memory, OpenAI(api_key="sk-x", base_url=server.url, max_retries=0) as plain:
            client = remember(plain, memory.session("s", max_tokens=4000))
            ask: dict[str, Any] = {"model": model, "tools": tools}
            client.chat.completions.create(messages=[{"role": "user", "content": "Look."}], **ask)
            client.chat.completions.create(messages=[result(1)], **ask)
        sent = server.asked[1].body["messages"]

    assert faults(sent, {"call_1": "I look."}) == []
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]


def test_a_log_of_another_model_continues_with_empty_thoughts() -> None:
    """A log that was written with OpenAI or Anthropic is accepted: its calls have empty thoughts, and a change of the
    model changes no log."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", model="gpt-4o")
        session.add([{"role": "user", "content": "Look."}, call(1, None), result(1)])
        session.add(
            [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "seen 2"}]},
            ],
            format="anthropic",
        )
        ours, theirs = session.context(), session.context(model="deepseek-v4-pro")

    assert all("reasoning_content" not in message for message in ours.messages)
    assert faults(theirs.messages, {}) == []

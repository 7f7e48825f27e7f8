"""The Firefly door with Pydantic AI: its messages in the log, and summaries that a model writes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from palimpsest import ConfigError
from palimpsest.compat.firefly import (
    ConversationMemory,
    ConversationTurn,
    SQLiteStore,
    create_llm_summarizer,
    summarization,
)
from palimpsest.errors import MissingExtra
from talker import Words


def text(words: int, first: str = "word") -> str:
    return " ".join([first, *["word"] * (words - 1)])


def asked(prompt: str, answer: str = "Hi there!") -> list[ModelMessage]:
    """The messages of a run without tools."""
    return [ModelRequest(parts=[UserPromptPart(prompt)]), ModelResponse(parts=[TextPart(answer)])]


def tooled(prompt: str, result: Any, answer: str = "done") -> list[ModelMessage]:
    """The messages of a run with a tool."""
    return [
        ModelRequest(parts=[SystemPromptPart("be kind"), UserPromptPart(prompt)]),
        ModelResponse(parts=[ToolCallPart("look", {"at": "it"}, tool_call_id="x")]),
        ModelRequest(parts=[ToolReturnPart(tool_name="look", content=result, tool_call_id="x")]),
        ModelResponse(parts=[TextPart(answer)]),
    ]


def memory(**options: Any) -> ConversationMemory:
    return ConversationMemory(**{"estimator": Words(), **options})


class Model:
    """A model that notes its prompts, and answers with what it is told to."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.prompts: list[str] = []
        self._answer = answer
        self.model = FunctionModel(self._respond)

    def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        part = messages[-1].parts[-1]
        assert isinstance(part, UserPromptPart)
        self.prompts.append(str(part.content))
        return ModelResponse(parts=[TextPart(self._answer(str(part.content)))])


def turns(number: int, words: int = 5) -> list[ConversationTurn]:
    return [ConversationTurn(i, text(words, f"Q{i}?"), text(words, f"A{i}.")) for i in range(number)]


# --- messages


def test_an_agent_goes_on_with_the_history() -> None:
    """The documented round: a run, its new messages kept, its history given to the next run."""
    agent = Agent(TestModel(custom_output_text="Hi there!"))
    conv_mem = ConversationMemory(max_tokens=16_000)
    cid = conv_mem.new_conversation()
    result = asyncio.run(agent.run("Hello"))
    conv_mem.add_turn(cid, user_prompt="Hello", assistant_response="Hi there!", raw_messages=result.new_messages())

    history = conv_mem.get_message_history(cid)

    assert history == result.all_messages()
    again = asyncio.run(agent.run("Next question", message_history=history))
    assert again.all_messages()[: len(history)] == history
    assert len(again.all_messages()) == len(history) + 2


def test_messages_of_a_store_are_messages(tmp_path: Path) -> None:
    """Messages of Pydantic AI are stored, and who opens the store later has them as such, equal and in order."""
    raw = tooled("look", {"found": [1, None]})
    with SQLiteStore(tmp_path / "m.db") as store:
        memory(store=store).add_turn("c", "look", "done", raw)
    with SQLiteStore(tmp_path / "m.db") as store:
        assert memory(store=store).get_message_history("c") == raw


@pytest.mark.wide  # it loads the framework once more
def test_messages_are_messages_in_another_process(tmp_path: Path) -> None:
    """So they are in a process that did not load Pydantic AI before."""
    raw = tooled("look", {"found": [1, None]})
    with SQLiteStore(tmp_path / "m.db") as store:
        memory(store=store).add_turn("c", "look", "done", raw)
    program = f"""
import json, sys
from palimpsest.compat.firefly import ConversationMemory, SQLiteStore
with SQLiteStore({str(tmp_path / "m.db")!r}) as store:
    found = ConversationMemory(store=store).get_message_history("c")
from pydantic_ai.messages import ModelMessagesTypeAdapter
sys.stdout.buffer.write(ModelMessagesTypeAdapter.dump_json(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    told = [(one["kind"], [part["part_kind"] for part in one["parts"]]) for one in json.loads(done.stdout)]
    assert told == [(one.kind, [part.part_kind for part in one.parts]) for one in raw]


def test_messages_go_out_and_come_in_with_an_export() -> None:
    """An export has the messages in JSON, and an import gives them back as messages."""
    raw = tooled("look", "found")
    conversations = memory()
    conversations.add_turn("c", "look", "done", raw)
    data = json.loads(json.dumps(conversations.export_conversation("c")))

    later = memory()
    later.import_conversation(data)

    assert later.get_message_history("c") == raw
    assert later.get_total_tokens("c") == conversations.get_total_tokens("c")


def test_everything_that_is_sent_is_counted() -> None:
    """Prompts of the system, calls with their arguments, results: a turn costs what its messages say (N2)."""
    cost = memory().add_turn("c", "look", "done", tooled("look", text(40))).token_estimate

    assert cost == len(["be", "kind", "look", "look"]) + 1 + 1 + 40 + 1


def test_what_nobody_gave_is_made_as_the_others_are() -> None:
    """A summary, and a turn without messages, are messages of Pydantic AI where the others are, or where that is
    asked for, and mappings where that is."""
    conversations = memory(max_tokens=60, summarize_threshold=40, summarizer=lambda turns: "Earlier.")
    for _ in range(3):
        conversations.add_turn("c", text(10), text(10), asked(text(10), text(10)))
    conversations.add_turn("c", "a", "b", [])

    history = conversations.get_message_history("c")

    assert [message.kind for message in history] == ["request", "request", "response", "request", "response"]
    assert "Earlier." in history[0].parts[0].content
    plain = memory(message_form="dict")
    plain.add_turn("c", "a", "b", [])
    assert plain.get_message_history("c")[0] == {"role": "user", "content": "a"}
    asks = memory(message_form="pydantic_ai")
    asks.add_turn("c", "a", "b", [])
    assert [message.kind for message in asks.get_message_history("c")] == ["request", "response"]


@pytest.mark.parametrize("result", [text(100_000), {"rows": ["word"] * 100_000}])
def test_a_huge_result_of_a_tool_is_shortened(result: Any) -> None:
    """A result of 100,000 words is shortened in the history, and whole in the log (N1)."""
    conversations = memory(max_tokens=1000, estimator=lambda text: len(text) // 4)
    raw = tooled("look", result)
    conversations.add_turn("c", "look", "done", raw)

    history = conversations.get_message_history("c")

    assert [message.kind for message in history] == ["request", "response", "request", "response"]
    returned = history[2].parts[0]
    assert isinstance(returned, ToolReturnPart)
    assert "tokens left out" in str(returned.content)
    assert 2000 < len(str(returned.content)) < 4000
    assert returned.tool_call_id == "x"
    assert conversations.get_turns("c")[0].raw_messages == raw


def test_no_result_is_without_its_call() -> None:
    """Call in one turn, result in the next, and the first has left: the result is not shown, what else its message
    says is (N13)."""
    call = ModelResponse(parts=[TextPart("wait"), ToolCallPart("f", {}, tool_call_id="x")])
    back = ModelRequest(parts=[ToolReturnPart("f", "found", tool_call_id="x"), UserPromptPart("and?")])
    lost = ModelRequest(parts=[ToolReturnPart("f", "lost", tool_call_id="y")])
    conversations = memory(max_tokens=8)
    conversations.add_turn("c", text(10), "wait", [ModelRequest(parts=[UserPromptPart(text(10))]), call])
    conversations.add_turn("c", "and?", "done", [back, lost, ModelResponse(parts=[TextPart("done")])])

    history = conversations.get_message_history("c")

    assert history == [
        replace(back, parts=back.parts[1:]),
        ModelResponse(parts=[TextPart("done")], timestamp=history[1].timestamp),
    ]


# --- summaries by a model


def test_a_model_summarises_what_leaves() -> None:
    """The documented use: a model is asked for what leaves, and an earlier summary becomes part of its next one."""
    model = Model(lambda prompt: f"Summary {len(model.prompts)}.")
    conv_mem = memory(max_tokens=4_000, summarize_threshold=40, summarizer=create_llm_summarizer(model=model.model))
    for i in range(5):
        conv_mem.add_turn("c", text(10, f"Q{i}"), text(10, f"A{i}"), [])

    assert conv_mem.get_summary("c") == "Summary 2."
    assert "Q0" in model.prompts[0]
    assert "A1" in model.prompts[0]
    assert "Summary so far:\nSummary 1." in model.prompts[1]
    assert all("at most 500 tokens" in prompt for prompt in model.prompts)


def test_a_template_is_filled_and_nothing_else() -> None:
    """The turns go where the template says; other braces are text; the length is told (N35)."""
    model = Model(lambda prompt: "ok")
    summarizer = create_llm_summarizer(
        model=model.model, prompt_template='{"a": {b}} {turns_text} {max}', max_summary_tokens=77
    )
    assert summarizer([ConversationTurn(0, "say {turns_text} {x}", "A")]) == "ok"
    (prompt,) = model.prompts
    assert prompt.startswith('{"a": {b}} Turn 0\nUser: say {turns_text} {x}\nAssistant: A {max}')
    assert "77" in prompt


@pytest.mark.parametrize(
    "given",
    [
        {"prompt_template": "no place"},
        {"prompt_template": ""},
        {"max_summary_tokens": 0},
        {"model": ""},
        {"model": int},
    ],
)
def test_what_no_summarizer_can_have_is_refused(given: dict[str, Any]) -> None:
    """A template without its place, and other values that cannot be, are refused when it is made (N16)."""
    with pytest.raises(ConfigError, match=next(iter(given))):
        create_llm_summarizer(**given)


def test_long_turns_are_given_whole_in_parts() -> None:
    """What does not fit into one prompt is given in several, and none of it is left out (N16)."""
    model = Model(lambda prompt: "so far")
    summarizer = create_llm_summarizer(model=model.model)
    told = [*turns(3, words=6_000), ConversationTurn(3, text(60_000, "Q3?"), "end-of-it")]

    assert summarizer(told) == "so far"

    assert len(model.prompts) > 3
    said = "".join(model.prompts)
    assert said.count("word") >= sum(len(f"{one.user_prompt} {one.assistant_response}".split()) - 4 for one in told)
    assert all(mark in said for mark in ("Q0?", "A2.", "Q3?", "end-of-it"))
    assert all("Summary so far:\nso far" in prompt for prompt in model.prompts[1:])


def test_what_tools_said_is_in_the_prompt() -> None:
    """A turn is given with what its messages say beside its texts."""
    assert "In between: found it" in summarization.turn_text(
        ConversationTurn(0, "look", "done", tooled("look", "found it"))
    )


def test_without_its_model_sentences_stand_for_the_turns() -> None:
    """Where the model fails, sentences of both sides of the newest turns stand for them, say so, and keep what was
    said before (N16)."""

    def fails(prompt: str) -> str:
        raise RuntimeError("no credit")

    summarizer = create_llm_summarizer(model=Model(fails).model, max_summary_tokens=60)
    told = [
        ConversationTurn(i, f"Well. I am in room {i}. Thanks.", f"Good. Breakfast {i} is at 8. Bye.") for i in range(30)
    ]

    made = summarizer.fold(told, "Before.")

    lines = made.splitlines()
    assert lines[0] == "Before."
    assert "No model could be asked" in lines[1]
    assert lines[-2:] == ["User: I am in room 29.", "Assistant: Breakfast 29 is at 8."]
    assert "room 0." not in made
    assert len(lines) < 20


def test_an_empty_answer_is_none() -> None:
    """A model that answers nothing has not answered."""
    assert "No model could be asked" in create_llm_summarizer(model=Model(lambda prompt: " ").model)(turns(1))


def test_the_model_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a model the environment is asked at the first call; where it names none the turns stay (N9)."""
    for name in summarization.MODELS:
        monkeypatch.delenv(name, raising=False)
    summarizer = create_llm_summarizer()
    with pytest.raises(ConfigError, match="FIREFLY_AGENTIC_DEFAULT_MODEL"):
        summarizer(turns(1))
    conversations = memory(max_tokens=50, summarize_threshold=40, summarizer=summarizer)
    for _ in range(3):
        conversations.add_turn("c", text(10), text(10), [])
    assert len(conversations.get_turns("c")) == 3

    monkeypatch.setenv("FIREFLY_AGENTIC_DEFAULT_MODEL", "test")
    assert summarizer(turns(1)) == "success (no tool calls)"


def test_it_may_be_called_from_within_a_loop() -> None:
    """A program may call it itself, also where an event loop runs."""

    async def main() -> str:
        return create_llm_summarizer(model=Model(lambda prompt: "within").model)(turns(1))

    assert asyncio.run(main()) == "within"


def test_a_missing_framework_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra it says at once what to install."""
    monkeypatch.setattr(summarization, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="llm") as told:
        create_llm_summarizer(model="openai:gpt-4o-mini")
    assert isinstance(told.value, ImportError)

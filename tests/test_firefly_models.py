"""`palimpsest.compat.firefly` with Pydantic AI: its messages in the log, and summaries that a model writes.

A number such as (N12) at the end of a docstring names a known fault of Firefly's own memory: its code would fail the
test.
"""

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

from firefly_process import Words
from palimpsest import ConfigError
from palimpsest.compat.firefly import (
    ConversationMemory,
    ConversationTurn,
    SQLiteStore,
    create_llm_summarizer,
    summarization,
)
from palimpsest.errors import MissingExtra


def text(words: int, first: str = "word") -> str:
    """Return a text of so many words."""
    return " ".join([first, *["word"] * (words - 1)])


def asked(prompt: str, answer: str = "Hi there!") -> list[ModelMessage]:
    """Return the messages of a run without tools."""
    return [ModelRequest(parts=[UserPromptPart(prompt)]), ModelResponse(parts=[TextPart(answer)])]


def tooled(prompt: str, result: Any, answer: str = "done") -> list[ModelMessage]:
    """Return the messages of a run that calls a tool."""
    return [
        ModelRequest(parts=[SystemPromptPart("be kind"), UserPromptPart(prompt)]),
        ModelResponse(parts=[ToolCallPart("look", {"at": "it"}, tool_call_id="x")]),
        ModelRequest(parts=[ToolReturnPart(tool_name="look", content=result, tool_call_id="x")]),
        ModelResponse(parts=[TextPart(answer)]),
    ]


def memory(**options: Any) -> ConversationMemory:
    """Return a ConversationMemory that counts words."""
    return ConversationMemory(**{"estimator": Words(), **options})


class Model:
    """A model that notes its prompts and answers with what a function makes of them."""

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
    """Return `number` turns, not stored anywhere."""
    return [ConversationTurn(i, text(words, f"Q{i}?"), text(words, f"A{i}.")) for i in range(number)]


# --- messages


def test_an_agent_continues_from_the_history() -> None:
    """The documented round works: a run's new messages are stored, and their history is given to the next run."""
    agent = Agent(TestModel(custom_output_text="Hi there!"))
    conv_mem = ConversationMemory(max_tokens=16_000)
    cid = conv_mem.new_conversation()
    result = asyncio.run(agent.run("Hello"))
    conv_mem.add_turn(cid, user_prompt="Hello", assistant_response="Hi there!", raw_messages=result.new_messages())

    history = conv_mem.get_message_history(cid)

    assert history == result.all_messages()
    next_run = asyncio.run(agent.run("Next question", message_history=history))
    assert next_run.all_messages()[: len(history)] == history
    assert len(next_run.all_messages()) == len(history) + 2


def test_stored_messages_come_back_as_pydantic_ai_messages(tmp_path: Path) -> None:
    """Messages of Pydantic AI come back from a store equal and in order, also in a new store object."""
    raw = tooled("look", {"found": [1, None]})
    with SQLiteStore(tmp_path / "m.db") as store:
        memory(store=store).add_turn("c", "look", "done", raw)
    with SQLiteStore(tmp_path / "m.db") as store:
        assert memory(store=store).get_message_history("c") == raw


@pytest.mark.wide  # it loads the framework once more
def test_stored_messages_come_back_in_another_process(tmp_path: Path) -> None:
    """A process that has not loaded Pydantic AI before gets its messages as such, too."""
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

    shapes = [(one["kind"], [part["part_kind"] for part in one["parts"]]) for one in json.loads(done.stdout)]
    assert shapes == [(one.kind, [part.part_kind for part in one.parts]) for one in raw]


def test_messages_survive_export_and_import() -> None:
    """An export holds Pydantic AI's messages as JSON, and an import restores them as messages."""
    raw = tooled("look", "found")
    conversations = memory()
    conversations.add_turn("c", "look", "done", raw)
    data = json.loads(json.dumps(conversations.export_conversation("c")))

    later = memory()
    later.import_conversation(data)

    assert later.get_message_history("c") == raw
    assert later.get_total_tokens("c") == conversations.get_total_tokens("c")


def test_every_part_of_a_message_is_counted() -> None:
    """System prompts, calls with arguments, and results count in the tokens of a turn (N2)."""
    cost = memory().add_turn("c", "look", "done", tooled("look", text(40))).token_estimate

    assert cost == len(["be", "kind", "look", "look"]) + 1 + 1 + 40 + 1


def test_added_messages_have_the_form_of_the_others() -> None:
    """Summaries and turns without messages are shown in the form of the other messages.

    `message_form` chooses the form where there are no others.
    """
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
    """A tool result of 100,000 words is shortened in the history and whole in the log (N1)."""
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


def test_no_result_is_shown_without_its_call() -> None:
    """A result whose call has left is not shown; the other parts of its message are (N13)."""
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


def test_a_model_summarises_turns_that_leave() -> None:
    """A model summarizes the turns that leave, and gets the earlier summary in its next prompt."""
    model = Model(lambda prompt: f"Summary {len(model.prompts)}.")
    conv_mem = memory(max_tokens=4_000, summarize_threshold=40, summarizer=create_llm_summarizer(model=model.model))
    for i in range(5):
        conv_mem.add_turn("c", text(10, f"Q{i}"), text(10, f"A{i}"), [])

    assert conv_mem.get_summary("c") == "Summary 2."
    assert "Q0" in model.prompts[0]
    assert "A1" in model.prompts[0]
    assert "Summary so far:\nSummary 1." in model.prompts[1]
    assert all("at most 500 tokens" in prompt for prompt in model.prompts)


def test_a_prompt_template_is_filled_at_its_mark_only() -> None:
    """`{turns_text}` of a template is replaced, other braces stay text, and the prompt states the length (N35)."""
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
def test_invalid_summarizer_options_are_refused(given: dict[str, Any]) -> None:
    """A template without its mark, or another invalid option, raises ConfigError when the summarizer is made (N16)."""
    with pytest.raises(ConfigError, match=next(iter(given))):
        create_llm_summarizer(**given)


def test_long_turns_are_summarized_in_several_prompts() -> None:
    """Turns that do not fit one prompt are given in several, and no text is left out (N16)."""
    model = Model(lambda prompt: "so far")
    summarizer = create_llm_summarizer(model=model.model)
    given = [*turns(3, words=6_000), ConversationTurn(3, text(60_000, "Q3?"), "end-of-it")]

    assert summarizer(given) == "so far"

    assert len(model.prompts) > 3
    prompted = "".join(model.prompts)
    assert prompted.count("word") >= sum(
        len(f"{one.user_prompt} {one.assistant_response}".split()) - 4 for one in given
    )
    assert all(mark in prompted for mark in ("Q0?", "A2.", "Q3?", "end-of-it"))
    assert all("Summary so far:\nso far" in prompt for prompt in model.prompts[1:])


def test_tool_results_are_in_the_prompt() -> None:
    """The prompt holds what a turn's messages say beside its texts, such as tool results."""
    assert "In between: found it" in summarization.turn_text(
        ConversationTurn(0, "look", "done", tooled("look", "found it"))
    )


def test_without_its_model_the_summary_is_made_of_sentences() -> None:
    """If the model fails, sentences of the newest turns form the summary, which says so (N16).

    The earlier summary is kept.
    """

    def fails(prompt: str) -> str:
        raise RuntimeError("no credit")

    summarizer = create_llm_summarizer(model=Model(fails).model, max_summary_tokens=60)
    given = [
        ConversationTurn(i, f"Well. I am in room {i}. Thanks.", f"Good. Breakfast {i} is at 8. Bye.") for i in range(30)
    ]

    summary = summarizer.fold(given, "Before.")

    lines = summary.splitlines()
    assert lines[0] == "Before."
    assert "No model could be asked" in lines[1]
    assert lines[-2:] == ["User: I am in room 29.", "Assistant: Breakfast 29 is at 8."]
    assert "room 0." not in summary
    assert len(lines) < 20


def test_an_empty_answer_counts_as_a_failure() -> None:
    """A blank answer of the model counts as a failure."""
    assert "No model could be asked" in create_llm_summarizer(model=Model(lambda prompt: " ").model)(turns(1))


def test_the_model_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a model the environment names it at the first call; if it names none, all turns stay (N9)."""
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


def test_a_summarizer_may_be_called_inside_a_loop() -> None:
    """The summarizer may be called by a program itself, also inside a running event loop."""

    async def main() -> str:
        return create_llm_summarizer(model=Model(lambda prompt: "within").model)(turns(1))

    assert asyncio.run(main()) == "within"


def test_a_missing_framework_raises_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Pydantic AI, making the summarizer raises MissingExtra, an ImportError that says what to install."""
    monkeypatch.setattr(summarization, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="llm") as raised:
        create_llm_summarizer(model="openai:gpt-4o-mini")
    assert isinstance(raised.value, ImportError)

"""A graph of LangGraph, built as the guide says, stores each message once when it is retried, paused or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    convert_to_messages,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt

from palimpsest import Entry, Memory, Session

KEPT = [
    ("user", "How is Oslo?"),
    ("assistant", ""),
    ("assistant", '{"place": "Oslo"}'),
    ("tool", "Oslo: clear, says Ann"),
    ("assistant", "Clear."),
    ("user", "Thank you."),
    ("assistant", "You are welcome."),
]
THREAD: RunnableConfig = {"configurable": {"thread_id": "one"}}


class New(TypedDict):
    """The messages that are new since the node ran."""

    messages: list[AnyMessage]


@tool
def forecast(place: str) -> str:
    """Return the weather of a place."""
    return f"{place}: clear, says {interrupt(place)}"


ANSWERS = {
    "How is Oslo?": AIMessage("", tool_calls=[{"name": "forecast", "args": {"place": "Oslo"}, "id": "call_1"}]),
    "Oslo: clear, says Ann": AIMessage("Clear."),
    "Thank you.": AIMessage("You are welcome."),
}


class Answering(BaseChatModel):
    """A model that always answers the last message."""

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        answer = ANSWERS[str(messages[-1].content)].model_copy(update={"id": None})
        return ChatResult(generations=[ChatGeneration(message=answer)])

    @property
    def _llm_type(self) -> str:
        return "answering"


def as_message(stored: list[Entry]) -> AnyMessage:
    """Return an answer of the model as LangChain represents it."""
    text = "".join(entry.text for entry in stored if entry.kind == "message")
    calls = [
        {"id": entry.call_id, "type": "function", "function": {"name": entry.name, "arguments": entry.text}}
        for entry in stored
        if entry.kind == "tool_call"
    ]
    message: Any = convert_to_messages([{"role": "assistant", "content": text, "tool_calls": calls}])[0]
    return message  # type: ignore[no-any-return]


def graph(session: Session, fails: Callable[[str], None] = lambda _: None) -> Any:
    """Build the guide's graph; `fails` may raise before the model is asked or its stored answer returned."""
    caller = Answering()

    def ask(state: New, config: RunnableConfig) -> New:
        step = config["metadata"]["langgraph_checkpoint_ns"]
        new = session.add(convert_to_openai_messages(state["messages"]), key=f"{step}:new")
        stored = [entry for entry in session.entries(after=new[-1].seq) if entry.metadata == {"step": step}]
        if stored:
            return {"messages": [as_message(stored)]}
        context = session.context(system="Be brief.")
        fails("asking")
        said = caller.invoke(convert_to_messages(context.messages))
        fails("storing")
        session.add(convert_to_openai_messages([said]), key=f"{step}:said", metadata={"step": step})
        fails("stored")
        return {"messages": [said]}

    made = StateGraph(New)
    made.add_node("ask", ask, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False, retry_on=OSError))
    made.add_node("tools", ToolNode([forecast]))
    made.add_edge(START, "ask")
    made.add_conditional_edges("ask", tools_condition)
    made.add_edge("tools", "ask")
    return made.compile(checkpointer=InMemorySaver())


def said(session: Session) -> list[tuple[str, str]]:
    return [(entry.role, entry.text) for entry in session.entries()]


@pytest.mark.parametrize("way", ["invoke", "stream", "astream", "tokens"])
def test_a_graph_that_stops_for_a_person_keeps_each_message_once(way: str) -> None:
    """A graph paused for a person stores each message once; meanwhile the call is pending and not shown."""

    async def over(app: Any, given: Any) -> list[Any]:
        return [part async for part in app.astream(given, THREAD, stream_mode="updates")]

    def run(app: Any, given: Any) -> Any:
        if way == "invoke":
            return app.invoke(given, THREAD)
        if way == "astream":
            return asyncio.run(over(app, given))
        return list(app.stream(given, THREAD, stream_mode="updates" if way == "stream" else ["messages", "updates"]))

    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=8_000)
        app = graph(session)
        run(app, {"messages": [HumanMessage("How is Oslo?")]})
        waiting = session.context()
        assert waiting.pending == ("call_1",)
        assert [message["role"] for message in waiting.messages] == ["user"]
        run(app, Command(resume="Ann"))
        run(app, {"messages": [HumanMessage("Thank you.")]})

        assert said(session) == KEPT
        assert session.context().pending == ()


@pytest.mark.parametrize("moment", ["asking", "storing", "stored"])
@pytest.mark.parametrize("resumed", [False, True], ids=["retried", "resumed"])
def test_a_step_that_runs_again_adds_nothing_twice(moment: str, resumed: bool) -> None:
    """A step that is retried, by LangGraph or the program, adds nothing twice."""
    moments: list[str] = []

    def fails(at: str) -> None:
        moments.append(at)
        if at == moment and (at == "stored" or moments.count(at) % 2):
            raise (RuntimeError if resumed else ConnectionError)("the model is away")

    def run(app: Any, given: Any) -> None:
        if resumed:
            with pytest.raises(RuntimeError):
                app.invoke(given, THREAD)
            given = None  # on from where it stopped
        app.invoke(given, THREAD)

    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=8_000)
        app = graph(session, fails)
        run(app, {"messages": [HumanMessage("How is Oslo?")]})
        run(app, Command(resume="Ann"))
        run(app, {"messages": [HumanMessage("Thank you.")]})

        assert said(session) == KEPT
        assert moments.count(moment) == (3 if moment == "stored" else 6)  # a step that has its answer asks no more
        assert session.verify().problems == ()


@pytest.mark.parametrize("resumed", [False, True], ids=["retried", "resumed"])
@pytest.mark.parametrize("privacy", [None, "default"])
def test_a_repeated_step_continues_with_its_stored_answer(
    resumed: bool, privacy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retried step whose answer was already stored continues with that answer and does not ask the model again."""
    died = [True]

    def fails(at: str) -> None:
        if at == "stored" and died:
            died.clear()
            monkeypatch.setitem(ANSWERS, "How is Oslo?", AIMessage("Who knows?"))
            raise (RuntimeError if resumed else ConnectionError)("killed")

    with Memory.open("memory://", privacy=privacy) as memory:
        session = memory.session("s", max_tokens=8_000)
        app, given = graph(session, fails), {"messages": [HumanMessage("How is Oslo?")]}
        if resumed:
            with pytest.raises(RuntimeError):
                app.invoke(given, THREAD)
            assert said(session) == KEPT[:3]
        app.invoke(None if resumed else given, THREAD)
        app.invoke(Command(resume="Ann"), THREAD)
        assert said(session) == KEPT[:5]

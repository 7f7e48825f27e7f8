"""Several declared memories of one agent: shown in the order of its references, and written to together."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest import BudgetImpossible, ConfigError
from palimpsest.resources import AgentMemory, AsyncResources, Resources
from test_resources import written
from writer import quarters

PLACE = {"type": "in_memory"}


def memory(id: str, **keys: Any) -> dict[str, Any]:
    """Return the declaration of a memory whose key comes from the variable `user`."""
    base = {"resource": "memory", "id": id, "type": "token_based", "max_tokens": 400, "persistence": PLACE}
    return {**base, "default_key_template": "user:{user}", **keys}


@pytest.fixture
def resources(tmp_path: Any) -> Any:
    """Yield two loaded memories, `facts` and `chat`."""
    import json

    for id in ("facts", "chat"):
        written(tmp_path, json.dumps(memory(id)), f"{id}.json")
    with Resources.load(tmp_path) as found:
        yield found


ANN = {"user": "ann"}
READ = {"id": "facts", "mode": "read-only"}


def filled(resources: Resources) -> AgentMemory:
    """Fill both memories, and return an agent that may only read `facts`."""
    agent = resources.agent(["facts", "chat"], ANN)
    facts, chat = agent.sessions
    facts.add([{"role": "user", "content": "I live in Oslo."}, {"role": "assistant", "content": "Noted."}])
    chat.add([{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi Ann."}])
    return resources.agent([READ, "chat"], ANN)


def texts(messages: list[Any]) -> list[str]:
    """Return the contents of these messages."""
    return [message["content"] for message in messages]


def test_memories_are_shown_in_the_order_of_the_references(resources: Resources) -> None:
    """A context shows the memories in the order of the references, between system text and question.

    The question is not stored.
    """
    agent = filled(resources)
    context = agent.context("Is it cold there?", system="Be brief.")
    history = ["I live in Oslo.", "Noted.", "Hello.", "Hi Ann."]
    assert texts(context.messages) == ["Be brief.", *history, "Is it cold there?"]
    other = resources.agent(["chat", READ], ANN)
    assert texts(other.context().messages) == [*history[2:], *history[:2]]
    assert [len(session.entries()) for session in agent.sessions] == [2, 2]


def test_question_and_answer_are_stored_in_writable_memories(resources: Resources) -> None:
    """`add` stores question and answer in each memory that is not read-only; with a key, once."""
    agent = filled(resources)
    for _ in range(2):
        assert agent.add("Is it cold there?", "Very.", key="turn 1") == 1
    facts, chat = agent.sessions
    assert [entry.text for entry in facts.entries()] == ["I live in Oslo.", "Noted."]
    assert [entry.text for entry in chat.entries()][2:] == ["Is it cold there?", "Very."]
    assert resources.agent(["facts", "chat"], ANN).add("q", "a") == 2
    assert [session.entries()[-1].text for session in agent.sessions] == ["a", "a"]
    with pytest.raises(ConfigError, match="read-write"):
        resources.agent([READ], ANN).add("q", "a")
    with pytest.raises(ConfigError, match="answer"):
        agent.add("q", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini", "text"])
def test_an_agents_context_is_valid_in_each_format(resources: Resources, format: str) -> None:
    """In each format an agent's request holds all memories and the question, with neighbours merged where needed."""
    agent = resources.agent(["facts", "chat"], ANN, format=format)
    for session in agent.sessions:
        session.add_system_message("A rule.")
        session.add_user_message("A question without an answer.")
    context = agent.context("And this?", system="Be brief.")
    sent = str(context.request())
    assert sent.count("A question without an answer.") == 2
    assert sent.rindex("And this?") > sent.rindex("A question")


def test_each_memory_keeps_its_own_budget(resources: Resources) -> None:
    """Each memory stays within its own budget, however much the other holds."""
    agent = resources.agent(["facts", "chat"], ANN, counter=quarters)
    for number in range(40):
        agent.add(f"{number} " + "words " * 20, "yes " * 20)
    context = agent.context("now?")
    for context_part in context.contexts:
        assert 100 < context_part.parts.log + context_part.parts.head <= 400
    total = sum(context_part.parts.log + context_part.parts.head for context_part in context.contexts)
    assert total < context.tokens <= total + 20


def test_memories_that_exceed_the_window_together_are_refused(tmp_path: Any) -> None:
    """Memories that fit alone but not together raise BudgetImpossible with the figures of each."""
    big: dict[str, Any] = {"max_tokens": 6_000, "model": "gpt-4", "reserve": 1_000, "low_water": 0.9}
    for id in ("one", "two"):
        written(tmp_path, str(memory(id, **big)).replace("'", '"'), f"{id}.json")
    with Resources.load(tmp_path) as resources:
        agent = resources.agent(["one", "two"], ANN)
        for session in agent.sessions:
            session.add_user_message("word " * 5_000)
        with pytest.raises(BudgetImpossible) as caught:
            agent.context("now?")
    assert caught.value.needed > caught.value.available
    assert {"references[0]", "references[1]"} <= set(caught.value.parts)


def test_a_question_is_redacted_as_if_it_were_stored() -> None:
    """A question is redacted by the memories' policy although it is not stored."""
    policy = {"redact_patterns": [r"\d{3}-\d{2}-\d{4}"]}
    with Resources.load(memory("chat", privacy_policy=policy)) as resources:
        context = resources.agent(["chat"], ANN).context("I am 123-45-6789.")
    assert texts(context.messages) == ["I am [REDACTED]."]


def test_calls_and_results_of_different_memories_do_not_mix(resources: Resources) -> None:
    """An open call is not shown, and a result in one memory does not answer a call of another."""
    agent = resources.agent(["facts", "chat"], ANN)
    for session in agent.sessions:
        session.add_user_message("Look.")
        session.add_tool_call("look", {}, call_id="c1")
    agent.sessions[1].add_tool_result("look", "seen", call_id="c1")
    roles = [message["role"] for message in agent.context("now?").messages]
    assert roles == ["user", "user", "assistant", "tool", "user"]


@pytest.mark.parametrize(
    ("references", "told"),
    [
        ([], "a list of at least one reference"),
        ("chat", "a list of at least one reference"),
        (None, "a list of at least one reference"),
        (["chat", "caht"], r"references\[1\]\.id: 'caht'.*did you mean 'chat'"),
        (["chat", 7], r"references\[1\]: 7"),
        (["chat", {"id": "facts", "mode": "write-only"}], r"references\[1\] 'facts'\.mode: 'write-only'"),
        (["chat", {"id": "facts", "mod": "x"}], r"references\[1\]\.mod.*did you mean 'mode'"),
        (["chat", {"id": "facts", "key": "a b"}], "256"),
        (["chat", {"id": "facts", "key": "{{.x}}"}], r"variables\.x"),
        (["chat", {"id": "chat", "mode": "read-only"}], r"references\[1\].*no other reference"),
    ],
)
def test_a_wrong_reference_is_named_by_its_number(resources: Resources, references: Any, told: str) -> None:
    """A wrong reference raises ConfigError with its number, and opens nothing."""
    with pytest.raises(ConfigError, match=told):
        resources.agent(references, ANN)


def test_memories_with_different_formats_need_a_format(tmp_path: Any) -> None:
    """Memories with different formats are refused unless the program chooses one."""
    import json

    written(tmp_path, json.dumps(memory("one", format="anthropic")), "one.json")
    written(tmp_path, json.dumps(memory("two")), "two.json")
    with Resources.load(tmp_path) as resources:
        with pytest.raises(ConfigError, match="anthropic, openai"):
            resources.agent(["one", "two"], ANN)
        assert resources.agent(["one", "two"], ANN, format="gemini").context("hi").messages


@pytest.mark.anyio
async def test_an_asynchronous_agent_works_alike() -> None:
    """The agent of AsyncResources works the same, awaited."""
    async with AsyncResources.load(memory("chat")) as resources:
        agent = resources.agent(["chat"], ANN)
        assert await agent.add("Hello.", "Hi.") == 1
        assert texts((await agent.context("How are you?")).messages) == ["Hello.", "Hi.", "How are you?"]

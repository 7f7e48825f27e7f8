"""`max_messages` counts messages as the format at hand makes them."""

from __future__ import annotations

from typing import Any

import pytest

import strategies
from palimpsest import Memory
from palimpsest.compaction.evict import SimpleFifo
from palimpsest.compaction.triggers import Triggers
from palimpsest.errors import BudgetImpossible
from palimpsest.log.entry import Reasoning, Text

BLOCK = {"memory_strategy_id": "max_tokens"}

CALLS = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(3)]
ANSWERS = [{"role": "tool", "tool_call_id": f"c{i}", "content": "r"} for i in range(3)]
MESSAGES = {"openai": 5, "openai-responses": 8, "anthropic": 3, "gemini": 3, "text": 8}
"""A question, and an answer of text and three calls with their results."""


@pytest.fixture
def memory() -> Any:
    with Memory.open("memory://") as memory:
        yield memory


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("format", "messages"), MESSAGES.items())
def test_each_format_counts_its_own_messages(memory: Memory, format: str, messages: int, exact: bool) -> None:
    """A log fits a limit of exactly the messages that the format makes of it."""
    walk: dict[str, Any] = {"short_term": {**BLOCK, "memory_max_tokens": None}} if exact else {}
    session = memory.session("s", counter=strategies.WORDS, format=format, **walk)
    session.add([{"role": "user", "content": "q"}], format="openai")
    session.add([{"role": "assistant", "content": "let me look", "tool_calls": CALLS}, *ANSWERS], format="openai")

    whole = session.context(max_messages=messages)
    less = session.context(max_messages=messages - 1)

    assert len(whole.messages) == messages
    assert whole.report.left_out == ()
    assert len(less.messages) < messages


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("format", ["anthropic", "gemini"])
def test_the_user_message_that_opens_a_conversation_counts(memory: Memory, format: str, exact: bool) -> None:
    """The message that a format puts before an assistant's first one counts."""
    walk: dict[str, Any] = {"short_term": {**BLOCK, "memory_max_tokens": None}} if exact else {}
    session = memory.session("s", counter=strategies.WORDS, format=format, **walk)
    session.add_assistant_message("how may I help?")

    opened = session.context(max_messages=2).messages
    session.pin(1)

    assert [message["role"] for message in opened] == ["user", "assistant" if format == "anthropic" else "model"]
    with pytest.raises(BudgetImpossible):
        session.context(max_messages=1)


def test_thoughts_count_as_messages_in_the_text_format(memory: Memory) -> None:
    """In the text format a thought and its answer are two messages."""
    session = memory.session("s", counter=strategies.WORDS, format="text", max_messages=2)
    session.add_user_message("q")
    session.add_assistant_message((Reasoning(text="hm"), Text(text="a")))
    session.add_user_message("and now?")

    assert len(session.context().messages) <= 2


def test_a_trigger_on_messages_counts_several_for_one_entry(memory: Memory) -> None:
    """A threshold of messages is reached by the append that reaches it, where one entry is several of them."""
    strategy = SimpleFifo(triggers=Triggers(message_count=9))
    session = memory.session("s", counter=strategies.WORDS, format="text", long_term=strategy)
    evicted: list[str] = []
    memory.on("evicted", lambda id, facts: evicted.append(id))
    for number in range(3):
        assert not evicted
        session.add_user_message(f"q{number}")
        session.add_assistant_message((Reasoning(text="hm"), Text(text="a")))

    assert evicted == ["s"]


BESIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "texts": ({"tail_share": 0.2}, {"tail": {"clock": "noon", "weather": "rain"}}),
    "recalled": ({"tail_share": 0.2}, {"recall": "zebras"}),
    "facts": ({"facts": "user/ann"}, {}),
    "facts of two": ({"facts": ["user/ann", "user/bob"]}, {}),
    "facts before": ({"facts": "user/ann", "facts_in": "prefix"}, {}),
    "facts before, and a text": ({"facts": "user/ann", "facts_in": "prefix"}, {"tail": {"clock": "noon"}}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("most", range(1, 8))
@pytest.mark.parametrize("what", BESIDE)
@pytest.mark.parametrize("format", MESSAGES)
def test_facts_and_tails_count_as_messages(format: str, what: str, most: int) -> None:
    """Facts, tails and the like count, too; without room they are left out by name, and the log's messages stay."""
    options, given = BESIDE[what]
    with Memory.open("memory://") as memory:
        for scope in ("user/ann", "user/bob"):
            memory.working(scope).set("seat", "aisle")
        chat = memory.session("s", max_tokens=2_000, max_messages=most, **options)
        for number in range(14):
            add = chat.add_assistant_message if number % 3 == 1 else chat.add_user_message
            add(f"{number} about zebras")
            context = chat.context(format=format, **given)
            call = chat.context(format=format, max_messages=max(most - 1, 1), **given)
            assert len(context.messages) <= most
            assert len(call.messages) <= max(most - 1, 1)
            bare = chat.context(format=format)
            assert bare.report.first_seq == context.report.first_seq
            if "tail" in given and most > 2 and "before" not in what:
                assert context.report.tail
            if most == 1 and what != "recalled":
                assert context.report.warnings

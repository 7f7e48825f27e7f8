"""Real tool-calling conversations come back key for key, and each of their contexts is valid and fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rules
from palimpsest import Memory
from palimpsest.formats import find_format
from recordings import tau_bench

BUDGETS = (2_500, 4_000, 8_000, 16_000)
TOGETHER = 40
PARTS = 4
"""Into how many the conversations are divided, where each is seen alone."""


@pytest.fixture(scope="module")
def conversations() -> list[list[dict[str, Any]]]:
    return tau_bench()


def contexts(store: str | Path, messages: list[dict[str, Any]], system: str) -> Iterator[tuple[int, Any]]:
    """Add the messages one by one; before each answer of the model yield its context in each budget."""
    with Memory.open(store) as memory:
        views = [memory.session("s", model="gpt-4o", max_tokens=n, view=f"view {n}") for n in BUDGETS]
        for message in messages:
            if message["role"] == "assistant":
                for budget, view in zip(BUDGETS, views, strict=True):
                    yield budget, view.context(system=system)
            if message["role"] != "system":
                views[0].add(message)


def check(store: str | Path, messages: list[dict[str, Any]], system: str) -> tuple[int, int]:
    """Assert that every context is valid and fits; return their number and the number of new cuts."""
    seen = cuts = 0
    for budget, ctx in contexts(store, messages, system):
        assert ctx.tokens <= budget
        assert rules.faults(ctx.messages) == []
        assert ctx.messages[0] == {"role": "system", "content": system}
        seen += 1
        cuts += ctx.report.new_cut
    return seen, cuts


def test_each_conversation_comes_back_key_for_key(conversations: list[list[dict[str, Any]]]) -> None:
    """Decoding and encoding again gives the equal messages, nulls, empty results and repeated ids included."""
    fmt = find_format("openai")

    for messages in conversations:
        assert fmt.encode(fmt.decode(messages, "messages")) == messages


def test_a_stored_conversation_comes_back_key_for_key(
    conversations: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Messages stored in a file come back equal."""
    fmt = find_format("openai")

    with Memory.open(tmp_path / "a.db", synchronous="NORMAL") as memory:
        for i, messages in enumerate(conversations[:50]):
            memory.session(str(i)).add(messages)
        for i, messages in enumerate(conversations[:50]):
            assert fmt.encode(memory.session(str(i)).entries()) == messages


@pytest.mark.wide
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1, PARTS))])
def test_every_call_of_a_conversation_is_valid_and_fits(conversations: list[list[dict[str, Any]]], first: int) -> None:
    """The context of each call of each conversation is valid and fits in every budget."""
    seen = cuts = 0
    chosen = conversations[first::PARTS]
    for messages in chosen:
        found = check("memory://", messages, messages[0]["content"])
        seen, cuts = seen + found[0], cuts + found[1]

    answers = sum(message["role"] == "assistant" for messages in chosen for message in messages)
    assert seen == answers * len(BUDGETS)
    assert cuts > len(chosen)


@pytest.mark.wide
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (40, 80, 120, 160))])
def test_every_call_of_forty_conversations_in_a_row_is_valid_and_fits(
    conversations: list[list[dict[str, Any]]], first: int
) -> None:
    """Forty conversations joined to one session, at every call of the model and in every budget."""
    together = [message for messages in conversations[first : first + TOGETHER] for message in messages]

    seen, cuts = check("memory://", together, together[0]["content"])

    assert seen == len(BUDGETS) * sum(message["role"] == "assistant" for message in together)
    assert cuts > 40

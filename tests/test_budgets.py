"""The figures of a budget are exact, and the same for an almost empty and a full log."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from laws import examples
from palimpsest import Budget, BudgetImpossible, Memory, Session
from palimpsest.testing import FakeClock
from palimpsest.tokens.fallback import FallbackCounter
from palimpsest.tokens.models import find_model

law = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
SYSTEM = "You are the support agent of a tool shop. " * 60
"""About 600 tokens, and four times as many bytes."""

fresh = itertools.count()
"""A number for each system text, so that none was counted before."""

counters = st.sampled_from([{"model": "gpt-4o"}, {"model": "gpt-4"}, {"model": "claude-sonnet-4-5"}, {}])
shares = st.sampled_from([0.0, 0.1, 0.3])
calls = st.fixed_dictionaries(
    {
        "system": st.sampled_from(["", "Be kind. ", "Sei höflich, 漢字. "]),
        "tools": st.sampled_from([(), strategies.TOOLS]),
    }
)
tails = st.lists(st.integers(1, 400).map(lambda words: "found " * words), max_size=3)


def figures(session: Session, call: dict[str, Any], tail: dict[str, str] | None) -> dict[str, Any] | None:
    """Return a context's budget and the parts beside the log, or None if no context is possible."""
    try:
        context = session.context(**call, tail=tail) if tail else session.context(**call)
    except BudgetImpossible:
        return None
    return {
        "budget": context.budget,
        "tail": [(group.entries[0].name, group.cost) for group in context._tail],
        "lead": [(group.entries[0].text, group.cost) for group in context._lead],
        "left out": [told for told in context.report.warnings if told.startswith("the tail has no room")],
    }


@law
@given(
    counter=counters,
    call=calls,
    times=st.integers(1, 120),
    share=shares,
    most=st.integers(300, 3_000),
    more=st.sampled_from([{}, {"max_log_tokens": 900}, {"max_messages": 20}, {"reserve": 100}]),
    texts=tails,
    facts=st.integers(0, 12),
    where=st.sampled_from(["tail", "prefix"]),
)
def test_a_budget_depends_on_options_and_texts_alone(
    counter: dict[str, Any],
    call: dict[str, Any],
    times: int,
    share: float,
    most: int,
    more: dict[str, Any],
    texts: list[str],
    facts: int,
    where: str,
) -> None:
    """A budget, and what fits beside the log, depends on options and texts, not on how full the log is."""
    call = {**call, "system": call["system"] * times and f"{next(fresh)} {call['system'] * times}"}
    tail = {f"t{i}": text for i, text in enumerate(texts)} if share else None
    with Memory.open("memory://", clock=FakeClock()) as memory:
        for number in range(facts):
            memory.working("user/ann").set(f"key{number}", "the customer wants something special")
        options: dict[str, Any] = {**(counter or {"counter": strategies.WORDS}), "max_tokens": most, **more}
        if share:
            options |= {"tail_share": share, "facts": "user/ann", "facts_in": where}
        empty, full = memory.session("empty", **options), memory.session("full", **options)
        empty.add_user_message("hi")
        for number in range(most // 20):
            full.add_user_message(f"question {number}, and more of it")
            full.add_assistant_message("an answer, which is a little longer than what was asked")

        little, much = figures(empty, call, tail), figures(full, call, tail)
        assert little == much or little is None or much is None  # even the newest message may have no room


def test_a_requested_budget_is_exact() -> None:
    """System text and tools are in it as they are counted, however little else there is."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", model="gpt-4o", max_tokens=8_000)
        session.add_user_message("hello")
        context = session.context(system=SYSTEM, tools=strategies.TOOLS)
        budget = context.budget

        assert isinstance(budget, Budget)
        assert budget.fixed == context.parts.system + context.parts.tools + context.parts.overhead
        assert budget.room == 8_000 - budget.fixed
        assert budget.low_water == int(8_000 * 0.36) - budget.fixed


def test_a_budget_that_is_not_requested_is_not_counted(tmp_path: Path) -> None:
    """A long system text and tools do not load the vocabulary where all fits anyway, nor do facts where there are none;
    `budget` does."""
    program = f"""
import sys
from palimpsest import Memory
from palimpsest.tokens.counter import encoding
with Memory.open(f"sqlite:///{{sys.argv[1]}}") as memory:
    chat = memory.session("s", max_tokens=50_000, tail_share=0.1, facts="nobody")
    chat.add_user_message("hello there")
    context = chat.context(system={SYSTEM!r}, tools={strategies.TOOLS!r})
    assert context.is_bounded
    assert not encoding("o200k_base").loaded and "tiktoken" not in sys.modules
    assert context.budget.fixed == context.parts.system + context.parts.tools + context.parts.overhead
    assert encoding("o200k_base").loaded
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "s.db")], check=True, timeout=300)


def test_system_text_and_tools_are_counted_once() -> None:
    """System text and tools are counted once, for however many contexts and sessions."""
    seen: list[str] = []

    def counting(text: str) -> int:
        seen.append(text)
        return len(text.split())

    with Memory.open("memory://") as memory:
        for name in ("a", "b"):
            session = memory.session(name, counter=counting, max_tokens=500)
            for number in range(40):
                session.add_user_message(f"question {number} with some more words")
                session.context(system="be kind and true", tools=strategies.TOOLS)

    assert seen.count("be kind and true") == 2  # each session has a counter of its own
    assert sum("Find a thing" in text for text in seen) == 2


def test_a_fallbacks_count_of_a_system_text_is_not_kept() -> None:
    """A count that a fallback made of a system text is not kept for the next context."""
    answers: list[int | Exception] = [ConnectionError("no"), 40]

    def service(text: str) -> int:
        if text != "be kind and true":
            return len(text.split())
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Memory.open("memory://") as memory:
        counter = FallbackCounter(service, name="service", pause=0)
        session = memory.session("s", counter=counter, max_tokens=500)
        session.add_user_message("hello")

        for_now, then, later = (session.context(system="be kind and true") for _ in range(3))

        assert [one.parts.system for one in (for_now, then, later)] == [4, 40, 40]
        assert answers == []


@law
@given(
    reserve=st.integers(0, 270),
    tail_share=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    low_water=st.sampled_from([0.05, 0.36, 0.5, 0.8, 0.95]),
    ratio=st.sampled_from([None, 20, 200]),
    quiet=st.booleans(),
)
def test_low_water_lies_below_the_room(
    reserve: int, tail_share: float, low_water: float, ratio: int | None, quiet: bool
) -> None:
    """Low water is below the room for the log, whatever is reserved, so that a cut keeps only what fits."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session(
            "s",
            counter=strategies.WORDS,
            max_tokens=300,
            max_log_tokens=ratio,
            reserve=reserve,
            tail_share=tail_share,
            low_water=low_water,
        )
        for _ in range(60):
            session.add_user_message("a b c")
            session.add_assistant_message("d e")
            if quiet:
                clock.advance(4_000)  # the provider's cache is cold

            context = session.context()

            budget = context.budget
            assert budget is not None
            assert budget.low_water < budget.room
            assert 0 < context.tokens <= budget.room


ASKED: dict[str, dict[str, Any]] = {
    **{name: {"model": name} for name in ("gpt-4o", "gpt-4", "claude-sonnet-4-5", "claude-opus-4-8")},
    "words": {"counter": strategies.WORDS},
}
LONG = "漢字かな交じり文の長い結果です。 "
"""A text of one word whose number of tokens differs between encodings."""


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("cut_for", ASKED)
def test_a_budget_is_that_of_the_model_that_is_asked(cut_for: str, asked: str) -> None:
    """A cut that was made for one model does not scale the budget of another, and what it has shortened is counted by
    the other's counter."""
    with Memory.open("memory://") as memory:
        first = memory.session("s", max_tokens=1_000, **ASKED[cut_for])
        for _ in range(20):
            first.add_user_message(LONG)
            first.add_assistant_message(LONG * 3)
        call = first.add_tool_call("look", {})
        first.add_tool_result("look", LONG * 2_000, call_id=call.call_id)
        cut = first.context()
        other = memory.session("s", max_tokens=1_000, **ASKED[asked])

        shown = other.context()

        count, model = other.options.counter.count, find_model(asked)
        assert cut.report.clamped
        assert shown.budget is not None
        assert shown.budget.factor == (1.0 if model is None else model.margin)
        assert shown.counted >= sum(count(entry.text) for entry in shown.entries)
        assert shown.tokens <= 1_000

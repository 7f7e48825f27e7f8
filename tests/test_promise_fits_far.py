"""Promise 1, fits: entries shown from far back in the log, or without the start of their message, are counted fully."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import BudgetImpossible
from palimpsest.sessions.sync import Session
from palimpsest.tokens.counter import encoding
from worlds import STORES, open_world

BLOCK = {"memory_strategy_id": "max_tokens"}

law = settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
count = encoding("o200k_base").count

FAR = [{"role": role, "content": str(n)} for n in range(131) for role in ("user", "assistant")]
"""More entries than the library reads at once, so that what precedes them lies in an earlier read."""

CONDITIONS = (
    "message.role != 'assistant' or message.kind != 'message'",
    "message.kind != 'tool_result' or message.content_length < 20",
    "message.tool_name != 'book'",
    "message.age < 3",
    "interaction.age <= 1",
    "interaction.has_tools == False",
)

places = st.lists(st.integers(0, 99), max_size=3)
conditions = st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True)
walks = st.just([]) | st.lists(
    st.fixed_dictionaries({"gap": st.sampled_from(["stop", "skip"]), "count_pinned": st.booleans()}),
    min_size=1,
    max_size=2,
)
"""Short-term strategies that select entries anew at each call; with none, cuts to low water bound the window."""
formats = st.sampled_from(["openai", "openai", "openai-responses", "anthropic", "gemini", "text"])


@st.composite
def sessions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the history of a session: steps, perhaps many plain messages behind them, pins, erasures, a compaction."""
    return {
        "early": draw(strategies.logs(6, least=1)),
        "far": draw(st.sampled_from([True, True, False])),
        "late": draw(strategies.logs(4)),
        "pins": draw(places),
        "erased": draw(places),
        "compacts": draw(st.sampled_from([False, False, True])),
    }


def played(session: Session, what: dict[str, Any], now: int) -> None:
    """Give the session this history."""
    for operation in what["early"]:
        strategies.perform(session, operation, now)
    count = len(session.entries())
    session.pin(*(place % count + 1 for place in what["pins"]))
    if what["far"]:
        session.add(FAR)
    session.erase([place % count + 1 for place in what["erased"]])
    if what["compacts"]:
        session.compact({"strategy": "summarizer", "interaction_keep": 1})
    for operation in what["late"]:
        strategies.perform(session, operation, now)


def attempt(session: Session, **call: Any) -> Context | None:
    """Return the context, or None if the call is refused; the figures of the refusal must justify it."""
    try:
        return session.context(**call)
    except BudgetImpossible as error:
        refusal = error
    assert refusal.needed > refusal.available
    return None


def honest(ctx: Context) -> int:
    """Return the least that the request costs: in chat completions by OpenAI's cookbook, elsewhere its texts alone."""
    if ctx.format == "openai":
        return rules.honest(ctx.messages, count, per_message=4, per_call=3) + 3
    return rules.least(ctx.request(), count)


@pytest.mark.parametrize("kind", STORES)
@law
@given(what=sessions(), budget=st.integers(20, 900), conditions=conditions, format=formats, walks=walks)
def test_everything_shown_is_counted_and_fits(
    kind: str, folder: Path, what: dict[str, Any], budget: int, conditions: list[str], format: str, walks: list[Any]
) -> None:
    """No context costs more than it says, whatever was pinned, erased, compacted or dropped, and however far back."""
    walk = {"short_term": [{**BLOCK, "memory_max_tokens": budget, "conditions": conditions, **one} for one in walks]}
    options: dict[str, Any] = {"max_tokens": budget, **(walk if walks else {"conditions": conditions})}
    with open_world(kind, folder, model="gpt-4o", counter=None, **options) as world:
        played(world.session, what, world.clock.now)
        for system in (None, "be kind"):
            ctx = attempt(world.session, system=system, format=format)

            if ctx is not None:
                assert honest(ctx) <= ctx.tokens <= budget


@pytest.mark.parametrize("kind", STORES)
@law
@given(what=sessions(), most=st.integers(1, 12), format=formats, exact=st.booleans())
def test_max_messages_holds_in_every_format(
    kind: str, folder: Path, what: dict[str, Any], most: int, format: str, exact: bool
) -> None:
    """No context has more messages than `max_messages`, counted as messages of its own format."""
    options: dict[str, Any] = {"max_tokens": 10**4, "short_term": {**BLOCK, "memory_max_tokens": None}} if exact else {}
    with open_world(kind, folder, max_messages=most, **options) as world:
        played(world.session, what, world.clock.now)

        ctx = attempt(world.session, format=format)

        assert ctx is None or len(ctx.messages) <= most


CALLING = [
    {
        "role": "assistant",
        "content": "let me look",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "ok"},
]


@pytest.mark.parametrize("how", ["condition", "erasure"])
def test_a_call_without_the_text_before_it_pays_for_its_message(how: str) -> None:
    """A call shown without the text that began its message is counted with that message's own tokens."""
    dropping = ["message.role != 'assistant' or message.kind != 'message'"] if how == "condition" else []
    with Memory.open("memory://") as memory:
        session = memory.session("s", model="gpt-4o", conditions=dropping)
        session.add_user_message("go")
        for _ in range(60):
            session.add(CALLING)
        if how == "erasure":
            session.erase([entry.seq for entry in session.entries() if entry.text == "let me look"])

        ctx = session.context()

        assert len(ctx.messages) == 121
        assert ctx.tokens == rules.honest(ctx.messages, count, per_message=4, per_call=3) + 3


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("pinned", [2, 3])
def test_a_pinned_call_keeps_its_result_under_any_condition(pinned: int, exact: bool) -> None:
    """A pinned call and its result stay together and are counted, whatever conditions drop around them."""
    older = ["interaction.age <= 1"]
    with Memory.open("memory://") as memory:
        for budget in range(20, 260, 6):
            walk = {"short_term": {**BLOCK, "memory_max_tokens": budget, "conditions": older}}
            options: dict[str, Any] = {"max_tokens": budget, **(walk if exact else {"conditions": older})}
            session = memory.session(str(budget), counter=strategies.WORDS, **options)
            session.add([{"role": "user", "content": "q"}, {**CALLING[0], "content": None}, CALLING[1]])
            session.add_assistant_message("it is ok")
            session.pin(pinned)
            for _ in range(4):
                session.add_user_message("more " * 20)
                session.add_assistant_message("answer " * 10)
            session.add_user_message("last")

            ctx = attempt(session)

            if ctx is not None:
                assert ctx.tokens <= budget
                place = next(i for i, message in enumerate(ctx.messages) if message.get("tool_calls"))
                assert [message["role"] for message in ctx.messages[place : place + 2]] == ["assistant", "tool"]


@pytest.mark.wide
def test_a_pin_that_a_condition_would_drop_is_counted_before_it_is_shown() -> None:
    """A cut reserves room for a pinned entry that a condition would otherwise drop."""
    with Memory.open("memory://") as memory:
        for budget in range(1, 60):
            session = memory.session(
                str(budget), counter=strategies.WORDS, max_tokens=budget, conditions=["message.role != 'assistant'"]
            )
            session.add_assistant_message("gamma " * 9)
            session.pin(1)
            session.add(FAR)

            ctx = attempt(session)

            if ctx is not None:
                assert rules.honest(ctx.messages, strategies.WORDS.count) <= ctx.tokens <= budget

"""How the room of a declared memory is shared among summaries and tagged entries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palimpsest import ConfigError, Memory, Session
from palimpsest.context.result import Context
from palimpsest.resources import Resources
from palimpsest.strategies import CallableSummarizer
from writer import quarters

DECLARED: dict[str, Any] = {
    "resource": "memory",
    "id": "chat",
    "type": "token_based",
    "max_tokens": 1000,
    "persistence": {"type": "in_memory"},
}
SHARES = {"short_term": 0.6, "long_term": 0.2, "system": 0.1, "user_defined": {"notes": 0.1}}


def chat(resources: Resources, **options: Any) -> Session:
    """Return a session of the memory."""
    return resources.session({"id": "chat", "key": "a"}, counter=quarters, **options)


def cost(session: Session, context: Context, tag: str) -> int:
    """Return what the entries with a tag cost in a context, as they are shown."""
    shown = {group.entries[0].seq: group.cost for group in context._window.groups}
    tagged = [entry for entry in context.entries if tag in ((entry.metadata or {}).get("tags") or [])]
    return sum(shown.get(entry.seq, session.cost(entry)) for entry in tagged)


def test_bt2_a_share_bounds_entries_with_its_tag() -> None:
    """Every context keeps the share: the oldest entries with the tag leave first, several at one cut."""
    with Resources.load({**DECLARED, "token_allocation": SHARES}) as resources:
        session, epochs = chat(resources), set[int | None]()
        for number in range(40):
            session.add_context(f"{number} " + "n" * 38, name=f"note {number}", metadata={"tags": ["notes"]})
            context = session.context()
            epochs.add(context.epoch)
            assert 0 < cost(session, context, "notes") <= 100
            assert f"{number} nnn" in str(context.messages[-1])
        assert len(epochs) < 15
        assert len(session.entries()) == 40


@pytest.mark.parametrize("hundredths", [29, 57, 58])
def test_entries_that_take_exactly_their_share_stay(hundredths: int) -> None:
    """Entries that take exactly their share stay, in spite of binary fractions."""
    shares = {"short_term": 1 - hundredths / 100, "user_defined": {"notes": hundredths / 100}}
    with Resources.load({**DECLARED, "max_tokens": 100, "token_allocation": shares}) as resources:
        session = chat(resources)
        session.add_context("n", name="first", metadata={"tags": ["notes"]})
        one = session.cost(session.entries()[0])
        session.add_context("n" * (1 + 4 * (hundredths - 2 * one)), name="other", metadata={"tags": ["notes"]})
        taken = sum(session.cost(entry) for entry in session.entries())
        assert cost(session, session.context(), "notes") == taken == hundredths


def test_bt2_unused_shares_go_to_the_interactions() -> None:
    """If there are no notes, summaries or pinned entries, the conversation has their shares."""
    flushing = {"type": "simple_fifo", "summarize_threshold": 1, "low_water": 0.9}
    with Resources.load({**DECLARED, "token_allocation": SHARES, "flushing": flushing}) as resources:
        session, most = chat(resources), 0
        for number in range(60):
            session.add_user_message(f"{number} " + "w" * 60)
            session.add_assistant_message("yes")
            context = session.context()
            assert context.parts.log + context.parts.head <= 1000
            most = max(most, context.parts.log)
        assert most > 900


def test_bt2_summaries_and_interactions_share_the_limit() -> None:
    """A summary of 400 tokens is shortened to its share of 300; the rest of the limit is the conversation's."""
    shares = {"short_term": 0.6, "long_term": 0.3, "system": 0.1}
    flushing = {"type": "hybrid_summary", "summary_tokens": 400}
    with Resources.load({**DECLARED, "token_allocation": shares, "flushing": flushing}) as resources:
        said = CallableSummarizer(lambda _: "What was said. " * 85, checked=False)
        session = chat(resources, summarizer=said)
        session.add_system_message("s" * 196)
        for number in range(60):
            session.add_user_message(f"{number} " + "words " * 40)
            session.add_assistant_message("yes")
            context = session.context()
            assert context.parts.summaries <= 300
            assert context.parts.log + context.parts.head + context.parts.summaries <= 1000
        assert context.parts.summaries > 0


def test_pinned_entries_and_questions_are_never_left_out_for_a_tag() -> None:
    """A pinned entry takes from the system's share, and a question is never left out for its tag."""
    with Resources.load({**DECLARED, "token_allocation": SHARES}) as resources:
        session = chat(resources)
        session.add_context("p" * 600, name="pinned", metadata={"tags": ["notes"]}, pinned=True)
        session.add_user_message("q" * 600, metadata={"tags": "notes"})
        shown = str(session.context().messages)
        assert "p" * 600 in shown
        assert "q" * 600 in shown


def test_a_share_evicts_calls_and_results_together() -> None:
    """A call and its result leave together, whichever has the tag."""
    with Resources.load({**DECLARED, "token_allocation": SHARES}) as resources:
        session = chat(resources)
        session.add_user_message("Look it up.")
        session.add_tool_call("look", {}, call_id="a")
        session.add_tool_result("look", "r" * 800, call_id="a", metadata={"tags": ["notes"]})
        session.add_assistant_message("Done.")
        roles = [message["role"] for message in session.context().messages]
        assert roles == ["user", "assistant"]


def test_an_exact_walk_keeps_to_shares_too() -> None:
    """A strategy that selects anew at each call uses the whole share."""
    block = {"memory_strategy_id": "max_tokens", "memory_max_tokens": 800}
    source = {**DECLARED, "token_allocation": SHARES, "short_term_memory_strategy": block}
    with Resources.load(source) as resources:
        session = chat(resources)
        for number in range(12):
            session.add_context(f"{number} " + "n" * 38, name=f"note {number}", metadata={"tags": ["notes"]})
            session.add_user_message("w" * 40)
            assert 0 < cost(session, session.context(), "notes") <= 100


@pytest.mark.parametrize(
    ("wrong", "where"), [(7, "tag_shares"), ({"": 0.1}, "tag_shares"), ({"x": 2}, "tag_shares['x']"), ({"x": "y"}, "")]
)
def test_an_invalid_share_is_refused_by_tag(wrong: Any, where: str) -> None:
    """The error for an invalid share names the tag."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError) as caught:
        memory.session("s", tag_shares=wrong)

    assert where in caught.value.where


SHORTENED = [1, 1, 1, 117, -50, 0, 38, -4, -50, 0, 0, 39, 148, 4, -94, -272, 145]
"""Sizes of notes (positive) and docs (negative) of which the newest cut shortens one."""


@example([("notes", n) if n > 0 else ("docs", -n) if n else ("", 300) for n in SHORTENED], 0.2, 0.4, False)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["notes", "docs", ""]), st.integers(1, 300)), min_size=5, max_size=25),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.sampled_from([0.1, 0.4]),
    st.booleans(),
)
def test_no_context_shows_more_of_a_tag_than_its_share(
    said: list[tuple[str, int]], notes: float, docs: float, answers: bool
) -> None:
    """No context shows more of a tag than its share, or more than the limit in total."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_log_tokens=500, counter=quarters, tag_shares={"notes": notes, "docs": docs})
        for i, (tag, size) in enumerate(said):
            session.add_context("x" * size, name=f"{i}", metadata={"tags": [tag]} if tag else None)
            if answers:
                session.add_assistant_message("ok")
            context = session.context()
            assert cost(session, context, "notes") <= int(500 * notes)
            assert cost(session, context, "docs") <= int(500 * docs)
            assert context.parts.log + context.parts.head <= 500

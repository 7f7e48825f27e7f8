"""A context that may exceed its budget (`oversize="keep_newest"`) keeps its newest interaction and a stable prefix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palimpsest import Memory, Session


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.open("memory://") as opened:
        yield opened


def words(text: str) -> int:
    """Count one token a word."""
    return len(text.split())


def opened(memory: Memory, **options: object) -> Session:
    return memory.session("s", counter=words, max_tokens=500, oversize="keep_newest", **options)  # type: ignore[arg-type]


def step(session: Session, number: int, result: int) -> None:
    """Add a call of the newest interaction with a result of so many words."""
    call = session.add_tool_call("read", {"page": number})
    session.add_tool_result("read", f"page {number} " + "w " * result, call_id=call.call_id)


def revision(session: Session) -> int:
    return session.stats().revision


@pytest.mark.parametrize("view_bytes", [0, 64 * 1024 * 1024])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 5, 200])
def test_without_new_entries_no_cut_is_made(mask: bool, steps: int, view_bytes: int) -> None:
    """A context over its budget is given again as it was: nothing is committed for it."""
    with Memory.open("memory://", view_bytes=view_bytes) as memory:
        session = opened(memory, mask=mask)
        session.add_user_message("before")
        session.add_assistant_message("answered")
        session.add_user_message("h " * 600)
        for number in range(steps):
            step(session, number, 20)
        first = session.context()
        before = revision(session)

        again = session.context()

        assert first.problems == again.problems == ("over_budget",)
        assert again.messages == first.messages
        assert revision(session) == before


def test_a_tail_share_above_the_water_marks_causes_no_repeated_cuts(memory: Memory) -> None:
    """No cut is made at each call, even if the tail's share exceeds the way from low to high water."""
    session = opened(memory, low_water=0.9, tail_share=0.2)
    session.add_user_message("h " * 600)
    session.context()
    before = revision(session)

    session.context()

    assert revision(session) == before


def test_an_interaction_over_the_budget_is_cut_no_more_often(memory: Memory) -> None:
    """Over the budget, too, a cut saves the way from high to low water, and contexts only grow in between."""
    session = opened(memory)
    session.add_user_message("h " * 600)
    cuts, before = 0, session.context()

    for number in range(60):
        step(session, number, 200)
        context = session.context()
        cuts += context.report.new_cut
        if not context.report.new_cut:
            assert context.messages[: len(before.messages)] == before.messages
        before = context

    budget = before.budget
    assert budget is not None
    assert 0 < cuts <= 60 * 205 // (budget.room - budget.low_water) + 1
    assert before.tokens < 600 + 60 * 205 // 4


def test_the_newest_interaction_is_whole_at_any_length(memory: Memory) -> None:
    """The newest interaction is shown whole, and everything before it is left out."""
    session = opened(memory, mask=False)
    session.add_user_message("before")
    session.add_assistant_message("answered")
    asked = session.add_user_message("question")
    for number in range(300):
        step(session, number, 20)

    shown = [entry.seq for entry in session.context().entries]

    assert shown == list(range(asked.seq, asked.seq + 601))


def test_an_interaction_over_the_budget_leaves_when_a_newer_one_begins(memory: Memory) -> None:
    """An interaction over the budget leaves when a newer one begins."""
    session = opened(memory)
    session.add_user_message("h " * 600)
    session.context()
    session.add_assistant_message("answered")
    session.context()
    session.add_user_message("next")

    context = session.context()

    assert [message["content"] for message in context.messages] == ["next"]
    assert context.problems == ()


def test_a_cut_that_brings_the_context_within_its_budget_is_made(memory: Memory) -> None:
    """A cut that brings the context within its budget is made, however little it saves."""
    session = opened(memory)
    session.add_user_message("h " * 300)
    step(session, 1, 250)
    assert session.context().problems == ("over_budget",)
    step(session, 2, 20)

    context = session.context()

    assert context.problems == ()
    assert context.tokens <= 500


def test_contexts_over_the_budget_can_be_rebuilt(memory: Memory) -> None:
    """Contexts over the budget can be rebuilt by their revision, with a cut of their own or without."""
    session = opened(memory)
    session.add_user_message("h " * 600)
    given = [session.context()]
    for number in range(9):
        step(session, number, 100)
        given.append(session.context())
    session.add_assistant_message("answered")
    session.add_user_message("next")
    session.context()

    again = [session.context(at=context.revision) for context in given]

    assert [context.messages for context in again] == [context.messages for context in given]
    assert all(context.problems == ("over_budget",) for context in again)

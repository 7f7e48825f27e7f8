"""Hiding entries from contexts and showing them again: nothing is destroyed, and every context stays valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from laws import examples
from palimpsest import Image, Memory, Session
from palimpsest.errors import BudgetImpossible, ConfigError, EntryNotFound
from palimpsest.testing import FakeClock
from providers import FORMATS, PROVIDERS
from worlds import STORES, open_world

law = settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))


def talk(session: Session) -> None:
    """Add two questions with answers, the second with a tool call."""
    session.add_user_message("one")
    session.add_assistant_message("first answer")
    session.add_user_message("two")
    session.add_tool_call("find", {"x": 1}, call_id="c1")
    session.add_tool_result("find", "seven", call_id="c1")
    session.add_assistant_message("second answer")


def texts(session: Session) -> list[Any]:
    """Return the texts that a context shows."""
    return [message.get("content") for message in session.context().messages]


@pytest.mark.parametrize("kind", STORES)
def test_hidden_entries_are_in_no_context_and_come_back(kind: str, tmp_path: Path) -> None:
    """Hidden entries stay in the log and are reported as left out; `show` brings them back."""
    with open_world(kind, tmp_path) as there:
        session = there.session
        talk(session)
        before = session.context()

        assert session.hide(1, 2) == 2
        after = session.context()

        assert [message["content"] for message in after.messages[:1]] == ["two"]
        assert [(left.first, left.last, left.entries, left.reason) for left in after.report.left_out] == [
            (1, 2, 2, "hidden")
        ]
        assert after.report.epoch_reason == "hidden" or after.epoch > before.epoch
        assert [entry.text for entry in session.entries()][:2] == ["one", "first answer"]
        assert session.verify().ok
        assert session.hide(1) == 0
        with there.elsewhere() as other:
            assert texts(other)[0] == "two"
        assert session.show(1, 2) == 2
        assert session.context().messages == before.messages
        assert session.show(1) == 0


def test_hiding_a_call_hides_its_results(session: Session) -> None:
    """Hiding a call or its result hides both, even a late result."""
    talk(session)
    assert session.hide(5) == 2
    assert texts(session) == ["one", "first answer", "two", "second answer"]

    call = session.add_tool_call("find", {"x": 2}, call_id="c2")
    session.add_user_message("three")
    session.add_tool_result("find", "eight", call_id="c2")
    session.add_assistant_message("third answer")
    assert session.hide(call.id) == 2
    assert "eight" not in str(session.context().messages)
    assert session.show(call.seq) == 2
    assert "eight" in str(session.context().messages)


def test_hiding_a_call_hides_the_group_of_its_late_result(session: Session) -> None:
    """Hiding a call whose late result is in the group of a later call hides that group, too, since groups are whole."""
    session.add_user_message("question")
    first = session.add_tool_call("find", {"x": 1}, call_id="c1")
    session.add_assistant_message("I wait for it")
    second = session.add_tool_call("find", {"x": 2}, call_id="c2")
    session.add_tool_result("find", "late", call_id="c1")
    session.add_tool_result("find", "in time", call_id="c2")
    session.add_assistant_message("done")
    whole = texts(session)

    assert session.hide(first) == 4
    assert texts(session) == ["question", "I wait for it", "done"]
    assert session.hide(second) == 0

    for _ in range(3):
        session.add_user_message("more " * 60)
        session.add_assistant_message("of it " * 60)
    assert session.compact({"strategy": "summarizer", "interaction_keep": 1}).done
    assert session.verify().ok
    session.restore()
    assert session.show(first) == 4
    assert texts(session)[: len(whole)] == whole


def test_hiding_is_refused_with_the_reason(memory: Memory, session: Session) -> None:
    """Pinned, open, covered, erased, rewound and unknown entries cannot be hidden; the error says why."""
    talk(session)
    session.pin(1)
    session.add_tool_call("find", {}, call_id="open")
    session.erase(2)
    for id, told in ((1, "unpin"), (7, "resolve"), (2, "erased")):
        with pytest.raises(ConfigError, match=told):
            session.hide(id)
    with pytest.raises(EntryNotFound):
        session.hide(99)
    with pytest.raises(EntryNotFound):
        session.show("no such id")
    assert session.hide() == 0
    with pytest.raises(ConfigError, match="readonly"):
        memory.session(session.id, readonly=True).hide(3)
    session.unpin(1)
    assert session.hide(1) == 1


@pytest.mark.parametrize("kind", STORES)
def test_hidden_entries_stay_hidden(kind: str, tmp_path: Path) -> None:
    """Entries stay hidden in branches, exports, and behind compactions and cuts, until a rewind."""
    with open_world(kind, tmp_path) as there:
        session = there.session
        talk(session)
        session.hide(2)
        session.fork("branch")
        there.memory.import_session(session.export(), session_id="copy")
        for id in ("branch", "copy"):
            other = there.memory.session(id, **there.options)
            assert "first answer" not in texts(other)
            assert other.show(2) == 1
            assert "first answer" in texts(other)
        for number in range(4):
            session.add_user_message(f"more {number}")
            session.add_assistant_message(f"said {number}")
        session.compact({"strategy": "simple_fifo", "max_messages": 4})
        assert "first answer" not in texts(session)
        session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 1})
        assert "first answer" not in str(session.context().messages)
        assert session.verify().ok
        assert session.show(2) == 1
        assert "first answer" in texts(session)
        assert session.verify().ok


def test_past_contexts_show_entries_hidden_later(session: Session) -> None:
    """A past context shows what was not hidden at its revision; a rewind undoes the hiding."""
    talk(session)
    before = session.context()
    session.hide(1, 2)
    hidden = session.context()

    assert session.context(at=before.revision).messages == before.messages
    assert session.context(at=hidden.revision).messages == hidden.messages
    session.rewind(before.revision)
    assert session.context().messages == before.messages


def test_a_hidden_entry_is_erased_like_any_other(session: Session) -> None:
    """A hidden entry can be erased; showing its group brings back the rest."""
    talk(session)
    session.hide(4)
    session.erase(5)

    assert session.entry(5).text == ""
    assert session.show(4) >= 1
    assert session.verify().ok
    assert "seven" not in str(session.context().messages)


def test_a_hidden_question_does_not_come_back_with_its_answer(memory: Memory) -> None:
    """A hidden question is not shown again, even if its answer is all that a cut can show."""
    session = memory.session("cut", counter=strategies.WORDS, max_tokens=40)
    session.add_user_message("a question")
    session.add_assistant_message("an answer")
    session.hide(1)
    session.add_assistant_message([Image(source="https://example.com/a.png", detail="low")])

    ctx = session.context(format="anthropic")

    assert "a question" not in str(ctx.messages)
    assert 1 not in [entry.seq for entry in session.active_entries()]


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@law
@given(
    log=strategies.logs(),
    more=strategies.logs(most=4),
    chosen=st.lists(st.integers(0, 30), max_size=6),
    budget=st.none() | st.integers(40, 300),
)
def test_contexts_with_hidden_entries_are_valid(
    format: str, log: list[Any], more: list[Any], chosen: list[int], budget: int | None
) -> None:
    """Whatever is hidden, contexts are valid and do not show it; showing it all restores the earlier context."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session("s", counter=strategies.WORDS, max_tokens=budget)
        for operation in log:
            strategies.perform(session, operation, clock.now)
        hidden = []
        for number in chosen:
            try:
                if session.hide(number + 1):
                    hidden.append(number + 1)
            except (ConfigError, EntryNotFound):
                continue
        groups = {entry.group for entry in session.entries() if entry.seq in hidden}
        for operation in more:
            strategies.perform(session, operation, clock.now)
        _judged(session, format)
        assert not {entry.group for entry in session.active_entries()} & groups
        assert session.verify().ok
        session.show(*hidden)
        _judged(session, format)
        assert session.verify().ok


def _judged(session: Session, format: str) -> None:
    try:
        ctx = session.context(format=format)
    except BudgetImpossible:
        return
    assert PROVIDERS[format].faults(ctx.messages) == []
    assert PROVIDERS[format].sdk_faults(ctx.request()) == []

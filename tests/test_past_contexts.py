"""`context(at=revision)` returns what the same call returned then, or an error that says why that is unknown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from palimpsest import ConfigError, Memory, Session
from palimpsest.errors import BudgetImpossible, PastUnknown
from palimpsest.log.entry import Reasoning, moment
from palimpsest.testing import FakeClock
from worlds import STORES, World, open_world

law = settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
EXACT = {"memory_strategy_id": "max_tokens", "memory_max_tokens": 40}


def talk(session: Session, turns: int = 20) -> None:
    for number in range(turns):
        session.add_user_message(f"question {number} " + "more " * 5)
        session.add_assistant_message(f"answer {number} " + "words " * 8)


def session_of(memory: Memory, **options: Any) -> Session:
    return memory.session("s", counter=strategies.WORDS, **options)


# --- what is known


@pytest.mark.parametrize("call", [{}, {"max_tokens": 40}, {"dry_run": True}])
def test_the_context_of_revision_0_is_empty(memory: Memory, call: Any) -> None:
    """Revision 0 is that of a session without entries: its context is one of nothing, and so is its log."""
    session = session_of(memory, max_tokens=100)
    given = session.context(system="be kind", **call)
    talk(session, 2)

    again = session.context(system="be kind", at=given.revision, **call)

    assert given.revision == again.revision == 0
    assert again.request() == given.request()
    assert again.tokens == given.tokens
    assert session.entries(at=0) == []
    session.clear()
    with pytest.raises(ConfigError, match="everything before it was cleared"):
        session.context(at=0)


def test_a_past_context_holds_back_an_open_thought_despite_a_later_rewind(memory: Memory) -> None:
    """A thought that was held back at a revision is held back in its past context, in spite of a rewind and a pin."""
    session = session_of(memory, max_tokens=20)
    session.add_assistant_message([Reasoning(text="hm")])
    session.add_user_message("x")
    session.rewind(1)
    session.add_assistant_message([Reasoning(text="alpha " * 40)])
    session.pin(1)

    given = session.context(system="be kind")
    session.add_user_message("later")

    assert session.context(system="be kind", at=given.revision).messages == given.messages


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"max_tokens": 100, "short_term": EXACT}, {}),
        ({"max_tokens": 100, "short_term": [{**EXACT, "gap": "skip"}]}, {}),
        ({"max_tokens": 300}, {"max_tokens": 60}),
        ({"max_tokens": 300}, {"max_messages": 5}),
        ({"max_tokens": 60}, {"dry_run": True}),
        ({}, {"max_tokens": 60, "view": "small"}),
    ],
    ids=["exact", "exact with gaps", "other tokens", "other messages", "dry run", "small view"],
)
def test_past_contexts_that_stored_no_cut_are_computed_again(memory: Memory, options: Any, call: Any) -> None:
    """Calls that stored no cut are computed again for their revision, with the same result."""
    session = session_of(memory, **options)
    talk(session)
    given = session.context(**call)
    assert given.epoch is None
    talk(session)
    session.context()

    again = session.context(**call, at=given.revision)

    assert again.messages == given.messages
    assert (again.tokens, again.problems, again.epoch) == (given.tokens, (), None)


def test_past_contexts_count_tools_whose_bounds_do_not_fit(memory: Memory) -> None:
    """Tools that fitted then fit when it is asked for again, however many bytes their schemas have for a token."""
    session = memory.session("one", max_tokens=1000)
    session.add_user_message("hello")
    about = "returns the departures of the next hour, with the platform " * 6
    tools = [{"type": "function", "function": {"name": f"trains_{n}", "description": about}} for n in range(8)]
    given = session.context(tools=tools)

    again = session.context(tools=tools, at=given.revision)

    assert sum(len(about) for _ in tools) > 1000
    assert (again.messages, again.tokens) == (given.messages, given.tokens)


def test_a_past_context_uses_the_cut_of_its_time(memory: Memory) -> None:
    """A past context uses the cut of its time; a smaller budget of today is reported, not applied."""
    session = session_of(memory, max_tokens=300)
    talk(session)
    cut = session.context()
    assert cut.report.new_cut
    session.add_user_message("one more")
    after = session.context()
    assert after.epoch == cut.epoch

    smaller = session_of(memory, max_tokens=40)

    assert smaller.context(at=cut.revision).messages == cut.messages
    assert smaller.context(at=cut.revision).problems == ("over_budget",)
    with pytest.raises(PastUnknown, match="give the budget of that time"):
        smaller.context(at=after.revision)
    assert smaller.context(at=after.revision, max_tokens=300).messages == after.messages


def test_past_contexts_of_one_revision_differ_by_budget(memory: Memory) -> None:
    """Two calls of one revision with different budgets are each rebuilt as they were."""
    session = session_of(memory, max_tokens=300)
    talk(session)
    own = session.context()
    small = session.context(max_tokens=60)
    assert (own.report.new_cut, small.revision) == (True, own.revision)
    session.add_user_message("one more")

    assert session.context(at=own.revision).messages == own.messages
    again = session.context(at=own.revision, max_tokens=60)

    assert (again.messages, again.tokens, again.problems) == (small.messages, small.tokens, ())


# --- what nobody knows any more


def refused(session: Session, why: str, **call: Any) -> None:
    with pytest.raises(PastUnknown, match=why) as told:
        session.context(**call)
    assert (told.value.session, told.value.revision) == ("s", call["at"])


def test_a_past_context_that_needed_an_unstored_cut_is_unknown(memory: Memory) -> None:
    """If the session's budget does not hold what was there, the past context is unknown, and the error says so."""
    session = session_of(memory, max_tokens=60)
    talk(session)
    given = session.context(dry_run=True)
    session.add_user_message("later")

    refused(session, "dry_run=True", at=given.revision)

    assert session.context(at=given.revision, dry_run=True).messages == given.messages


def test_a_past_context_of_erased_entries_is_unknown(memory: Memory) -> None:
    """A context computed from entries that were erased since is unknown; other erasures do not matter."""
    session = session_of(memory, max_tokens=600, mask=False)
    session.add([{"role": "user", "content": f"number {number}"} for number in range(400)])
    given = session.context(max_tokens=60)
    newest = session.entries()[-1]

    session.erase([1])

    assert session.context(max_tokens=60, at=given.revision).messages == given.messages
    session.erase([newest.id])
    refused(session, "erased since", max_tokens=60, at=given.revision)


def test_a_past_context_is_unknown_if_an_entry_expired_about_then(memory: Memory, clock: FakeClock) -> None:
    """If an entry expired between a revision and the next, its context is unknown."""
    session = session_of(memory, max_tokens=100, short_term=EXACT)
    for seconds in (50, 600):
        session.add_assistant_message(f"for {seconds}", expires_at=moment(clock.now) + timedelta(seconds=seconds))
    revision = session.stats().revision
    clock.advance(60)

    refused(session, "expired", at=revision)

    session.add_user_message("now it is certain")
    certain = session.context()
    clock.advance(1)
    assert session.context(at=certain.revision).messages == certain.messages
    assert "for 50" not in str(certain.messages)


def test_a_past_context_is_unknown_after_a_redaction_or_a_changed_factor(memory: Memory) -> None:
    """Texts that were redacted, and a factor that reports have moved, are not what a context was computed with."""
    session = memory.session("s", model="claude-sonnet-4-5", max_tokens=400)
    talk(session)
    given = session.context(max_tokens=300)
    session.record_usage(input_tokens=1_000, context=given)

    refused(session, "usage reports", max_tokens=300, at=given.revision)

    other = memory.session("s", counter=strategies.WORDS, max_tokens=600)
    assert other.context(max_tokens=60, at=given.revision).messages
    memory.scan({"redact_patterns": [("question 19", "X")]}, apply=True)
    refused(other, "redacted", max_tokens=60, at=given.revision)


def test_past_contexts_before_a_clear_are_refused(memory: Memory) -> None:
    """Contexts and entries from before a clear are refused with the first revision that is available."""
    session = session_of(memory, max_tokens=300)
    session.add_user_message("a")
    session.clear()
    session.add_user_message("b")

    for look in (session.context, session.entries):
        with pytest.raises(ConfigError, match="from 2 on: everything before it was cleared"):
            look(at=1)
    assert [entry.text for entry in session.entries(at=3)] == ["b"]


# --- the law


def change(world: World, data: st.DataObject, seen: dict[int, Any]) -> bool:
    """Change the session other than by an append; return whether something was erased."""
    session, what = (
        world.session,
        data.draw(st.sampled_from(["pin", "unpin", "rewind", "erase", "compact"]), label="what"),
    )
    entries = [entry.seq for entry in session.entries() if not entry.erased]
    if what == "rewind" and seen:
        session.rewind(data.draw(st.sampled_from(sorted(seen)), label="to"))
    elif what == "compact":
        name = data.draw(st.sampled_from(["simple_fifo", "mask_results", "summarizer"]), label="strategy")
        session.compact(strategy=name)
    elif entries and what in ("pin", "unpin", "erase"):
        seq = data.draw(st.sampled_from(entries), label="entry")
        getattr(session, what)(*([[seq]] if what == "erase" else [seq]))
        return what == "erase"
    return False


CALLS: list[dict[str, Any]] = [{}, {"dry_run": True}, {"max_tokens": 15}, {"max_messages": 3}, {"max_tokens": 1_000}]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
@law
@given(
    log=strategies.logs(most=12),
    data=st.data(),
    budget=st.integers(20, 120),
    exact=st.sampled_from([False, False, True]),
)
def test_every_context_is_rebuilt_equal_for_its_revision(
    kind: str, folder: Path, log: list[Any], data: st.DataObject, budget: int, exact: bool
) -> None:
    """Every context can be rebuilt, through pins, rewinds, compactions and erasures, and in a branch.

    An erasure may only remove what it erased, or make an earlier context unknown.
    """
    options: dict[str, Any] = (
        {"short_term": {**EXACT, "memory_max_tokens": budget}} if exact else {"max_tokens": budget}
    )
    with open_world(kind, folder, **options) as world:
        seen: dict[int, list[tuple[dict[str, Any], Any]]] = {}
        before: dict[int, Any] = {}
        for operation in log:
            world.play([operation])
            if data.draw(st.integers(0, 2), label="change") == 0 and change(world, data, seen):
                before, seen = {**before, **seen}, {}
            for call in data.draw(st.lists(st.sampled_from(CALLS), min_size=1, max_size=2), label="calls"):
                try:
                    ctx = world.session.context(system="be kind", **call)
                except BudgetImpossible:
                    continue
                seen.setdefault(ctx.revision, []).append((call, ctx.messages))
        sessions = [world.session, world.session.fork()] if log else []

        for session in sessions:
            for revision, given in seen.items():
                for call, messages in given:
                    assert session.context(system="be kind", at=revision, **call).messages == messages
            for revision, given in before.items():
                for call, _ in given:
                    look(session, revision, call)


def look(session: Session, revision: int, call: dict[str, Any]) -> None:
    """Rebuild a context from before an erasure, or check that the error says why that is impossible."""
    try:
        session.context(system="be kind", at=revision, **call)
    except (PastUnknown, BudgetImpossible):
        return


def test_past_contexts_use_the_time_of_their_own_revision(memory: Memory, clock: FakeClock) -> None:
    """A context is computed for the time of its own revision, whatever the clock said before or says since."""
    session = session_of(memory, max_tokens=100)
    session.pin(session.add_user_message("said by a clock that is ahead"))
    clock.advance(-200)
    session.add_user_message("for a minute", expires_at=moment(clock.now) + timedelta(seconds=60))
    given = session.context(max_tokens=50)
    assert session.context(max_tokens=50, at=given.revision).messages == given.messages

    clock.advance(-100)
    session.add_user_message("later, by a clock that is behind")

    assert session.context(max_tokens=50, at=given.revision).messages == given.messages
    clock.advance(200)
    session.pin(session.add_user_message("and later, by one that is right again"))
    assert session.context(max_tokens=50, at=given.revision).messages == given.messages

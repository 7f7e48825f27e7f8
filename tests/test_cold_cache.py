"""When the provider's prompt cache has expired, the next context is cut, since no cached prefix is broken."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from laws import examples
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import PastUnknown
from palimpsest.sessions.sync import Session
from palimpsest.testing import FakeClock
from worlds import STORES, attempt, open_world

law = settings(deadline=None, max_examples=examples(36), suppress_health_check=[HealthCheck.too_slow])
HOUR, BUDGET, COLD = 3600, 1_000, "a cold cache"
"""Seconds that a cache lives where a format says nothing else, tokens of every session here, and why a cut is made."""

HYBRID = {"strategy": "hybrid_summary", "summary_tokens": 100, "threshold": 0.9}


def open_session(memory: Memory, **options: Any) -> Session:
    return memory.session("s", **{"counter": strategies.WORDS, "max_tokens": BUDGET, **options})


def talk(session: Session, turns: int = 8, words: int = 100) -> None:
    """Add answered interactions of so many words each."""
    for number in range(turns):
        session.add_user_message(f"question {number} " + "more " * (words // 2 - 2))
        session.add_assistant_message(f"answer {number} " + "words " * (words // 2 - 2))


def ask(session: Session, text: str = "one more question", **call: Any) -> Context:
    session.add_user_message(text)
    return session.context(**call)


# --- when


def test_a_context_is_cut_to_half_of_its_limit_once_the_cache_is_cold(memory: Memory, clock: FakeClock) -> None:
    """With a cold cache the context is cut to half of its limit, in a new epoch with that reason."""
    session = open_session(memory)
    talk(session)
    before = session.context()
    clock.advance(HOUR + 1)

    after = ask(session)

    assert before.tokens > BUDGET / 2
    assert BUDGET * 0.36 < after.tokens <= BUDGET / 2
    assert (after.report.new_cut, after.report.epoch_reason) == (True, COLD)
    assert after.messages[:-1] == before.messages[len(before.messages) - len(after.messages) + 1 :]
    assert session.history()[-1].reason == COLD


@pytest.mark.parametrize("seconds", [0, 1, HOUR, -1, -HOUR])
def test_nothing_is_cut_while_the_cache_is_warm(memory: Memory, clock: FakeClock, seconds: int) -> None:
    """A cache is warm up to its last second, and if the clock was set back."""
    session = open_session(memory)
    talk(session)
    before = session.context()
    clock.advance(seconds)

    after = ask(session)

    assert after.epoch == before.epoch
    assert after.messages[:-1] == before.messages


@pytest.mark.parametrize(
    ("options", "call", "lives"),
    [
        ({}, {}, 3600),
        ({"format": "openai-responses"}, {}, 3600),
        ({"format": "gemini"}, {}, 3600),
        ({"format": "anthropic"}, {}, 300),
        ({}, {"format": "anthropic"}, 300),
        ({"cache_seconds": 20}, {}, 20),
        ({"format": "anthropic", "cache_seconds": 3600}, {}, 3600),
        ({"cache_seconds": 20}, {"format": "anthropic"}, 20),
        ({"cache_seconds": 0.5}, {}, 0.5),
    ],
)
def test_the_cache_lifetime_follows_the_format_or_the_option(
    memory: Memory, clock: FakeClock, options: Any, call: Any, lives: float
) -> None:
    """The lifetime is five minutes for Anthropic and an hour elsewhere; the option replaces it in every format."""
    session = open_session(memory, **options)
    talk(session)
    first = session.context(**call)
    clock.advance(lives)

    warm = session.context(**call)
    clock.advance(0.1)
    cold = session.context(**call)

    assert (warm.epoch, cold.epoch) == (first.epoch, (first.epoch or 0) + 1)
    assert cold.report.epoch_reason == COLD


def test_an_infinite_cache_lifetime_is_never_cold(memory: Memory, clock: FakeClock) -> None:
    """With `cache_seconds=math.inf` the cache is never cold."""
    session = open_session(memory, cache_seconds=math.inf)
    talk(session)
    before = session.context()
    clock.advance(10**9)

    assert ask(session).epoch == before.epoch


def test_the_cache_age_counts_from_the_models_newest_answer(memory: Memory, clock: FakeClock) -> None:
    """A result that comes after an hour leaves a cold cache; answers of the model keep the cache warm."""
    session = open_session(memory)
    talk(session)
    session.add_user_message("search, please")
    first = session.context()
    for number in range(3):
        call = session.add_tool_call("search", {"page": number})
        clock.advance(HOUR / 2)
        session.add_tool_result("search", "found it", call_id=call.call_id)
        assert session.context().epoch == first.epoch

    call = session.add_tool_call("search", {"page": 3})
    clock.advance(HOUR * 2)
    session.add_tool_result("search", "found it at last", call_id=call.call_id)

    assert session.context().report.epoch_reason == COLD


def test_without_an_answer_no_cache_is_cold(memory: Memory, clock: FakeClock) -> None:
    """Without an answer there was no call, and no cache is cold that was never warm."""
    session = open_session(memory)
    for number in range(7):
        session.add_user_message(f"document {number} " + "text " * 100)
    before = session.context()
    clock.advance(HOUR * 2)

    assert ask(session).epoch == before.epoch


def test_one_pause_causes_one_cut(memory: Memory, clock: FakeClock) -> None:
    """Until the model has answered, a further pause causes no second cut."""
    session = open_session(memory)
    talk(session)
    clock.advance(HOUR + 1)
    cut = ask(session)
    clock.advance(HOUR + 1)

    again = ask(session, "are you there? " + "please " * 100)
    session.add_assistant_message("yes")
    clock.advance(HOUR + 1)
    answered = ask(session)

    assert again.epoch == cut.epoch
    assert again.messages[:-1] == cut.messages
    assert again.tokens > BUDGET / 2
    assert answered.report.new_cut


def test_a_short_context_is_not_cut_for_a_cold_cache(memory: Memory, clock: FakeClock) -> None:
    """A context within half of its limit is not cut, and nothing is written."""
    session = open_session(memory)
    talk(session, turns=4)
    before = session.context()
    clock.advance(HOUR + 1)

    after = session.context()

    assert (after.epoch, after.revision, after.messages) == (before.epoch, before.revision, before.messages)


def test_a_newest_interaction_over_half_of_the_limit_causes_no_cut(memory: Memory, clock: FakeClock) -> None:
    """If the newest interaction alone exceeds half of the limit, nothing is cut or written."""
    session = open_session(memory)
    talk(session, turns=1, words=700)
    before = session.context()
    clock.advance(HOUR + 1)

    after = session.context()

    assert (after.epoch, after.revision, after.messages) == (before.epoch, before.revision, before.messages)


def test_a_cold_cut_masks_results_before_it_evicts(memory: Memory, clock: FakeClock) -> None:
    """A cut for a cold cache climbs the same ladder: where notes are enough, no interaction goes."""
    session = open_session(memory)
    talk(session, turns=2)
    session.add_user_message("search, please")
    call = session.add_tool_call("search", {})
    session.add_tool_result("search", "found " * 500, call_id=call.call_id)
    session.add_assistant_message("found it")
    session.context()
    clock.advance(HOUR + 1)

    after = ask(session)

    assert after.report.epoch_reason == COLD
    assert len(after.report.masked) == 1
    assert after.report.left_out == ()


# --- how deep


@pytest.mark.parametrize(("low_water", "most"), [(0.2, 0.5), (0.36, 0.5), (0.7, 0.7)])
def test_a_cold_cut_keeps_low_water(memory: Memory, clock: FakeClock, low_water: float, most: float) -> None:
    """A cut for a cold cache keeps `low_water` like any other cut."""
    session = open_session(memory, low_water=low_water)
    talk(session, turns=9)
    clock.advance(HOUR + 1)

    context = ask(session)

    assert (most - 0.11) * BUDGET < context.tokens <= most * BUDGET


def test_a_full_context_with_a_cold_cache_is_cut_to_half(memory: Memory, clock: FakeClock) -> None:
    """The cut goes to half, not to low water: a deeper cut pays only if it breaks a prefix that is still cached."""
    session = open_session(memory)
    talk(session, turns=9)
    session.context()
    talk(session, turns=3)
    clock.advance(HOUR + 1)

    context = session.context()

    assert context.report.epoch_reason == "high water"
    assert BUDGET * 0.36 < context.tokens <= BUDGET / 2


def test_a_cold_cut_halves_max_messages(memory: Memory, clock: FakeClock) -> None:
    """With `max_messages` a cold cut keeps half of the messages."""
    session = open_session(memory, max_tokens=None, max_messages=20)
    talk(session, turns=8)
    assert len(session.context().messages) == 16
    clock.advance(HOUR + 1)

    context = session.context()

    assert context.report.epoch_reason == COLD
    assert len(context.messages) == 10


# --- who


@pytest.mark.parametrize("call", [{"dry_run": True}, {"max_tokens": BUDGET - 1}])
def test_a_call_that_stores_no_cut_makes_no_cold_cut(memory: Memory, clock: FakeClock, call: Any) -> None:
    """A call that stores no cut makes none for a cold cache, since each call would make another."""
    session = open_session(memory)
    talk(session)
    before = session.context(**call)
    clock.advance(HOUR + 1)

    assert session.context(**call).messages == before.messages


def test_a_read_only_session_shows_the_stored_cut(memory: Memory, clock: FakeClock) -> None:
    """A read-only session shows the stored cut, whatever the time."""
    session, reader = open_session(memory), open_session(memory, readonly=True)
    talk(session)
    before = session.context()
    clock.advance(HOUR + 1)

    seen = reader.context()
    cut = session.context()

    assert seen.messages == before.messages != cut.messages
    assert reader.context().messages == cut.messages


def test_contexts_with_withheld_entries_make_no_cold_cut(clock: FakeClock) -> None:
    """A context with withheld entries makes no cut for a cold cache, since it could not be stored."""
    policy = {"non_persistable_message_types": ["health"]}
    with Memory.open("memory://", clock=clock, privacy=policy) as memory:
        session = open_session(memory)
        talk(session)
        before = session.context()
        clock.advance(HOUR + 1)
        session.add_user_message("my blood pressure is high", metadata={"type": "health"})

        during = session.context()
        session.add_assistant_message("see a doctor")
        after = session.context()

    assert during.messages[:-1] == before.messages
    assert after.messages[: len(before.messages)] == before.messages


def test_a_cold_cut_of_one_view_leaves_the_others(memory: Memory, clock: FakeClock) -> None:
    """A view's cut for a cold cache leaves the other views as they are until they are asked for."""
    session, other = open_session(memory), open_session(memory, view="other")
    talk(session)
    before = other.context()
    clock.advance(HOUR + 1)
    ask(session)

    assert other.context(dry_run=True).messages[:-1] == before.messages
    assert other.context().report.epoch_reason == COLD


def test_a_branchs_cache_is_as_warm_as_its_origins(memory: Memory, clock: FakeClock) -> None:
    """A branch's cache is as warm as its origin's, since it is sent the same prefix."""
    session = open_session(memory)
    talk(session)
    before = session.context()
    clock.advance(HOUR)
    warm, late = session.fork(), session.fork()

    assert ask(warm).messages[:-1] == before.messages
    clock.advance(1)
    assert ask(late).report.epoch_reason == COLD


def test_contexts_before_and_after_a_cold_cut_can_be_rebuilt(memory: Memory, clock: FakeClock) -> None:
    """`context(at=)` shows each under the cut that it was given under, whatever the clock says since."""
    session = open_session(memory)
    talk(session)
    warm = session.context()
    clock.advance(HOUR + 1)
    cold = ask(session)
    session.add_assistant_message("an answer")
    clock.advance(HOUR + 1)

    for before in (warm, cold):
        assert session.context(at=before.revision).messages == before.messages


# --- with compaction


def test_entries_are_summarised_before_a_cold_cut_evicts_them(memory: Memory, clock: FakeClock) -> None:
    """In a session that summarizes, entries that a cold cut would evict are summarized first."""
    session = open_session(memory, long_term=HYBRID)
    talk(session, turns=6)
    before = session.context()
    clock.advance(HOUR + 1)

    after = ask(session)

    assert before.summaries == []
    assert len(after.summaries) == 1
    assert after.tokens < before.tokens
    assert [left.reason for left in after.report.left_out] == ["covered by a summary"]
    made = [record for record in session.history() if record.kind == "compact"]
    assert len(made) == 1


def test_a_failed_summary_prevents_a_cold_cut(memory: Memory, clock: FakeClock) -> None:
    """A summarizer that fails costs nothing that fits."""

    def broken(prompt: str) -> str:
        raise ConnectionError("no model today")

    session = open_session(
        memory, long_term={"strategy": "summarizer", "interaction_keep": 2, "on_failure": "keep"}, summarizer=broken
    )
    talk(session, turns=6)
    before = session.context()
    clock.advance(HOUR + 1)

    after = ask(session)

    assert after.messages[:-1] == before.messages
    assert after.epoch == before.epoch


@pytest.mark.parametrize("how", ["background", "off"])
def test_a_cold_cut_waits_for_inline_summaries_only(memory: Memory, clock: FakeClock, how: Any) -> None:
    """Only an inline summary is awaited before a cold cut; a later one would break the new prefix."""
    session = open_session(memory, long_term=HYBRID, auto_compact=how)
    talk(session, turns=6)
    before = session.context()
    clock.advance(HOUR + 1)

    after = ask(session)

    assert (after.epoch == before.epoch) == (how == "background")


def test_evicting_strategies_make_cold_cuts_without_waiting(memory: Memory, clock: FakeClock) -> None:
    """A session that makes no summaries waits for none."""
    session = open_session(memory, long_term="simple_fifo")
    talk(session, turns=6)
    session.context()
    clock.advance(HOUR + 1)

    assert ask(session).report.epoch_reason == COLD


@pytest.mark.parametrize("shortened", ["clamped", "masked"])
@pytest.mark.parametrize("words", [1_100, 3_000, 20_000])
def test_a_cold_cut_that_would_not_fit_is_not_made(
    memory: Memory, clock: FakeClock, shortened: str, words: int
) -> None:
    """If a cold cut would not fit, because shortened and pinned entries come back whole, the context stays as it
    was."""
    session = open_session(memory)
    session.add_user_message("look it up")
    call = session.add_tool_call("search", {})
    result = session.add_tool_result("search", "found " * words, call_id=call.call_id)
    if shortened == "masked":
        session.add_assistant_message("it says " + "much " * 200)
        session.add_user_message("what " * 100)
    session.context()
    session.pin(result)
    session.add_assistant_message("so much for this " + "and that " * 130)
    warm = session.context()
    clock.advance(HOUR + 1)

    cold = session.context()

    assert getattr(warm.report, shortened)
    assert warm.tokens > BUDGET / 2
    assert (cold.epoch, cold.messages) == (warm.epoch, warm.messages)
    assert ask(session).messages[: len(warm.messages)] == warm.messages


# --- the laws


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
@law
@given(log=strategies.logs(most=20), data=st.data(), budget=st.integers(20, 150))
def test_contexts_fit_and_stay_stable_whatever_the_clock_does(
    kind: str, folder: Path, log: list[Any], data: st.DataObject, budget: int
) -> None:
    """Whatever the clock does, contexts fit, prefixes change only with an epoch, and cold cuts follow pauses only.

    Another program sees the same context, and `context(at=)` rebuilds it.
    """
    with open_world(kind, folder, max_tokens=budget, cache_seconds=60) as world:
        given: list[Context] = []
        for operation in log:
            world.clock.advance(data.draw(st.sampled_from([0, 1, 59, 60, 61, 4_000, -10, -4_000]), label="seconds"))
            world.play([operation])
            now, answers = world.clock.now, [entry for entry in world.session.entries() if entry.role == "assistant"]
            context = attempt(world.session)
            if context is None:
                continue
            assert context.tokens <= budget
            if context.report.new_cut and context.report.epoch_reason == COLD:
                assert now - answers[-1].at > 60 * 10**6
                assert answers[-1].revision > (given[-1].revision if given and given[-1].report.new_cut else 0)
            again = attempt(world.session)
            assert again is not None
            assert (again.epoch, again.messages) == (context.epoch, context.messages)
            with world.elsewhere() as other:
                assert other.context().messages == context.messages
            given.append(context)
        for i, earlier in enumerate(given):
            for later in given[i + 1 :]:
                if earlier.epoch == later.epoch:
                    assert rules.is_prefix(rules.packed(earlier.log_messages), rules.packed(later.log_messages))
            with contextlib.suppress(PastUnknown):  # an entry may have expired between the two revisions
                assert world.session.context(at=earlier.revision).messages == earlier.messages


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
@law
@given(log=strategies.logs(most=20), data=st.data(), budget=st.integers(20, 150))
def test_pauses_shorter_than_the_cache_lifetime_change_nothing(
    kind: str, folder: Path, log: list[Any], data: st.DataObject, budget: int
) -> None:
    """If no pause exceeds `cache_seconds`, contexts are those of a view without a clock."""
    with open_world(kind, folder, max_tokens=budget, cache_seconds=60) as world:
        timeless = world.memory.session("s", **{**world.options, "view": "timeless", "cache_seconds": math.inf})
        spoke = world.clock.now
        for operation in log:
            since = (world.clock.now - spoke) // 10**6
            world.clock.advance(min(data.draw(st.sampled_from([0, 1, 30, 60, -10]), label="seconds"), 60 - since))
            world.play([operation])
            if any(entry.at == world.clock.now and entry.role == "assistant" for entry in world.session.entries()):
                spoke = world.clock.now
            context, expected = attempt(world.session), attempt(timeless)

            assert (context and context.messages) == (expected and expected.messages)

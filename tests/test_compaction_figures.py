"""Sessions, compactions and contexts report the same token figures, fences included."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from laws import examples
from palimpsest import BudgetImpossible, Context, Memory, Query, Session
from palimpsest.log.entry import Image, Text
from palimpsest.testing import FakeClock
from talks import Listener, Scripted, filler, talk, words

FORMATS = ("openai", "openai-responses", "anthropic", "gemini", "text")


def of_log(context: Context) -> int:
    """Return the tokens of a context's log: all but what its call brings."""
    parts = context.parts
    return parts.head + parts.summaries + parts.log


def held_back(context: Context) -> bool:
    """Whether a group at the end of the log is held back until it is complete."""
    return any(left.reason == "open calls" for left in context.report.left_out)


def fill(session: Session, turns: int = 6) -> None:
    """Add interactions with names, calls, results and an image."""
    for i in range(turns):
        picture = Image(source="https://example.com/a.png", detail="low")
        session.add_user_message((Text(text=f"What is in picture {i}? {filler(30)}"), picture), name="ann")
        session.add_tool_call("look", {"picture": i, "how": "closely"}, call_id=f"c{i}")
        session.add_tool_result("look", f"A castle, {filler(90)}", call_id=f"c{i}")
        session.add_assistant_message(f"There is a castle in picture {i}. {filler(30)}")


@pytest.mark.parametrize("how", ["evicted", "hidden"])
def test_an_evicted_or_hidden_entry_counts_again_once_pinned(memory: Memory, how: str) -> None:
    """Pinning an evicted or hidden entry makes its group active, shown and counted again."""
    session = memory.session("one", model="gpt-4o", max_tokens=8_000)
    fill(session)
    if how == "hidden":
        session.hide(2)
    else:
        session.compact({"strategy": "simple_fifo", "max_messages": 8})
    before = session.stats()
    session.pin(2)

    context, stats = session.context(), session.stats()

    assert stats.active_entries == before.active_entries + 2
    assert stats.active_tokens == of_log(context) > before.active_tokens
    assert session.compact({"strategy": "simple_fifo", "max_messages": 8}, dry_run=True).tokens_before == of_log(
        context
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strategy", ["summarizer", "ladder", "lru"])
def test_a_covered_entry_counts_once_pinned_and_is_not_taken_again(memory: Memory, seed: int, strategy: str) -> None:
    """A covered entry that is pinned is shown beside the summary, counted, and taken by no later compaction."""
    chance = random.Random(seed)
    session = memory.session("one", model="gpt-4o", max_tokens=8_000)
    fill(session)
    session.compact({"strategy": "summarizer", "interaction_keep": 1})
    covered = [seq for first, last in session.summaries()[0].covers for seq in range(first, last + 1)]
    for _ in range(3):
        pinned = chance.sample(covered, chance.randint(1, 3))
        session.pin(*pinned)
        assert session.stats().active_tokens == of_log(session.context())

        fill(session, turns=2)
        options = {"max_tokens": 600} if strategy == "lru" else {"interaction_keep": 1} if strategy != "ladder" else {}
        done = session.compact({"strategy": strategy, **options})
        context = session.context()

        assert session.stats().active_tokens == of_log(context) == done.tokens_after
        assert {entry.seq for entry in context.entries}.issuperset(pinned)
        session.verify()


def test_an_evicted_question_without_answer_is_shown_and_counted(memory: Memory) -> None:
    """An evicted question without an answer stands before the log, is counted, and is not evicted again."""
    session = memory.session("one", model="gpt-4o", max_tokens=100, auto_compact="off")
    session.add_user_message("what is " * 5)
    session.add_tool_call("t", {"a": "b " * 15})
    session.add_user_message("long question " * 30)
    session.compact({"strategy": "lru", "max_tokens": 60})

    context = session.context()
    again = session.compact({"strategy": "lru", "max_tokens": 60})

    assert context.report.anchors == (1,)
    assert session.stats().active_tokens == of_log(context) == again.tokens_before == again.tokens_after
    assert [entry.seq for entry in session.active_entries()] == [entry.seq for entry in context.entries]
    session.add_assistant_message("an answer")
    done = session.compact({"strategy": "lru", "max_tokens": 10})
    assert (done.done, done.tokens_after) == (True, session.stats().active_tokens)


@pytest.mark.parametrize("question", [5, 70, 400])
def test_a_report_warns_of_current_summaries_that_have_no_room(memory: Memory, question: int) -> None:
    """A context warns when a current summary is left out or cut short for lack of room."""
    session = memory.session("one", model="gpt-4o", max_tokens=600, auto_compact="off", summary_share=0.5)
    fill(session)
    session.add_user_message("tell me " * question)
    session.compact({"strategy": "summarizer", "interaction_keep": 0})

    try:
        context = session.context()
    except BudgetImpossible:
        assert question == 400
        return

    texts = [summary.text for summary in session.summaries()]
    told = [warning for warning in context.report.warnings if "summaries have no room" in warning]
    assert bool(told) == (context.summary_texts != texts)
    session.add_assistant_message("so it is")
    assert [w for w in session.context().report.warnings if "summaries have no room" in w] == told


@pytest.mark.parametrize("format", FORMATS)
def test_session_compaction_and_context_report_the_same_tokens(memory: Memory, format: str) -> None:
    """Texts, roles, names, arguments, media and fences cost the same in stats, compactions and contexts."""
    session = memory.session("one", model="gpt-4o", format=format)
    fill(session)

    stats, context, planned = session.stats(), session.context(), session.compact("summarizer", dry_run=True)
    assert stats.total_tokens == stats.active_tokens == planned.tokens_before == of_log(context)
    assert context.tokens == of_log(context) + context.parts.overhead

    done = session.compact({"strategy": "summarizer", "interaction_keep": 2})

    after = session.context()
    assert done.summary is not None
    assert after.summaries == [done.summary]
    assert done.tokens_before == stats.active_tokens
    assert done.tokens_after == session.stats().active_tokens == of_log(after) < done.tokens_before
    assert session.stats().total_tokens == stats.total_tokens + after.parts.summaries


@pytest.mark.parametrize("strategy", ["summarizer", "mask_results", "simple_fifo", "ladder", "neuralyzer"])
def test_a_compaction_reports_the_figures_of_the_next_context(strategy: str) -> None:
    """The figures of a compaction's result and event are those of the next context, after a cut or without one."""
    with Memory.open("memory://") as memory:
        heard = Listener().to(memory, "compressed")
        session = memory.session("one", model="gpt-4o", max_tokens=2_200)
        reader = memory.session("one", model="gpt-4o", max_tokens=2_200)
        did = []
        for _ in range(3):
            fill(session)
            assert of_log(reader.context()) == session.stats().active_tokens
            fill(session, 1)

            done = session.compact({"strategy": strategy, "interaction_keep": 1})

            did.append(done.done)
            context = reader.context()
            assert done.tokens_after == session.stats().active_tokens == of_log(context)
            assert done.messages_after == len(context.messages)
            assert all(facts["tokens_saved"] == facts["result"].tokens_saved for facts in heard.facts("compressed"))
        assert any(did)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    log=strategies.logs(8),
    more=strategies.logs(3),
    strategy=st.sampled_from(["summarizer", "ladder", "mask_results", "superseded_contexts", "hybrid_summary"]),
    model=st.sampled_from([None, "gpt-4o"]),
)
def test_figures_agree_for_every_log(log: list[Any], more: list[Any], strategy: str, model: str | None) -> None:
    """For any log, stats and contexts agree before and after a compaction, unless a group is held back."""
    clock = FakeClock()
    counter: dict[str, Any] = {"model": model} if model else {"counter": strategies.WORDS}
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session("one", **counter, max_tokens=100_000)
        options: dict[str, Any] = {"summary_tokens": 10} if strategy == "hybrid_summary" else {}
        for part in (log, more):
            for operation in part:
                strategies.perform(session, operation, clock.now)
            context = session.context()
            if not held_back(context):
                assert session.stats().active_tokens == of_log(context)
            done = session.compact({"strategy": strategy, **options})
            context = session.context()
            if not held_back(context):
                assert done.tokens_after == session.stats().active_tokens == of_log(context)


def test_no_summary_is_made_if_its_fence_would_outweigh_it(memory: Memory) -> None:
    """If summary and fence cannot be smaller than their source, nothing changes and no summarizer is asked."""
    asked = Scripted("Order 7 ships on Monday.")
    session = memory.session("one", model="gpt-4o", max_tokens=8000, summarizer=asked)
    session.add_user_message("When will my order number 7 be shipped to me?")
    session.add_assistant_message("It will ship on Monday morning, as far as I can see.")
    talk(session, 6)
    before = session.context()

    done = session.compact({"strategy": "summarizer", "interaction_keep": 1})

    assert (done.reason, done.tokens_saved, asked.calls) == ("no_gain", 0, 0)
    assert session.context().messages == before.messages


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=st.lists(st.integers(2, 120), min_size=2, max_size=6), answer=st.integers(1, 150))
def test_a_compaction_never_makes_a_context_larger(sizes: list[int], answer: int) -> None:
    """After a compaction that did something the context is smaller by the tokens that it reports, whatever the
    answer."""
    with Memory.open("memory://") as memory:
        session = memory.session("one", model="gpt-4o", summarizer=lambda _: f"They spoke. {filler(answer)}")
        talk(session, *sizes)
        before = session.context().tokens

        done = session.compact({"strategy": "summarizer", "cod_max_loops": 0, "interaction_keep": 1})

        assert before - session.context().tokens == done.tokens_saved
        assert (done.tokens_saved > 0) is done.done


def test_another_counter_recounts_what_summaries_cost(memory: Memory) -> None:
    """A summary that another counter has counted is counted again: figures of two counters are never added up."""
    session = memory.session("one", counter=words)
    talk(session, *[100] * 4)
    assert session.compact({"strategy": "summarizer", "interaction_keep": 1}).done

    other = memory.session("one", model="gpt-4o")

    assert other.stats().active_tokens == of_log(other.context())
    assert other.compact("simple_fifo", dry_run=True).tokens_before == of_log(other.context())


@pytest.mark.sampled
def test_max_active_tokens_compares_the_figure_of_stats(memory: Memory) -> None:
    """`max_active_tokens` fires once the active tokens, as `stats` reports them, exceed it."""
    heard = Listener().to(memory, "evicted")
    rules = {"max_active_tokens": 500}
    session = memory.session("one", model="gpt-4o", long_term={"strategy": "simple_fifo", "triggers": rules})
    while session.stats().active_tokens <= 490:
        session.add_user_message("yes")
        assert heard.names() == []
    while heard.names() == []:
        before = session.stats().active_tokens
        session.add_user_message("yes")

    (decision,) = [facts["result"].decision for facts in heard.facts("evicted")]
    assert before <= 500 < decision.observed == before + 5


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("how", ["summarizer", "simple_fifo", "token_aware_lru", "hide"])
def test_an_older_version_of_a_context_is_never_shown_again(memory: Memory, how: str, seen: bool, pinned: bool) -> None:
    """When the newest version of a named context leaves, no older one, pinned or not, takes its place.

    Contexts, stats, listings and compactions agree on that.
    """
    session = memory.session("one", model="gpt-4o", max_tokens=2_000)
    for text, keeps in ((filler(30), pinned), (filler(200), False), ("", False)):
        session.add_user_message("look at it")
        if text:
            session.add_context(text, name="a.py", pinned=keeps)
        session.add_assistant_message("seen")
    if seen:
        session.context()

    if how == "hide":
        session.hide(5)
    else:
        how_far = {"interaction_keep": 1} if how == "summarizer" else {"max_tokens": 100}
        done = session.compact({"strategy": how, **how_far})
        assert done.tokens_after == session.stats().active_tokens
    stats, verified = session.stats(), session.verify()
    active = [entry.seq for entry in session.active_entries()]
    context = session.context()

    shown = [entry.seq for entry in context.entries]
    assert not {2, 5}.intersection(shown)
    assert active == shown == [entry.seq for entry in session.active_entries()]
    assert stats.active_entries == verified.active == len(shown) == session.stats().active_entries
    planned = session.compact({"strategy": "simple_fifo", "max_tokens": 10}, dry_run=True)
    assert stats.active_tokens == of_log(context) == session.stats().active_tokens == planned.tokens_before


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_erasing_a_summary_brings_back_nothing_that_a_cut_left_out(memory: Memory, keep: int) -> None:
    """Interactions that a cut has left out stay in the archive when a neuralyzer takes the summary before them."""
    session = memory.session("one", counter=words, max_tokens=200)
    talk(session, *[20] * 4)
    assert session.compact({"strategy": "summarizer", "interaction_keep": 1}).done
    talk(session, *[60] * 4)
    session.context()
    before = [entry.seq for entry in session.active_entries()]

    done = session.compact({"strategy": "neuralyzer", "interaction_keep": keep})

    assert done.erased
    remaining = [entry.seq for entry in session.active_entries()]
    assert remaining == [seq for seq in before if not session.entry(seq).erased]
    assert done.tokens_after == session.stats().active_tokens == of_log(session.context())
    assert session.verify().problems == ()


@pytest.mark.parametrize("verb", ["erase", "query", "sweep", "forget"])
@pytest.mark.parametrize("more", ["nothing", "pinned", "hidden", "rewound"])
def test_an_erasure_brings_back_no_archived_entries(memory: Memory, clock: FakeClock, verb: str, more: str) -> None:
    """Destroying an entry that a summary covers leaves the other entries active or archived as they were, in branches,
    too."""
    session = memory.session("one", counter=words, max_tokens=200)
    ends = datetime.fromtimestamp(clock.now // 1_000_000 + 60, UTC)
    said = session.add_user_message(f"zanzibar {filler(9)}", expires_at=ends)
    session.add_assistant_message(filler(10))
    talk(session, *[20] * 4)
    assert session.compact({"strategy": "summarizer", "interaction_keep": 1}).done
    talk(session, *[60] * 2)
    if more == "rewound":
        talk(session, 60)
        session.rewind(session.entries()[-3])
    talk(session, *[60] * 2)
    session.context()
    if more == "pinned":
        session.pin(12)
    if more == "hidden":
        session.hide(12)
    both = session, session.fork("branch")
    before = [[entry.seq for entry in each.active_entries()] for each in both]
    assert (12 in before[0]) == (more == "pinned")
    assert before[0][0] > 12 or more == "pinned"

    if verb == "sweep":
        clock.now += 61_000_000
        assert memory.sweep() == 1
    elif verb == "forget":
        assert memory.forget(matches="zanzibar").entries == 1
    else:
        assert session.erase(said if verb == "erase" else Query(text="zanzibar")).entries == 1

    assert [[entry.seq for entry in each.active_entries()] for each in both] == before
    for each in both:
        assert len(each.summaries()) == 1
        figure = each.stats().active_tokens
        assert figure == of_log(each.context()) or more == "pinned"  # that is too much: the summary is cut short
        assert [entry.seq for entry in each.active_entries()] == before[0]
        assert each.verify().problems == ()


def test_an_erasure_archives_nothing_that_a_view_shows(memory: Memory) -> None:
    """After an erasure the archive takes only what the contexts of every view have left out."""
    small = memory.session("one", counter=words, max_tokens=200)
    large = memory.session("one", counter=words, max_tokens=400, view="large")
    talk(small, *[20] * 4)
    assert small.compact({"strategy": "summarizer", "interaction_keep": 1}).done
    talk(small, *[60] * 8)
    shown = [[entry.seq for entry in each.context().entries] for each in (small, large)]
    assert shown[0] != shown[1]

    small.erase(1)

    assert [entry.seq for entry in large.context().entries] == shown[1]
    assert small.verify().problems == ()


def test_a_result_without_its_call_is_active_nowhere(memory: Memory) -> None:
    """A result whose call was erased is neither in a context nor active, wherever a cut begins."""
    session = memory.session("one", counter=words, max_tokens=100)
    session.add_tool_call("look", {"at": 1}, call_id="c")
    session.add_tool_result("look", filler(9), call_id="c")
    session.pin(1)
    talk(session, 20, 20, 20)
    assert session.compact({"strategy": "simple_fifo", "max_tokens": 60}).done
    session.erase(1)
    talk(session, 5)
    for _ in range(8):
        shown = [entry.seq for entry in session.context().entries]
        assert 2 not in shown
        assert [entry.seq for entry in session.active_entries()] == shown
        assert len(shown) == session.stats().active_entries == session.verify().active
        talk(session, 10)

"""Promise 5, for any log, strategy and budget: compaction loses nothing, and what it leaves fits and is valid."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import BudgetImpossible, Memory, Session
from palimpsest.testing import FakeClock
from strategies import WORDS, Operation, logs, perform
from talks import Scripted

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy": "simple_fifo"},
    {"strategy": "lru"},
    {"strategy": "token_aware_lru"},
    {"strategy": "hybrid_summary", "summary_tokens": 60},
    {"strategy": "summarizer"},
    {"strategy": "summarizer", "interaction_keep": 2, "cod_max_loops": 0},
    {"strategy": "summarizer", "recent_entries": 3, "min_entries": 2},
    {"strategy": "summarizer", "summaries": "chain", "interaction_keep": 1},
    {"strategy": "neuralyzer", "interaction_keep": 1},
    {"strategy": "mask_results"},
    {"strategy": "superseded_contexts"},
    {"strategy": "ladder"},
    {"strategy": "ladder", "summarize": False},
)

budgets = st.fixed_dictionaries(
    {"max_tokens": st.sampled_from([None, 40, 120, 400, 5_000]), "max_messages": st.sampled_from([None, None, 6, 20])}
)
summarizers = st.sampled_from([None, None, "short words only", "", RuntimeError("down"), "word " * 4000])


def opened(memory: Memory, budget: dict[str, Any], answer: object) -> Session:
    summarizer = None if answer is None else Scripted(answer)  # type: ignore[arg-type]
    return memory.session("one", counter=WORDS, summarizer=summarizer, **budget)


def context_of(session: Session, limit: int | None) -> list[dict[str, Any]] | None:
    """Return the messages of a context, which must keep the limit, or None where BudgetImpossible is raised."""
    try:
        context = session.context()
    except BudgetImpossible:
        return None
    assert limit is None or context.tokens <= limit
    return context.messages


def filled(memory: Memory, clock: FakeClock, log: list[Operation], budget: dict[str, Any], answer: object) -> Session:
    session = opened(memory, budget, answer)
    for operation in log:
        perform(session, operation, clock())
    return session


@given(logs(), logs(8), st.sampled_from(STRATEGIES), budgets, summarizers)
@settings(max_examples=examples(150), deadline=None)
def test_compaction_loses_no_entry(
    log: list[Operation], more: list[Operation], strategy: dict[str, Any], budget: dict[str, Any], answer: object
) -> None:
    """No strategy loses an entry: groups stay whole, summaries cover what they replace, contexts keep their limits."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = filled(memory, clock, log, budget, answer)
        for part in (more, []):
            before = {entry.id: entry.text for entry in session.entries() if not entry.erased}
            done = session.compact(strategy)

            proof = session.verify()
            assert proof.ok, proof.problems
            entries = session.entries()
            assert {entry.id for entry in entries} >= before.keys()
            if strategy["strategy"] != "neuralyzer":
                assert {entry.id: entry.text for entry in entries if not entry.erased} == before
            if done.summary is not None:
                assert done.summary.tokens < done.summary.source_tokens
            elif done.done:
                assert done.tokens_after <= done.tokens_before
            context_of(session, budget["max_tokens"])
            for operation in part:
                perform(session, operation, clock())


@given(logs(), st.sampled_from(STRATEGIES), budgets)
@settings(max_examples=examples(150), deadline=None)
def test_compacting_twice_changes_nothing(
    log: list[Operation], strategy: dict[str, Any], budget: dict[str, Any]
) -> None:
    """Without new entries, a second compaction commits nothing and gives the reason."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = filled(memory, clock, log, budget, None)
        session.compact(strategy)
        revision = session.stats().revision

        again = session.compact(strategy)

        assert again.reason in ("nothing_to_compact", "too_few_entries", "no_gain")
        assert session.stats().revision == revision or again.reason == "no_gain"


@given(logs(), st.sampled_from([one for one in STRATEGIES if one["strategy"] in ("summarizer", "hybrid_summary")]))
@settings(max_examples=examples(100), deadline=None)
def test_restoring_a_summary_undoes_its_compaction(log: list[Operation], strategy: dict[str, Any]) -> None:
    """After `restore`, the active entries and the context are as they were before the compaction."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = filled(memory, clock, log, {}, None)
        active, messages = session.active_entries(), context_of(session, None)
        done = session.compact(strategy)
        if done.summary is None:
            return

        session.restore(done.summary)

        assert [entry.id for entry in session.active_entries()] == [entry.id for entry in active]
        assert context_of(session, None) == messages
        assert session.verify().ok


@given(logs(8), st.lists(logs(3), max_size=4), st.sampled_from(STRATEGIES), budgets)
@settings(max_examples=examples(100), deadline=None)
def test_contexts_are_stable_between_compactions(
    log: list[Operation], parts: list[list[Operation]], strategy: dict[str, Any], budget: dict[str, Any]
) -> None:
    """Within one epoch, the log messages of an earlier context are the beginning of those of a later one."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = filled(memory, clock, log, budget, None)
        session.compact(strategy)
        last: tuple[int | None, list[Any]] | None = None
        for part in [[], *parts]:
            for operation in part:
                perform(session, operation, clock())
            try:
                context = session.context()
            except BudgetImpossible:
                last = None
                continue
            if last is not None and last[0] == context.epoch:
                assert context.log_messages[: len(last[1])] == last[1]
            last = context.epoch, context.log_messages


@given(logs(), st.sampled_from(STRATEGIES), budgets)
@settings(max_examples=examples(80), deadline=None)
def test_a_dry_run_predicts_the_compaction_and_commits_nothing(
    log: list[Operation], strategy: dict[str, Any], budget: dict[str, Any]
) -> None:
    """`dry_run` returns the figures of the real compaction, unless that gains nothing, and it commits nothing."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = filled(memory, clock, log, budget, None)
        revision = session.stats().revision
        planned = session.compact(strategy, dry_run=True)
        assert session.stats().revision == revision

        done = session.compact(strategy)

        if done.reason == planned.reason:
            assert (done.covered, done.evicted, done.erased) == (planned.covered, planned.evicted, planned.erased)
        else:
            assert done.reason == "no_gain"

"""Laws of compaction plans, for any snapshot and any strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import floor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest.compaction import Snapshot, Strategy
from palimpsest.compaction.base import low
from palimpsest.compaction.erase import Neuralyzer
from palimpsest.compaction.evict import Lru, SimpleFifo, TokenAwareLru
from palimpsest.compaction.ladder import Ladder
from palimpsest.compaction.mask import MaskResults, SupersededContexts
from palimpsest.compaction.selecting import is_free
from palimpsest.compaction.summarize import HybridSummary, Summarize
from palimpsest.context.groups import Group
from palimpsest.log import spans, values
from snapshots import applied, entries, snapshot, summary

PIECES = st.sampled_from(
    [
        *(
            "u9 a30",
            "u40 a60",
            "u a",
            "u5 c r90 a20",
            "u c5:book c r40 r50:book a9",
            "u20 c r60? c r90 a30",
            "u90 a200",
        ),
        *("u", "u40", "u5!", "a7", "a3!", "c", "c5:book", "c r90", "r40", "r50:book!", "u7 c r90! a5"),
        *("s4", "x9:a.py", "u x30:a.py a9", "u x5:b.py a", "x5"),
    ]
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a snapshot: any log, any groups covered or archived, any limits, accesses, mask and last run."""
    log = entries(" ".join(draw(st.lists(PIECES, max_size=14))))
    whole = snapshot(log)
    free = [group for group in whole.groups if is_free(group, whole)]
    states = draw(st.lists(st.sampled_from("aaaaaecf"), min_size=len(free), max_size=len(free)))
    where = {state: [g for g, given in zip(free, states, strict=True) if given == state] for state in "ecf"}
    covered = [
        summary(
            [entry.seq for group in where[state] for entry in group.entries],
            draw(st.integers(0, 200)),
            revision=revision,
            source=draw(st.integers(1, 2000)),
        )
        for revision, state in ((3, "c"), (7, "f"))
        if where[state]
    ]
    seqs = st.integers(1, max(len(log), 1))
    return snapshot(
        log,
        archived=[group.seq for group in where["e"]],
        covered=covered,
        mask=draw(st.just(0) | seqs),
        seen=draw(st.just(0) | seqs),
        max_tokens=draw(st.none() | st.integers(1, 1500)),
        max_messages=draw(st.none() | st.integers(1, 60)),
        accessed=draw(st.dictionaries(seqs, st.integers(1, 80), max_size=6)),
        clock=80,
    )


SHARES = st.floats(0.05, 0.95)
SOME = st.integers(0, 4)
LIMITS = {
    "low_water": SHARES,
    "max_tokens": st.none() | st.integers(1, 900),
    "max_messages": st.none() | st.integers(1, 40),
}
SIZES = {
    "target_ratio": SHARES,
    "summary_floor": st.sampled_from([0, 5, 120]),
    "max_summary_tokens": st.none() | st.integers(1, 200),
}
TOKENS = st.none() | st.integers(0, 200)
EVICTING = st.one_of(*(st.builds(kind, **LIMITS) for kind in (SimpleFifo, Lru, TokenAwareLru)))
BY_INTERACTION = st.builds(
    Summarize,
    interaction_keep=SOME,
    min_entries=st.integers(1, 5),
    recent_tokens=TOKENS,
    **SIZES,
)
BY_ENTRIES = st.builds(
    Summarize,
    interaction_keep=SOME,
    recent_entries=st.integers(0, 12),
    min_entries=st.integers(1, 5),
    recent_tokens=TOKENS,
    **SIZES,
)
CHAIN = st.builds(Summarize, interaction_keep=SOME, summaries=st.just("chain"), **SIZES)
HYBRID = st.builds(
    HybridSummary, summary_tokens=st.integers(1, 200), summarize_oldest_percent=st.floats(0.05, 1), **LIMITS
)
LADDER = st.builds(Ladder, interaction_keep=SOME, recent_tokens=TOKENS, summarize=st.booleans(), **LIMITS, **SIZES)
MASK = st.builds(
    MaskResults, interaction_keep=SOME, recent_tokens=TOKENS, recent_entries=st.none() | st.integers(0, 12)
)
NEURALYZER = st.builds(Neuralyzer, interaction_keep=SOME)
OTHERS = st.one_of(HYBRID, LADDER, MASK, NEURALYZER, st.builds(SupersededContexts))
ANY = st.one_of(EVICTING, BY_INTERACTION, CHAIN, OTHERS)
EVERY = st.one_of(ANY, BY_ENTRIES)


def law(of: st.SearchStrategy[Strategy]) -> Callable[[Any], Any]:
    """Decorate a test that holds for any snapshot and any of these strategies."""
    return lambda test: settings(max_examples=examples(150))(given(snapshots(), of)(test))


def all_groups(before: Snapshot) -> list[Group]:
    """Return every group that a plan may name: active and archived ones."""
    return [group for one in (*before.interactions, *before.archived) for group in one.groups]


def places(groups: Iterable[Group]) -> set[int]:
    """Return the seqs of the entries of these groups."""
    return {entry.seq for group in groups for entry in group.entries}


def taken(where: Iterable[spans.Span]) -> set[int]:
    """Return the seqs in these spans."""
    return set(spans.members(where))


@law(EVERY)
def test_a_plan_takes_whole_groups(before: Snapshot, strategy: Strategy) -> None:
    """A plan covers, evicts or erases all entries of a group or none, and names only entries that exist."""
    plan = strategy.plan(before)
    known = places(all_groups(before)) | taken(spans.union(*(made.covers for made in before.summaries)))

    for where in (plan.cover, plan.evict, plan.erase):
        named = taken(where)
        assert named <= known
        for group in all_groups(before):
            assert len(named & places([group])) in {0, len(group.entries)}


@law(EVERY)
def test_a_plan_takes_nothing_twice(before: Snapshot, strategy: Strategy) -> None:
    """The entries that a plan covers, evicts and erases are disjoint; covered entries are not covered again."""
    plan = strategy.plan(before)
    standing = taken(spans.union(*(made.covers for made in before.summaries)))
    named = [taken(plan.cover), taken(plan.evict), taken(plan.erase)]

    assert len(set().union(*named)) == sum(map(len, named))
    assert not standing & (named[0] | named[1])
    assert set(plan.fold) <= {made.revision for made in before.summaries}


@law(EVERY)
def test_no_plan_takes_system_pinned_or_open_entries(before: Snapshot, strategy: Strategy) -> None:
    """No plan takes system entries, pinned entries, or calls that may still be answered."""
    plan = strategy.plan(before)
    kept = [group for group in before.groups if not is_free(group, before)]

    assert not places(kept) & taken(spans.union(plan.cover, plan.evict, plan.erase))


@law(ANY)
def test_no_plan_takes_an_open_interaction(before: Snapshot, strategy: Strategy) -> None:
    """A strategy that counts interactions takes nothing of an open one."""
    plan = strategy.plan(before)
    kept = [group for one in before.interactions if one.open for group in one.groups]

    assert not places(kept) & taken(spans.union(plan.cover, plan.evict, plan.erase))


@law(BY_ENTRIES)
def test_by_entries_the_newest_human_message_without_answer_stays(before: Snapshot, strategy: Strategy) -> None:
    """A strategy with a window of entries keeps the newest open human message, however long its interaction is."""
    newest = before.interactions[-1] if before.interactions else None
    plan = strategy.plan(before)

    if newest is not None and newest.open and newest.groups[0].seq == newest.turn:
        assert newest.turn not in taken(plan.cover)


@law(EVERY)
def test_compacting_again_without_new_entries_changes_nothing(before: Snapshot, strategy: Strategy) -> None:
    """After a plan is carried out, the next plan does nothing until something is appended."""
    rolls = getattr(strategy, "summaries", "") == "chain"
    plan = strategy.plan(before)
    if rolls and plan.fold:  # rolling up a chain takes its own plan, which comes first
        before = applied(before, plan)
        plan = strategy.plan(before)
    after = applied(before, plan)
    again = strategy.plan(after)

    if rolls and again.fold:
        assert sum(made.tokens for made in after.summaries) > values.part(0.25, before.max_tokens or 0)
        again = strategy.plan(applied(after, again))
    assert again.does_nothing
    assert again.reason is not None


@law(EVERY)
def test_a_plan_that_does_something_says_what(before: Snapshot, strategy: Strategy) -> None:
    """The steps of a plan have entries and a reason; a plan that does nothing has a reason and no steps."""
    plan = strategy.plan(before)

    if plan.does_nothing:
        assert plan.reason is not None
        assert not plan.steps
    else:
        assert plan.reason is None
        assert all(step.entries > 0 and step.why for step in plan.steps)
        assert plan.steps


@law(st.one_of(EVICTING, MASK, NEURALYZER, LADDER, st.builds(SupersededContexts)))
def test_the_active_set_never_grows(before: Snapshot, strategy: Strategy) -> None:
    """After masking, evicting, erasing or the ladder there are no more tokens and messages than before.

    Except for a summary of what a cut has evicted, for which there is room up to low water.
    """
    after = applied(before, strategy.plan(before))

    most = low(strategy, before).tokens or 0 if isinstance(strategy, Ladder) and before.archived else 0
    assert after.tokens <= max(before.tokens, most)
    if not strategy.summarizes:
        assert after.messages <= before.messages


@law(st.one_of(BY_INTERACTION, BY_ENTRIES, CHAIN, HYBRID, LADDER))
def test_a_summary_is_smaller_than_what_it_takes_the_place_of(before: Snapshot, strategy: Strategy) -> None:
    """A summary has at least one token, and fewer than the entries and summaries that it replaces."""
    plan = strategy.plan(before)

    if plan.cover or plan.fold:
        source = sum(group.cost for group in all_groups(before) if places([group]) <= taken(plan.cover))
        source += sum(made.tokens for made in before.summaries if made.revision in plan.fold)
        assert 1 <= plan.summary_tokens < source


@law(EVICTING)
def test_eviction_reaches_low_water_unless_nothing_may_leave(before: Snapshot, strategy: Any) -> None:
    """After an eviction the rest fits low water, is protected, or is the last group."""
    after = applied(before, strategy.plan(before))
    tokens = strategy.max_tokens or before.max_tokens
    messages = strategy.max_messages or before.max_messages
    fits = (not tokens or after.tokens <= floor(values.part(strategy.low_water, tokens))) and (
        not messages or after.messages <= floor(values.part(strategy.low_water, messages))
    )

    may_leave = [g for one in after.interactions if not one.open for g in one.groups if is_free(g, after)]
    others = [group for group in after.groups if not group.pinned and group not in may_leave]
    assert fits or not may_leave or len(may_leave) + len(others) <= 1


@law(EVERY)
def test_a_plan_depends_on_nothing_but_the_snapshot(before: Snapshot, strategy: Strategy) -> None:
    """Equal snapshots give equal plans, and planning does not change the snapshot."""
    costs = [(group.seq, group.cost, group.messages) for group in before.groups]

    assert strategy.plan(before) == strategy.plan(before)
    assert [(group.seq, group.cost, group.messages) for group in before.groups] == costs

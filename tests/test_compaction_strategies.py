"""Which entries each strategy takes and which it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.compaction import Plan, Snapshot
from palimpsest.compaction.erase import Neuralyzer
from palimpsest.compaction.evict import Lru, SimpleFifo, TokenAwareLru
from palimpsest.compaction.ladder import Ladder
from palimpsest.compaction.mask import MaskResults, SupersededContexts
from palimpsest.compaction.summarize import HybridSummary, Summarize
from palimpsest.log import spans
from snapshots import applied, snapshot, summary, turns


def messages(sizes: list[int]) -> str:
    """Return plain messages of these sizes, a human message and its answer in turn."""
    return " ".join(f"{'ua'[i % 2]}{size}" for i, size in enumerate(sizes))


def active_after(before: Snapshot, plan: Plan) -> list[int]:
    """Return the seqs of the entries that are active after the plan."""
    return [entry.seq for group in applied(before, plan).groups for entry in group.entries]


def step(plan: Plan, name: str) -> tuple[int, int]:
    """Return the entries and tokens of one step of a plan."""
    return next((found.entries, found.tokens) for found in plan.steps if found.name == name)


# --- simple_fifo


@pytest.mark.parametrize(
    ("sizes", "limits", "remaining"),
    [
        ([1] * 80, {"max_messages": 100}, 50),
        ([1] * 40, {"max_tokens": 100_000}, 30),
        ([1] * 30, {"max_messages": 100}, 30),
        ([180] * 5, {"max_tokens": 1000, "max_messages": 100}, 2),
        ([300, 600], {"max_tokens": 1000}, 1),
        ([1] * 8, {}, 6),
    ],
)
def test_fifo_drops_the_oldest_to_low_water(sizes: list[int], limits: dict[str, int], remaining: int) -> None:
    """FIFO goes to half of `max_messages`, or a quarter without that limit, then to half of `max_tokens`."""
    before = snapshot(messages(sizes), **limits)

    assert active_after(before, SimpleFifo().plan(before)) == list(range(len(sizes) - remaining + 1, len(sizes) + 1))


def test_fifo_reports_the_evicted_entries() -> None:
    """The step of a plan counts entries and tokens; a plan without steps has a reason."""
    plan = SimpleFifo().plan(snapshot(messages([180] * 5), max_tokens=1000, max_messages=100))

    assert step(plan, "evict") == (3, 540)
    assert "50 messages and 500 tokens" in plan.steps[0].why
    assert SimpleFifo().plan(snapshot("u a", max_messages=9)) == Plan(reason="nothing_to_compact")


def test_a_cut_inside_a_group_takes_the_whole_group() -> None:
    """A call and its results leave together, even if fewer messages would be enough."""
    before = snapshot("u c r c r a u a", max_messages=12)

    assert active_after(before, SimpleFifo().plan(before)) == [4, 5, 6, 7, 8]


def test_pinned_system_and_open_entries_are_not_evicted() -> None:
    """System and pinned entries and the open interaction count towards the limit, but are not evicted."""
    before = snapshot("s20 u20! a20 u20 a20 u20 c r", max_tokens=40)

    assert active_after(before, SimpleFifo().plan(before)) == [1, 2, 6, 7, 8]


# --- lru and token_aware_lru


def test_lru_keeps_what_was_accessed() -> None:
    """LRU evicts the least recently accessed entries; the order of the others does not change."""
    four = snapshot("a a a a", max_messages=4, accessed={1: 5}, clock=5)
    three = snapshot("a a a", max_messages=2, accessed={1: 4}, clock=4)

    assert active_after(four, Lru().plan(four)) == [1, 4]
    assert active_after(three, Lru().plan(three)) == [1]


def test_a_group_is_as_fresh_as_its_freshest_member() -> None:
    """A group counts as accessed when one of its members was."""
    before = snapshot("u c r a u a", max_messages=8, accessed={3: 9}, clock=9)

    assert active_after(before, Lru().plan(before)) == [2, 3, 5, 6]


def test_lru_without_limits_keeps_half() -> None:
    """Without a limit LRU keeps half of the messages, rounded down, and nothing more leaves until new ones come."""
    before = snapshot("a a a a a")
    after = applied(before, Lru().plan(before))

    assert [group.seq for group in after.groups] == [4, 5]
    assert Lru().plan(after) == Plan(reason="nothing_to_compact")


def test_token_aware_lru_takes_the_largest_product() -> None:
    """Token-aware LRU evicts by staleness times tokens: of equal sizes the oldest, else a large newer one."""
    equal = snapshot(messages([10] * 20), max_tokens=100)
    mixed = snapshot(messages([1, 17, 5, 1]), max_tokens=30)

    assert active_after(equal, TokenAwareLru().plan(equal)) == [16, 17, 18, 19, 20]
    assert active_after(mixed, TokenAwareLru().plan(mixed)) == [1, 3, 4]
    assert applied(mixed, TokenAwareLru().plan(mixed)).tokens == 7


def test_a_strategys_own_limits_stand_in_for_the_sessions() -> None:
    """A strategy's own `max_tokens` replaces the session's, for low water and for its threshold."""
    before = snapshot(messages([10] * 20), max_tokens=10_000)

    assert len(active_after(before, TokenAwareLru(max_tokens=100).plan(before))) == 5
    assert SimpleFifo(max_tokens=100, low_water=0.5).triggers.max_tokens == 100


# --- neuralyzer


def test_the_neuralyzer_erases_all_but_the_newest() -> None:
    """A neuralyzer erases all but the newest interactions, and what precedes the first; pinned entries stay."""
    before = snapshot("s x5:n.md u! a " + turns(29) + " u")

    plan = Neuralyzer(interaction_keep=5).plan(before)

    assert active_after(before, plan) == [1, 3, *range(53, 64)]
    assert plan.erase == ((2, 2), (4, 52))
    assert plan.cover == plan.evict == ()


def test_the_neuralyzer_erases_the_archive_and_what_summaries_cover() -> None:
    """A neuralyzer also erases archived and covered entries, wherever they lie before what it keeps."""
    before = snapshot(turns(6), covered=[summary([1, 2, 3, 4], 9)], archived=[5, 6])

    plan = Neuralyzer(interaction_keep=2).plan(before)

    assert plan.erase == ((1, 8),)
    assert applied(before, plan).summaries == ()
    assert step(plan, "erase") == (8, 11)


def test_the_neuralyzer_keeps_interactions_of_the_archive_too() -> None:
    """The newest N interactions stay even if they are archived; if there are no more, nothing is erased."""
    evicted = snapshot(turns(6), archived=range(1, 9))
    covered = snapshot(turns(6), covered=[summary(range(1, 9), 9)])

    assert Neuralyzer(interaction_keep=4).plan(evicted).erase == ((1, 4),)
    assert Neuralyzer(interaction_keep=4).plan(covered) == Plan(reason="nothing_to_compact")
    assert Neuralyzer(interaction_keep=0).plan(covered).erase == ((1, 12),)


# --- masks and old versions


def test_old_results_become_notes() -> None:
    """Long results before the recent window are masked; short and pinned ones, and those inside it, are not."""
    before = snapshot("u c r100:find a u c r2:find a u c r100:find! a u c r100:find a")

    plan = MaskResults().plan(before)

    assert (plan.mask, plan.entries) == (13, 0)
    assert step(plan, "mask_results") == (1, 90)
    assert (
        applied(before, plan).tokens == before.tokens - 94
    )  # the note has six words, which are ten tokens for a model
    assert MaskResults().plan(applied(before, plan)) == Plan(reason="nothing_to_compact")


def test_the_newest_group_is_never_masked() -> None:
    """Without a window to keep, masking stops before the newest group."""
    before = snapshot("u c r100:find c r100:find")

    assert MaskResults(interaction_keep=0, recent_entries=0).plan(before).mask == 4


def test_masking_reaches_into_an_open_interaction_by_tokens() -> None:
    """A window in tokens shrinks even inside a long open interaction."""
    before = snapshot("u " + "c r100:find " * 5)

    assert MaskResults().plan(before) == Plan(reason="nothing_to_compact")
    assert MaskResults(recent_tokens=210).plan(before).mask == 8


def test_older_versions_of_a_context_go() -> None:
    """Older versions of a named context are evicted, apart from pinned ones; contexts without a name stay."""
    before = snapshot("x9:a.py x9:b.py u a x9:a.py! x9 u a x9 x9:a.py u a")

    assert SupersededContexts().plan(before).evict == ((1, 1),)
    assert step(SupersededContexts().plan(before), "superseded_contexts")[0] == 1


# --- summarizer


@pytest.mark.parametrize(
    ("log", "keep", "active"),
    [
        (turns(25), 3, range(45, 51)),
        (turns(25) + " u", 3, range(45, 52)),
        (turns(25) + " u c", 0, range(51, 53)),
        (turns(25), 0, range(51, 51)),
        (turns(25), 25, None),
    ],
)
def test_all_but_the_newest_interactions_are_covered(log: str, keep: int, active: range | None) -> None:
    """`interaction_keep` completed interactions and the open one stay; all before them are covered."""
    before = snapshot(log)
    plan = Summarize(interaction_keep=keep).plan(before)

    if active is None:
        assert plan == Plan(reason="nothing_to_compact")
    else:
        assert active_after(before, plan) == list(active)
        assert plan.cover == ((1, active.start - 1),)


def test_three_long_turns_cover_one() -> None:
    """Keeping two covers 18 of 20 short turns, and one of three long ones."""
    long = snapshot(turns(3, 1, 6666))

    assert spans.size(Summarize(interaction_keep=2).plan(snapshot(turns(20))).cover) == 36
    assert Summarize(interaction_keep=2).plan(long).cover == ((1, 2),)


def test_conditions_do_not_limit_what_is_covered() -> None:
    """Conditions decide when a strategy runs, not what it covers."""
    before = snapshot("u a u c r a " * 5)

    assert Summarize(interaction_keep=0).plan(before).cover == ((1, 30),)


def test_a_summary_covers_what_the_archive_holds_first() -> None:
    """A summary covers what cuts have evicted with what leaves now, and nothing that a summary covers already."""
    before = snapshot(turns(8), covered=[summary([1, 2], 9)], archived=[3, 4, 5, 6])

    plan = Summarize(interaction_keep=2).plan(before)

    assert plan.cover == ((3, 12),)
    assert plan.fold == (1,)
    assert Summarize(interaction_keep=2).plan(applied(before, plan)) == Plan(reason="nothing_to_compact")


@pytest.mark.parametrize(
    ("log", "options", "limit", "tokens"),
    [
        ("u1 a999", {}, None, 300),
        ("u1 a299", {}, None, 120),
        ("u1 a99", {}, None, 99),
        ("u1 a9999", {}, 4000, 1000),
        ("u1 a9999", {"max_summary_tokens": 500}, 4000, 500),
        ("u1 a999", {"target_ratio": 1.0}, None, 999),
        ("u1 a8", {"summary_floor": 0}, None, 3),
    ],
)
def test_how_long_a_summary_is_to_be(log: str, options: dict[str, Any], limit: int | None, tokens: int) -> None:
    """A summary's length is a share of its source, bounded by the floor, the maximum, and a quarter of the limit."""
    assert Summarize(interaction_keep=0, **options).plan(snapshot(log, max_tokens=limit)).summary_tokens == tokens


def test_an_anchored_summary_may_grow_with_all_that_it_covers() -> None:
    """The next version may be a share of everything it covers, but smaller than what it replaces."""
    old = summary([1, 2], 600, source=2000)

    plan = Summarize(interaction_keep=0).plan(snapshot("u a u1 a999", covered=[old]))

    assert plan.summary_tokens == 900
    assert Summarize(interaction_keep=0).plan(snapshot("u a u1 a199", covered=[old])).summary_tokens == 660
    assert (
        Summarize(interaction_keep=0, target_ratio=1.0).plan(snapshot("u a u1 a199", covered=[old])).summary_tokens
        == 799
    )


def test_a_source_of_one_token_gives_no_gain() -> None:
    """No summary can be smaller than a single token, so there is no gain."""
    assert Summarize().plan(snapshot("a1 u! a!", archived=[1])) == Plan(reason="no_gain")


# --- a recent window in entries


def test_a_window_of_entries_covers_what_is_before_it() -> None:
    """A window of 10 entries covers 91 of 101 human messages, although none was answered."""
    before = snapshot("u " * 101)
    plan = Summarize(recent_entries=10, min_entries=5).plan(before)

    assert plan.cover == ((1, 91),)


def test_a_window_of_entries_grows_to_its_interaction() -> None:
    """A window that would begin inside an interaction begins with it."""
    before = snapshot(turns(50) + " u")

    assert Summarize(recent_entries=10, min_entries=5).plan(before).cover == ((1, 90),)


def test_too_few_entries_are_left_alone() -> None:
    """Fewer than `min_entries` entries before the window are left alone."""
    strategy = Summarize(recent_entries=10, recent_tokens=25_000, min_entries=5)

    assert strategy.plan(snapshot("u50000 " + "u10 " * 13)) == Plan(reason="too_few_entries")
    assert strategy.plan(snapshot("u50000 " + "u10 " * 14)).cover == ((1, 5),)


def test_a_call_and_its_result_are_on_one_side_of_the_window() -> None:
    """A call at position 11 from the end stays with its result at position 10."""
    before = snapshot("u " * 20 + "c r " + "u " * 9)

    assert Summarize(recent_entries=10, min_entries=5).plan(before).cover == ((1, 19),)
    assert active_after(before, Summarize(recent_entries=10, min_entries=5).plan(before))[:3] == [20, 21, 22]


def test_one_very_long_interaction_is_compacted_and_its_human_message_stays() -> None:
    """If the window would grow over everything, it begins at a group instead, and the human message stays."""
    before = snapshot("u " + "c r " * 150)

    plan = Summarize(recent_entries=10, min_entries=5).plan(before)

    assert plan.cover == ((2, 291),)
    assert active_after(before, plan)[0] == 1


def test_a_call_that_waits_is_never_covered() -> None:
    """A call without its result is not covered, wherever it is."""
    before = snapshot("u c:slow u u u u u u")

    assert Summarize(recent_entries=2).plan(before).cover == ((1, 1), (3, 6))


def test_a_window_shrinks_to_its_tokens() -> None:
    """A window shrinks in whole groups to its tokens, and keeps the newest group and its interaction's human
    message."""
    before = snapshot("u10 a10 u10 a30 c r30 a30")

    assert Summarize(recent_entries=5, recent_tokens=70).plan(before).cover == ((1, 2), (4, 4))
    assert Summarize(recent_entries=5, recent_tokens=1).plan(before).cover == ((1, 2), (4, 6))


# --- a chain


def test_a_chain_adds_a_summary_for_each_compaction() -> None:
    """In a chain, each new summary covers only what leaves, and earlier summaries stay."""
    before = snapshot(turns(3), covered=[summary([1, 2], 20)], max_tokens=1000)

    plan = Summarize(interaction_keep=0, summaries="chain").plan(before)

    assert (plan.cover, plan.fold) == (((3, 6),), ())
    assert [made.tokens for made in applied(before, plan).summaries] == [20, plan.summary_tokens]


def test_a_long_chain_is_rolled_up_from_its_oldest() -> None:
    """A chain over a quarter of the limit is rolled up from its oldest summaries down to half of that."""
    chain = [summary([2 * i + 1, 2 * i + 2], 60, revision=i + 1) for i in range(5)]
    strategy = Summarize(summaries="chain", summary_floor=10)
    before = snapshot(turns(6), covered=chain, max_tokens=1000)

    plan = strategy.plan(before)

    assert (plan.cover, plan.fold, plan.summary_tokens) == ((), (1, 2, 3, 4, 5), 90)
    assert step(plan, "summarize") == (10, 210)
    assert strategy.plan(snapshot(turns(6), covered=chain[:4], max_tokens=1000)).fold == ()
    assert strategy.plan(snapshot(turns(6), covered=chain, max_tokens=1196)).fold == (1, 2, 3, 4)


# --- hybrid_summary


def test_hybrid_summary_covers_the_oldest_half() -> None:
    """Of four turns the oldest two are covered; the system message stays ahead."""
    before = snapshot("s10 " + turns(4, 20, 20), max_tokens=1000)

    plan = HybridSummary(summary_tokens=30).plan(before)

    assert plan.cover == ((2, 5),)
    assert (plan.summary_tokens, plan.summary_most) == (30, 30)
    assert active_after(before, plan) == [1, 6, 7, 8, 9]


def test_hybrid_summary_needs_two_interactions() -> None:
    """One interaction is nothing to compact; of several the newest stays and at least one is covered."""
    strategy = HybridSummary(interaction_keep=0, summary_tokens=30, summarize_oldest_percent=0.1)

    assert strategy.plan(snapshot("s a5 u40 a40")) == Plan(reason="nothing_to_compact")
    assert strategy.plan(snapshot("u40 a40 u40 a40")).cover == ((1, 2),)
    assert strategy.plan(snapshot("u40 a40 u40")).cover == ((1, 2),)


def test_hybrid_summary_takes_more_until_low_water() -> None:
    """Whole interactions are covered until the rest and the summary are at low water."""
    before = snapshot(turns(8, 10, 90), max_tokens=800)

    plan = HybridSummary(summary_tokens=100, summarize_oldest_percent=0.1).plan(before)

    assert plan.cover == ((1, 10),)
    assert applied(before, plan).tokens == 400


def test_hybrid_summary_by_request_takes_its_share_once() -> None:
    """Without new entries since its last run, a hybrid summary covers nothing more."""
    before = snapshot(turns(8, 10, 10))
    strategy = HybridSummary(summary_tokens=30)
    after = applied(before, strategy.plan(before))

    assert strategy.plan(after) == Plan(reason="nothing_to_compact")
    assert strategy.plan(snapshot(turns(8, 10, 10))).cover == ((1, 8),)


# --- the ladder


def test_the_ladder_stops_at_the_first_rung_that_is_enough() -> None:
    """The ladder evicts old versions, then masks, then summarizes, and stops once low water is reached."""
    strategy = Ladder(low_water=0.5)
    versions = snapshot("x60:a.py u a x10:a.py u a u a", max_tokens=100)
    results = snapshot("u c r80:find a u5 a5 u a", max_tokens=100)
    talk = snapshot(turns(4, 10, 40), max_tokens=300)

    assert [found.name for found in strategy.plan(versions).steps] == ["superseded_contexts"]
    assert [found.name for found in strategy.plan(results).steps] == ["mask_results"]
    assert [found.name for found in strategy.plan(talk).steps] == ["summarize"]


def test_the_ladder_climbs_until_low_water_and_accounts_for_every_step() -> None:
    """The savings of the ladder's steps add up to the difference, with the summary's length deducted.

    What leaves in a later step is not masked before.
    """
    before = snapshot("x50:a.py u20 c r200:find a150 x50:a.py u10 c r90:find a90 u20 a80 u5 a5", max_tokens=600)
    strategy = Ladder(low_water=0.65, summary_floor=20)

    plan = strategy.plan(before)

    assert [found.name for found in plan.steps] == ["superseded_contexts", "mask_results", "summarize"]
    assert step(plan, "mask_results")[0] == 1
    assert applied(before, plan).tokens <= 390
    assert before.tokens - sum(found.tokens for found in plan.steps) - applied(before, plan).tokens in range(6)


def test_without_summaries_the_ladder_evicts() -> None:
    """With `summarize` off, the ladder archives whole interactions, oldest first, except the recent window."""
    before = snapshot(turns(6, 10, 40) + " u", max_tokens=300)
    plan = Ladder(summarize=False).plan(before)

    assert not Ladder(summarize=False).summarizes
    assert plan.evict == ((1, 6),)
    assert [found.name for found in plan.steps] == ["evict"]


def test_the_ladder_evicts_where_a_summary_would_save_nothing() -> None:
    """The ladder evicts interactions that are too short for a smaller summary."""
    before = snapshot("u1 a0 " + turns(1, 50, 50), max_tokens=100)

    assert Ladder(interaction_keep=1, low_water=0.9, max_summary_tokens=1).plan(before).evict == ((1, 2),)


def test_notes_are_not_taken_for_fewer_messages() -> None:
    """If only the number of messages is too high, the ladder does not mask, since that saves no message."""
    before = snapshot("u c r90:find a u c r90:find a u c r90:find a", max_messages=12)

    plan = Ladder(summarize=False, low_water=0.7).plan(before)

    assert [found.name for found in plan.steps] == ["evict"]
    assert plan.mask == 0


def test_by_hand_below_low_water_the_ladder_halves() -> None:
    """Called by hand below low water, the ladder keeps half of the tokens, once for what is new."""
    strategy = Ladder(summarize=False)
    for limit in (None, 10_000):
        before = snapshot(turns(10, 5, 5), max_tokens=limit)
        after = applied(before, strategy.plan(before))

        assert after.tokens == 50
        assert strategy.plan(after) == Plan(reason="nothing_to_compact")


def test_below_low_water_the_ladder_covers_what_cuts_have_evicted() -> None:
    """Below low water the ladder only covers what cuts have evicted without a summary."""
    before = snapshot(turns(6, 50, 50), max_tokens=1_000, archived=range(1, 9))

    plan = Ladder(summary_floor=20).plan(before)

    assert plan.cover == ((1, 8),)
    assert active_after(before, plan) == [9, 10, 11, 12]
    assert Ladder(summary_floor=20).plan(applied(before, plan)).reason == "nothing_to_compact"


@pytest.mark.parametrize(
    "strategy",
    [
        SimpleFifo(interaction_keep=3),
        Lru(interaction_keep=3),
        TokenAwareLru(interaction_keep=3),
        HybridSummary(summary_tokens=5, interaction_keep=3),
    ],
)
def test_flushing_keeps_the_newest_interactions(strategy: Any) -> None:
    """Every flushing strategy keeps `interaction_keep` completed interactions, whatever the limit."""
    before = snapshot(turns(6, 10, 10), max_tokens=20)

    after = active_after(before, strategy.plan(before))

    assert after == list(range(7, 13))


def test_a_kept_window_shrinks_to_its_tokens() -> None:
    """`recent_tokens` bounds, in whole groups, what `interaction_keep` keeps."""
    before = snapshot(turns(6, 10, 10), max_tokens=20)

    after = active_after(before, SimpleFifo(interaction_keep=3, recent_tokens=40, low_water=0.9).plan(before))

    assert after == [9, 10, 11, 12]

"""When a strategy runs: the threshold of each rule, what it counts, when it is quiet, and how near it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest import ConfigError
from palimpsest.compaction import Snapshot, TriggerDecision
from palimpsest.compaction.decisions import Margin, decide, margin
from palimpsest.compaction.rules import Activity
from palimpsest.compaction.summarize import Summarize
from palimpsest.compaction.triggers import Triggers
from palimpsest.context.groups import most
from snapshots import applied, meter, snapshot, summary, turns


def look(triggers: Triggers, seen: Snapshot, **facts: Any) -> TriggerDecision:
    return decide(triggers, Activity(snapshot=seen, meter=meter(), turns=100, **facts))


def fires(triggers: Triggers, seen: Snapshot, **facts: Any) -> bool:
    return look(triggers, seen, **facts).fired


# --- the rules about interactions


@pytest.mark.parametrize(("done", "expected"), [(19, False), (20, True), (21, True)])
def test_the_quantity_fires_when_the_nth_interaction_completes(done: int, expected: bool) -> None:
    """`interaction_threshold_qty` fires at n completed interactions; an open one does not count."""
    triggers = Triggers(interaction_threshold_qty=20)

    assert fires(triggers, snapshot(turns(done) + " u")) is expected


@pytest.mark.parametrize(("tokens", "expected"), [(20_000, False), (20_001, True)])
def test_the_tokens_of_interactions_fire_above_n(tokens: int, expected: bool) -> None:
    """`interaction_threshold_tokens` fires at strictly more than n, over completed interactions alone."""
    triggers = Triggers(interaction_threshold_tokens=20_000)

    found = look(triggers, snapshot(f"a500 u9999 a1 u{tokens - 10_001} a1 u900"))

    assert found == TriggerDecision(expected, "interaction_threshold_tokens", tokens, 20_000, ">")


@pytest.mark.parametrize(("figure", "expected"), [(5000, False), (5001, True), (None, False)])
def test_input_tokens_fire_above_the_providers_figure(figure: int | None, expected: bool) -> None:
    """`input_tokens_threshold` fires above n; a figure from before a compaction is none."""
    triggers = Triggers(input_tokens_threshold=5000)

    assert fires(triggers, snapshot(turns(1)), input_tokens=figure) is expected
    assert triggers.heeds(figure) is expected


def test_an_interaction_of_pinned_entries_alone_is_not_counted() -> None:
    """An interaction of which only pinned entries are left cannot fire a rule for ever."""
    seen = snapshot("u! a! " + turns(1))

    assert look(Triggers(interaction_threshold_qty=2), seen).observed == 1


def test_conditions_filter_what_the_interaction_rules_count() -> None:
    """Ten turns, four of them with tools, do not make five; the fifth with tools does."""
    triggers = Triggers(interaction_threshold_qty=5, interaction_conditions=("interaction.has_tools",))
    plain, tool = "u a", "u c r a"
    ten = f"{plain} {tool} {plain} {tool} {plain} {tool} {plain} {plain} {tool} {plain}"

    assert look(triggers, snapshot(ten)).observed == 4
    assert not fires(triggers, snapshot(ten))
    assert fires(triggers, snapshot(f"{ten} {tool}"))


def test_a_message_condition_counts_interactions_with_any_matching_message() -> None:
    """A condition that names `message` needs one message that meets it; all conditions must hold."""
    triggers = Triggers(
        interaction_threshold_qty=1,
        interaction_conditions=("message.tokens > 50", "interaction.message_count == 2"),
    )

    assert look(triggers, snapshot("u51 a u a60 u50 a50 u90 c r a")).observed == 2


def test_a_condition_that_fails_counts_the_interaction_and_is_reported() -> None:
    """A condition that cannot be evaluated counts the interaction and is reported once."""
    triggers = Triggers(interaction_threshold_qty=2, interaction_conditions=("message.metadata.size > 3",))
    failures: dict[str, str] = {}

    found = decide(triggers, Activity(snapshot=snapshot(turns(2)), meter=meter()), failures)

    assert found.fired
    assert list(failures) == ["message.metadata.size > 3"]


# --- the rules about tools


def test_a_listed_tool_fires_once_for_each_new_result() -> None:
    """A result since the last run fires; the next turn without one does not, a new one does."""
    triggers = Triggers(on_tools_success_threshold=("close_*",))
    log = "u c:close_ticket r:close_ticket a"

    assert fires(triggers, snapshot(log))
    assert not fires(triggers, snapshot(f"{log} u a", seen=5))
    assert fires(triggers, snapshot(f"{log} {log}", seen=5))


def test_only_the_listed_status_fires() -> None:
    """A rule on successes or errors fires for exactly that status."""
    success = Triggers(on_tools_success_threshold=("find",))
    error = Triggers(on_tools_error_threshold=("find",))
    failed = snapshot("u c:find r:find? a")

    assert fires(error, failed)
    assert not fires(success, failed)
    for status in ("unknown", "pending", None):
        assert not fires(success, snapshot("u a"), results=[("find", status)])
        assert not fires(error, snapshot("u a"), results=[("find", status)])


def test_a_denied_call_is_an_error_only_with_denied_is_error() -> None:
    """With `denied_is_error`, a denied call counts as a failure."""
    denied = [("find", "denied")]

    assert not fires(Triggers(on_tools_error_threshold=("*",)), snapshot("u a"), results=denied)
    assert fires(Triggers(on_tools_error_threshold=("*",), denied_is_error=True), snapshot("u a"), results=denied)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("close", "close", True),
        ("close", "close_ticket", False),
        ("close_*", "close_", True),
        ("*_ticket", "close_ticket", True),
        ("c*o*t", "close_ticket", True),
        ("a*a", "a", False),
        ("c?ose", "close", False),
        ("[c]lose", "close", False),
        ("*", "anything", True),
        ("*a*a*b" * 8 + "*cc*", "ab" * 5000 + "c", False),
    ],
)
def test_only_a_star_is_special_in_a_tool_name(pattern: str, name: str, expected: bool) -> None:
    """Tools are named exactly or with `*`; other signs of patterns mean themselves, and no name is slow to match."""
    triggers = Triggers(on_tools_success_threshold=(pattern,))

    assert fires(triggers, snapshot("u a"), results=[(name, "success")]) is expected


# --- the rules about the active set


@pytest.mark.parametrize(
    ("limits", "tokens", "messages", "expected"),
    [
        ((1000, None), 700, 2, False),
        ((1000, None), 799, 2, False),
        ((1000, None), 800, 2, True),
        ((None, 50), 39, 39, False),
        ((None, 50), 40, 40, True),
        ((1000, 100), 700, 70, False),
        ((1000, 100), 850, 50, True),
        ((1000, 100), 500, 85, True),
        ((40, None), 31, 2, False),
        ((40, None), 32, 2, True),
    ],
)
def test_a_share_of_the_limits_fires_when_it_is_reached(
    limits: tuple[int | None, int | None], tokens: int, messages: int, expected: bool
) -> None:
    """`threshold` fires at t x max_tokens or t x max_messages, whichever the session has and reaches first."""
    words = ["a"] * (messages - 1)
    seen = snapshot(" ".join([f"u{tokens - messages + 1}", *words]), max_tokens=limits[0], max_messages=limits[1])

    assert (seen.tokens, seen.messages) == (tokens, messages)
    assert fires(Triggers(threshold=0.8), seen) is expected


def test_the_threshold_is_a_share_of_the_strategys_own_limits() -> None:
    """`max_tokens` of the triggers stands in for the session's; without any limit a share never fires."""
    seen = snapshot("u100 a100")

    assert fires(Triggers(threshold=0.5, max_tokens=400), seen)
    assert not fires(Triggers(threshold=0.5), seen)


def test_a_share_is_compared_without_binary_rounding() -> None:
    """55 of 100 is 0.55, though 0.55 times 100 is a little more than 55 in binary."""
    assert fires(Triggers(threshold=0.55), snapshot("u54 a1", max_tokens=100))


@pytest.mark.parametrize(("count", "expected"), [(100, False), (101, True)])
def test_entries_fire_above_n(count: int, expected: bool) -> None:
    """`max_entries` fires at strictly more than n active entries; summaries are not counted."""
    seen = snapshot("u " * count, covered=())

    assert fires(Triggers(max_entries=100), seen) is expected


@pytest.mark.parametrize(("tokens", "expected"), [(49_980, False), (49_981, True)])
def test_active_tokens_fire_above_n_with_summaries(tokens: int, expected: bool) -> None:
    """`max_active_tokens` fires at strictly more than n tokens of entries and current summaries."""
    seen = snapshot(f"u a u{tokens}", covered=[summary([1, 2], 20)])

    assert fires(Triggers(max_active_tokens=50_000), seen) is expected


def test_messages_fire_at_n() -> None:
    """`message_count` fires at n active messages."""
    assert not fires(Triggers(message_count=3), snapshot("u a"))
    assert fires(Triggers(message_count=3), snapshot("u a u"))


def test_idle_time_fires_once_there_is_something_new() -> None:
    """`idle_seconds` fires after n seconds without activity, and then not before one more interaction completed."""
    triggers = Triggers(idle_seconds=60)

    assert not fires(triggers, snapshot("u a"), idle=59.9)
    assert fires(triggers, snapshot("u a"), idle=60)
    assert not fires(triggers, snapshot("u a u", seen=3), idle=600, completed=False)
    assert fires(triggers, snapshot("u a u a", seen=3), idle=600, completed=False)


# --- which rule, and when


def test_the_first_rule_that_holds_is_reported() -> None:
    """One rule that holds is enough; the first of several is reported."""
    triggers = Triggers(interaction_threshold_qty=2, message_count=4, max_entries=50)

    assert look(triggers, snapshot(turns(2))).rule == "interaction_threshold_qty"
    assert look(triggers, snapshot("u c c c r r a")).rule == "message_count"


def test_the_nearest_rule_is_reported_if_none_holds() -> None:
    """If no rule holds, the one nearest to its threshold is reported."""
    triggers = Triggers(interaction_threshold_qty=10, message_count=4)

    assert look(triggers, snapshot("u a u")) == TriggerDecision(False, "message_count", 3, 4, ">=")
    assert look(Triggers(), snapshot("u a")) == TriggerDecision(False, "", 0, 0, ">=")


def test_rules_about_interactions_wait_for_one_to_complete() -> None:
    """Rules about interactions are checked only when an interaction is complete."""
    counts = {"interaction_threshold_qty": 1, "interaction_threshold_tokens": 1, "input_tokens_threshold": 1}
    sizes = {"max_entries": 1, "max_active_tokens": 1, "message_count": 1}
    seen = snapshot("u9 c r:find a9 u", max_tokens=10)

    for name, number in counts.items():
        triggers = Triggers(**{name: number})
        assert not fires(triggers, seen, completed=False, input_tokens=9)
        assert fires(triggers, seen, input_tokens=9)
    assert not fires(Triggers(on_tools_success_threshold=("*",)), seen, completed=False)
    for name, number in sizes.items():
        assert fires(Triggers(**{name: number}), seen, completed=False)
    assert fires(Triggers(threshold=0.1), seen, completed=False)


# --- quiet


@pytest.mark.parametrize("rule", ["interaction_threshold_qty", "message_count", "input_tokens_threshold"])
def test_a_rule_that_fired_is_quiet_until_one_more_interaction_completed(rule: str) -> None:
    """After a run a rule stays quiet until another interaction is complete."""
    triggers = Triggers(**{rule: 2})

    assert fires(triggers, snapshot(turns(3)), input_tokens=9)
    assert not fires(triggers, snapshot(turns(3), seen=7), input_tokens=9)
    assert not fires(triggers, snapshot(turns(3) + " u c r", seen=7), input_tokens=9)
    assert fires(triggers, snapshot(turns(4), seen=7), input_tokens=9)


def test_a_rule_over_entries_is_quiet_until_another_group_can_be_evicted() -> None:
    """A pinned group and an open call do not count as evictable; a human message after another one does."""
    triggers = Triggers(max_entries=2)

    assert not fires(triggers, snapshot("u u u", seen=4))
    assert not fires(triggers, snapshot("u u u s u! c", seen=4))
    assert fires(triggers, snapshot("u u u u", seen=4))


def test_a_token_rule_exceeded_by_kept_entries_measures_only_new_ones() -> None:
    """A token threshold that the kept part exceeds does not fire for ever: it measures what came after the last run."""
    big, small = Triggers(interaction_threshold_tokens=100), Triggers(max_active_tokens=100)
    log = "u10 a200"

    for triggers in (big, small):
        assert fires(triggers, snapshot(log))
        assert not fires(triggers, snapshot(f"{log} u10 a80", seen=3))
        assert look(triggers, snapshot(f"{log} u10 a80", seen=3)).observed == 90
        assert fires(triggers, snapshot(f"{log} u10 a80 u10 a10", seen=3))


def test_a_hard_limit_fires_even_while_a_rule_is_quiet() -> None:
    """If kept entries alone exceed a share, only new ones count, until the limit itself is exceeded."""
    triggers = Triggers(threshold=0.8)

    assert not fires(triggers, snapshot("u10 a80 u1 a5", seen=3, max_tokens=100))
    assert fires(triggers, snapshot("u10 a80 u1 a10", seen=3, max_tokens=100))


def test_after_a_run_nothing_fires_again_by_itself() -> None:
    """A strategy's own run leaves none of its numbers over their threshold, or leaves them quiet."""
    triggers = Triggers(interaction_threshold_qty=3, message_count=4, max_entries=5, max_active_tokens=20)
    before = snapshot(turns(6, 5, 5))
    strategy = Summarize(interaction_keep=2, triggers=triggers)

    assert fires(triggers, before)
    assert not fires(triggers, applied(before, strategy.plan(before)))


# --- how far away


def test_a_margin_says_how_much_may_be_added_before_a_rule_can_fire() -> None:
    """Tokens, entries, messages and interactions up to the threshold leave it open; one more closes it."""
    triggers = Triggers(interaction_threshold_qty=5, max_entries=10, threshold=0.8, message_count=7)
    left = margin(triggers, snapshot(turns(2, 10, 20), max_tokens=100))

    assert left == Margin(tokens=19, entries=6, messages=2, interactions=2)
    assert left.spent(19, 6, 2, 2).open
    for more in ((20, 0, 0, 0), (0, 7, 0, 0), (0, 0, 3, 0), (0, 0, 0, 3)):
        assert not left.spent(*more).open


def test_without_numeric_rules_a_margin_is_always_open() -> None:
    """Without numeric rules the margin is always open; rules about tools are recognised."""
    triggers = Triggers(on_tools_error_threshold=("*",), idle_seconds=5, input_tokens_threshold=9)

    assert margin(triggers, snapshot("u a")).spent(10**9, 10**9, 10**9, 10**9).open
    assert triggers.watches_tools
    assert not Triggers(message_count=3).watches_tools


def test_the_margin_of_a_quiet_rule_ends_with_the_next_interaction() -> None:
    """While a rule waits for something new, appends inside an open interaction need no look."""
    left = margin(Triggers(message_count=2), snapshot(turns(2) + " u", seen=6))

    assert left.spent(500, 5, 5, 0).open
    assert not left.spent(1, 1, 1, 1).open


WORDS = st.sampled_from(["u", "u20", "a", "a30", "c", "c9", "r", "r40", "x5:n.md", "s", "u3!", "a7!", "r9?"])
NUMBERS = st.integers(0, 12)
RULES = st.builds(
    Triggers,
    interaction_threshold_qty=NUMBERS,
    interaction_threshold_tokens=st.integers(0, 200),
    max_entries=NUMBERS,
    max_active_tokens=st.integers(0, 200),
    threshold=st.none() | st.floats(0.05, 1),
    message_count=NUMBERS,
    interaction_conditions=st.sampled_from([(), ("interaction.has_tools",), ("message.tokens > 10",)]),
)


@given(RULES, st.lists(WORDS, max_size=20), st.lists(WORDS, min_size=1, max_size=8), st.integers(0, 20), st.booleans())
def test_no_rule_fires_within_its_margin(
    triggers: Triggers, old: list[str], new: list[str], seen: int, limited: bool
) -> None:
    """For any log and any rules: what stays within the margin fires no rule that had not fired before."""
    limits = {"max_tokens": 150, "max_messages": 9} if limited else {}
    seen = min(seen, len(old) + 1)
    before = snapshot(" ".join(old), seen=seen, **limits)
    after = snapshot(" ".join(old + new), seen=seen, **limits)
    if fires(triggers, before):
        return

    added = [entry for group in after.groups for entry in group.entries if entry.seq > len(old)]
    tokens = sum(most(entry, meter()) for entry in added)
    ends = sum(word[0] in "ua" for word in new)
    calls = sum(entry.kind == "tool_call" for entry in added)  # each may be shown with a stand-in for its result
    left = margin(triggers, before).spent(tokens, len(new), len(new) + calls, ends)

    assert not (left.open and fires(triggers, after))


# --- configuration


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("interaction_threshold_qty", "20"),
        ("interaction_threshold_tokens", True),
        ("max_entries", 1.5),
        ("threshold", 0),
        ("threshold", 1.1),
        ("threshold", True),
        ("idle_seconds", float("nan")),
        ("idle_seconds", "5m"),
        ("max_tokens", 0),
        ("on_tools_success_threshold", "close"),
        ("on_tools_error_threshold", [3]),
        ("denied_is_error", 1),
        ("interaction_conditions", ["interaction.has_tool"]),
        ("interaction_conditions", "interaction.has_tools"),
    ],
)
def test_an_invalid_value_of_a_rule_is_refused_by_name(option: str, value: object) -> None:
    """A value that a rule may not have is refused when it is given, by the option's name."""
    with pytest.raises(ConfigError) as refused:
        Triggers(**{option: value})

    assert refused.value.where.startswith(option)


def test_a_wrong_field_in_a_condition_is_named_with_the_nearest() -> None:
    """A condition is checked when it is given; an unknown field names the nearest one."""
    with pytest.raises(ConfigError, match="has_tools") as refused:
        Triggers(interaction_conditions=("interaction.has_tool",))

    assert refused.value.nearest == "has_tools"


@pytest.mark.parametrize("off", [0, -1, None])
def test_none_and_numbers_of_0_or_less_leave_a_rule_off(off: int | None) -> None:
    """None and numbers of 0 or less switch a rule off."""
    names = ("interaction_threshold_qty", "interaction_threshold_tokens", "input_tokens_threshold", "max_entries")
    triggers = Triggers(**dict.fromkeys((*names, "max_active_tokens", "message_count", "idle_seconds"), off))

    assert triggers.enabled == ()
    assert not fires(triggers, snapshot(turns(30)), input_tokens=10**6, idle=10**6)

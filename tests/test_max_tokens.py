"""The short-term strategy `max_tokens`: budget, gap, conditions, and what is too big."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from laws import examples
from palimpsest import BudgetImpossible, ConfigError, Memory, PalimpsestWarning, Session
from palimpsest.context.terms import Terms
from palimpsest.errors import ConditionFailed
from palimpsest.strategies import MaxTokens
from palimpsest.testing import FakeClock
from test_erasing_costs import watched
from worlds import attempt, open_world


def words(text: str) -> int:
    """Count one token a word."""
    return len(text.split())


def open_session(memory: Memory, *strategies: Any, **options: Any) -> Session:
    return memory.session("s", counter=words, short_term=list(strategies), **options)


def block(limit: int | None, **more: Any) -> dict[str, Any]:
    return {"memory_strategy_id": "max_tokens", "memory_max_tokens": limit, **more}


def turn(session: Session, tokens: int, mark: str) -> None:
    """Add an interaction that costs `tokens`, whose human message contains `mark`."""
    session.add_user_message(mark)
    session.add_assistant_message("w " * (tokens - 1))


@pytest.fixture
def memory() -> Any:
    with Memory.open("memory://") as opened:
        yield opened


def humans(session: Session, **call: Any) -> list[str]:
    return [m["content"] for m in session.context(**call).messages if m["role"] == "user"]


@pytest.mark.parametrize(
    ("limit", "gap", "kept"),
    [
        (500, "stop", ["b", "c"]),
        (499, "stop", ["c"]),
        (499, "skip", ["a", "c"]),
        (600, "stop", ["a", "b", "c"]),
        (None, "stop", ["a", "b", "c"]),
    ],
)
def test_newest_whole_interactions_are_kept_while_they_fit(
    memory: Memory, limit: int | None, gap: str, kept: list[str]
) -> None:
    """Whole interactions are taken from the newest while they fit; `gap: skip` continues behind one that does not."""
    session = open_session(memory, block(limit, gap=gap))
    for tokens, mark in ((100, "a"), (200, "b"), (300, "c")):
        turn(session, tokens, mark)

    assert humans(session) == kept


def test_minus_one_includes_no_interaction_but_the_system_text(memory: Memory) -> None:
    """A budget of -1 includes nothing of the log but its system entries."""
    session = open_session(memory, block(-1))
    session.add_system_message("be kind")
    turn(session, 10, "a")

    messages = session.context(system="you are a clerk").messages

    assert messages == [
        {"role": "system", "content": "you are a clerk"},
        {"role": "system", "content": "be kind"},
    ]


def test_zero_is_the_same_as_minus_one_with_a_warning(memory: Memory) -> None:
    """A budget of 0 includes nothing and warns when it is configured."""
    with pytest.warns(PalimpsestWarning, match="memory_max_tokens is 0"):
        session = open_session(memory, block(0))
    turn(session, 10, "a")

    assert session.context().messages == []


@pytest.mark.parametrize("value", [-2, "8000", True, 1.5])
def test_an_invalid_budget_is_refused_by_name(memory: Memory, value: Any) -> None:
    """Below -1, or not a whole number, is a configuration error that names the key."""
    with pytest.raises(ConfigError, match="memory_max_tokens"):
        open_session(memory, block(value))


def test_the_documented_default_is_ten_thousand(memory: Memory) -> None:
    """An absent budget is 10,000; the other documented fields have their documented defaults."""
    strategy = MaxTokens()

    assert (strategy.memory_strategy_id, strategy.memory_max_tokens, strategy.conditions) == ("max_tokens", 10_000, ())


def big_turn(session: Session) -> None:
    """Add an interaction of 900 tokens, 700 of them in its tool result."""
    session.add_user_message("h " * 100)
    call = session.add_tool_call("look", "a " * 49)
    session.add_tool_result("look", "r " * 700, call_id=call.call_id)
    session.add_assistant_message("w " * 50)


def test_an_oversized_newest_interaction_is_shortened_around_its_human_message(memory: Memory) -> None:
    """`clamp` fits the newest interaction into the budget; the human text stays, a marker names the entry."""
    session = open_session(memory, block(500))
    big_turn(session)

    context = session.context()

    texts = [m["content"] or "" for m in context.messages]
    assert context.tokens <= 500
    assert texts[0] == "h " * 100
    result = session.entries()[2]
    assert any(f"entry {result.seq}, {result.id}" in text for text in texts)
    assert session.entry(result.id).content == "r " * 700


def test_oversize_drop_leaves_the_interaction_out(memory: Memory) -> None:
    """`drop` leaves an interaction out that does not fit, and the report says so."""
    session = open_session(memory, block(500, oversize="drop"))
    big_turn(session)

    context = session.context()

    assert context.messages == []
    assert "drop" in context.report.rungs


def test_oversize_error_raises_with_the_figures(memory: Memory) -> None:
    """`oversize="error"` raises BudgetImpossible with needed and available tokens."""
    session = open_session(memory, block(500, oversize="error"))
    big_turn(session)

    with pytest.raises(BudgetImpossible) as caught:
        session.context()

    assert (caught.value.needed, caught.value.available) == (900, 500)


def test_oversize_keep_newest_exceeds_the_budget_and_reports_it(memory: Memory) -> None:
    """`keep_newest` hands out more than the budget and marks the context over budget."""
    session = open_session(memory, block(500, oversize="keep_newest"))
    big_turn(session)

    context = session.context()

    assert context.tokens == 900
    assert context.problems == ("over_budget",)


def test_a_human_message_over_the_budget_is_impossible(memory: Memory) -> None:
    """A human message is never shortened; one over the budget raises BudgetImpossible."""
    session = open_session(memory, block(500))
    session.add_user_message("h " * 600)

    with pytest.raises(BudgetImpossible) as caught:
        session.context()

    assert (caught.value.needed, caught.value.available) == (600, 500)


def test_the_callers_system_text_comes_off_the_budget_first(memory: Memory) -> None:
    """System text takes from the budget before interactions do."""
    session = open_session(memory, block(500))
    for tokens, mark in ((100, "a"), (200, "b"), (300, "c")):
        turn(session, tokens, mark)

    assert humans(session, system="s") == ["c"]


def test_count_pinned_false_leaves_pins_outside_the_budget(memory: Memory) -> None:
    """`count_pinned: false` leaves pinned entries outside this one budget."""
    kept = {}
    for counted in (True, False):
        session = memory.session(f"{counted}", counter=words, short_term=[block(500, count_pinned=counted)])
        session.add_assistant_message("p " * 50, pinned=True)
        for tokens, mark in ((200, "b"), (300, "c")):
            turn(session, tokens, mark)
        kept[counted] = humans(session)

    assert kept == {True: ["c"], False: ["b", "c"]}


def test_strategies_run_in_order_on_the_remaining_interactions(memory: Memory) -> None:
    """Several strategies act one after the other; the tightest decides."""
    session = open_session(memory, block(600), block(300))
    for tokens, mark in ((100, "a"), (200, "b"), (300, "c")):
        turn(session, tokens, mark)

    assert humans(session) == ["c"]


@pytest.mark.parametrize("limit", range(7, 27))
def test_a_later_strategy_brings_nothing_back(memory: Memory, limit: int) -> None:
    """The second of two strategies only takes away: a question that the first one did not show is not added to what it
    has left, so its budget holds, too."""
    session = open_session(memory, block(limit), block(limit, count_pinned=False), max_tokens=1_000)
    session.add_user_message("keep in mind", pinned=True)
    for number in (1, 2):
        session.add_user_message("where " * 8)
        session.add_assistant_message(f"answer {number} here")
    session.add_user_message("next")
    evicted = session.compact({"strategy": "token_aware_lru", "max_tokens": 13, "low_water": 0.9})

    assert evicted.evicted == 2
    assert session.context().tokens <= limit


def test_a_later_strategy_makes_nothing_whole_again(memory: Memory) -> None:
    """What the first of two strategies has shortened stays so, even if the second one has more room."""
    for first, second in ((30, 100), (100, 30), (40, 40)):
        session = memory.session(f"{first}", counter=words, short_term=[block(first), block(second)])
        session.add_user_message("look")
        session.add_tool_result("look", "w " * 500, call_id=session.add_tool_call("look", {}).call_id)

        context = session.context()

        assert context.report.clamped == (3,)
        assert context.tokens <= min(first, second)


def test_an_exact_walk_stores_no_cut(memory: Memory) -> None:
    """`cut: exact` selects entries anew at each call and stores nothing."""
    session = open_session(memory, block(300))
    turn(session, 200, "a")
    turn(session, 300, "b")
    before = session.stats().revision

    context = session.context()

    assert (context.epoch, context.report.epoch_reason) == (None, "an exact walk")
    assert session.stats().revision == before
    assert {record.kind for record in session.history()} == {"add"}


def test_low_water_keeps_the_window_until_it_is_full(memory: Memory) -> None:
    """`cut: low_water` keeps the window until the budget is exceeded, then cuts deep."""
    session = open_session(memory, block(100, cut="low_water"))
    epochs = []
    for number in range(40):
        turn(session, 10, f"q{number}")
        epochs.append(session.context().epoch)

    runs = [len(list(run)) for _, run in itertools.groupby(epochs)]
    assert epochs[-1] >= 4
    assert min(runs[:-1]) >= 6


# --- conditions


def with_tools(session: Session) -> None:
    session.add_user_message("find it")
    call = session.add_tool_call("find", {"q": 1})
    session.add_tool_result("find", "found", call_id=call.call_id, status="error")
    session.add_assistant_message("here")


def test_dropping_a_result_drops_its_call(memory: Memory) -> None:
    """A condition that drops tool results drops their calls, too: no half pair is left."""
    session = open_session(memory, block(None, conditions=["message.role != 'tool'"]))
    with_tools(session)

    assert [m["content"] for m in session.context().messages] == ["find it", "here"]


def test_a_condition_on_interactions_drops_them_whole(memory: Memory) -> None:
    """A condition that names only the interaction drops the failing one whole, but not an open one's question."""
    session = open_session(memory, block(None, conditions=["interaction.tool_errors == 0"]))
    with_tools(session)
    turn(session, 5, "thanks")

    assert humans(session) == ["thanks"]


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        (["message.role in ['user', 'ai']"], ["one", "two", "three"]),
        (["len(message.content) < 200 and interaction.age <= 1"], ["two", "three"]),
        (["contains(message.content, 'two')"], ["two"]),
        (["message.metadata['lang'] == 'de'"], []),
        (["interaction.index >= 1", "interaction.age > 0"], ["two"]),
    ],
)
def test_all_conditions_must_hold(memory: Memory, conditions: list[str], kept: list[str]) -> None:
    """Conditions are joined by and; ages count from the newest interaction, indexes from the oldest."""
    session = open_session(memory, block(None, conditions=conditions))
    for mark in ("one", "two", "three"):
        turn(session, 3, mark)

    assert humans(session) == kept


@pytest.mark.parametrize("cut", ["exact", "low_water"])
def test_system_pinned_and_open_human_messages_are_exempt(memory: Memory, cut: str) -> None:
    """No condition drops system or pinned entries or an unanswered question."""
    session = open_session(memory, block(None, conditions=["message.content == 'nothing'"], cut=cut))
    session.add_system_message("rule")
    session.add_assistant_message("pinned", pinned=True)
    session.add_assistant_message("gone")
    session.add_user_message("open question")

    assert [m["content"] for m in session.context().messages] == ["rule", "pinned", "open question"]


@pytest.mark.parametrize(
    "blocks",
    [
        [block(60)],
        [block(60), block(60)],
        [block(500), block(200), block(60)],
        [block(60, cut="low_water")],
    ],
    ids=["one", "two", "three", "low water"],
)
def test_a_human_message_that_a_condition_drops_stays_out_of_its_interaction(
    memory: Memory, blocks: list[dict[str, Any]]
) -> None:
    """A dropped human message does not come back where only the newer part of its interaction fits."""
    conditions = ["message.content != 'dropped'"]
    session = open_session(
        memory, *({**one, "conditions": conditions} if not i else one for i, one in enumerate(blocks))
    )
    turn(session, 50, "older")
    session.add_user_message("dropped")
    session.add_assistant_message("first answer")
    for i in range(12):
        call = session.add_tool_call("find", "{}")
        session.add_tool_result("find", "w " * 10, call_id=call.call_id)
        session.add_assistant_message(f"step {i}")

        context = session.context()

        assert context.counted <= 60
        assert "dropped" not in humans(session)


@pytest.mark.parametrize("blocks", [[block(60)], [block(60), block(60)]], ids=["one", "two"])
def test_an_exact_walk_shows_nothing_that_has_expired(blocks: list[dict[str, Any]]) -> None:
    """An exact walk shows no human message that has expired, and none that it has not counted."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = open_session(memory, *blocks)
        session.add_user_message("expired " * 8, expires_at=datetime.fromtimestamp(clock.now / 1e6 + 60, UTC))
        clock.advance(120)
        session.add_context("w " * 52, name="file")

        context = session.context()

        assert context.counted <= 60
        assert [m["content"] for m in context.messages if "expired" in m["content"]] == []


def test_conditions_run_before_the_budget(memory: Memory) -> None:
    """Conditions run before the budget."""
    session = open_session(memory, block(20, conditions=["message.role != 'tool'"]))
    session.add_user_message("q")
    call = session.add_tool_call("find", "{}")
    session.add_tool_result("find", "w " * 100, call_id=call.call_id)
    session.add_assistant_message("a")

    assert [m["content"] for m in session.context().messages] == ["q", "a"]


@pytest.mark.parametrize("walks", [1, 2, 3])
@pytest.mark.parametrize("limit", range(4, 16))
@pytest.mark.parametrize("why", ["condition", "expiry"])
def test_a_walk_does_not_bring_back_the_question_that_it_left_out(why: str, limit: int, walks: int) -> None:
    """If a walk shows an answer without its question, the question stays out, and the budget is kept."""
    clock = FakeClock()
    rules = ["not contains(message.content, 'secret')"] if why == "condition" else []
    with Memory.open("memory://", clock=clock) as memory:
        session = open_session(memory, *[block(limit, conditions=rules)] * walks)
        soon = datetime.fromtimestamp(clock.now // 1_000_000 + 5, UTC) if why == "expiry" else None
        for number in range(4):
            session.add_user_message(f"secret {number}", expires_at=soon)
            session.add_assistant_message(f"answer {number} it is")
        clock.advance(10)

        context = session.context()

        assert [m["content"] for m in context.messages] == [f"answer {n} it is" for n in range(4)][-(limit // 4) :]
        assert context.tokens <= limit


BULKY = {
    "results": ("message.kind != 'tool_result'", None),
    "questions": ("not contains(message.content, 'bulky')", None),
    "notes": (None, {"notes": 0.0}),
}
"""What a condition, or the share of a tag, leaves out of a long log."""


@pytest.mark.parametrize("cut", ["exact", "low_water"])
@pytest.mark.parametrize("what", BULKY)
def test_what_is_left_out_of_a_long_log_takes_no_room(memory: Memory, what: str, cut: str) -> None:
    """A context of a long log shows what it would show if what is left out had never been said, and nothing of that."""
    condition, shares = BULKY[what]
    conditions = [condition] if condition else []
    with_all = memory.session(
        "all",
        counter=words,
        max_tokens=1_000,
        tag_shares=shares,
        short_term=[block(1_000, conditions=conditions, cut=cut)],
    )
    without = memory.session("none", counter=words, max_tokens=1_000, short_term=[block(1_000, cut=cut)])
    batches: dict[Session, list[Any]] = {with_all: [], without: []}
    for number in range(600):
        bulk = "bulky " * 60
        question, answer = {"role": "user", "content": f"q {number}"}, {"role": "assistant", "content": f"a {number}"}
        batches[without] += [answer] if what == "questions" else [question, answer]
        if what == "results":
            call = {"id": str(number), "type": "function", "function": {"name": "look", "arguments": "{}"}}
            called = {"role": "assistant", "content": None, "tool_calls": [call]}
            batches[with_all] += [
                question,
                called,
                {"role": "tool", "tool_call_id": str(number), "content": bulk},
                answer,
            ]
        elif what == "questions":
            batches[with_all] += [{"role": "user", "content": bulk}, answer]
        else:
            note = {"role": "assistant", "content": bulk, "metadata": {"tags": ["notes"]}}
            batches[with_all] += [question, note, answer]
    for session, messages in batches.items():
        session.add(messages)

    shown, expected = with_all.context(), without.context()

    assert [m["content"] for m in shown.messages] == [m["content"] for m in expected.messages]
    assert shown.tokens == expected.tokens


def test_a_condition_that_fails_keeps_the_message_and_sends_one_event(memory: Memory) -> None:
    """A failing condition keeps the message and sends one event per expression and session."""
    seen: list[dict[str, Any]] = []
    memory.on("condition:error", lambda session, facts: seen.append(facts))
    session = open_session(memory, block(None, conditions=["message.metadata.rank < 3"]))
    turn(session, 3, "kept")

    contents = [humans(session) for _ in range(3)]

    assert contents == [["kept"]] * 3
    assert [facts["condition"] for facts in seen] == ["message.metadata.rank < 3"]


def test_strict_raises_where_a_condition_fails(memory: Memory) -> None:
    """`strict: true` raises instead of keeping."""
    session = open_session(memory, block(None, conditions=["message.metadata.rank < 3"], strict=True))
    turn(session, 3, "a")

    with pytest.raises(ConditionFailed, match="rank"):
        session.context()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"memory_max_token": 5}, "memory_max_tokens"),
        ({"memory_strategy_id": "max_token"}, "memory_strategy_id"),
        ({"gap": "jump"}, "gap"),
        ({"oversize": "squash"}, "oversize"),
        ({"cut": "deep"}, "cut"),
        ({"conditions": "message.role == 'user'"}, "conditions"),
        ({"conditions": ["message.rolle == 'x'"]}, "role"),
        ({"strict": 1}, "strict"),
        ({"memory_max_tokens": 500}, "memory_strategy_id"),
    ],
)
def test_a_block_is_checked_when_it_is_given(memory: Memory, given: dict[str, Any], named: str) -> None:
    """Every unknown key and bad value of a block is an error that names it, before anything is read."""
    with pytest.raises(ConfigError, match=named):
        open_session(memory, given)


def test_native_conditions_act_in_the_ordinary_window(memory: Memory) -> None:
    """`conditions` given to a session act without a block, and static ones before any cut."""
    session = memory.session("n", counter=words, max_tokens=1_000, conditions=["message.role != 'tool'"])
    with_tools(session)

    assert [m["content"] for m in session.context().messages] == ["find it", "here"]
    assert not session.context().report.new_cut


def test_changed_conditions_begin_a_new_epoch(memory: Memory) -> None:
    """Other conditions than those of the present cut make a new one, for that reason."""
    plain = memory.session("c", counter=words, max_tokens=1_000)
    with_tools(plain)
    plain.context()
    plain.add_user_message("more")
    other = memory.session("c", counter=words, max_tokens=1_000, conditions=["message.role != 'tool'"])

    first = other.context()

    assert [m["content"] for m in first.messages] == ["find it", "here", "more"]
    assert (first.epoch, first.report.epoch_reason) == (1, "changed configuration")


def test_the_newest_result_is_clamped_to_the_room_of_low_water(memory: Memory) -> None:
    """An oversized newest result is shortened to the room down to low water, not to a sliver."""
    session = memory.session("big", counter=words, max_tokens=1_000)
    session.add_user_message("q " * 10)
    calls = [session.add_tool_call("look", "{}") for _ in range(2)]
    session.add_tool_result("look", "small", call_id=calls[0].call_id)
    session.add_tool_result("look", "w " * 5_000, call_id=calls[1].call_id)

    context = session.context()

    assert 250 < context.tokens <= 360
    assert "clamp" in context.report.rungs


def test_a_newest_group_that_cannot_be_clamped_to_fit_is_reported(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    """A newest group of too many calls cannot be shown: a model that is asked again would make the same calls for ever.
    So the report says it, and the program's log; what could be shortened is no such group."""
    session = memory.session("s", counter=words, max_tokens=40)
    session.add_user_message("look everywhere")
    calls = [session.add_tool_call("look", {"place": place}) for place in range(60)]
    for call in calls:
        session.add_tool_result("look", "nothing here", call_id=call.call_id)

    context = session.context()

    assert [message["content"] for message in context.messages] == ["look everywhere"]
    assert "newest" in context.report.rungs
    assert ["session s" in record.getMessage() for record in caplog.records] == [True]
    caplog.clear()
    shown = memory.session("t", counter=words, max_tokens=40)
    shown.add_user_message("look here")
    shown.add_tool_result("look", "w " * 500, call_id=shown.add_tool_call("look", {}).call_id)
    assert len(shown.context().messages) == 3
    assert "newest" not in shown.context(dry_run=True).report.rungs
    assert caplog.records == []


# --- how much is read


def test_an_exact_walk_reads_the_window_not_the_log(tmp_path: Path) -> None:
    """A context of an exact walk reads as many rows of a log of 12,000 entries as of one of 1,200."""
    found = []
    for turns in (600, 6_000):
        with Memory.open(tmp_path / f"{turns}.db", synchronous="NORMAL") as memory:
            session = open_session(memory, block(100))
            session.add_system_message("be kind")
            for _ in range(turns // 100):
                session.add([{"role": role, "content": "w w"} for _ in range(100) for role in ("user", "assistant")])
            session.count()
            with watched(memory) as seen:
                assert session.context().tokens == 98
            found.append(seen.rows())

    assert found[0] == found[1]
    assert found[0] < 700


WALKS = st.lists(
    st.fixed_dictionaries(
        {"limit": st.none() | st.integers(-1, 80)},
        optional={
            "gap": st.sampled_from(["stop", "skip"]),
            "count_pinned": st.booleans(),
            "oversize": st.sampled_from(["clamp", "drop", "keep_newest"]),
            "conditions": st.sampled_from([["message.role != 'tool'"], ["message.role == 'assistant'"]]),
        },
    ),
    min_size=1,
    max_size=2,
)


@pytest.mark.slow  # of many examples one fails still: a limit of one token beside a call without a result
@pytest.mark.filterwarnings("ignore:.*memory_max_tokens is 0:palimpsest.PalimpsestWarning")
@settings(max_examples=examples(60), deadline=None)
@given(log=strategies.logs(most=20), walks=WALKS, limit=st.none() | st.integers(20, 200), masks=st.booleans())
def test_an_exact_walk_shows_the_same_whatever_was_read(
    tmp_path_factory: pytest.TempPathFactory, log: Any, walks: list[dict[str, Any]], limit: int | None, masks: bool
) -> None:
    """A context of an exact walk is the same, however little is read at once, as where the whole log is read."""
    blocks = [block(**walk) for walk in walks]
    options: dict[str, Any] = {"short_term": blocks, "max_tokens": limit, "mask": masks}
    with open_world("forgetful", tmp_path_factory.mktemp("walk"), **options) as world:
        session, shown = world.play(log), list[Any]()
        for chunk, whole in ((2, False), (1000, True)):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("palimpsest.context.reading.CHUNK", chunk)
                if whole:
                    patched.setattr(Terms, "walks_all", True)
                context = attempt(session)
                shown.append(None if context is None else context.messages)

    assert shown[0] == shown[1]


@pytest.mark.parametrize("mask", [True, False])
def test_what_a_condition_drops_ends_no_reading(memory: Memory, mask: bool) -> None:
    """Under a budget of the session, too, interactions are taken while they fit without what a condition drops."""
    conditions = ["message.role != 'tool'"]
    session = open_session(memory, block(None, conditions=conditions), max_tokens=1_000, mask=mask)
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    for _ in range(4):
        session.add(
            [
                {"role": "user", "content": "w " * 5},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "w " * 500},
                {"role": "assistant", "content": "w " * 5},
            ]
            * 50
        )

    assert session.context().tokens == 1_000
    assert len(humans(session)) == 100

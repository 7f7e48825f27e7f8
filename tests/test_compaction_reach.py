"""What triggers count and strategies may take when there is a budget, and messages without an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import Memory, Session
from palimpsest.testing import FakeClock
from palimpsest.tokens.counter import FunctionCounter
from talks import Listener, Scripted, filler, talk, use_tool, words
from writer import quarters

LIMITS: list[dict[str, Any]] = [
    {"max_tokens": 40},
    {"max_tokens": 130},
    {"max_messages": 5},
    {"short_term": {"memory_strategy_id": "max_tokens", "memory_max_tokens": 40}},
    {"short_term": {"memory_strategy_id": "max_tokens", "memory_max_tokens": 40, "cut": "low_water"}},
]
FORGETFUL = {"long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 30, "interaction_keep": 5}


def texts(chat: Session) -> list[str]:
    return [entry.text for entry in chat.active_entries()]


def say(chat: Session, *costs: int, start: int = 0) -> None:
    """Add human messages of so many tokens each, without answers."""
    for i, cost in enumerate(costs, start):
        chat.add_user_message(f"m{i} {filler(cost - 1)}".strip())


# --- what limits leave


@pytest.mark.parametrize("long_term", ["simple_fifo", "ladder"])
def test_a_threshold_is_a_share_of_the_room_beside_the_system_text(long_term: str) -> None:
    """A threshold is a share of the room beside the system text, which is counted, not bounded by its bytes."""
    system = f"You answer for a shop that sells tools, {long_term} among them. " * 60
    with Memory.open("memory://") as memory:
        rule = {"strategy": long_term, "triggers": {"threshold": 0.8}}
        chat = memory.session("one", model="gpt-4o", max_tokens=8_000, long_term=rule)
        made: list[Any] = []
        while not made:
            chat.add_user_message("question " * 60)
            chat.add_assistant_message("answer " * 60)
            chat.count()  # otherwise bounds alone would not decide whether the log fits
            parts = chat.context(system=system).parts
            made = [record.detail for record in chat.history() if record.kind == "compact"]

        most = 0.8 * (8_000 - parts.system - parts.overhead)
        assert most <= made[0]["trigger"]["observed"] < most + 200


# --- beside a budget


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_neuralyzer_erases_at_its_number_whatever_the_budget_is(tmp_path: Path, limit: dict[str, Any]) -> None:
    """At 30 interactions a neuralyzer erases 25, even those that cuts took out of the context before."""
    path = tmp_path / "log.db"
    with Memory.open(path) as memory:
        chat = memory.session("one", counter=words, long_term=FORGETFUL, **limit)
        for i in range(29):
            chat.add_user_message(f"marker{i}swordfish and more")
            chat.context()
            chat.add_assistant_message("fine, and so on")
        assert not any(entry.erased for entry in chat.entries())

        talk(chat, 10, start=29)

        assert sum(entry.erased for entry in chat.entries()) == 50
        assert chat.verify().ok
        told = json.dumps(chat.export()) + json.dumps(chat.context().messages)
        assert "marker24swordfish" not in told
        assert "marker25swordfish" in told
    held = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"marker24swordfish" not in held
    assert b"marker25swordfish" in held


@pytest.mark.parametrize("kind", ["summarizer", "hybrid_summary", "neuralyzer", "simple_fifo", "lru"])
@pytest.mark.parametrize("rule", [{"interaction_threshold_qty": 12}, {"interaction_threshold_tokens": 230}], ids=str)
def test_a_budget_starves_no_trigger_on_interactions(kind: str, rule: dict[str, int]) -> None:
    """A trigger on interactions or their tokens fires at its number, although the budget shows only a few of them."""
    options: dict[str, Any] = {"summary_tokens": 5} if kind == "hybrid_summary" else {}
    with Memory.open("memory://") as memory:
        heard = Listener().to(memory, "compressed", "evicted", "erased", "compaction:skipped", "compaction:failed")
        chat = memory.session("one", counter=words, long_term={"strategy": kind, "triggers": rule, **options})
        reader = memory.session("one", counter=words, max_tokens=60)
        for i in range(11):
            chat.add_user_message(f"q{i} {filler(9)}")
            reader.context()
            chat.add_assistant_message(f"a{i} {filler(9)}")
        assert {name for name, facts in heard.heard if "strategy" not in facts} == {"evicted"}
        assert not any("strategy" in facts for _, facts in heard.heard)

        talk(chat, 20, start=11)

        (first,) = {facts["result"].decision.rule for _, facts in heard.heard if "strategy" in facts}
        assert first == next(iter(rule))
        assert chat.verify().ok


def test_an_evicting_strategy_counts_from_zero_after_it_ran(memory: Memory) -> None:
    """After an evicting strategy has run, its trigger counts from zero, including what cuts had evicted before."""
    heard = Listener().to(memory, "evicted", "compaction:skipped")
    rules = {"interaction_threshold_qty": 10}
    chat = memory.session("one", counter=words, max_tokens=60, long_term={"strategy": "simple_fifo", "triggers": rules})
    fired = []
    for i in range(24):
        chat.add_user_message(f"q{i} {filler(9)}")
        chat.context()
        chat.add_assistant_message(f"a{i} {filler(9)}")
        if any("strategy" in facts for _, facts in heard.heard):
            fired.append(i + 1)
        heard.heard.clear()

    assert fired[0] == 10
    assert 1 < len(fired) <= 4


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    costs=st.lists(st.integers(2, 30), min_size=1, max_size=10),
    keep=st.integers(0, 3),
    budget=st.integers(40, 120),
    answered=st.lists(st.booleans(), min_size=10, max_size=10),
)
def test_contexts_move_no_trigger(costs: list[int], keep: int, budget: int, answered: list[bool]) -> None:
    """An erasing strategy takes the same entries at the same time, whether contexts are made in between or not."""
    rules = {"interaction_threshold_qty": 4, "interaction_threshold_tokens": 90}
    block = {"strategy": "neuralyzer", "interaction_keep": keep, "triggers": rules}
    with Memory.open("memory://", clock=FakeClock()) as memory:
        one, other = (memory.session(name, counter=words, max_tokens=budget, long_term=block) for name in "ab")
        for i, cost in enumerate(costs):
            for chat in (one, other):
                chat.add_user_message(f"q{i} {filler(cost)}")
                if chat is other:
                    chat.context()
                if answered[i]:
                    chat.add_assistant_message(f"a{i} {filler(cost)}")

            assert [entry.erased for entry in one.entries()] == [entry.erased for entry in other.entries()]
        assert other.verify().ok


# --- of messages that nobody has answered


@pytest.fixture
def plain(memory: Memory) -> Session:
    """A session of eighty human messages without any answer."""
    chat = memory.session("one", counter=words, max_messages=100, auto_compact="off")
    say(chat, *[3] * 80)
    return chat


@pytest.mark.parametrize("kind", ["simple_fifo", "lru", "token_aware_lru", "hybrid_summary", "summarizer", "ladder"])
def test_every_strategy_compacts_a_log_of_human_messages_alone(memory: Memory, kind: str) -> None:
    """Human messages without an answer are compacted like others, except the newest, which may yet be answered."""
    options: dict[str, Any] = {"summary_tokens": 40} if kind == "hybrid_summary" else {}
    chat = memory.session("one", counter=words, max_tokens=800, max_messages=100, auto_compact="off")
    say(chat, *[10] * 60)

    done = chat.compact({"strategy": kind, **options})

    assert done.reason is None, done.why
    assert done.covered + done.evicted >= 15
    assert texts(chat)[-1].startswith("m59 ")
    assert chat.verify().ok


def test_a_neuralyzer_erases_what_nobody_has_answered(memory: Memory) -> None:
    """Among human messages alone, a neuralyzer keeps `interaction_keep` of them and the newest, which is open."""
    chat = memory.session("one", counter=words)
    say(chat, *[3] * 10)

    assert chat.compact({"strategy": "neuralyzer", "interaction_keep": 2}).erased == 7


def test_only_the_newest_interaction_is_open(memory: Memory) -> None:
    """Two human messages in a row are two interactions, of which only the newer one is open."""
    chat = memory.session("one", counter=words)
    chat.add_user_message("one")
    chat.add_user_message("two")
    chat.add_tool_call("find", {}, call_id="c")
    chat.add_user_message("three")

    assert [one.open for one in chat.interactions()] == [False, False, True]


@pytest.mark.parametrize("how", ["one by one", "one batch"])
def test_the_next_human_message_completes_an_interaction_without_an_answer(memory: Memory, how: str) -> None:
    """A trigger of five interactions fires when the sixth human message in a row comes, not before."""
    block = {"strategy": "neuralyzer", "interaction_keep": 0, "triggers": {"interaction_threshold_qty": 5}}
    chat = memory.session("one", counter=words, long_term=block)
    say(chat, *[3] * 5)
    assert not any(entry.erased for entry in chat.entries())
    if how == "one batch":
        chat = memory.session("two", counter=words, long_term=block)
        chat.add([{"role": "user", "content": f"m{i} and more"} for i in range(5)])
        assert not any(entry.erased for entry in chat.entries())

    chat.add_user_message("m5 at last")

    assert texts(chat) == ["m5 at last"]


def test_a_human_message_after_an_answer_completes_nothing(memory: Memory) -> None:
    """Usage that is reported between two interactions fires at the end of the next one, not at its question."""
    heard = Listener().to(memory, "compressed")
    rules = {"input_tokens_threshold": 100}
    chat = memory.session("one", counter=words, long_term={"strategy": "summarizer", "triggers": rules})
    talk(chat, 100, 100)
    chat.record_usage(input_tokens=101)
    chat.add_user_message("and now?")
    assert heard.names() == []

    chat.add_assistant_message("now it ends")

    assert heard.names() == ["compressed"]


# --- what is documented of flushing


def test_simple_fifo_by_request_keeps_the_newest_half(plain: Session) -> None:
    """With 80 messages of at most 100, `simple_fifo` keeps the newest 50."""
    done = plain.compact("simple_fifo")

    assert (done.evicted, done.messages_before, done.messages_after) == (30, 80, 50)
    assert [text.split()[0] for text in texts(plain)] == [f"m{i}" for i in range(30, 80)]


def test_simple_fifo_by_request_takes_a_quarter_where_messages_are_not_limited(memory: Memory) -> None:
    """Without a limit of messages `simple_fifo` evicts a quarter; below half of the limit it evicts nothing."""
    by_tokens = memory.session("tokens", counter=words, max_tokens=10_000, auto_compact="off")
    say(by_tokens, *[5] * 40)
    by_count = memory.session("count", counter=words, max_messages=100, auto_compact="off")
    say(by_count, *[5] * 30)

    assert by_tokens.compact("simple_fifo").messages_after == 30
    unchanged = by_count.compact("simple_fifo")

    assert (unchanged.reason, unchanged.tokens_after, len(texts(by_count))) == ("nothing_to_compact", 150, 30)


def test_simple_fifo_by_request_goes_to_low_water_in_tokens(memory: Memory) -> None:
    """With limits of tokens and messages, `simple_fifo` evicts until both are at low water."""
    chat = memory.session("one", counter=words, max_tokens=1000, max_messages=100, auto_compact="off")
    say(chat, *[180] * 5)

    done = chat.compact("simple_fifo")

    assert (done.messages_after, done.tokens_after) == (2, 360)


def test_one_message_over_low_water_stays_and_nothing_runs_again(memory: Memory) -> None:
    """A single message over low water stays, and no second flush is tried for it."""
    heard = Listener().to(memory, "evicted", "compaction:skipped")
    rules = {"threshold": 0.8}
    chat = memory.session(
        "one", counter=words, max_tokens=1000, long_term={"strategy": "simple_fifo", "triggers": rules}
    )
    say(chat, 300, 600)

    assert (heard.names(), [len(text.split()) for text in texts(chat)]) == (["evicted"], [600])
    assert chat.compact("simple_fifo").reason == "nothing_to_compact"


def test_token_aware_lru_by_request_evicts_the_largest_stale_ones(memory: Memory) -> None:
    """`token_aware_lru` evicts what is large and stale first: of equal sizes the oldest."""
    counter = FunctionCounter(quarters, name="quarters")
    many = memory.session("many", counter=counter, max_tokens=100, auto_compact="off")
    for i in range(20):
        many.add_user_message(f"m{i:<3}".ljust(40, "x"))
    few = memory.session("few", counter=counter, max_tokens=30, auto_compact="off")
    for size in (1, 17, 5, 1):
        few.add_user_message("x" * 4 * size)

    of_many, of_few = many.compact("token_aware_lru"), few.compact("token_aware_lru")

    assert (of_many.messages_after, of_many.tokens_after) == (5, 50)
    assert [text[:3] for text in texts(many)] == [f"m{i}" for i in range(15, 20)]
    assert (of_few.evicted, of_few.tokens_after) == (1, 7)
    assert [len(text) // 4 for text in texts(few)] == [1, 5, 1]


@pytest.mark.sampled
def test_limits_hold_for_messages_that_nobody_has_answered(memory: Memory) -> None:
    """Messages without answers keep both limits: contexts always, the active set with inline compaction.

    Each context also fits while the summarizer is down.
    """
    limits: dict[str, Any] = {"counter": words, "max_tokens": 100, "max_messages": 7}
    off = memory.session("off", **limits, auto_compact="off", long_term="simple_fifo")
    inline = memory.session("inline", **limits, long_term={"strategy": "simple_fifo", "triggers": {"threshold": 0.8}})
    down = memory.session(
        "down",
        **limits,
        summarizer=Scripted(RuntimeError("down")),
        long_term={"strategy": "hybrid_summary", "summary_tokens": 20, "triggers": {"threshold": 0.8}},
    )

    say(off, *[10] * 50)
    assert len(texts(off)) == 50
    for i in range(50):
        for chat in (inline, down):
            say(chat, 10, start=i)
        assert len(texts(inline)) <= 7
        assert sum(map(words, texts(inline))) <= 100
        for chat in (off, inline, down):
            context = chat.context()
            assert context.tokens <= 100
            assert len(context.messages) <= 7
            assert f"m{49 if chat is off else i} " in str(context.messages[-1]["content"])
    for chat in (off, inline, down):
        assert chat.verify().ok


def test_a_tool_that_succeeds_fires_once_beside_a_budget(memory: Memory) -> None:
    """A listed tool's success fires once, at the end of its interaction, although cuts took what came before."""
    heard = Listener().to(memory, "erased")
    rules = {"on_tools_success_threshold": ["close_*"]}
    block = {"strategy": "neuralyzer", "interaction_keep": 1, "triggers": rules}
    chat = memory.session("one", counter=words, max_tokens=120, long_term=block)
    talk(chat, 50, 50)
    chat.context()
    use_tool(chat, "close_ticket", "error")
    use_tool(chat, "close_ticket", "unknown")
    chat.context()
    assert heard.names() == []

    use_tool(chat, "close_ticket", "success")
    assert heard.names() == ["erased"]
    talk(chat, 50)
    assert heard.names() == ["erased"]
    use_tool(chat, "close_ticket", "success")
    assert heard.names() == ["erased", "erased"]
    assert chat.verify().ok

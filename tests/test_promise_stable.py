"""Promise 3, stable: within an epoch the earlier context's log messages are a prefix of the later one's."""

from __future__ import annotations

import itertools
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from laws import examples
from palimpsest.context.result import Context
from worlds import KINDS, World, attempt, open_world

pytestmark = pytest.mark.parametrize("kind", KINDS)
law = settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])


def head_of(ctx: Context) -> list[bytes]:
    """Return the messages that a cut has put before the log: pins and open human messages."""
    return rules.packed(ctx.head_messages)


def assert_prefixes_are_stable(contexts: list[tuple[Context, str | None]]) -> None:
    """Assert that contexts of one epoch begin with the same bytes, and that each new epoch gives a reason."""
    for i, (earlier, _) in enumerate(contexts):
        for later, _ in contexts[i + 1 :]:
            if earlier.epoch is not None and earlier.epoch == later.epoch:
                assert rules.is_prefix(rules.packed(earlier.log_messages), rules.packed(later.log_messages))
                assert head_of(earlier) == head_of(later)
    for (before, _), (after, _) in itertools.pairwise(contexts):
        if before.epoch != after.epoch:
            assert after.report.epoch_reason


@pytest.mark.sampled
@law
@given(data=st.data(), log=strategies.logs(most=20), budget=st.integers(15, 200))
def test_contexts_of_one_epoch_share_their_prefix(
    kind: str, folder: Path, data: st.DataObject, log: list[Any], budget: int
) -> None:
    """The prefix stays while entries are added, time passes, and system, tools and reserve differ between calls."""
    with open_world(kind, folder, max_tokens=budget) as world:
        contexts = []
        for operation in log:
            world.play([operation])
            world.clock.advance(data.draw(st.sampled_from([0, 0, 20]), label="seconds"))
            request = data.draw(strategies.requests, label="request")
            ctx = attempt(world.session, **request)
            if ctx is not None:
                contexts.append((ctx, request["system"]))

        assert_prefixes_are_stable(contexts)


@pytest.mark.sampled
@law
@given(
    data=st.data(),
    log=strategies.logs(most=20),
    budget=st.integers(15, 200),
    conditions=st.sampled_from([(), ("message.role != 'assistant'",), ("not message.has_tool_calls",)]),
)
def test_pins_and_usage_between_calls_leave_the_prefix(
    kind: str, folder: Path, data: st.DataObject, log: list[Any], budget: int, conditions: tuple[str, ...]
) -> None:
    """Pinning, unpinning and reported usage leave the prefix alone until the next cut, which gives a reason."""
    with open_world(kind, folder, max_tokens=budget, conditions=conditions) as world:
        contexts = []
        for operation in log:
            world.play([operation])
            seqs = [entry.seq for entry in world.session.entries()]
            what = data.draw(st.sampled_from(["nothing", "pin", "unpin", "usage"]), label="between")
            if what == "usage":
                world.session.record_usage(input_tokens=100, output_tokens=10)
            elif what != "nothing" and seqs:
                getattr(world.session, what)(data.draw(st.sampled_from(seqs), label="entry"))
            ctx = attempt(world.session)
            if ctx is not None:
                contexts.append((ctx, None))

        assert_prefixes_are_stable(contexts)


@pytest.mark.parametrize("seed", range(8))
def test_a_condition_that_drops_an_open_call_leaves_its_group_open(kind: str, folder: Path, seed: int) -> None:
    """A whole group is held back until each of its calls is answered, even where a condition drops some of them."""
    chance = random.Random(seed)
    with open_world(kind, folder, max_tokens=2_000, conditions=["not contains(message.content, 'secret')"]) as world:
        session, contexts, waiting = world.session, list[tuple[Context, str | None]](), list[str]()

        def words() -> str:
            return chance.choice(["a secret", "something", "more of it"])

        def called(number: int) -> dict[str, Any]:
            waiting.append(f"call_{number}")
            arguments = json.dumps({"about": words()})
            return {"id": waiting[-1], "type": "function", "function": {"name": "find", "arguments": arguments}}

        numbers = itertools.count()
        for _ in range(30):
            what = chance.choice(["call", "result", "result"]) if waiting else chance.choice(["user", "said", "said"])
            if what == "user":
                session.add_user_message(words())
            elif what == "said":
                calls = [called(next(numbers)) for _ in range(chance.randint(1, 3))]
                content = chance.choice([words(), words(), None])
                session.add({"role": "assistant", "content": content, "tool_calls": calls})
            elif what == "call":
                one = called(next(numbers))
                session.add_tool_call("find", one["function"]["arguments"], call_id=one["id"])
            else:
                session.add_tool_result(None, words(), call_id=waiting.pop(chance.randrange(len(waiting))))
            ctx = session.context()
            contexts.append((ctx, None))

            assert sorted(ctx.pending) == sorted(waiting)
            held = [left for left in ctx.report.left_out if left.reason == "open calls"]
            assert bool(held) == bool(waiting)
            assert not any(id in str(ctx.messages) for id in waiting)

        assert_prefixes_are_stable(contexts)


@pytest.mark.sampled
@law
@given(log=strategies.logs(most=20), budget=st.integers(30, 200), conditions=st.booleans())
def test_two_views_with_conditions_do_not_disturb_each_other(
    kind: str, folder: Path, log: list[Any], budget: int, conditions: bool
) -> None:
    """Each view of a session has cuts of its own, and the law holds in each of them."""
    options: dict[str, Any] = {"conditions": ["message.tokens < 60"]} if conditions else {}
    with open_world(kind, folder, max_tokens=budget, **options) as world:
        small = world.memory.session("s", **{**world.options, "max_tokens": max(budget // 3, 10), "view": "small"})
        given: dict[str, list[tuple[Context, str | None]]] = {"main": [], "small": []}
        for operation in log:
            world.play([operation])
            for name, session in (("main", world.session), ("small", small)):
                ctx = attempt(session)
                if ctx is not None:
                    given[name].append((ctx, None))
        for contexts in given.values():
            assert_prefixes_are_stable(contexts)


@pytest.mark.sampled
@law
@given(data=st.data(), log=strategies.logs(), budget=st.integers(15, 200))
def test_a_change_of_epoch_has_a_record(
    kind: str, folder: Path, data: st.DataObject, log: list[Any], budget: int
) -> None:
    """Between two contexts of different epochs the history holds a cut, an erasure or a clear, with its reason."""
    with open_world(kind, folder, max_tokens=budget) as world:
        before: Context | None = None
        for operation in log:
            world.play([operation])
            if data.draw(st.integers(0, 5), label="erase") == 0:
                world.session.erase(data.draw(st.sampled_from([entry.seq for entry in world.session.entries()])))
            ctx = attempt(world.session)
            if ctx is None:
                continue
            if before is not None and before.epoch != ctx.epoch:
                since = [
                    record for record in world.session.history() if before.revision < record.revision <= ctx.revision
                ]
                assert any(record.kind in ("cut", "erase", "clear") and record.reason for record in since)
            before = ctx


def test_an_erasure_is_the_reason_of_the_next_context(kind: str, folder: Path) -> None:
    """The first context after an erasure begins a new epoch and says that erasure is why."""
    with open_world(kind, folder, max_tokens=1000) as world:
        world.session.add_user_message("one")
        secret = world.session.add_assistant_message("secret")
        world.session.add_user_message("two")
        before = world.session.context()

        world.session.erase([secret.id])
        after = world.session.context()

        assert after.epoch != before.epoch
        assert after.report.epoch_reason == "erasure"
        assert not world.session.context().report.new_cut


@pytest.mark.sampled
@law
@given(log=strategies.logs(), budget=st.integers(15, 200), request=strategies.requests)
def test_another_program_is_given_the_same_context(
    kind: str, folder: Path, log: list[Any], budget: int, request: dict[str, Any]
) -> None:
    """A context depends only on what is stored: another object on the same store gives the same messages."""
    with open_world(kind, folder, max_tokens=budget) as world:
        for operation in log:
            world.play([operation])
            here = attempt(world.session, **request)
        if not log:
            return

        with world.elsewhere() as other:
            there = attempt(other, **request)

        assert (here is None) == (there is None)
        if here is not None and there is not None:
            assert rules.packed(here.messages) == rules.packed(there.messages)
            assert (here.epoch, here.tokens, here.revision) == (there.epoch, there.tokens, there.revision)


@pytest.mark.sampled
@law
@given(data=st.data(), log=strategies.logs(most=20), budget=st.integers(15, 200))
def test_a_past_revision_rebuilds_the_messages_sent_then(
    kind: str, folder: Path, data: st.DataObject, log: list[Any], budget: int
) -> None:
    """`context(at=ctx.revision)` rebuilds every message that was sent, whatever was added and cut since."""
    with open_world(kind, folder, max_tokens=budget) as world:
        sent: list[tuple[Context, dict[str, Any]]] = []
        for operation in log:
            world.play([operation])
            request = data.draw(strategies.requests, label="request")
            ctx = attempt(world.session, **request)
            if ctx is not None and ctx.epoch is not None and ctx.revision:
                sent.append((ctx, request))

        for ctx, request in sent:
            again = world.session.context(at=ctx.revision, **request)
            assert rules.packed(again.messages) == rules.packed(ctx.messages)
            assert again.revision == ctx.revision


def test_pins_before_the_window_expire_and_are_superseded(kind: str, folder: Path) -> None:
    """Pinned entries before the window leave the context when they expire or a newer version comes, with the reason."""
    with open_world(kind, folder, max_tokens=60) as world:
        soon = datetime.fromtimestamp(world.clock.now // 1_000_000 + 100, UTC)
        world.session.add_context("old text", name="a.py", pinned=True)
        world.session.add_assistant_message("for a while", pinned=True, expires_at=soon)
        for i in range(30):
            world.session.add_user_message(f"question {i} about a thing")
            world.session.add_assistant_message(f"answer {i}")
        before = world.session.context()
        assert before.report.pinned == (1, 2)

        world.session.add_context("new text", name="a.py")
        newer = world.session.context()
        world.clock.advance(100)
        later = world.session.context()

        assert any("old text" in message["content"] for message in before.messages)
        assert not any("old text" in message["content"] for message in newer.messages)
        assert newer.report.epoch_reason == "a newer version of a file context"
        assert any("for a while" in message["content"] for message in newer.messages)
        assert not any("for a while" in message["content"] for message in later.messages)
        assert later.report.epoch_reason == "expiry"


def test_the_same_log_twice_gives_the_same_bytes(kind: str, folder: Path) -> None:
    """Two calls without a change in between give equal bytes, the same epoch and the same revision."""
    with open_world(kind, folder, max_tokens=40) as world:
        for i in range(30):
            world.session.add_user_message(f"question {i} about a thing")
            world.session.add_assistant_message(f"answer {i}")

        one, two = world.session.context(), world.session.context()

        assert one.prefix == two.prefix
        assert (one.epoch, one.revision) == (two.epoch, two.revision)


@pytest.mark.sampled
@law
@given(
    sizes=st.lists(st.integers(1, 30), min_size=20, max_size=150),
    budget=st.integers(120, 400),
    low=st.sampled_from([0.2, 0.35, 0.5]),
)
def test_cuts_are_deep(kind: str, folder: Path, sizes: list[int], budget: int, low: float) -> None:
    """Between two cuts the log grows at least by the difference of high and low water, never by one turn only."""
    with open_world(kind, folder, max_tokens=budget, low_water=low) as world:
        for size in sizes:
            world.session.add_user_message("word " * size)
            world.session.add_assistant_message("fine")
            ctx = world.session.context()
            assert ctx.budget is not None

        cuts = [record for record in world.session.history() if record.kind == "cut"]

        assert len(cuts) <= sum(size + 1 for size in sizes) / (ctx.budget.room - ctx.budget.low_water)


def grow(world: World, turns: int) -> int:
    """Add so many turns with tools and make a context after each; return the tokens of the log."""
    tokens = 0
    for i in range(turns):
        world.session.add_user_message(f"human{i} " + "word " * (i * 7 % 13))
        if i % 3:
            world.session.add_tool_call("find", {"n": i}, call_id=f"c{i}")
            world.session.add_tool_result(None, "result " * (5 + i * 11 % 60), call_id=f"c{i}")
            world.session.context(system="be kind")
        world.session.add_assistant_message("fine " * (1 + i % 5))
        world.session.context(system="be kind")
    world.session.count()
    tokens += world.session.stats().total_tokens
    return tokens


@pytest.mark.sampled
@pytest.mark.parametrize("turns", [200, pytest.param(600, marks=pytest.mark.slow)])
def test_cuts_stay_deep_over_a_long_conversation_with_tools(kind: str, folder: Path, turns: int) -> None:
    """Over hundreds of turns with tools, each cut takes at least the way from high to low water.

    An erasure adds one more epoch.
    """
    with open_world(kind, folder, max_tokens=1000) as world:
        tokens = grow(world, turns)
        ctx = world.session.context(system="be kind")
        assert ctx.budget is not None
        world.session.erase([ctx.report.last_seq])

        cuts = [record for record in world.session.history() if record.kind == "cut"]

        assert len(cuts) <= tokens / (ctx.budget.room - ctx.budget.low_water)
        assert len(cuts) > 5
        assert world.session.stats().epoch == len(cuts) + 1

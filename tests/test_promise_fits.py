"""Promise 1, fits: a context never exceeds its budget; where none can fit, the error gives the figures."""

from __future__ import annotations

from collections.abc import Sequence
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
from palimpsest.errors import BudgetImpossible, ConfigError
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.sessions.sync import Session
from palimpsest.strategies import MaxTokens
from palimpsest.tokens.counter import encoding
from worlds import KINDS, open_world

pytestmark = pytest.mark.parametrize("kind", KINDS)
law = settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
budgets = st.integers(0, 60) | st.integers(0, 400)


def newest_human(entries: Sequence[Entry], now: int) -> Entry | None:
    """Return the newest human message, or None if it says nothing or has expired: no context need show it then."""
    newest = next((entry for entry in reversed(entries) if entry.is_human), None)
    if newest is None or rules.says_nothing(newest.content):
        return None
    expired = newest.expires_at is not None and newest.expires_at.timestamp() * 1e6 <= now
    return None if expired else newest


def stored(memory: Memory) -> tuple[Any, list[Any]]:
    """Return the session's head and records, which a refused call must not change."""
    key = SessionKey(memory.tenant, "s")
    store: Any = memory.store
    return drive(store.head(key)), drive(store.records(key))


def attempt(session: Session, memory: Memory, **call: Any) -> Context | None:
    """Return the context, or None if the call is refused; a refusal must give figures and change nothing."""
    before = stored(memory)
    try:
        return session.context(**call)
    except BudgetImpossible as error:
        refusal = error
    assert refusal.needed > refusal.available
    assert sum(refusal.parts.values()) > 0
    assert stored(memory) == before
    return None


@pytest.mark.sampled
@law
@given(log=strategies.logs(), budget=budgets, requests=st.lists(strategies.requests, min_size=1, max_size=3))
def test_every_context_fits_its_budget_less_the_reserve(
    kind: str, folder: Path, log: list[Any], budget: int, requests: list[dict[str, Any]]
) -> None:
    """A context costs at most the budget less the reserve, whatever the log holds and whatever the call adds."""
    with open_world(kind, folder, max_tokens=budget) as world:
        for part in (log[: len(log) // 2], log[len(log) // 2 :]):
            world.play(part)
            for request in requests:
                ctx = attempt(world.session, world.memory, **request)
                if ctx is None:
                    continue
                assert ctx.tokens <= budget - (request["reserve"] or 0)
                assert ctx.tokens >= rules.honest(ctx.messages, strategies.WORDS.count)
                assert ctx.problems == ()


@law
@given(log=strategies.logs(), budget=budgets, seconds=st.sampled_from([0, 0, 60]))
def test_the_newest_human_message_is_in_every_context(
    kind: str, folder: Path, log: list[Any], budget: int, seconds: int
) -> None:
    """The newest human message is in every context, whole and unaltered, whatever a cut leaves out."""
    with open_world(kind, folder, max_tokens=budget) as world:
        world.play(log)
        world.clock.advance(seconds)
        wanted = newest_human(world.session.entries(), world.clock.now)

        ctx = attempt(world.session, world.memory)

        if ctx is not None and wanted is not None:
            assert rules.shows(ctx.messages, wanted)


@law
@given(log=strategies.logs(), most=st.integers(0, 12), budget=st.none() | budgets)
def test_max_messages_bounds_the_log_and_keeps_the_newest_human_message(
    kind: str, folder: Path, log: list[Any], most: int, budget: int | None
) -> None:
    """A context has at most `max_messages` messages of the log, and the newest human message is one of them."""
    with open_world(kind, folder, max_messages=most, max_tokens=budget) as world:
        world.play(log)
        wanted = newest_human(world.session.entries(), world.clock.now)

        ctx = attempt(world.session, world.memory, system="be kind")

        if ctx is not None:
            assert len(ctx.messages) - 1 <= most
            assert wanted is None or rules.shows(ctx.messages, wanted)


@settings(law, max_examples=examples(25))
@given(log=strategies.logs(), budget=st.integers(0, 1500), request=strategies.requests)
def test_a_context_fits_by_the_real_encoding_too(
    kind: str, folder: Path, log: list[Any], budget: int, request: dict[str, Any]
) -> None:
    """A context also fits when the model's own encoding counts it, with the tokens around each message."""
    with open_world(kind, folder, model="gpt-4o", counter=None, max_tokens=budget) as world:
        world.play(log)

        ctx = attempt(world.session, world.memory, **request)

        if ctx is not None:
            assert ctx.tokens <= budget - (request["reserve"] or 0)
            count = encoding("o200k_base").count
            assert ctx.tokens >= rules.honest(ctx.messages, count, per_message=4) + 3


@law
@given(log=strategies.logs(most=6), own=budgets, other=budgets)
def test_a_budget_of_the_call_binds_and_stores_nothing(
    kind: str, folder: Path, log: list[Any], own: int, other: int
) -> None:
    """A call with a budget of its own keeps that budget and commits no cut."""
    with open_world(kind, folder, max_tokens=own) as world:
        world.play(log)
        before = stored(world.memory)

        ctx = attempt(world.session, world.memory, max_tokens=other)

        if ctx is not None:
            assert ctx.tokens <= other
            assert other == own or stored(world.memory) == before


@law
@given(log=strategies.logs(), budget=budgets, oversize=st.sampled_from(["drop", "error", "keep_newest"]))
def test_an_oversized_turn_exceeds_the_budget_only_with_keep_newest(
    kind: str, folder: Path, log: list[Any], budget: int, oversize: str
) -> None:
    """`oversize="drop"` and `"error"` keep the budget; `"keep_newest"` may exceed it, and `problems` says so then."""
    with open_world(kind, folder, max_tokens=budget, oversize=oversize) as world:
        world.play(log)

        ctx = attempt(world.session, world.memory)

        if ctx is not None:
            assert (ctx.tokens > budget) == (ctx.problems == ("over_budget",))
            assert ctx.tokens <= budget or oversize == "keep_newest"


@law
@given(log=strategies.logs(), budget=st.integers(1, 300), gap=st.sampled_from(["stop", "skip"]))
def test_an_exact_walk_fits_too(kind: str, folder: Path, log: list[Any], budget: int, gap: str) -> None:
    """The short-term strategy `max_tokens`, which selects anew at each call, keeps its budget and commits nothing."""
    strategy = {"memory_strategy_id": "max_tokens", "memory_max_tokens": budget, "gap": gap}
    with open_world(kind, folder, short_term=[strategy]) as world:
        world.play(log)
        before = stored(world.memory)

        ctx = attempt(world.session, world.memory, system="be kind")

        assert ctx is None or ctx.tokens <= budget
        assert stored(world.memory) == before


@pytest.mark.parametrize("own", [-1, 0, 1])
@pytest.mark.filterwarnings("ignore:short_term.*memory_max_tokens is 0")
def test_a_short_term_strategy_without_room_still_obeys_the_budget(kind: str, folder: Path, own: int) -> None:
    """Where not even the system text fits, BudgetImpossible is raised although the strategy includes no interaction."""
    with open_world(kind, folder, short_term=[MaxTokens(memory_max_tokens=own)], max_tokens=1) as world:
        world.session.add_user_message("hello")

        with pytest.raises(BudgetImpossible) as refusal:
            world.session.context(system="be kind")

        assert (refusal.value.needed, refusal.value.available, refusal.value.parts["system"]) == (2, 1, 2)


@pytest.mark.parametrize("value", [-1, 1.5, True, "100"])
def test_a_budget_is_a_whole_number(kind: str, folder: Path, value: Any) -> None:
    """A budget that is not a whole number of at least 0 is refused, by its name, before anything is read."""
    with open_world(kind, folder) as world, pytest.raises(ConfigError, match="max_tokens"):
        world.session.context(max_tokens=value)

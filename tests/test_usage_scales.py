"""Usage reported by providers scales budgets within bounds, and only if it can be that of the whole input."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest import AsyncMemory, Memory, Usage
from palimpsest.context.budget import MOST_FACTOR, scaled, unscaled
from palimpsest.context.result import Context
from palimpsest.errors import ConfigError
from palimpsest.log.change import Change
from palimpsest.log.head import SessionKey
from palimpsest.sessions.sync import Session
from writer import quarters

CLAUDE = "claude-sonnet-4-5"
MARGIN = 1.15


@pytest.fixture
def chat() -> Any:
    """Yield a session with a budget of 1000 tokens and a model whose tokens are estimated."""
    with Memory.open("memory://") as memory:
        yield memory.session("s", model=CLAUDE, format="anthropic", max_tokens=1000)


def cut_anew(chat: Session) -> Context:
    """Return the first context of another epoch, which learns from reported usage."""
    before = chat.stats().epoch
    while True:
        chat.add_user_message("question " * 30)
        chat.add_assistant_message("answer " * 30)
        ctx = chat.context()
        if chat.stats().epoch > before:
            return ctx


def test_more_cached_tokens_than_input_are_refused(chat: Session) -> None:
    """More cached tokens than input raises ConfigError and records nothing: cached tokens are part of the input."""
    with pytest.raises(ConfigError, match=r"cached_tokens: 3900 .* at most input_tokens") as refusal:
        chat.record_usage(input_tokens=80, output_tokens=5, cached_tokens=3900)

    assert "give the sum of all" in str(refusal.value)
    assert chat.stats().usage.calls == 0
    assert chat.record_usage(input_tokens=3980, output_tokens=5, cached_tokens=3980).cached_tokens == 3980


@pytest.mark.parametrize(
    ("ratio", "factor", "told"),
    [
        (0.0, MARGIN, "budgets keep the margin of 1.15"),
        (0.02, MARGIN, "cached tokens part of `input_tokens`"),
        (0.7, MARGIN, "0.7 times what was counted"),
        (0.9, 1.0, None),
        (1.3, 1.3, None),
        (2, 2, None),
        (40, MOST_FACTOR, "budgets follow at most 4"),
    ],
)
def test_a_report_scales_budgets_within_bounds(chat: Session, ratio: float, factor: float, told: str | None) -> None:
    """A report scales budgets by no more than the bound, and an implausible one changes nothing; a warning says so."""
    reported_context = cut_anew(chat)
    chat.record_usage(input_tokens=round(reported_context.counted * ratio), context=reported_context)

    ctx = cut_anew(chat)

    assert ctx.budget is not None
    assert ctx.budget.factor == pytest.approx(factor, abs=0.01)
    assert ctx.tokens <= 1000
    assert ctx.counted <= 1000
    assert [told in warning for warning in ctx.report.warnings] == ([True] if told else [])


def test_a_cut_leaves_a_share_of_the_new_budget() -> None:
    """A report that leaves less room than the low water before makes a deeper cut."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s", model=CLAUDE, max_tokens=2000)
        for _ in range(18):
            chat.add_user_message("question " * 40)
            chat.add_assistant_message("answer " * 40)
        sent = chat.context()
        assert len(sent.messages) == 36
        chat.record_usage(input_tokens=round(sent.counted * 3.7), context=sent)

        ctx = cut_anew(chat)

        assert ctx.budget is not None
        assert ctx.budget.factor == pytest.approx(3.7, abs=0.01)
        assert ctx.tokens <= ctx.budget.available * 0.4


def test_usage_without_cached_tokens_enlarges_no_budget(chat: Session) -> None:
    """Reports of only the fresh input, call after call, make no context larger than without reports."""
    for _ in range(30):
        chat.add_user_message("question " * 30)
        ctx = chat.context(system="You know the catalogue.")
        chat.record_usage(input_tokens=max(ctx.tokens // 50, 1), context=ctx)
        chat.add_assistant_message("answer " * 30)

        assert ctx.counted * MARGIN <= 1000


def test_usage_of_one_model_does_not_scale_another(tmp_path: Path) -> None:
    """The factor learned with one model does not replace the margin of another."""
    with Memory.open(tmp_path / "m.db") as memory:
        exact = memory.session("s", model="gpt-4o", max_tokens=1000)
        sent = cut_anew(exact)
        exact.record_usage(input_tokens=sent.counted, context=sent)
        other = memory.session("s", model=CLAUDE, max_tokens=1000, view="other")

        ctx = cut_anew(other)

        assert ctx.budget is not None
        assert ctx.budget.factor == MARGIN
        assert ctx.report.warnings == ()


@given(tokens=st.integers(0, 300_000), reported=st.integers(1, 100_000), counted=st.integers(1, 50_000))
def test_scaling_there_and_back_never_exceeds_the_bound(tokens: int, reported: int, counted: int) -> None:
    """The room for counted tokens, scaled back, is never more than what was given."""
    factor = reported / counted

    room = unscaled(tokens, factor)

    assert scaled(room, factor) <= tokens
    assert scaled(room + 2, factor) > tokens


def test_scaling_never_rounds_up() -> None:
    """28897 tokens at 407/780 are one less than floating point division says."""
    assert scaled(unscaled(28_897, 407 / 780), 407 / 780) <= 28_897


@pytest.mark.parametrize("objects", [1, 2])
def test_simultaneous_reports_are_all_summed(tmp_path: Path, objects: int) -> None:
    """Reports by tasks of one session object, or of two in two memories, are all in the sums."""

    async def reported() -> Usage | None:
        async with AsyncMemory.open(tmp_path / "a.db") as memory, AsyncMemory.open(tmp_path / "a.db") as other:
            sessions = [opened_memory.session("s", counter=quarters) for opened_memory in (memory, other)[:objects]]
            await sessions[0].add_user_message("hello")
            calls = [session.record_usage(input_tokens=10, output_tokens=1) for session in sessions * 5]
            usages = await asyncio.gather(*calls)
            assert sorted(usage.calls for usage in usages) == list(range(1, len(usages) + 1))
            head = await memory.store.head(SessionKey("default", "s"))
            return head and head.usage

    usage = asyncio.run(reported())
    assert usage is not None
    assert (usage.calls, usage.total_input, usage.total_output) == (5 * objects, 50 * objects, 5 * objects)


def test_a_report_after_a_compaction_is_stale(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is recorded after a compaction is stale, though its context was made before that."""
    session = memory.session("s", counter=quarters, max_tokens=1_000)
    for number in range(6):
        session.add_user_message(f"message {number}")
    sent = session.context()
    commit = memory.store.commit

    async def compacted_first(key: Any, change: Change, **expected: Any) -> Any:
        if change.kind == "usage":
            monkeypatch.undo()
            session.compact({"strategy": "simple_fifo", "max_messages": 3})
        return await commit(key, change, **expected)

    monkeypatch.setattr(memory.store, "commit", compacted_first)
    assert session.record_usage(input_tokens=50, context=sent).stale

"""`max_context_ratio`: the share of a model's window that the log may take, and what the window holds beside it."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest import Memory
from palimpsest.sessions.sync import Session

SMALL = "ft:gpt-3.5-turbo-0613"
"""A model with a window of 4,096 tokens."""
OVERHEAD = 4


def words(session: Session, tokens: int) -> None:
    """Add a message that costs so many tokens in total."""
    session.add_user_message(" ".join(["a"] * (tokens - OVERHEAD)))


@pytest.fixture
def memory() -> Any:
    with Memory.open("memory://") as memory:
        yield memory


def test_the_log_may_take_the_whole_share(memory: Memory) -> None:
    """The log may take its whole share of a window; answer, system text and tools take the rest."""
    chat = memory.session("s", model="gpt-4o", max_context_ratio=0.5)

    budget = chat.context(system="be kind " * 50).budget

    assert budget is not None
    assert (budget.share, budget.room) == (64_000, 64_000)
    assert (budget.limit, budget.reserve) == (128_000, 16_384)


def test_a_share_is_exact(memory: Memory) -> None:
    """A share is computed exactly: 0.29 of 200,000 tokens is 58,000, though the nearest binary fraction is less."""
    for hundredths in range(1, 100):
        budget = memory.session("s", model="o1", max_context_ratio=hundredths / 100).context().budget
        assert budget is not None
        assert budget.share == hundredths * 2_000


@pytest.mark.parametrize(("ratio", "reserve", "room"), [(1.0, None, 4096 - 2048), (0.9, 0, 3686), (0.9, 1000, 3096)])
def test_answer_and_log_are_held_within_the_window(
    memory: Memory, ratio: float, reserve: int | None, room: int
) -> None:
    """A share that leaves no room for the answer is reduced, so that log and answer together fit the window."""
    chat = memory.session("s", model=SMALL, max_context_ratio=ratio, reserve=reserve)

    budget = chat.context().budget

    assert budget is not None
    assert budget.room == (room if room == 3686 else room - 3)
    assert budget.room + budget.fixed + budget.reserve <= 4096


def test_the_smaller_of_share_and_max_tokens_holds(memory: Memory) -> None:
    """`max_tokens` bounds the whole request and the share bounds the log: the one that leaves less applies."""
    narrow = memory.session("s", model="gpt-4o", max_context_ratio=0.5, max_tokens=1_000).context().budget
    wide = memory.session("s", model="gpt-4o", max_context_ratio=0.01, max_tokens=100_000).context().budget

    assert narrow is not None
    assert wide is not None
    assert (narrow.room, wide.room) == (997, 1_280)


@pytest.mark.parametrize(("tokens", "fires"), [(31, False), (32, True)])
def test_a_threshold_is_of_the_share(memory: Memory, tokens: int, fires: bool) -> None:
    """A threshold is relative to the share: 0.8 of a share of 40 tokens is reached at 32 and not at 31."""
    chat = memory.session("s", model=SMALL, max_context_ratio=0.01, auto_compact="off")
    chat.add_user_message(" ".join(["a"] * 5))
    chat.add_assistant_message(" ".join(["a"] * (tokens - 5 - 2 * OVERHEAD)))

    result = chat.compact("simple_fifo", threshold=0.8, dry_run=True)

    assert result.decision is not None
    assert (result.decision.fired, result.decision.observed) == (fires, tokens)


def test_a_context_takes_no_more_than_the_share(memory: Memory) -> None:
    """What a context shows of the log, summaries included, is within the share, beside any system text."""
    chat = memory.session("s", model=SMALL, max_context_ratio=0.1, reserve=0)
    for _ in range(40):
        words(chat, 60)
        chat.add_assistant_message("noted")

        ctx = chat.context(system="be kind " * 200)

        assert ctx.parts.log + ctx.parts.head + ctx.parts.summaries <= 409
        assert ctx.tokens <= 4096


def test_the_log_may_be_bounded_in_tokens(memory: Memory) -> None:
    """The log may have a bound in tokens of its own, without a model; the call's own texts do not count into it."""
    chat = memory.session("s", max_log_tokens=1_000)
    budget = chat.context(system="be kind " * 500).budget

    assert budget is not None
    assert (budget.share, budget.room) == (1_000, 1_000)
    for _ in range(30):
        words(chat, 100)
    context = chat.context(system="be kind " * 500)
    assert context.counted - context.parts.system <= 1_000 + context.parts.overhead
    assert context.tokens > 1_000

    both = memory.session("s", max_log_tokens=1_000, max_tokens=500).context().budget
    assert both is not None
    assert both.room == 497
    ratio = memory.session("s", model="gpt-4o", max_log_tokens=2_000, max_context_ratio=0.01).context().budget
    assert ratio is not None
    assert ratio.share == 1_280


@pytest.mark.parametrize(("share", "most"), [(0.15, 150), (0.25, 250), (0.6, 600)])
def test_summaries_take_their_share_at_most(memory: Memory, share: float, most: int) -> None:
    """Summaries take at most their own share, even if interactions leave room. Fence and id take up to 100 tokens of
    it."""
    chat = memory.session(
        "s",
        max_log_tokens=1_000,
        summary_share=share,
        long_term={"strategy": "summarizer", "interaction_threshold_qty": 4, "interaction_keep": 1},
        summarizer=lambda _: "what was said before " * 120,
    )
    for number in range(12):
        chat.add_user_message(f"question {number} " + "words " * 120)
        chat.add_assistant_message("yes")
    context = chat.context()

    assert context.parts.summaries > 0
    assert context.parts.summaries <= most
    assert context.parts.log + context.parts.summaries + context.parts.head <= 1_000

"""What a context costs: exact where the tokenizer is public, counted once, and without loading what is not needed."""

from __future__ import annotations

import base64
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import rules
import strategies
from documented_token_counts import JARGON, WEATHER_MESSAGES, weather
from palimpsest import BudgetImpossible, ConfigError, Memory
from palimpsest.formats.wording import NO_RESULT, NO_RESULT_TOKENS, mask_note, mask_tokens
from palimpsest.log.entry import Entry, Reasoning
from palimpsest.tokens.counter import encoding


@pytest.fixture
def memory() -> Any:
    with Memory.open("memory://") as opened:
        yield opened


@pytest.mark.parametrize(("model", "total"), [("gpt-4", 129), ("gpt-4o", 124)])
def test_a_request_costs_what_the_provider_documents(memory: Memory, model: str, total: int) -> None:
    """Six messages that the provider documents, added to a session, make a context of the documented total."""
    chat = memory.session(model, model=model)
    chat.add(JARGON)

    assert chat.context().tokens == total


@pytest.mark.parametrize(("model", "total"), [("gpt-4", 105), ("gpt-4o", 101), ("gpt-4o-mini", 101)])
def test_tools_cost_what_the_provider_documents(memory: Memory, model: str, total: int) -> None:
    """The documented request with a system text and one tool costs its documented total."""
    chat = memory.session(model, model=model)
    system, question = WEATHER_MESSAGES
    chat.add(question)

    context = chat.context(system=system["content"], tools=[weather()])

    assert context.tokens == total
    assert sum((context.parts.system, context.parts.tools, context.parts.overhead, context.parts.log)) == total


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_notes_in_a_context_cost_what_is_reserved_for_them(name: str) -> None:
    """The notes for masked and missing results cost their stated tokens in both encodings, for every place."""
    counter = encoding(name)

    assert counter.count(NO_RESULT) == NO_RESULT_TOKENS
    for seq in [*range(1, 1200), 99_999, 123_456, 1_000_000, 987_654_321]:
        assert counter.count(mask_note(Entry(seq=seq))) == mask_tokens(seq), seq


def test_the_vocabulary_is_not_loaded_where_bounds_prove_the_fit(tmp_path: Path) -> None:
    """A context that fits by its byte lengths alone is returned without loading the tokenizer; `tokens` loads it."""
    program = """
import sys
from palimpsest import Memory
from palimpsest.tokens.counter import encoding
with Memory.open(f"sqlite:///{sys.argv[1]}") as memory:
    chat = memory.session("s", max_tokens=8_000)
    chat.add_user_message("hello there")
    context = chat.context(system="be kind")
    assert not encoding("o200k_base").loaded and "tiktoken" not in sys.modules
    assert context.tokens == 3 + 4 + 2 + 4 + 2
    assert encoding("o200k_base").loaded
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "s.db")], check=True, timeout=300)


def test_stored_counts_make_the_next_process_do_without_the_vocabulary(tmp_path: Path) -> None:
    """Counts are stored, so that a new process assembles a full window without the tokenizer."""
    with Memory.open(tmp_path / "s.db") as memory:
        chat = memory.session("s", max_tokens=2_000)
        for number in range(80):
            chat.add_user_message(f"question {number} " * 10)
            chat.add_assistant_message("answer " * 20)
        before = chat.context()
        assert before.tokens > 500
        chat.count()
    program = """
import sys
from palimpsest import Memory
with Memory.open(f"sqlite:///{sys.argv[1]}") as memory:
    context = memory.session("s", max_tokens=2_000).context()
    print(len(context.messages), "tiktoken" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s.db")], check=True, timeout=300, capture_output=True, text=True
    )

    assert done.stdout.split() == [str(len(before.messages)), "False"]


def test_an_entry_is_counted_once(memory: Memory) -> None:
    """Every text of the log is counted at most once, however many contexts are made."""
    seen: list[str] = []

    def counting(text: str) -> int:
        seen.append(text)
        return len(text.split())

    chat = memory.session("s", counter=counting, max_tokens=200)
    for number in range(60):
        chat.add_user_message(f"unique question number {number} with some more words")
        chat.add_assistant_message(f"unique answer number {number}")
        chat.context()

    texts = [text for text in seen if text.startswith("unique")]
    assert len(texts) == len(set(texts))
    assert len(texts) <= 120


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, " " * 1_000_000, "\x00\x01" * 500_000, "\ud800" * 1_000, "\t \n" * 300_000],
    ids=["letters", "spaces", "control", "surrogates", "mixed"],
)
def test_hostile_text_is_counted_and_fitted(memory: Memory, text: str) -> None:
    """A million equal characters, spaces, control characters and lone surrogates are stored, counted and clamped."""
    chat = memory.session("s", model="gpt-4o", max_tokens=2_000)
    chat.add_user_message("what is in it?")
    call = chat.add_tool_call("read", {})
    result = chat.add_tool_result("read", text, call_id=call.call_id)

    context = chat.context()

    assert context.tokens <= 2_000
    assert chat.entry(result.id).content == text
    assert all("\ud800" not in (message["content"] or "") for message in context.messages)


def png(width: int, height: int) -> str:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(("detail", "tokens"), [("high", 765), ("low", 85)])
def test_images_cost_their_published_formula(memory: Memory, detail: str, tokens: int) -> None:
    """An image in a message adds what the provider's formula gives for its size and detail."""
    chat = memory.session("s", model="gpt-4o", max_tokens=4_000)
    image = {"type": "image_url", "image_url": {"url": png(1024, 1024), "detail": detail}}
    chat.add({"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]})

    assert chat.context().tokens == 3 + 4 + encoding("o200k_base").count("what is this?") + tokens


def test_a_margin_stands_in_for_a_tokenizer_that_is_not_public(memory: Memory) -> None:
    """Without a public tokenizer, counts are scaled by the model's margin, and so is what fits the budget."""
    chat = memory.session("s", model="claude-sonnet-4-5", max_tokens=1_000)
    for number in range(100):
        chat.add_user_message(f"question {number} " * 8)
        chat.add_assistant_message("answer " * 8)

    context = chat.context()

    assert context.budget.factor > 1
    assert context.tokens <= 1_000
    assert context.tokens >= context.counted * context.budget.factor


def test_reported_usage_moves_the_factor_at_the_next_cut(memory: Memory) -> None:
    """Reported usage replaces the margin from the next cut on and not before."""
    chat = memory.session("s", model="claude-sonnet-4-5", max_tokens=1_000)
    factors = []
    for number in range(100):
        chat.add_user_message(f"question {number} " * 8)
        chat.add_assistant_message("answer " * 8)
        context = chat.context()
        factors.append((context.epoch, context.budget.factor))
        chat.record_usage(input_tokens=context.counted * 2)

    by_epoch = {epoch: {factor for e, factor in factors if e == epoch} for epoch, _ in factors}
    assert all(len(found) == 1 for found in by_epoch.values())
    assert factors[0][1] < 2
    assert factors[-1][1] == 2.0


def test_a_budget_of_0_is_impossible(memory: Memory) -> None:
    """A budget of 0 is impossible for any request, with the figures, and nothing is stored."""
    chat = memory.session("s", model="gpt-4o", max_tokens=0)
    chat.add_user_message("hello")
    before = chat.stats().revision

    with pytest.raises(BudgetImpossible) as caught:
        chat.context(system="be kind")

    assert caught.value.needed > caught.value.available == 0
    assert chat.stats().revision == before


def test_the_reserve_is_kept_for_the_answer(memory: Memory) -> None:
    """The reserve is kept free for the answer; without `max_tokens` it is the model's output limit."""
    chat = memory.session("s", model="gpt-4o", max_tokens=1_000)
    plain = memory.session("t", model="gpt-4o")

    assert chat.context(reserve=400).budget.available == 600
    assert chat.context().budget.reserve == 0
    assert plain.context().budget.reserve == 16_384


def test_a_share_of_an_unknown_window_is_refused(memory: Memory) -> None:
    """A limit that depends on an unknown window is an error, not a guess."""
    with pytest.raises(ConfigError, match="a model with known window"):
        memory.session("s", max_context_ratio=0.5)


def test_an_unknown_model_warns_once_and_has_no_bound(memory: Memory) -> None:
    """An unknown model is counted by the default encoding, with a warning; without max_tokens nothing bounds it."""
    with pytest.warns(UserWarning, match="gpt-4o-zz"):
        chat = memory.session("s", model="gpt-4o-zz")
    chat.add_user_message("hello")

    context = chat.context()

    assert context.budget is None
    assert "no budget" in context.report.warnings[0]


def test_thoughts_that_are_joined_to_one_message_are_counted(memory: Memory) -> None:
    """Several thoughts before one call are joined to one message, and the joined message is counted."""
    session = memory.session("one", counter=strategies.WORDS)
    for _ in range(3):
        session.add_assistant_message((Reasoning(text="hm"),))
    session.add_tool_call("find", {"number": 2}, call_id="c1")
    session.add_tool_result("find", "found", call_id="c1")

    ctx = session.context()

    assert [message["role"] for message in ctx.messages] == ["assistant", "tool"]
    assert ctx.tokens >= rules.honest(ctx.messages, strategies.WORDS.count)

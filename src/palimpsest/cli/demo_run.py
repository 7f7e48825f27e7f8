"""The replay of `palimpsest demo`: one conversation through a real memory, beside three other ways to send it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from palimpsest import Context, Memory, Session
from palimpsest.cli import scenario
from palimpsest.cli.drawing import Bar
from palimpsest.cli.replay import Bill, Message, Tokens, Windows
from palimpsest.cli.seen import Price
from palimpsest.tokens.counter import encoding
from palimpsest.tokens.models import Model

SESSION = "demo"
KEPT = 4
"""How many of the newest interactions the compaction at the end leaves as they are."""


class ModelCall(NamedTuple):
    """One model call with Palimpsest: its human turn, the tokens sent and cached, and the cut before it, if any.

    `ways` holds the sizes of this call in all four ways, in the order of `DemoFigures.bills`.
    """

    turn: int
    call: int
    sent: int
    cached: int
    cut: dict[str, Any] | None
    ends_turn: bool
    ways: tuple[Bar, ...]
    context: Context


class Fact(NamedTuple):
    """Where the early fact is: the entry that says it, and whether the newest context and the log hold it."""

    text: str
    turn: int
    seq: int
    in_context: bool
    in_log: bool
    entries: int


class Compacted(NamedTuple):
    """The compaction of the whole conversation: its summary, the early fact's terms in it, and the expanded entries."""

    covered: int
    source_tokens: int
    summary_tokens: int
    says: Sequence[str]
    in_context: bool
    expanded: int
    fact_expanded: bool
    verified: bool


class DemoFigures(NamedTuple):
    """All figures of a run."""

    bills: Sequence[Bill]
    calls: Sequence[ModelCall]
    cuts: int
    turns: int
    entries: int
    fact: Fact
    compacted: Compacted
    words: dict[int, str]
    seconds: float


def run(budget: int, model: str, show: Callable[[ModelCall], object]) -> DemoFigures:
    """Replay the conversation in all four ways, calling `show` with every model call."""
    began = time.perf_counter()
    turns, tools = scenario.conversation(), scenario.tools()
    tokens = Tokens(encoding("o200k_base"), tools)
    windows = Windows({"role": "system", "content": scenario.SYSTEM}, tokens, budget)
    ours, cuts, calls = Bill("Palimpsest", tokens), list[dict[str, Any]](), list[ModelCall]()
    with tempfile.TemporaryDirectory() as folder, Memory.open(f"sqlite:///{os.path.join(folder, 'demo.db')}") as memory:
        memory.on("cut", lambda _, facts: cuts.append(facts))
        chat = memory.session(SESSION, model=model, max_tokens=budget)
        context = None
        for number, turn in enumerate(turns, 1):
            for new in _rounds(turn):
                chat.add(new)
                windows.add(new)
                if new[-1] is turn[-1]:
                    break
                cuts_before = len(cuts)
                context = chat.context(system=scenario.SYSTEM, tools=tools)
                sent, cached = ours.call(context.messages)
                windows.call()
                cut = cuts[-1] if len(cuts) > cuts_before else None
                answer = turn[turn.index(new[-1]) + 1]
                ways = tuple(Bar(*bill.last) for bill in (*windows.bills, ours))
                step = ModelCall(number, ours.calls, sent, cached, cut, answer is turn[-1], ways, context)
                calls.append(step)
                show(step)
        assert context is not None, "the conversation has calls"
        fact = _early_fact(chat, context)
        words = {entry.seq: entry.text for entry in chat.entries()}
        compacted = _compacted(chat, tools)
    seconds = time.perf_counter() - began
    bills = (*windows.bills, ours)
    cut_calls = sum(step.cut is not None for step in calls)
    return DemoFigures(bills, calls, cut_calls, len(turns), fact.entries, fact, compacted, words, seconds)


def _rounds(turn: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages added between model calls: the question, then each answer with the results of its calls."""
    pending: list[Message] = []
    for message in turn:
        if message["role"] == "assistant" and pending:
            yield pending
            pending = []
        pending.append(message)
    yield pending


def _early_fact(chat: Session, context: Context) -> Fact:
    text = scenario.EARLY_FACT_TEXT
    entries = chat.entries()
    seq = next(entry.seq for entry in entries if text in entry.text)
    in_context = any(text in str(message.get("content")) for message in context.messages)
    return Fact(text, scenario.EARLY_FACT_TURN, seq, in_context, text in chat.entry(seq).text, len(entries))


def _compacted(chat: Session, tools: Sequence[Message]) -> Compacted:
    """Summarise all but the newest interactions, without a model, and look for the early fact."""
    summary = chat.compact({"strategy": "summarizer", "interaction_keep": KEPT}).summary
    assert summary is not None, "a conversation of this length can be summarised"
    shown = str(chat.context(system=scenario.SYSTEM, tools=tools).messages[1].get("content"))
    says = [term for term in scenario.EARLY_FACT_TERMS if term in summary.text]
    expanded = chat.expand(summary)
    return Compacted(
        covered=summary.entries,
        source_tokens=summary.source_tokens,
        summary_tokens=summary.tokens,
        says=says,
        in_context=all(term in shown for term in says),
        expanded=len(expanded),
        fact_expanded=any(scenario.EARLY_FACT_TEXT in entry.text for entry in expanded),
        verified=chat.verify().ok,
    )


def figures(outcome: DemoFigures, model: Model, price: Price, budget: int) -> dict[str, Any]:
    """Return all figures as JSON values."""
    ways = {
        bill.name: {
            "calls": bill.calls,
            "tokens_sent": bill.sent,
            "tokens_cached": bill.cached,
            "cached_share": round(bill.cached_share, 4),
            "largest_request": bill.largest,
            "fits_budget": bill.largest <= budget,
            "prefix_breaks": bill.breaks,
            "usd_per_call": round(bill.cost(price.new, price.cached), 6),
        }
        for bill in outcome.bills
    }
    return {
        "model": model.name,
        "usd_per_million": {"input": price.new, "cached_input": price.cached},
        "budget": budget,
        "turns": outcome.turns,
        "entries": outcome.entries,
        "cuts": outcome.cuts,
        "ways": ways,
        "early_fact": outcome.fact._asdict(),
        "compaction": outcome.compacted._asdict(),
        "seconds": round(outcome.seconds, 2),
    }

"""`palimpsest demo`: a long conversation held in a small budget, and what it would have cost otherwise.

Embedded, without a key and without a network: the conversation is package data, the model is only pretended.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from palimpsest import ConfigError, Context, Memory, Session
from palimpsest.cli import scenario
from palimpsest.cli.app import examples, json_option
from palimpsest.cli.output import bar, console, on_terminal, print_json, table
from palimpsest.cli.replay import Bill, Message, Tokens, Windows
from palimpsest.tokens.counter import encoding
from palimpsest.tokens.models import Model, find_model

SESSION = "demo"
KEPT = 4
"""Interactions that the compaction at the end leaves as they are."""


class ModelCall(NamedTuple):
    """One model call as Palimpsest makes it: its human turn, what was sent, and the cut before it if there was one."""

    turn: int
    call: int
    sent: int
    cached: int
    cut: dict[str, Any] | None
    ends_turn: bool


class Fact(NamedTuple):
    """Where the early fact is: the entry that holds it, and whether the newest context does."""

    text: str
    turn: int
    seq: int
    in_context: bool
    in_log: bool
    entries: int


class Compacted(NamedTuple):
    """What compacting the whole conversation comes to: a summary, what it says of the early fact, and the way back."""

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
    cuts: int
    turns: int
    entries: int
    fact: Fact
    compacted: Compacted
    seconds: float


@click.command("demo", epilog=examples("palimpsest demo", "palimpsest demo --budget 16000", "palimpsest demo --json"))
@click.option("--budget", type=click.IntRange(2_500), default=8_000, show_default=True, help="Tokens of a request.")
@click.option("--model", default="gpt-4o", show_default=True, help="Whose prices; a model counted in o200k_base.")
@json_option
def demo_command(budget: int, model: str, as_json: bool) -> None:
    """Hold a long support conversation in a small budget, and compare what that costs.

    A conversation of eighteen months between a customer and a shop's support agent is replayed through a real
    memory on a temporary SQLite file. Before every call of the model, `session.context()` gives what is sent.
    Needs no key and no network: the model's answers are part of the package.
    """
    found = find_model(model)
    if found is None or found.encoding != "o200k_base" or found.input_price is None:
        raise ConfigError("model", model, "a model counted in o200k_base whose prices are known, such as gpt-4o")
    if as_json:
        print_json(figures(run(budget, model, lambda _: None), found, budget))
        return
    with _live(budget) if on_terminal() else _lines() as show:
        outcome = run(budget, model, show)
    _print_table(outcome, found, budget)
    _print_fact(outcome.fact)
    _print_compaction(outcome.compacted)


# --- the replay


def run(budget: int, model: str, show: Callable[[ModelCall], object]) -> DemoFigures:
    """Replay the conversation in all four ways; `show` is told of every call."""
    began = time.perf_counter()
    turns, tools = scenario.conversation(), scenario.tools()
    tokens = Tokens(encoding("o200k_base"), tools)
    windows = Windows({"role": "system", "content": scenario.SYSTEM}, tokens, budget)
    ours, cuts = Bill("Palimpsest", tokens), list[dict[str, Any]]()
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
                known = len(cuts)
                context = chat.context(system=scenario.SYSTEM, tools=tools)
                sent, cached = ours.call(context.messages)
                windows.call()
                cut = cuts[-1] if len(cuts) > known else None
                answer = turn[turn.index(new[-1]) + 1]
                show(ModelCall(number, ours.calls, sent, cached, cut, answer is turn[-1]))
        assert context is not None, "the conversation has calls"
        fact = _early_fact(chat, context)
        compacted = _compacted(chat, tools)
    bills = (windows.everything, windows.by_message, windows.by_turn, ours)
    return DemoFigures(bills, len(cuts), len(turns), fact.entries, fact, compacted, time.perf_counter() - began)


def _rounds(turn: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield what is added between calls of the model: the question, then each answer with its tool results."""
    waiting: list[Message] = []
    for message in turn:
        if message["role"] == "assistant" and waiting:
            yield waiting
            waiting = []
        waiting.append(message)
    yield waiting


def _early_fact(chat: Session, context: Context) -> Fact:
    text = scenario.EARLY_FACT_TEXT
    entries = chat.entries()
    seq = next(entry.seq for entry in entries if text in entry.text)
    in_context = any(text in str(message.get("content")) for message in context.messages)
    return Fact(text, scenario.EARLY_FACT_TURN, seq, in_context, text in chat.entry(seq).text, len(entries))


def _compacted(chat: Session, tools: Sequence[Message]) -> Compacted:
    """Have all but the newest interactions summarised, without a model, and look for the early fact."""
    made = chat.compact({"strategy": "summarizer", "interaction_keep": KEPT}).summary
    assert made is not None, "a conversation of this length can be summarised"
    shown = str(chat.context(system=scenario.SYSTEM, tools=tools).messages[1].get("content"))
    says = [term for term in scenario.EARLY_FACT_TERMS if term in made.text]
    back = chat.expand(made)
    return Compacted(
        covered=made.entries,
        source_tokens=made.source_tokens,
        summary_tokens=made.tokens,
        says=says,
        in_context=all(term in shown for term in says),
        expanded=len(back),
        fact_expanded=any(scenario.EARLY_FACT_TEXT in entry.text for entry in back),
        verified=chat.verify().ok,
    )


def figures(outcome: DemoFigures, model: Model, budget: int) -> dict[str, Any]:
    """Return all figures as JSON values."""
    input_price, cached_price = _prices(model)
    ways = {
        bill.name: {
            "calls": bill.calls,
            "tokens_sent": bill.sent,
            "tokens_cached": bill.cached,
            "cached_share": round(bill.cached_share, 4),
            "largest_request": bill.largest,
            "fits_budget": bill.largest <= budget,
            "prefix_breaks": bill.breaks,
            "usd_per_call": round(bill.cost(input_price, cached_price), 6),
        }
        for bill in outcome.bills
    }
    return {
        "model": model.name,
        "usd_per_million": {"input": input_price, "cached_input": cached_price},
        "budget": budget,
        "turns": outcome.turns,
        "entries": outcome.entries,
        "cuts": outcome.cuts,
        "ways": ways,
        "early_fact": outcome.fact._asdict(),
        "compaction": outcome.compacted._asdict(),
        "seconds": round(outcome.seconds, 2),
    }


def _prices(model: Model) -> tuple[float, float]:
    assert model.input_price is not None, "checked when the command was read"
    cached = model.cached_input_price
    return model.input_price, model.input_price if cached is None else cached


# --- the display


@contextmanager
def _lines() -> Iterator[Callable[[ModelCall], object]]:
    """One line a human turn: what its last call sent, what of that was cached, and its cuts."""
    cuts: list[dict[str, Any]] = []

    def show(step: ModelCall) -> None:
        if step.cut is not None:
            cuts.append(step.cut)
        if step.ends_turn:
            mark = "".join(f"  << {_told(cut)}" for cut in cuts)
            cuts.clear()
            share = step.cached / step.sent
            click.echo(f"turn {step.turn:>3}  call {step.call:>3}  sent {step.sent:>6,}  cached {share:>4.0%}{mark}")

    yield show
    click.echo()


def _told(cut: dict[str, Any]) -> str:
    done = [f"{cut[name]} {name}" for name in ("masked", "evicted", "clamped") if cut.get(name)]
    return f"cut ({cut['reason']}): log {cut.get('tokens_before', 0):,} -> {cut['tokens_after']:,}, {', '.join(done)}"


@contextmanager
def _live(budget: int) -> Iterator[Callable[[ModelCall], object]]:
    """A bar of the budget that fills and is cut, with a line above it for every cut."""
    screen = console()
    total = len(scenario.conversation())
    width = max(min(screen.width, 100) - 2, 20)
    screen.print(Text(f"One support conversation, {total} turns, held in {budget:,} tokens a call\n", "bold"))

    def drawn(step: ModelCall) -> Group:
        new = step.sent - step.cached
        shares = [(step.cached / budget, "green", "█"), (new / budget, "yellow", "█")]
        legend = Text.assemble(
            (f"turn {step.turn:>3} of {total}   ", "bold"),
            (f"{step.cached:>5,} cached ", "green"),
            "+ ",
            (f"{new:>5,} new ", "yellow"),
            f"of {budget:,} tokens",
        )
        return Group(bar(shares, width), legend)

    with Live(console=screen, refresh_per_second=20, transient=True) as live:

        def show(step: ModelCall) -> None:
            if step.cut is not None:
                text = Text(f"turn {step.turn:>3}  {_told(step.cut)}", "dim")
                text.truncate(width, overflow="ellipsis")
                live.console.print(text)
            live.update(drawn(step))

        yield show
    screen.print()


HEADINGS = ("", "tokens sent", "cached", "largest call", "$ per call", "to ours")


def rows(outcome: DemoFigures, model: Model, budget: int) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table as they are printed, ours last."""
    prices = _prices(model)
    ours = outcome.bills[-1].cost(*prices)
    for bill in outcome.bills:
        cost = bill.cost(*prices)
        largest = f"{'' if bill.largest <= budget else '! '}{bill.largest:,}"
        yield bill.name, f"{bill.sent:,}", f"{bill.cached_share:.0%}", largest, f"{cost:.4f}", f"{cost / ours:.1f}x"


def _print_table(outcome: DemoFigures, model: Model, budget: int) -> None:
    screen = console()
    input_price, cached_price = _prices(model)
    ours = outcome.bills[-1]
    shown = table(*HEADINGS, right=HEADINGS[1:])
    for cells in rows(outcome, model, budget):
        shown.add_row(*cells, style="bold green" if cells[0] == ours.name else "")
    screen.print(shown)
    over = [bill.name for bill in outcome.bills if bill.largest > budget]
    told = [
        f"{outcome.turns} turns, {ours.calls} calls of the model, {outcome.entries} entries, {outcome.cuts} cuts, "
        f"{outcome.seconds:.1f} s.",
        f"Input at {model.name}'s prices: ${input_price:g} per million tokens, ${cached_price:g} where cached.",
        "Cached: the longest common prefix with the call before, from 1,024 tokens on in steps of 128.",
    ]
    if over:
        told.append(f"! exceeds the budget of {budget:,} tokens: {', '.join(over)}.")
    screen.print(Text("\n".join(told), "dim"))


def _print_fact(fact: Fact) -> None:
    screen = console()
    screen.print(
        Text(f'\nIn turn {fact.turn} the customer said: "… {fact.text} …"', "bold"), soft_wrap=not on_terminal()
    )
    answer = "yes" if fact.in_context else "no, it was cut long ago"
    screen.print(f"in the messages of the newest context:  {answer}")
    kept = f"yes, session.entry({fact.seq}) returns it whole" if fact.in_log else "NO"
    screen.print(f"in the log:                             {kept}")


def _print_compaction(compacted: Compacted) -> None:
    screen = console()
    screen.print(
        f"\nThen session.compact() covers {compacted.covered} entries of {compacted.source_tokens:,} tokens by a "
        f"summary of {compacted.summary_tokens:,}, without a model:",
        style="bold",
        soft_wrap=not on_terminal(),
    )
    says = ", ".join(compacted.says) or "nothing of it"
    where = "yes, it says" if compacted.in_context and compacted.says else "no, it says"
    screen.print(f"in the messages of the next context:    {where} {says}", markup=False)
    words = "the customer's words among them" if compacted.fact_expanded else "NOT the customer's words"
    screen.print(f"session.expand() of the summary:        {compacted.expanded} entries, {words}")
    whole = "every entry in exactly one state, none lost" if compacted.verified else "NOT WHOLE"
    screen.print(f"session.verify():                       {whole}")

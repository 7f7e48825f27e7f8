"""The output of `palimpsest demo --all`: every turn as it is replayed, then all figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from palimpsest.cli import scenario
from palimpsest.cli.output import bar, console, on_terminal, table

if TYPE_CHECKING:
    from palimpsest.cli.demo_run import Compacted, DemoFigures, Fact, ModelCall
    from palimpsest.cli.seen import Price
    from palimpsest.tokens.models import Model


@contextmanager
def lines() -> Iterator[Callable[[ModelCall], object]]:
    """Print a line for each human turn: the tokens of its last call, the cached share of them, and the turn's cuts.

    Yields the function to call with each model call.
    """
    cuts: list[dict[str, Any]] = []

    def show(step: ModelCall) -> None:
        if step.cut is not None:
            cuts.append(step.cut)
        if step.ends_turn:
            mark = "".join(f"  << {_cut_text(cut)}" for cut in cuts)
            cuts.clear()
            share = step.cached / step.sent
            click.echo(f"turn {step.turn:>3}  call {step.call:>3}  sent {step.sent:>6,}  cached {share:>4.0%}{mark}")

    yield show
    click.echo()


def _cut_text(cut: dict[str, Any]) -> str:
    effects = [f"{cut[name]} {name}" for name in ("masked", "evicted", "clamped") if cut.get(name)]
    sizes = f"{cut.get('tokens_before', 0):,} -> {cut['tokens_after']:,}"
    return f"cut ({cut['reason']}): log {sizes}, {', '.join(effects)}"


@contextmanager
def live(budget: int) -> Iterator[Callable[[ModelCall], object]]:
    """Show a live bar of how full the budget is, with a line above it for every cut.

    Yields the function to call with each model call.
    """
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
                text = Text(f"turn {step.turn:>3}  {_cut_text(step.cut)}", "dim")
                text.truncate(width, overflow="ellipsis")
                live.console.print(text)
            live.update(drawn(step))

        yield show
    screen.print()


HEADINGS = ("", "tokens sent", "cached", "largest call", "$ per call", "to ours")


def rows(outcome: DemoFigures, price: Price, budget: int) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row of the table, Palimpsest's last."""
    ours = outcome.bills[-1].cost(price.new, price.cached)
    for bill in outcome.bills:
        cost = bill.cost(price.new, price.cached)
        largest = f"{'' if bill.largest <= budget else '! '}{bill.largest:,}"
        yield bill.name, f"{bill.sent:,}", f"{bill.cached_share:.0%}", largest, f"{cost:.4f}", f"{cost / ours:.1f}x"


def print_all(outcome: DemoFigures, model: Model, price: Price, budget: int) -> None:
    """Print all figures: the bills, the early fact, and what a compaction makes of the whole."""
    _print_table(outcome, model, price, budget)
    _print_fact(outcome.fact)
    _print_compaction(outcome.compacted)


def _print_table(outcome: DemoFigures, model: Model, price: Price, budget: int) -> None:
    screen = console()
    ours = outcome.bills[-1]
    shown = table(*HEADINGS, right=HEADINGS[1:])
    for cells in rows(outcome, price, budget):
        shown.add_row(*cells, style="bold green" if cells[0] == ours.name else "")
    screen.print(shown)
    over = [bill.name for bill in outcome.bills if bill.largest > budget]
    remarks = [
        f"{outcome.turns} turns, {ours.calls} calls of the model, {outcome.entries} entries, {outcome.cuts} cuts, "
        f"{outcome.seconds:.1f} s.",
        f"Input at {model.name}'s prices: ${price.new:g} per million tokens, ${price.cached:g} where cached.",
        "Cached: the longest common prefix with the call before, from 1,024 tokens on in steps of 128.",
    ]
    if over:
        remarks.append(f"! exceeds the budget of {budget:,} tokens: {', '.join(over)}.")
    screen.print(Text("\n".join(remarks), "dim"))


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

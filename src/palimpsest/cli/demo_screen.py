"""The output of `palimpsest demo` without options: its story on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from palimpsest.cli.drawing import Bar
from palimpsest.cli.output import console

if TYPE_CHECKING:
    from palimpsest.cli.demo_run import DemoFigures
    from palimpsest.cli.replay import Bill
    from palimpsest.cli.seen import Price
    from palimpsest.tokens.models import Model

CALLS_A_DAY = 10_000
"""How many model calls a day the monthly costs assume."""
WIDEST, NARROWEST, HEIGHT, BESIDE = 44, 6, 3, 36
"""The most and the fewest columns of a chart, its lines, and the columns that the text beside it takes."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
"""Characters that fill a cell by so many eighths from below."""
DO_IT = """\
with Memory.open("sqlite:///agent.db") as memory:
    chat = memory.session("support-7", model="gpt-4o", max_tokens=8_000)
    chat.add_user_message("Where is order 7?")
    request = chat.context(system="You are the support agent.").request()
    chat.add(client.chat.completions.create(model="gpt-4o", **request))"""


def a_month(bill: Bill, price: Price) -> str:
    """Return the costs of a month's calls, in dollars."""
    return f"${bill.cost(price.new, price.cached) * CALLS_A_DAY * 30:,.0f}"


def print_screen(outcome: DemoFigures, model: Model, price: Price, budget: int) -> None:
    """Print the screen: what each way sends and costs, where the early fact is, and code to start with."""
    screen = console()
    colour = screen.is_terminal and not screen.no_color
    for text in screen_lines(outcome, model, price, budget, colour=colour, width=screen.width):
        screen.print(text, no_wrap=True, overflow="ellipsis")


def screen_lines(
    outcome: DemoFigures, model: Model, price: Price, budget: int, *, colour: bool = False, width: int = 80
) -> Iterator[Text]:
    """Yield the lines of the screen, for at most 80 columns. With a smaller `width` the charts are narrower."""
    across = min(max(width - BESIDE, NARROWEST), WIDEST)
    calls = len(outcome.calls)
    yield Text(f"One conversation: {outcome.turns} turns, {calls} calls of the model, {budget:,} tokens each", "bold")
    yield Text.assemble(" " * 18, ("█ cached", "green"), "  ", ("█" if colour else "░", "yellow"), (" new", "yellow"),
                        "  call after call", " " * 10, "$ a month *")  # fmt: skip
    for place, bill in enumerate(outcome.bills):
        ours = place == len(outcome.bills) - 1
        style = "bold green" if ours else ""
        chart = columns_of([call.ways[place] for call in outcome.calls], budget, across, colour=colour)
        over = f"up to {bill.largest:,} !" if bill.largest > budget else ""
        left = (bill.name, over, "")
        right = ("", f"{a_month(bill, price):>10}", f"{bill.cached_share:>6.0%} cached")
        for name, row, figure in zip(left, chart, right, strict=True):
            yield Text.assemble((f"{name:<18}", style), row, "  ", (figure, style))
    yield Text(
        f"* {CALLS_A_DAY:,} calls a day; {model.name} input, ${price.new:g} a million tokens, "
        f"${price.cached:g} cached.",
        "dim",
    )
    yield Text()
    yield from _fact(outcome)
    yield Text()
    yield Text("The same for you:", "bold")
    for piece in DO_IT.split("\n"):
        yield Text(f"  {piece}")
    yield Text("More: palimpsest demo --all, palimpsest demo --html demo.html", "dim")


def _fact(outcome: DemoFigures) -> Iterator[Text]:
    fact, compacted = outcome.fact, outcome.compacted
    for piece in wrap(f'In turn {fact.turn} the customer said "{fact.text}"', 79):
        yield Text(piece, "bold")
    held = "still there" if fact.in_context else "not there any more: a cut took it out"
    yield Text(f"  the newest context   {held}")
    yield Text(f"  the log              session.entry({fact.seq}) returns it whole")
    says = ", ".join(compacted.says) or "nothing of it"
    yield Text(f"  after compact()      {compacted.summary_tokens:,} tokens for {compacted.source_tokens:,}: {says}")


def columns_of(bars: Sequence[Bar], budget: int, width: int = WIDEST, *, colour: bool) -> list[Text]:
    """Return the lines of a chart. Each column shows the mean of some calls: cached tokens below, new ones above."""
    heights = [_heights(part, budget) for part in _split(bars, width)]
    return [
        Text.assemble(*(_cell(cached - below, sent - below, colour=colour) for cached, sent in heights))
        for below in range((HEIGHT - 1) * 8, -1, -8)
    ]


def _split(bars: Sequence[Bar], width: int) -> Iterator[Sequence[Bar]]:
    edges = [round(place * len(bars) / width) for place in range(width + 1)]
    return (bars[start : max(end, start + 1)] for start, end in pairwise(edges))


def _heights(bars: Sequence[Bar], budget: int) -> tuple[int, int]:
    """Return the heights of a column, in eighths of a line: of the cached tokens, and of all that are sent."""
    scale = HEIGHT * 8 / budget / max(len(bars), 1)
    cached, sent = (scale * sum(values) for values in ((bar.repeated for bar in bars), (bar.sent for bar in bars)))
    shrink = min(HEIGHT * 8 / sent, 1.0) if sent else 1.0  # columns over the budget are scaled down to fit the chart
    return round(cached * shrink), round(sent * shrink)


def _cell(cached: int, sent: int, *, colour: bool) -> tuple[str, str]:
    """Return one cell and its style: so many eighths of it are cached, and so many sent."""
    cached, sent = (max(min(eighths, 8), 0) for eighths in (cached, sent))
    if colour and 0 < cached < sent == 8:
        return EIGHTHS[cached], "green on yellow"
    if cached * 2 >= sent:  # a cell that is not full cannot show two colours: take that of the larger part
        return EIGHTHS[sent], "green"
    return (EIGHTHS[sent] if colour else " ░"[sent > 3]), "yellow"

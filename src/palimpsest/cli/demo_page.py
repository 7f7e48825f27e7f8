"""The picture of `palimpsest demo --svg` and the page of `palimpsest demo --html`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palimpsest.cli.demo_screen import CALLS_A_DAY, DO_IT, a_month
from palimpsest.cli.drawing import Way, ways_picture
from palimpsest.cli.markup import Html, looks, page, tag
from palimpsest.cli.seen import Seen, cut_text, sections, shortened

if TYPE_CHECKING:
    from palimpsest.cli.demo_run import DemoFigures
    from palimpsest.cli.seen import Price
    from palimpsest.tokens.models import Model


def picture(outcome: DemoFigures, model: Model, price: Price, budget: int, *, alone: bool = False) -> Html:
    """Return a picture that compares the four ways; with `alone` it contains its style sheet, to be a file."""
    ways = [
        Way(
            name=bill.name,
            bars=[call.ways[place] for call in outcome.calls],
            price=a_month(bill, price),
            remark=f"{bill.cached_share:.0%} from the cache",
        )
        for place, bill in enumerate(outcome.bills)
    ]
    cuts = [place for place, call in enumerate(outcome.calls) if call.cut is not None]
    title = f"One conversation of {outcome.turns} turns, {len(outcome.calls)} calls, a budget of {budget:,} tokens"
    return ways_picture(title, ways, budget, cuts, assumed(model), looks("colours") if alone else "")


def assumed(model: Model) -> str:
    """Return the footnote that says what the prices assume."""
    return f"* {CALLS_A_DAY:,} such calls a day for 30 days; input at the prices of {model.name}"


def full_page(outcome: DemoFigures, model: Model, price: Price, budget: int) -> str:
    """Return the page: the costs, where the early fact is, and each call with what the model saw."""
    seen = [
        Seen(
            number=call.call,
            where=f"turn {call.turn}",
            context=call.context,
            bar=call.ways[-1],
            cut=cut_text(call.cut["reason"], call.cut) if call.cut is not None else "",
        )
        for call in outcome.calls
    ]
    ours = outcome.bills[-1]
    cards = (
        tag("li", tag("b", a_month(bill, price)), bill.name, class_="ours" if bill is ours else None)
        for bill in outcome.bills
    )
    return page(
        "palimpsest demo",
        tag("h1", f"{outcome.turns} turns of one conversation, held in {budget:,} tokens a call"),
        tag(
            "p",
            "A customer and the support agent of a tool shop talk for eighteen months. Four ways to send that to a "
            "model, and what the input costs a month:",
        ),
        tag("ul", *cards, class_="cards"),
        picture(outcome, model, price, budget),
        *_fact(outcome),
        sections(seen, price, outcome.words, outcome.entries),
        tag("h2", "Do it yourself"),
        tag("pre", tag("code", DO_IT)),
    )


def _fact(outcome: DemoFigures) -> tuple[Html, ...]:
    fact, compacted = outcome.fact, outcome.compacted
    says = ", ".join(compacted.says) or "nothing of that"
    return (
        tag("h2", "What was said at the beginning is not lost"),
        tag("p", f"In turn {fact.turn} the customer said: “… {shortened(fact.text)} …” The newest context "
                 f"{'holds that' if fact.in_context else 'does not hold that any more'}. "
                 f"The log does: session.entry({fact.seq}) returns it whole."),
        tag("p", f"After session.compact() a summary of {compacted.summary_tokens:,} tokens stands for "
                 f"{compacted.covered} entries of {compacted.source_tokens:,}. It says {says}, and "
                 "session.expand() gives back all that it covers."),
    )  # fmt: skip

"""`palimpsest demo`: a long conversation held in a small budget, and what it would have cost otherwise.

It needs no API key and no network: the conversation, with the answers of the model, is package data.
"""

from __future__ import annotations

from contextlib import nullcontext

import click

from palimpsest import ConfigError
from palimpsest.cli import demo_long, demo_page, demo_screen
from palimpsest.cli.app import Whole, examples, json_option
from palimpsest.cli.context import check_page, write_page
from palimpsest.cli.demo_run import figures, run
from palimpsest.cli.output import console, on_terminal, print_json
from palimpsest.cli.seen import price_of
from palimpsest.tokens.models import find_model


@click.command(
    "demo",
    epilog=examples(
        "palimpsest demo", "palimpsest demo --all", "palimpsest demo --html demo.html", "palimpsest demo --budget 16000"
    ),
)
@click.option(
    "--budget", type=Whole(2_500), metavar="N", default=8_000, show_default=True, help="The most tokens of a request."
)
@click.option(
    "--model",
    metavar="NAME",
    default="gpt-4o",
    show_default=True,
    help="Model whose prices are used: any that is counted in o200k_base.",
)
@click.option("--all", "everything", is_flag=True, help="Print every turn and all figures.")
@click.option("--html", metavar="FILE", help="Write a page: what each call was given, and what was left out.")
@click.option("--svg", metavar="FILE", help="Write a picture that compares the four ways to send the conversation.")
@json_option
def demo_command(budget: int, model: str, everything: bool, html: str | None, svg: str | None, as_json: bool) -> None:
    """Show what Palimpsest does with a long conversation.

    A conversation of eighteen months between a customer and a shop's support agent is replayed through a real memory on
    a temporary SQLite file. Before every call of the model, `session.context()` returns what to send, within a small
    budget. The costs are compared with three other ways to send the same conversation. This needs no API key and no
    network: the model's answers are part of the package.
    """
    check_page("--html", html, as_json=as_json)
    check_page("--svg", svg, as_json=as_json)
    found = find_model(model)
    price = price_of(found)
    if found is None or found.encoding != "o200k_base" or price is None:
        raise ConfigError("model", model, "a model counted in o200k_base whose prices are known, such as gpt-4o")
    if as_json or html is not None or svg is not None:
        outcome = run(budget, model, lambda _: None)
        if html is not None:
            write_page(html, demo_page.full_page(outcome, found, price, budget))
        if svg is not None:
            write_page(svg, demo_page.picture(outcome, found, price, budget, alone=True) + "\n")
        if as_json:
            print_json(figures(outcome, found, price, budget))
    elif everything:
        with demo_long.live(budget) if on_terminal() else demo_long.lines() as show:
            outcome = run(budget, model, show)
        demo_long.print_all(outcome, found, price, budget)
    else:
        busy = (
            console(stderr=True).status("replaying a conversation of 184 turns …") if on_terminal() else nullcontext()
        )
        with busy:
            outcome = run(budget, model, lambda _: None)
        demo_screen.print_screen(outcome, found, price, budget)

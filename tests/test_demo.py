"""The demonstration prints the library's own figures and what it promises."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from commands import read, run
from palimpsest import Memory
from palimpsest.cli import scenario
from palimpsest.cli.demo_run import run as replayed
from palimpsest.cli.demo_screen import columns_of, screen_lines
from palimpsest.cli.drawing import Bar
from palimpsest.cli.replay import Bill, Tokens, common_prefix
from palimpsest.cli.seen import Price
from palimpsest.tokens.counter import encoding
from palimpsest.tokens.models import find_model

WAYS = ("Palimpsest", "send everything", "slide by")


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    figures: dict[str, Any] = read("demo")
    return figures


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """The lines that it prints into a pipe."""
    return run("demo", "--all").stdout.splitlines()


def test_every_way_but_sending_everything_fits_the_budget(figures: dict[str, Any]) -> None:
    """The windows and Palimpsest stay within the budget in every call."""
    fits = {name: way["fits_budget"] for name, way in figures["ways"].items()}

    assert fits == {"send everything": False, "slide by message": True, "slide by turn": True, "Palimpsest": True}


def test_palimpsest_costs_least_and_caches_most(figures: dict[str, Any]) -> None:
    """At the same budget its calls cost least, and most of their tokens are cached."""
    costs = {name: way["usd_per_call"] for name, way in figures["ways"].items()}

    assert min(costs, key=lambda name: costs[name]) == "Palimpsest"
    assert figures["ways"]["Palimpsest"]["cached_share"] > 0.85


def test_the_readme_shows_what_the_demo_prints(printed: list[str]) -> None:
    """The README's table and text on compaction equal the demonstration's output."""
    page = (Path(__file__).resolve().parent.parent / "README.md").read_text("utf-8")
    table = [re.split(r"\s{2,}", line.strip()) for line in printed if line.strip().startswith(WAYS)]

    assert len(table) == 4
    for cells in table:
        assert f"| {' | '.join(cells)} |" in page
    assert f"```text\n{chr(10).join(printed[-4:])}\n```" in page


def test_the_early_fact_has_left_the_context_but_not_the_log(figures: dict[str, Any]) -> None:
    """The fact of turn 3 has left the context and is still in the log."""
    fact = figures["early_fact"]

    assert fact["turn"] == 3
    assert (fact["in_context"], fact["in_log"]) == (False, True)


def test_the_final_summary_keeps_the_early_fact(figures: dict[str, Any]) -> None:
    """The summary at the end says what of the early fact must be right to the letter, and expands to all it covers."""
    compaction = figures["compaction"]

    assert compaction["says"] == ["4 mm", "Halden 12", "4417-B"]
    assert compaction["in_context"]
    assert compaction["expanded"] == compaction["covered"] > 500
    assert compaction["summary_tokens"] * 10 < compaction["source_tokens"]
    assert (compaction["fact_expanded"], compaction["verified"]) == (True, True)


def test_the_demos_token_counts_equal_context_tokens() -> None:
    """The demonstration's own measure of a request is `context.tokens`, call by call."""
    tools = scenario.tools()
    bill = Bill("any", Tokens(encoding("o200k_base"), tools))
    with Memory.open("memory://") as memory:
        chat = memory.session("demo", model="gpt-4o", max_tokens=4_000)
        for turn in scenario.conversation()[:25]:
            chat.add(turn)
            context = chat.context(system=scenario.SYSTEM, tools=tools)

            assert bill.call(context.messages)[0] == context.tokens


def test_a_common_prefix_ends_inside_a_message() -> None:
    """Tokens count as cached up to the first that differs, wherever it is."""
    one, other = [(1, 2, 3), (4, 5)], [(1, 2, 3), (4, 6), (5,)]

    assert common_prefix(one, other) == 4
    assert common_prefix(one, [*one, (7,)]) == 5
    assert common_prefix([], one) == 0


def test_a_cache_begins_at_1024_tokens_in_steps_of_128() -> None:
    """Cached tokens count from 1,024 on in steps of 128, as the provider documents."""
    bill = Bill("any", Tokens(encoding("o200k_base"), ()))
    short, long = [{"role": "user", "content": " word" * 900}], [{"role": "user", "content": " word" * 1_200}]

    bill.call(short)
    assert bill.call(short)[1] == 0
    bill.call(long)
    assert bill.call(long)[1] == 1_152


def test_piped_output_has_a_line_per_turn_and_one_table(printed: list[str]) -> None:
    """In a pipe it prints a line for each turn, with cuts, and then one table."""
    assert sum(line.startswith("turn ") for line in printed) == len(scenario.conversation())
    assert any("<< cut (high water)" in line for line in printed)
    assert sum(line.startswith(WAYS) for line in printed) == 4
    assert any("exceeds the budget of 8,000 tokens: send everything" in line for line in printed)
    assert any("session.entry(" in line for line in printed)


def test_the_demo_output_fits_a_screen() -> None:
    """24 to 30 lines of 80 columns have the four ways, a month's costs, the early fact, and the lines to do it."""
    price = Price(2.5, 1.25)
    model = find_model("gpt-4o")
    assert model is not None
    outcome = replayed(8_000, "gpt-4o", lambda _: None)

    for colour in (False, True):
        lines = [line.plain.rstrip() for line in screen_lines(outcome, model, price, 8_000, colour=colour)]

        assert 24 <= len(lines) <= 30
        assert max(map(len, lines)) <= 80
        for expected in ("send everything", "Palimpsest", "$ a month", "session.entry(", "Memory.open(", "--html"):
            assert any(expected in line for line in lines)
    narrow = [line.plain for line in screen_lines(outcome, model, price, 8_000, width=60)]
    assert "$2,076" in next(after for line, after in pairwise(narrow) if line.startswith("Palimpsest"))[:60]


def test_a_chart_column_has_cached_tokens_below_new_ones() -> None:
    """A chart's column has cached tokens below new ones, a third of the budget a line, cut at the budget."""
    half = columns_of([Bar(6_000, 3_000)] * 44, 9_000, colour=False)
    whole = columns_of([Bar(90_000, 90_000)] * 44, 9_000, colour=False)

    assert [row.plain[0] for row in half] == [" ", "░", "█"]
    assert [row.plain[0] for row in whole] == ["█", "█", "█"]

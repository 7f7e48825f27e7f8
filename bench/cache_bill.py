"""Compute what conversations cost if the provider caches prompt prefixes: Palimpsest beside two sliding windows.

    python bench/cache_bill.py [conversations.json] [--budgets 4000,8000,16000,32000] [--pause 7200] [--joined 40]
                               [--no-summaries] [--low-water 0.36] [--no-mask] [--markdown | --json] [--gate]

The file is a list of conversations: lists of chat-completions messages, or objects with such a list under `traj`. With
PALIMPSEST_DATA set it need not be named. The conversations are replayed one after the other in sessions of `--joined`
conversations, without pauses, and with a pause of `--pause` seconds between any two. Only the first system prompt is
used, and given to `context`. Before every assistant message the model is called with what each policy sends.

Counts are exact o200k tokens of everything that is sent (content, tool names, arguments, 4 a message). Cached is the
longest token prefix in common with the call before, in the provider's steps; nothing is cached after a pause longer
than the life of the provider's cache. A bill is the price of the input without answers, in tokens of fresh input.

    by turn      the newest whole human turns that fit
    by message   the newest messages that fit, orphaned tool results included (a provider would refuse those)
    no clock     Palimpsest with `cache_seconds=math.inf`: pauses do not change what it sends
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prices import HALF, TENTH, Calls, Message, Tokens, by_message, by_turn, vendors

from palimpsest import BudgetImpossible, Memory
from palimpsest.testing import FakeClock

ANSWER_SECONDS = 5
"""The time between two messages of a conversation."""

TARGETS = {8_000: (0.31, 0.18, 0.70, 0.75), 16_000: (0.27, 0.16, 0.70, 0.95)}
"""By budget, without pauses, at a tenth of the price: bill in units of by turn and of by message, tokens and dialogue
held in units of by turn."""

CLOCK_TARGETS = {8_000: (0.86, 1.0), 16_000: (0.86, 1.0)}
"""By budget, with pauses, at a tenth of the price: bill and dialogue in units of those without a clock."""

STRATEGIES: dict[str, Any] = {
    "none": None,
    "ladder": "ladder",
    "summarizer": "summarizer",
    "hybrid_summary": {"strategy": "hybrid_summary", "summary_tokens": 500},
}
SUMMARY_BUDGETS = (8_000, 16_000)


class Replay:
    """Replays the conversations of a file, `joined` of them to a session, through any policy."""

    def __init__(self, path: Path, joined: int) -> None:
        raw = json.loads(path.read_text(encoding="utf-8"))
        talks = [item["traj"] if isinstance(item, dict) else item for item in raw]
        self.tokens = Tokens()
        self._runs = [talks[i : i + joined] for i in range(0, len(talks), joined)]

    def _sessions(self) -> Iterator[tuple[Message, list[list[Message]]]]:
        """Yield (first system prompt, all other messages of each conversation) for every session."""
        for run in self._runs:
            system = next(message for message in run[0] if message["role"] == "system")
            yield system, [[message for message in talk if message["role"] != "system"] for talk in run]

    def window(self, policy: Any, budget: int) -> Calls:
        """Return what a sliding window sends."""
        calls = Calls(self.tokens)
        for system, talks in self._sessions():
            log: list[Message] = []
            for talk in talks:
                opens = True
                for message in talk:
                    if message["role"] == "assistant":
                        calls.send(policy(system, log, budget, self.tokens), opens=opens)
                        opens = False
                    log.append(message)
            calls.restart()
        return calls

    def palimpsest(self, budget: int, pause: float, **options: Any) -> Calls:
        """Return what Palimpsest sends, with a clock that advances by `pause` seconds between two conversations."""
        calls = Calls(self.tokens)
        for system, talks in self._sessions():
            clock = FakeClock()
            with Memory.open("memory://", clock=clock) as memory:
                chat = memory.session("joined", model="gpt-4o", max_tokens=budget, **options)
                for talk in talks:
                    clock.advance(pause)
                    opens = True
                    for message in talk:
                        clock.advance(ANSWER_SECONDS)
                        if message["role"] == "assistant":
                            context = chat.context(system=system["content"])
                            if context.report.new_cut:
                                calls.cuts.append((len(calls), context.report.first_seq))
                            calls.send(context.messages, opens=opens)
                            opens = False
                        chat.add(message)
                calls.compactions += sum(record.kind == "compact" for record in chat.history())
            calls.restart()
        return calls


class Outcome(NamedTuple):
    """What each policy sent at one budget.

    `timeless` has no clock; `steady` ran without pauses, `paused` with pauses.
    """

    budget: int
    turn: Calls
    message: Calls
    timeless: Calls
    steady: Calls
    paused: Calls

    def ours(self, pause: float) -> Calls:
        """Return what Palimpsest sends with pauses of this length between conversations."""
        return self.paused if pause else self.steady

    def missed(self, pause: float) -> list[str]:
        """Return the targets that are missed, with the figures."""
        vendor, upper_bounds = vendors()[TENTH], list[tuple[str, float, float]]()
        bill, by_message, tokens, dialogue = TARGETS.get(self.budget, (math.inf, math.inf, 0, 0))
        upper_bounds.append(("bill / by turn", self.steady.bill(vendor, 0) / self.turn.bill(vendor, 0), bill))
        upper_bounds.append(
            ("bill / by message", self.steady.bill(vendor, 0) / self.message.bill(vendor, 0), by_message)
        )
        clock_bill, clock_dialogue = CLOCK_TARGETS.get(self.budget, (math.inf, 0))
        ratio = self.paused.bill(vendor, pause) / self.timeless.bill(vendor, pause)
        upper_bounds.append(("bill with pauses / no clock", ratio, clock_bill))
        missed = [f"{name} {value:.3f} > {bound}" for name, value, bound in upper_bounds if value > bound]
        lower_bounds = [("tokens held / by turn", self.steady.sent / self.turn.sent, tokens)]
        lower_bounds.append(("dialogue held / by turn", self.steady.dialogue / self.turn.dialogue, dialogue))
        lower_bounds.append(
            ("dialogue with pauses / no clock", self.paused.dialogue / self.timeless.dialogue, clock_dialogue)
        )
        missed += [f"{name} {value:.3f} < {bound}" for name, value, bound in lower_bounds if value < bound]
        return missed + (["without pauses the clock changes calls"] if self.steady.cuts != self.timeless.cuts else [])


Table = tuple[str, list[str], list[list[str]]]


def figure(ratio: float) -> str:
    """Return a ratio as the tables show it."""
    return f"{ratio:.3f}".removeprefix("0")


def bills(outcomes: Sequence[Outcome], pause: float) -> Table:
    """Return what is paid, by budget and provider, with and without pauses."""
    rows = [
        [f"{outcome.budget:,}", "yes" if seconds else "no"]
        + [
            figure(outcome.ours(seconds).bill(vendor, seconds) / outcome.turn.bill(vendor, seconds))
            for vendor in vendors()
        ]
        for outcome in outcomes
        for seconds in (0.0, pause)
    ]
    columns = [f"{vendor.name} ({vendor.cached:.2f})" for vendor in vendors()]
    return "The bill, by turn = 1; in brackets the price of a cached token", ["budget", "pauses", *columns], rows


def held(outcomes: Sequence[Outcome], pause: float) -> Table:
    """Return what the model sees, and how much of it the cache serves."""
    vendor, rows = vendors()[TENTH], list[list[str]]()
    for outcome in outcomes:
        for seconds in (0.0, pause):
            ours, turn, message = outcome.ours(seconds), outcome.turn, outcome.message
            shares = [f"{calls.cached(vendor, seconds) / calls.sent:.1%}" for calls in (ours, turn, message)]
            by_message = figure(ours.bill(vendor, seconds) / message.bill(vendor, seconds))
            tokens, dialogue = figure(ours.sent / turn.sent), figure(ours.dialogue / turn.dialogue)
            rows.append([f"{outcome.budget:,}", "yes" if seconds else "no", tokens, dialogue, *shares, by_message])
    columns = ["budget", "pauses", "tokens held, by turn = 1", "dialogue held, by turn = 1"]
    columns += ["cached", "cached by turn", "cached by message", "bill, by message = 1"]
    return f"What is held and what is cached ({vendor.name})", columns, rows


def heeding(outcomes: Sequence[Outcome], pause: float) -> Table:
    """Return what a clock changes if there are pauses."""
    rows = [
        [f"{outcome.budget:,}"]
        + [figure(outcome.paused.bill(vendor, pause) / outcome.timeless.bill(vendor, pause)) for vendor in vendors()]
        + [
            figure(outcome.paused.dialogue / outcome.timeless.dialogue),
            figure(outcome.paused.sent / outcome.timeless.sent),
        ]
        for outcome in outcomes
    ]
    columns = [f"bill, {vendor.name}" for vendor in vendors()]
    title = "What cuts for a cold cache do where there are pauses; without them = 1"
    return title, ["budget", *columns, "dialogue held", "tokens held"], rows


def summarised(replay: Replay, outcomes: Sequence[Outcome], pause: float, options: dict[str, Any]) -> Table:
    """Return what is paid and held with summaries, which are made without a model here.

    Without a clock the same is sent with pauses as without; only the bill differs.
    """
    billed_vendors = (vendors()[TENTH], vendors()[HALF])
    rows = []
    for outcome in (outcome for outcome in outcomes if outcome.budget in SUMMARY_BUDGETS):
        for name, strategy in STRATEGIES.items():
            steady, paused = outcome.steady, outcome.paused
            if strategy is not None:
                steady, paused = (
                    replay.palimpsest(outcome.budget, seconds, long_term=strategy, **options)
                    for seconds in (0.0, pause)
                )
            for pauses, seconds, calls in (
                ("no", 0.0, steady),
                ("yes", pause, paused),
                ("yes, no clock", pause, steady),
            ):
                ratios = [calls.bill(vendor, seconds) / outcome.turn.bill(vendor, seconds) for vendor in billed_vendors]
                ratios.append(calls.dialogue / outcome.turn.dialogue)
                rows.append([f"{outcome.budget:,}", name, pauses, *map(figure, ratios), str(calls.compactions)])
    columns = ["budget", "`long_term`", "pauses", *(f"bill, {vendor.name}" for vendor in billed_vendors)]
    return "With summaries, made without a model; by turn = 1", [*columns, "dialogue held", "compactions"], rows


def show(table: Table, *, markdown: bool) -> None:
    """Print a table under its title."""
    title, columns, rows = table
    print(f"{title}:\n" if markdown else f"\n{title}")
    if markdown:
        for cells in (columns, ["---"] * len(columns), *rows):
            print(f"| {' | '.join(cells)} |")
        print()
        return
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    for cells in (columns, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


def played(replay: Replay, budget: int, pause: float, options: dict[str, Any]) -> Outcome:
    """Replay the conversations through every policy at one budget."""
    return Outcome(
        budget,
        replay.window(by_turn, budget),
        replay.window(by_message, budget),
        replay.palimpsest(budget, 0, cache_seconds=math.inf, **options),
        replay.palimpsest(budget, 0, **options),
        replay.palimpsest(budget, pause, **options),
    )


def arguments_of(arguments: Iterable[str] | None) -> argparse.Namespace:
    """Read the command line."""
    data = os.environ.get("PALIMPSEST_DATA")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    file = Path(data, "tau-bench", "gpt-4o-airline.json") if data else None
    parser.add_argument("file", type=Path, nargs="?" if file else None, default=file)
    parser.add_argument("--budgets", default="4000,8000,16000,32000")
    parser.add_argument("--pause", type=float, default=7200.0)
    parser.add_argument("--joined", type=int, default=40)
    parser.add_argument("--low-water", type=float)
    for flag in ("--no-mask", "--no-summaries", "--markdown", "--json", "--gate"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(None if arguments is None else list(arguments))


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the tables. With --gate the exit status is 1 if a target is missed."""
    given = arguments_of(arguments)
    options: dict[str, Any] = {"mask": not given.no_mask}
    if given.low_water is not None:
        options["low_water"] = given.low_water
    replay = Replay(given.file, given.joined)
    try:
        outcomes = [played(replay, int(budget), given.pause, options) for budget in given.budgets.split(",")]
        tables = [make(outcomes, given.pause) for make in (bills, held, heeding)]
        if not given.no_summaries:
            tables.append(summarised(replay, outcomes, given.pause, options))
    except BudgetImpossible as impossible:
        sys.exit(str(impossible))
    missed = {outcome.budget: outcome.missed(given.pause) for outcome in outcomes}
    if given.json:
        shown = [
            {"title": title, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
            for title, columns, rows in tables
        ]
        print(json.dumps({"tables": shown, "missed": missed}))
    else:
        for table in tables:
            show(table, markdown=given.markdown)
        for budget, misses in missed.items():
            verdict = "targets met" if budget in TARGETS else "no targets, and the clock changes no call without pauses"
            print(f"{budget:,}: {'MISSED: ' + '; '.join(misses) if misses else verdict}")
    return 1 if given.gate and any(missed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure facts of a working memory among 100 and among 10,000 in one scope of an SQLite file.

    python bench/working.py [--runs 3] [--json] [--gate]

Reading a fact is compared with reading the same item from the store below (`get_item`), reading and changing one with
the same work among fewer facts, and a context with facts with one without. Commits and rows written are counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from measure import Figure, Statements, alternate, arguments, memory_folder, over_runs, report, scratch

from palimpsest import Memory, Session, WorkingMemory
from palimpsest.runtime.runner import drive
from palimpsest.sessions.fact_scopes import WORKING

SIZES = (100, 10_000)
FACTS = 20
TIMES = 400
VALUE = {"plan": ["look", "ask", "answer"], "notes": "words " * 40}


def filled(memory: Memory, count: int) -> WorkingMemory:
    """Return a scope with `count` facts."""
    facts = memory.working("bench")
    for start in range(0, count, 250):
        facts.set_many({f"k{number}": VALUE for number in range(start, min(start + 250, count))})
    return facts


def run(under: Path | None) -> dict[str, float]:
    """Return all figures of one run."""
    figures: dict[str, float] = {}
    statements, small, large = Statements(), SIZES[0], SIZES[-1]
    with (
        scratch(under) as folder,
        statements.watched(),
        Memory.open(folder / "few.db") as few,
        Memory.open(folder / "many.db") as many,
    ):
        sides = {small: filled(few, small), large: filled(many, large)}
        keys = [f"k{number * 7 % small}" for number in range(TIMES)]
        for count, memory in ((small, few), (large, many)):
            store, facts = memory.store, sides[count]
            pair = alternate(
                lambda key, store=store: drive(store.get_item("default", f"{WORKING}bench", key)),
                lambda key, facts=facts: facts.get(key),
                keys,
            )
            figures[f"get at {count}"] = pair.ratio
        figures["get"] = alternate(sides[small].get, sides[large].get, keys).ratio
        changes = iter(range(10**6))
        figures["set"] = alternate(
            lambda key: sides[small].set(key, next(changes)), lambda key: sides[large].set(key, next(changes)), keys
        ).ratio
        for count, facts in sides.items():
            commits, rows = statements.commits, statements.rows
            for key in keys:
                facts.set(key, next(changes))
            figures[f"commits at {count}"] = (statements.commits - commits) / len(keys)
            figures[f"rows at {count}"] = (statements.rows - rows) / len(keys)
        return figures | contexts(few)


def contexts(memory: Memory) -> dict[str, float]:
    """Return the cost of a turn and its context, with facts in the tail or the prefix, in units of the same without."""
    facts = memory.working("user/ann")
    facts.set_many({f"k{number}": f"what is known of {number}" for number in range(FACTS)})
    options: dict[str, Any] = {"model": "gpt-4o", "max_tokens": 8_000, "tail_share": 0.1}
    ratios = {}
    for place in ("tail", "prefix"):
        bare = memory.session(f"{place} without", **options)
        full = memory.session(f"{place} with", facts="user/ann", facts_in=place, **options)
        pair = alternate(lambda n, one=bare: turn(one, n), lambda n, one=full: turn(one, n), list(range(TIMES)))
        ratios[place] = pair.ratio
    return ratios


def turn(session: Session, number: int) -> None:
    """Add a question and its answer, and ask for the next context."""
    session.add_user_message(f"question {number} about the weather in Paris")
    session.add_assistant_message(f"answer {number}: it rains there, " + "as it did before, " * 10)
    session.context(system="You help.")


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "")
    medians = over_runs(given.runs, lambda: run(memory_folder() or given.disk))
    small, large = SIZES
    figures = [
        Figure(f"get at {small:,}, CPU in reads of its item", medians[f"get at {small}"], 2.0),
        Figure(f"get at {large:,}, CPU in reads of its item", medians[f"get at {large}"], 2.0),
        Figure(f"get, CPU at {large:,} / at {small:,}", medians["get"], 1.25),
        Figure(f"set, CPU at {large:,} / at {small:,}", medians["set"], 1.25),
        Figure(f"commits a set at {large:,}", medians[f"commits at {large}"], 1),
        Figure(
            f"rows written a set at {large:,} / at {small:,}",
            medians[f"rows at {large}"] / medians[f"rows at {small}"],
            1,
        ),
    ]
    told = {"tail": "in its tail", "prefix": "in its prefix"}
    figures += [
        Figure(f"a turn and its context with {FACTS} facts {told[place]}, CPU of one without", medians[place], 1.6)
        for place in told
    ]
    return report("Facts of a working memory", figures, given)


if __name__ == "__main__":
    sys.exit(main())

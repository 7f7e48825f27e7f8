"""Measure values of Firefly's working memory, among 100 and among 10,000, in an SQLite file and in files of lines.

    python bench/firefly.py [--runs 3] [--json] [--gate]

A get is compared with the driver's own read of the same row, value decoded; a get and a set among many with those among
few. The bytes that a set adds to a file of lines are counted.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

from measure import Figure, alternate, arguments, disk_use, memory_folder, over_runs, report, scratch

from palimpsest.compat.firefly import FileStore, SQLiteStore, WorkingMemory
from palimpsest.compat.firefly.sqlite_store import LOAD_BY_KEY
from palimpsest.compat.firefly.store import LocalStore

SIZES = (100, 10_000)
TIMES = 400
VALUE = {"plan": ["look", "ask", "answer"], "notes": "words " * 40}


def filled(store: LocalStore, count: int) -> WorkingMemory:
    """Return a scope with `count` values."""
    facts = WorkingMemory(store=store, scope_id="bench")
    for number in range(count):
        facts.set(f"k{number}", VALUE)
    return facts


def run(under: Path | None) -> dict[str, float]:
    """Return all figures of one run."""
    figures: dict[str, float] = {}
    keys = [f"k{number * 7 % SIZES[0]}" for number in range(TIMES)]
    changes = iter(range(10**6))
    with scratch(under) as folder:
        for kind in ("sqlite", "file"):
            few, many = (opened(kind, folder / f"{kind} {count}") for count in SIZES)
            with few, many:
                small, large = filled(few, SIZES[0]), filled(many, SIZES[1])
                if kind == "sqlite":
                    figures["raw"] = over_raw(folder / f"sqlite {SIZES[1]}", large, keys)
                figures[f"{kind} get"] = alternate(small.get, large.get, keys).ratio
                figures[f"{kind} set"] = alternate(
                    lambda key, facts=small: facts.set(key, next(changes)),
                    lambda key, facts=large: facts.set(key, next(changes)),
                    keys,
                ).ratio
                if kind == "sqlite":
                    continue
                before = disk_use(folder / f"file {SIZES[1]}")
                for key in keys[:50]:
                    large.set(key, next(changes))
                figures["bytes"] = (disk_use(folder / f"file {SIZES[1]}") - before) / 50
    return figures


def opened(kind: str, place: Path) -> LocalStore:
    """Return a store of this kind."""
    return SQLiteStore(place) if kind == "sqlite" else FileStore(place)


def over_raw(path: Path, facts: WorkingMemory, keys: list[str]) -> float:
    """Return the time of a get in units of the driver's read of the same row."""
    db = sqlite3.connect(path, isolation_level=None)
    try:

        def raw(key: str) -> object:
            row = db.execute(LOAD_BY_KEY, ("working:bench", key, 0)).fetchone()
            return json.loads(row[3])

        return alternate(raw, facts.get, keys).ratio
    finally:
        db.close()


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "")
    medians = over_runs(given.runs, lambda: run(memory_folder() or given.disk))
    small, large = (f"{size:,}" for size in SIZES)
    figures = [
        Figure("SQLite: get, CPU in the driver's own read and decoding", medians["raw"], 2.0),
        *(
            Figure(f"{name}: {verb}, CPU at {large} / at {small}", medians[f"{kind} {verb}"], 1.25)
            for kind, name in (("sqlite", "SQLite"), ("file", "files"))
            for verb in ("get", "set")
        ),
        Figure(f"files: bytes that a set adds at {large}", medians["bytes"], 400),
    ]
    return report("Values of Firefly's working memory", figures, given)


if __name__ == "__main__":
    sys.exit(main())

"""Measure rebuilding the index of a large store, as `palimpsest index rebuild` does: time, memory, progress.

    python bench/indexing.py [--large N] [--disk FOLDER] [--json] [--gate]

A tenth of the entries are in one session, the others in 99; each is a short line. A store of a tenth as many entries is
measured beside it: the memory that the index takes must be the same, once there are enough entries to fill SQLite's
page cache, as with 100,000 beside a million (`--large 1000000`). Each store is indexed in a process of its own, which
then finds an entry of the largest session.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from large import costs
from measure import Figure, arguments, memory_folder, report, scratch
from workload import CROPS, PEOPLE, PLACES

from palimpsest import Memory

SESSIONS = 100
AT_ONCE = 5_000
"""Entries of one append."""

FILLS = 100_000
"""How many entries fill SQLite's page cache."""

MOST, MORE = 64, 1.5
"""The most additional mebibytes; the most of a store ten times as large, in units of those of the smaller."""


def fill(path: Path, entries: int) -> None:
    """Write the entries, a tenth of them to the first session."""
    rng = random.Random(0)
    first = entries // 10
    sizes = [first, *[(entries - first) // (SESSIONS - 1)] * (SESSIONS - 2)]
    sizes.append(entries - sum(sizes))
    with Memory.open(path, synchronous="NORMAL") as memory:
        for number, size in enumerate(sizes):
            session = memory.session(f"s{number}")
            for start in range(0, size, AT_ONCE):
                session.add([_said(rng, number, seq) for seq in range(start, min(start + AT_ONCE, size))])


def _said(rng: random.Random, session: int, seq: int) -> dict[str, str]:
    what = f"{rng.choice(PEOPLE)} took {rng.choice(CROPS)} of lot {rng.randrange(100_000)} to the {rng.choice(PLACES)}"
    return {"role": "user", "content": f"{what}, as number {session}x{seq}."}


def build(path: str, entries: int) -> dict[str, float]:
    """Return the seconds and mebibytes of making the index, how often progress was reported, and what the index has."""
    reports: list[tuple[int, int]] = []
    with Memory.open(path, synchronous="NORMAL") as memory:
        memory.session("other").add_user_message("what is loaded once")
        memory.session("other").recall("loaded")
        cost = costs(lambda: memory.rebuild_index(progress=lambda done, of: reports.append((done, of))))
        status = memory.index_status()
        last = f"0x{entries // 10 - 1}"
        is_found = last in memory.recall(last, limit=1).hits[0].text
    in_order = reports == [(done, SESSIONS + 1) for done in range(1, SESSIONS + 2)]
    return {
        **cost,
        "told": len(reports) if in_order else 0,
        "entries": status.entries,
        "bytes": status.bytes,
        "last": is_found,
    }


def measured(folder: Path, entries: int) -> dict[str, float]:
    """Return what `build` returns in a process of its own."""
    path = folder / f"{entries}.db"
    fill(path, entries)
    command = [sys.executable, __file__, "--build", str(path), str(entries)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", runs=1, large=100_000)
    with scratch(given.disk or memory_folder()) as folder:
        small, whole = measured(folder, given.large // 10), measured(folder, given.large)
    most = MORE if given.large >= 10 * FILLS else None
    figures = [
        Figure("MiB at most", whole["peak"], MOST, f"{small['peak']:.1f} of a tenth as many"),
        Figure("MiB, of a tenth as many = 1", whole["peak"] / max(small["peak"], 8.0), most, "8 MiB at least are 1"),
        Figure("microseconds an entry", whole["seconds"] / given.large * 1e6),
        Figure("seconds", whole["seconds"]),
        Figure("entries in the index", whole["entries"], given.large, least=True),
        Figure("bytes of index an entry", whole["bytes"] / given.large),
        Figure("times that the bar was told", whole["told"], SESSIONS, least=True),
        Figure("the last entry of the largest session is found", float(whole["last"]), 1, least=True),
    ]
    return report("Indexing", figures, given, f"{given.large:,} entries in {SESSIONS} sessions.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        print(json.dumps(build(sys.argv[2], int(sys.argv[3]))))
    else:
        sys.exit(main())

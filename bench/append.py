"""Measure what it costs to append one turn with `Session.add`, beside the same turn through plain `sqlite3`.

    python bench/append.py [--runs 3] [--turns 120] [--large 100000] [--disk FOLDER] [--json] [--gate]

Processor time on tmpfs is the software's own cost; wall time on a disk in FULL mode is what a user waits for. Commits,
rows and pages are counted, and the same on every machine. The raw side always holds 1,000 messages.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import (
    SESSION,
    Figure,
    Pair,
    Statements,
    alternate,
    alternate_async,
    arguments,
    file_system,
    memory_folder,
    over_runs,
    report,
    scratch,
    store,
)
from raw import RawLog, filled
from workload import Turn, history, some

from palimpsest import AsyncMemory, Memory
from palimpsest.sessions.sync import Session

SMALL, MIDDLE = 100, 1_000
WARM = 10
THREADS = 8
PAGE = 4096 + 24  # bytes that a page takes in the write-ahead log, with its frame header


@contextmanager
def opened(folder: Path, size: int) -> Iterator[Session]:
    """Yield a session of `size` messages, in FULL mode."""
    path = folder / f"{size}.db"
    if not path.exists():
        store(path, history(size))
    with Memory.open(path) as memory:
        yield memory.session(SESSION)


@contextmanager
def comparator(folder: Path) -> Iterator[RawLog]:
    """Yield a new raw log of 1,000 messages."""
    with scratch(folder) as own:
        log = filled(own / "raw.db", history(MIDDLE, seed=1))
        try:
            yield log
        finally:
            log.close()


def pair(folder: Path, size: int, count: int, seed: int, *, wall: bool = False) -> Pair:
    """Append the same new turns on both sides, alternately."""
    work = some(WARM + count, seed)
    with comparator(folder) as raw, opened(folder, size) as session:
        for turn in work[:WARM]:
            raw.add(turn)
            session.add(turn)
        return alternate(raw.add, session.add, work[WARM:], time.perf_counter if wall else time.process_time)


def pair_turn(folder: Path, size: int, count: int, seed: int) -> Pair:
    """Time a `turn()` with two adds beside the same two appends: the difference is the cost of its lease."""
    work = some(WARM + count, seed)
    with comparator(folder) as raw, opened(folder, size) as session:

        def twice(turn: Turn) -> None:
            raw.add(turn[:1])
            raw.add(turn[1:])

        def in_a_turn(turn: Turn) -> None:
            with session.turn():
                session.add(turn[:1])
                session.add(turn[1:])

        for turn in work[:WARM]:
            twice(turn)
            in_a_turn(turn)
        return alternate(twice, in_a_turn, work[WARM:], time.perf_counter)


async def pair_async(folder: Path, size: int, count: int, seed: int) -> Pair:
    """Do the same as `pair` through `AsyncMemory` in one running loop."""
    work = some(WARM + count, seed)
    with comparator(folder) as raw:
        async with AsyncMemory.open(folder / f"{size}.db") as memory:
            session = memory.session(SESSION)
            for turn in work[:WARM]:
                raw.add(turn)
                await session.add(turn)
            return await alternate_async(raw.add, session.add, work[WARM:])


def counted(folder: Path, size: int, count: int) -> dict[str, float]:
    """Return the commits, rows and pages written for each turn."""
    work = some(count, seed=90)
    statements = Statements()
    with statements.watched(), opened(folder, size) as session:
        session.add(work[0])
        path = folder / f"{size}.db"
        with sqlite3.connect(path) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        other.close()
        statements.commits = statements.rows = 0
        for turn in work:
            session.add(turn)
        pages = path.with_name(path.name + "-wal").stat().st_size / PAGE
    return {"commits": statements.commits / count, "rows": statements.rows / count, "pages": pages / count}


def together(folder: Path, count: int, seed: int) -> float:
    """Return the turns a second of 8 threads on one memory, in units of those of one thread that commits each turn."""
    work = some(count, seed)
    with opened(folder, SMALL) as session:
        alone = len(work) / _took([work], session)
        shares: list[list[Turn]] = [work[i::THREADS] for i in range(THREADS)]
        return len(work) / _took(shares, session) / alone


def _took(shares: list[list[Turn]], session: Session) -> float:
    ready = threading.Barrier(len(shares) + 1)

    def append(share: list[Turn]) -> None:
        ready.wait()
        for turn in share:
            session.add(turn)

    threads = [threading.Thread(target=append, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", turns=120, large=100_000)
    seeds = iter(range(1000, 10_000))
    place = memory_folder()
    with scratch(place or given.disk) as fast, scratch(given.disk) as disk:
        sizes = (SMALL, MIDDLE, given.large)

        def run() -> dict[str, float]:
            values: dict[str, float] = {}
            for size in sizes:
                timed = pair(fast, size, given.turns, next(seeds))
                values |= {f"cpu {size}": timed.ratio, f"us {size}": timed.ours, f"raw {size}": timed.raw}
            timed = pair(disk, MIDDLE, given.turns, next(seeds), wall=True)
            values |= {"wall": timed.ratio, "wall us": timed.ours, "wall raw": timed.raw}
            timed = asyncio.run(pair_async(disk, MIDDLE, given.turns, next(seeds)))
            values |= {"async": timed.ratio, "async us": timed.ours, "async raw": timed.raw}
            timed = pair_turn(disk, MIDDLE, given.turns, next(seeds))
            values |= {"turn": timed.ratio, "turn us": timed.ours, "turn raw": timed.raw}
            values["flat"] = values[f"cpu {given.large}"] / values[f"cpu {SMALL}"]
            values["together"] = together(disk, 4 * given.turns, next(seeds))
            return values

        m = over_runs(given.runs, run)
        few, many = (counted(fast, size, 40) for size in (SMALL, given.large))
        kinds = file_system(fast), file_system(disk)
    figures = []
    for size in sizes:
        detail = f"{m[f'us {size}']:.0f} / {m[f'raw {size}']:.0f} us"
        figures.append(Figure(f"CPU, N = {size:,}", m[f"cpu {size}"], 1.5, detail))
    figures += [
        Figure(f"flat: ratio at {given.large:,} / at {SMALL}", m["flat"], 1.25),
        Figure("wall, FULL, synchronous", m["wall"], 1.15, f"{m['wall us']:.0f} / {m['wall raw']:.0f} us"),
        Figure("wall, FULL, asynchronous", m["async"], 1.4, f"{m['async us']:.0f} / {m['async raw']:.0f} us"),
        Figure("turn() that adds twice, wall, FULL", m["turn"], 1.5, f"{m['turn us']:.0f} / {m['turn raw']:.0f} us"),
        Figure(f"{THREADS} threads, turns/s in those of one", m["together"], 1.5, "group commit, FULL", least=True),
        Figure("commits a turn", max(few["commits"], many["commits"]), 1, "counted"),
        Figure(f"rows written a turn, at {given.large:,} / at {SMALL}", many["rows"] / few["rows"], 1, "counted"),
        Figure(
            f"pages written a turn, at {given.large:,} / at {SMALL}",
            many["pages"] / few["pages"],
            1.25,
            f"counted: {many['pages']:.1f} / {few['pages']:.1f}",
        ),
    ]
    where = f"CPU time measured on {kinds[0]}, wall time on {kinds[1]}."
    if place is None:
        where += " There is no tmpfs here, so the CPU time includes a disk's."
    return report("Append one turn", figures, given, where)


if __name__ == "__main__":
    sys.exit(main())

"""Shared by the benchmarks: pairs of timings, scratch folders, figures with their targets, and the printed table.

A timing alone says more about the machine than about the code. So everything is timed beside the same work through
`raw.RawLog`, alternately, in one process. What is judged is the ratio of the medians, and of several runs the median
ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from workload import Turn

from palimpsest import Memory

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a scratch folder of our own is made in it)
SESSION = "s"

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # without byte code every process that is started would compile again
sys.dont_write_bytecode = False


class Pair(NamedTuple):
    """The medians of one operation on both sides, in microseconds."""

    raw: float
    ours: float

    @property
    def ratio(self) -> float:
        """Our time in units of the raw one."""
        return self.ours / self.raw


class Figure(NamedTuple):
    """One line of the table.

    `target` is the upper bound of `value`, or the lower one if `least` is set; None: no target.
    """

    what: str
    value: float
    target: float | None = None
    detail: str = ""
    least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.least else self.value <= self.target


def alternate(
    raw: Callable[[Any], object],
    ours: Callable[[Any], object],
    work: Sequence[Any],
    clock: Callable[[], float] = time.process_time,
) -> Pair:
    """Give each piece of work to both sides, and return the medians. The side that comes first changes each time."""
    timings: dict[Callable[[Any], object], list[float]] = {raw: [], ours: []}
    for i, piece in enumerate(work):
        for side in (raw, ours) if i % 2 else (ours, raw):
            start = clock()
            side(piece)
            timings[side].append(clock() - start)
    return Pair(median(timings[raw]) * 1e6, median(timings[ours]) * 1e6)


async def alternate_async(
    raw: Callable[[Any], object], ours: Callable[[Any], Awaitable[object]], work: Sequence[Any]
) -> Pair:
    """Like `alternate`, in wall time: our side is awaited in the running loop, always after the raw side."""
    raw_seconds, our_seconds = [], []
    for piece in work:
        start = time.perf_counter()
        raw(piece)
        middle = time.perf_counter()
        await ours(piece)
        our_seconds.append(time.perf_counter() - middle)
        raw_seconds.append(middle - start)
    return Pair(median(raw_seconds) * 1e6, median(our_seconds) * 1e6)


# --- places


@contextmanager
def scratch(under: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, in that for temporary files unless `under` is given. It is deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-bench-", dir=under))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memory_folder() -> Path | None:
    """Return a folder on tmpfs, where files need no disk; None if there is none."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def file_system(folder: Path) -> str:
    """Return the kind of file system that the folder is on, as the kernel names it."""
    mounts = Path("/proc/mounts")
    longest = ("", "unknown")
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, mount, kind, *_ = line.split()
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(longest[0]):
            longest = (mount, kind)
    return longest[1]


def store(path: Path, turns: Sequence[Turn], *, counted: bool = False, batch: int = 500) -> None:
    """Write a session of these turns, `batch` turns for each append, with stored token counts if `counted`."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        session = memory.session(SESSION)
        for start in range(0, len(turns), batch):
            session.add([message for turn in turns[start : start + batch] for message in turn])
        if counted:
            session.count()


def disk_use(folder: Path) -> int:
    """Return the bytes of the files in the folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


# --- counting what SQLite does


class Statements:
    """Counts what SQLite connections do: commits, and statements that write rows."""

    def __init__(self) -> None:
        self.commits = self.rows = 0
        self._inside = self._wrote = False

    @contextmanager
    def watched(self) -> Iterator[Statements]:
        """Watch the connections that are opened in the block, as long as they live."""
        connect = sqlite3.connect

        def watching(*arguments: Any, **options: Any) -> sqlite3.Connection:
            db = connect(*arguments, **options)
            db.set_trace_callback(self._note)
            return db

        sqlite3.connect = watching  # type: ignore[assignment]
        try:
            yield self
        finally:
            sqlite3.connect = connect

    def _note(self, statement: str) -> None:
        verb = statement.split(None, 1)[0].upper()
        if verb == "BEGIN":
            self._inside, self._wrote = True, False
        elif verb in ("COMMIT", "END"):
            self._inside = False
            self.commits += self._wrote  # a transaction that only read commits nothing
        elif verb == "ROLLBACK":
            self._inside = False
        elif verb in ("INSERT", "REPLACE", "UPDATE", "DELETE"):
            self._wrote = True
            self.rows += 1
            self.commits += not self._inside  # outside of a transaction each statement is a commit


# --- the table


def arguments(description: str, *, runs: int = 3, **more: Any) -> argparse.Namespace:
    """Parse the command line: the options of every benchmark, and those in `more` (name=default)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help=f"take the median of so many runs (default {runs})")
    parser.add_argument("--disk", type=Path, help="folder on the disk to measure (default: for temporary files)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--gate", action="store_true", help="end with status 1 if a target is missed")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default {default}")
    return parser.parse_args()


def over_runs(runs: int, run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the medians of what several runs return."""
    results = [run() for _ in range(max(runs, 1))]
    return {name: median(result[name] for result in results) for name in results[0]}


def report(title: str, figures: Sequence[Figure], given: argparse.Namespace, *notes: str) -> int:
    """Print the figures, and return the exit status."""
    missed = [figure.what for figure in figures if figure.met is False]
    if given.json:
        rows = [{**figure._asdict(), "met": figure.met} for figure in figures]
        print(json.dumps({"benchmark": title, "machine": machine(), "figures": rows, "notes": notes}, indent=2))
    else:
        print(f"{title}\n{machine()}\n")
        width = max(len(figure.what) for figure in figures)
        for figure in figures:
            bound = f"{'>=' if figure.least else '<='} {figure.target:g}" if figure.target is not None else ""
            verdict = {True: "PASS", False: "MISS", None: ""}[figure.met]
            line = f"{figure.what:{width}}  {_number(figure.value):>9}  {bound:>9}  {verdict:4}  {figure.detail}"
            print(line.rstrip())
        for note in notes:
            print(f"\n{note}")
    sys.stdout.flush()
    return 1 if missed and given.gate else 0


def machine() -> str:
    """Describe the machine: processors, system, interpreter, SQLite."""
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{system}, {python}, SQLite {sqlite3.sqlite_version}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.2f}"

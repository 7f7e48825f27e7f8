"""Check eight writers in two processes on one session: nothing lost, doubled, mixed or half-written; and how fast.

    python bench/concurrency.py [--runs 3] [--turns 25] [--disk FOLDER] [--json] [--gate]

Every turn that was acknowledged is looked for afterwards, word for word and in one piece. The threads of a process
either have a memory each (a connection each) or share one, which lets them commit together. The raw side is timed just
before and just after, also in FULL mode, with a connection for each thread.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from measure import SESSION, Figure, arguments, file_system, over_runs, report, scratch
from raw import RawLog
from workload import Message, Turn, some

from palimpsest import Memory
from palimpsest.formats import find_format

PROCESSES, THREADS = 2, 4
KINDS = ("a memory each", "one memory a process")
RAW = "raw"

Add = Callable[[Turn], object]


class Outcome(NamedTuple):
    """What a process did: the tags acknowledged, errors, seconds of each append, and when it began and ended."""

    tags: list[str]
    errors: list[str]
    latencies: list[float]
    began: float
    ended: float


def tagged(process: int, thread: int, count: int) -> list[tuple[str, Turn]]:
    """Return turns whose question begins with a tag of its own."""
    tagged_turns = []
    for i, turn in enumerate(some(count, seed=100 + process * THREADS + thread)):
        tag = f"<{process}.{thread}.{i}>"
        question = {**turn[0], "content": f"{tag} {turn[0]['content']}"}
        tagged_turns.append((tag, [question, *turn[1:]]))
    return tagged_turns


def write(kind: str, path: Path, process: int, count: int, ready: Barrier, results: Any) -> None:
    """Run in a process: its threads begin together, and append their turns."""
    tags: list[str] = []
    errors: list[str] = []
    latencies: list[float] = []
    shared = Memory.open(path) if kind == KINDS[1] else None
    start = threading.Barrier(THREADS + 1)

    def work(thread: int) -> None:
        add, close = _opened(kind, path, shared)
        todo = tagged(process, thread, count)
        start.wait()
        for tag, turn in todo:
            begin = time.perf_counter()
            try:
                add(turn)
            except Exception as error:  # noqa: BLE001 (every error is counted)
                errors.append(f"{type(error).__name__}: {error}")
            else:
                tags.append(tag)
                latencies.append(time.perf_counter() - begin)
        close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    start.wait()
    began = time.time()
    for thread in threads:
        thread.join()
    ended = time.time()
    if shared is not None:
        shared.close()
    results.put(Outcome(tags, errors, latencies, began, ended))


def _opened(kind: str, path: Path, shared: Memory | None) -> tuple[Add, Callable[[], None]]:
    if kind == RAW:
        log = RawLog(path)
        return log.add, log.close
    if shared is not None:
        return shared.session(SESSION).add, lambda: None
    memory = Memory.open(path)
    return memory.session(SESSION).add, memory.close


def together(kind: str, path: Path, count: int) -> list[Outcome]:
    """Run the processes, which begin once all are ready."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(PROCESSES), context.Queue()
    children = [
        context.Process(target=write, args=(kind, path, i, count, ready, results), daemon=True)
        for i in range(PROCESSES)
    ]
    for child in children:
        child.start()
    outcomes = [results.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    return outcomes


def rate(outcomes: list[Outcome]) -> float:
    """Return the acknowledged turns a second, from the first beginning to the last end."""
    turns = sum(len(outcome.tags) for outcome in outcomes)
    return turns / (max(o.ended for o in outcomes) - min(o.began for o in outcomes))


def faults(path: Path, outcomes: list[Outcome], count: int) -> dict[str, float]:
    """Look for every acknowledged turn in the log, which must consist of whole turns, one after the other."""
    sent = {tag: turn for p in range(PROCESSES) for t in range(THREADS) for tag, turn in tagged(p, t, count)}
    with Memory.open(path) as memory:
        stored = find_format("openai").encode(memory.session(SESSION).entries())
    seen: dict[str, int] = {}
    broken = 0
    runs = _runs(stored)
    for run in runs:
        tag = str(run[0]["content"]).split()[0]
        seen[tag] = seen.get(tag, 0) + 1
        broken += run != sent.get(tag)
    acknowledged = [tag for outcome in outcomes for tag in outcome.tags]
    return {
        "acknowledged": len(acknowledged),
        "errors": sum(len(outcome.errors) for outcome in outcomes),
        "lost": sum(tag not in seen for tag in acknowledged),
        "doubled": sum(times > 1 for times in seen.values()),
        "mixed or cut short": broken,
        "never acknowledged": len(seen.keys() - set(acknowledged)),
    }


def _runs(messages: list[Message]) -> list[Turn]:
    runs: list[Turn] = []
    for message in messages:
        if message["role"] == "user" or not runs:
            runs.append([])
        runs[-1].append(message)
    return runs


def once(kind: str, disk: Path, count: int) -> dict[str, float]:
    """Time raw, ours and raw again, each on a new file."""
    with scratch(disk) as folder:
        for name in ("before", "after"):
            RawLog(folder / f"{name}.raw").close()
        Memory.open(folder / "ours.db").close()
        before = rate(together(RAW, folder / "before.raw", count))
        outcomes = together(kind, folder / "ours.db", count)
        after = rate(together(RAW, folder / "after.raw", count))
        latencies = [seconds for outcome in outcomes for seconds in outcome.latencies]
        return {
            **faults(folder / "ours.db", outcomes, count),
            "rate": rate(outcomes),
            "ratio": rate(outcomes) / ((before + after) / 2),
            "raw": (before + after) / 2,
            "p95": quantiles(latencies, n=20)[18] * 1e3,
            "longest": max(latencies) * rate(outcomes) / (PROCESSES * THREADS),
        }


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", turns=25)
    all_turns = PROCESSES * THREADS * given.turns
    figures: list[Figure] = []
    worst = ("errors", "lost", "doubled", "mixed or cut short", "never acknowledged")
    with scratch(given.disk) as disk:
        for kind in KINDS:
            runs = [once(kind, disk, given.turns) for _ in range(given.runs)]
            m = over_runs(len(runs), iter(runs).__next__)
            least = min(run["acknowledged"] for run in runs)
            detail = f"of {all_turns}, in the worst run"
            figures.append(Figure(f"{kind}: acknowledged", least, all_turns, detail, least=True))
            figures += [Figure(f"{kind}: {name}", max(run[name] for run in runs), 0) for name in worst]
            detail = f"{m['rate']:.0f} / {m['raw']:.0f} turns/s"
            figures += [
                Figure(f"{kind}: throughput, in raw ones", m["ratio"], 0.8, detail, least=True),
                Figure(f"{kind}: p95 of an append, ms", m["p95"], 20),
                Figure(f"{kind}: longest append, in those of each his turn", m["longest"], 15, "fair: all wait alike"),
            ]
        where = f"On {file_system(disk)}, FULL mode."
    return report("Eight writers in two processes on one session", figures, given, where)


if __name__ == "__main__":
    sys.exit(main())

"""Measure what encryption at rest costs: the same turns and contexts through an encrypted SQLite store and a plain one.

    python bench/encryption.py [--runs 3] [--turns 200] [--calls 100] [--disk FOLDER] [--json] [--gate]

Processor time on tmpfs is the software's own cost; wall time on a disk in FULL mode is what a user waits for. Contexts
are of 8,000 tokens with stored counts, just after a cut. Needs the extra `encryption`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median

from measure import (
    SESSION,
    Figure,
    Pair,
    alternate,
    arguments,
    disk_use,
    file_system,
    memory_folder,
    over_runs,
    report,
    scratch,
)
from workload import history, some

from palimpsest import AsyncMemory, Keys, Memory
from palimpsest.stores.encrypted.rotation import rotate_keys

BUDGET = 8_000
BEFORE = 1_000
WARM = 10
OLD, NEW = Keys.new(), Keys.new()
KEYS = Keys({"a": OLD})


def appended(folder: Path, turns: int, seed: int, *, wall: bool) -> Pair:
    """Append the same turns to both, alternately."""
    work = some(WARM + turns, seed)
    with scratch(folder) as own, ExitStack() as stack:
        plain = stack.enter_context(Memory.open(own / "plain.db")).session(SESSION)
        sealed = stack.enter_context(Memory.open(own / "sealed.db", encryption=KEYS)).session(SESSION)
        for session in (plain, sealed):
            session.add([message for turn in history(BEFORE) for message in turn])
            for turn in work[:WARM]:
                session.add(turn)
        return alternate(plain.add, sealed.add, work[WARM:], time.perf_counter if wall else time.process_time)


def contexts(folder: Path, calls: int) -> tuple[float, float]:
    """Compare contexts of the same session in both: in processor time synchronous, in wall time asynchronous."""
    with scratch(folder) as own, ExitStack() as stack:
        sessions = []
        for name, keys in (("plain", None), ("sealed", KEYS)):
            memory = stack.enter_context(Memory.open(own / f"{name}.db", encryption=keys))
            session = memory.session(SESSION, max_tokens=BUDGET)
            session.add([message for turn in history(BEFORE) for message in turn])
            session.context()
            sessions.append(session)
        plain, sealed = sessions
        sync = alternate(lambda _: plain.context(), lambda _: sealed.context(), range(calls))

        async def timed() -> float:
            """Return the ratio of the medians of alternate calls: in two blocks, other load could affect only one of
            them."""
            async with AsyncExitStack() as memories:
                both, seconds = [], [list[float](), list[float]()]
                for name, keys in (("plain", None), ("sealed", KEYS)):
                    memory = await memories.enter_async_context(AsyncMemory.open(own / f"{name}.db", encryption=keys))
                    both.append(memory.session(SESSION, max_tokens=BUDGET))
                    await both[-1].context()
                for i in range(2 * calls):
                    start = time.perf_counter()
                    await both[i % 2].context()
                    seconds[i % 2].append(time.perf_counter() - start)
                return median(seconds[1]) / median(seconds[0])

        return sync.ratio, asyncio.run(timed())


def stored(folder: Path) -> tuple[float, float]:
    """Return the encrypted bytes on disk in units of the plain ones.

    And how many entries a second a change of keys encrypts again.
    """
    work = [message for turn in history(4 * BEFORE) for message in turn]
    with scratch(folder) as own:
        for name, keys in (("plain", None), ("sealed", KEYS)):
            (own / name).mkdir()
            with Memory.open(own / name / "a.db", encryption=keys) as memory:
                memory.session(SESSION).add(work)
        with Memory.open(own / "sealed" / "a.db", encryption=Keys({"b": NEW, "a": OLD})) as memory:
            ratio = disk_use(own / "sealed") / disk_use(own / "plain")
            began = time.perf_counter()
            done = rotate_keys(memory)
            return ratio, done.texts / (time.perf_counter() - began)


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", turns=200, calls=100)
    seeds = iter(range(2000, 10_000))
    with scratch(memory_folder() or given.disk) as fast, scratch(given.disk) as disk:

        def run() -> dict[str, float]:
            cpu, wall = (appended(place, given.turns, next(seeds), wall=place is disk) for place in (fast, disk))
            sync, apart = contexts(fast, given.calls)
            size, rate = stored(fast)
            found = {"cpu": cpu.ratio, "cpu us": cpu.ours - cpu.raw, "wall": wall.ratio, "wall us": wall.ours}
            return found | {"sync": sync, "async": apart, "size": size, "rate": rate}

        m = over_runs(given.runs, run)
        kind = file_system(disk)
    figures = [
        Figure("append, processor time", m["cpu"], 3.0, f"{m['cpu us']:.0f} us more a turn of 3.4 messages"),
        Figure("append, wall time on disk", m["wall"], 2.0, f"{m['wall us']:.0f} us a turn on {kind}"),
        Figure("context, processor time, synchronous", m["sync"], 2.0),
        Figure("context, wall time, asynchronous", m["async"], 2.0),
        Figure("bytes on disk", m["size"], 1.6),
        Figure("a change of keys, texts a second", m["rate"], 5_000, least=True),
    ]
    return report("Encryption at rest, in what is not encrypted", figures, given)


if __name__ == "__main__":
    sys.exit(main())

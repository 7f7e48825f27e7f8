"""Time every store at the same work, for those who must choose one.

    python bench/stores.py [--runs 3] [--calls 200] [--json]

A turn is added, a context of 8,000 tokens is asked for after it, and one by a memory that remembers nothing, in a
session of 2,000 messages. Times are medians on this machine, in milliseconds of wall time; rely only on their ratios.
Servers are those of the tests, on the same machine; one that is not available is left out, with the reason.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from measure import Figure, arguments, over_runs, report
from workload import history, some

from palimpsest import AsyncMemory
from servers import KINDS, Server, Unavailable

BUDGET, MESSAGES = 8_000, 2_000


@contextmanager
def address(kind: str) -> Iterator[str]:
    """Yield the address of an empty store of a kind. Raises Unavailable."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        if kind not in KINDS:
            yield {"memory": "memory://", "sqlite": f"sqlite:///{folder}/a.db", "file": f"file://{folder}/logs"}[kind]
            return
        server = Server(kind, Path(folder) / "server")
        server.start()
        try:
            yield server.address
        finally:
            server.kill()


def measured(kind: str, calls: int) -> dict[str, float]:
    """Return medians in milliseconds."""

    async def run(where: str) -> dict[str, float]:
        took: dict[str, list[float]] = {"add": [], "context": [], "first": []}
        async with AsyncMemory.open(where, view_bytes=0) as cold, AsyncMemory.open(where) as memory:
            session, other = (each.session("s", max_tokens=BUDGET) for each in (memory, cold))
            await session.add([message for turn in history(MESSAGES) for message in turn])
            await session.context()
            for turn in some(calls, seed=3):
                for what, do in (("add", lambda t=turn: session.add(t)), ("context", session.context)):
                    begin = time.perf_counter()
                    await do()
                    took[what].append(time.perf_counter() - begin)
            for _ in range(calls // 4 if kind != "memory" else 0):
                begin = time.perf_counter()
                await other.context()
                took["first"].append(time.perf_counter() - begin)
        return {what: median(times) * 1000 for what, times in took.items() if times}

    with address(kind) as where:
        return asyncio.run(run(where))


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", calls=200)
    figures = []
    for kind in ("memory", "sqlite", "file", "postgres", "redis", "mongodb"):
        try:
            found = over_runs(given.runs, lambda kind=kind: measured(kind, given.calls))
        except Unavailable as why:
            print(f"{kind}: left out, {why}", file=sys.stderr)
            continue
        names = {
            "add": "a turn is added",
            "context": "a context after it",
            "first": "one that nothing is remembered for",
        }
        figures += [Figure(f"{kind}: {names[what]}", value, None, "ms") for what, value in found.items()]
    return report("Stores", figures, given)


if __name__ == "__main__":
    sys.exit(main())

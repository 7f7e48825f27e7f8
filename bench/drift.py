"""Measure what has become slower or faster since an earlier version of this project, by the main loops of both.

    python bench/drift.py [REVISION] [--rounds 7] [--json]

REVISION (default: the last tag, or the commit before this one) is checked out in a scratch folder while this runs. Each
loop is run by a process of its own, alternately from either tree, so that other load on the machine affects both alike.
A ratio is the least time of this tree in units of that of the earlier one: below 1 is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from measure import memory_folder, scratch

HERE = Path(__file__).resolve().parents[1]

LOOP = """
import asyncio, sys, time
sys.path.insert(0, sys.argv[1])
from workload import some
from palimpsest import AsyncMemory, Memory
address, what = "sqlite:///" + sys.argv[2], sys.argv[3]
turns = some(600, seed=7)

def least(act, rounds, count):
    best = 1e9
    for number in range(rounds):
        begin = time.process_time()
        for i in range(count):
            act(turns[60 + (number * count + i) % 500])
        best = min(best, (time.process_time() - begin) / count)
    return best

def synchronous(verb):
    with Memory.open(address) as memory:
        session = memory.session("s", max_tokens=8000)
        for turn in turns[:40]:
            session.add(turn)
        session.context()
        acts = {
            "one message": (lambda _: session.add_user_message("hello there, how are you"), 6, 200),
            "one turn": (lambda turn: session.add(turn), 6, 60),
            "a context": (lambda _: session.context(), 6, 20),
            "a turn and a context": (lambda turn: (session.add(turn), session.context()), 6, 20),
        }
        return least(*acts[verb])

async def asynchronous():
    async with AsyncMemory.open(address) as memory:
        session = memory.session("s", max_tokens=8000)
        best = 1e9
        for _ in range(6):
            begin = time.process_time()
            for _ in range(100):
                await session.add_user_message("hello there, how are you")
            best = min(best, (time.process_time() - begin) / 100)
        return best

print(asyncio.run(asynchronous()) if what == "one message, asynchronous" else synchronous(what))
"""
COLD = """
import sys, time
begin = time.process_time()
from palimpsest import Memory
with Memory.open("sqlite:///" + sys.argv[2]) as memory:
    memory.session("s", max_tokens=8000).context()
print(time.process_time() - begin)
"""
LOOPS = ("one message", "one turn", "a context", "a turn and a context", "one message, asynchronous")


@contextmanager
def tree(revision: str) -> Iterator[Path]:
    """Yield a folder with the project as it was at a revision."""
    with scratch() as folder:
        checkout = folder / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", checkout, revision], cwd=HERE, check=True, capture_output=True
        )
        try:
            yield checkout
        finally:
            command = ["git", "worktree", "remove", "--force", checkout]
            subprocess.run(command, cwd=HERE, check=True, capture_output=True)


def earlier() -> str:
    """Return the last tag, or the commit before this one if there is none."""
    command = ["git", "describe", "--tags", "--abbrev=0"]
    described = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "HEAD~1"


def once(project: Path, what: str) -> float:
    """Return the least seconds that a project takes for one piece of work."""
    with scratch(memory_folder()) as folder:
        script = COLD if what == "a cold start" else LOOP
        command = [sys.executable, "-c", script, str(HERE / "bench"), str(folder / "log.db"), what]
        environment = {**os.environ, "PYTHONPATH": str(project / "src")}
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default=earlier(), help="a tag or commit (default: the last tag)")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each side (default 7)")
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON")
    given = parser.parse_args()
    ratios: dict[str, tuple[float, float]] = {}
    with tree(given.revision) as before:
        for what in (*LOOPS, "a cold start"):
            pairs = []
            for number in range(given.rounds):
                sides = (before, HERE) if number % 2 else (HERE, before)
                seconds = {side: once(side, what) for side in sides}
                pairs.append((seconds[before], seconds[HERE]))
            least = min(now for _, now in pairs) / min(then for then, _ in pairs)
            ratios[what] = least, median(now / then for then, now in pairs)
            if not given.json:
                each = f"median of pairs {ratios[what][1]:.3f}, {min(now for _, now in pairs) * 1e6:.0f} us"
                print(f"{what:<28}{least:>8.3f}   {each}", flush=True)
    if given.json:
        print(
            json.dumps({what: {"least": least, "median": middle} for what, (least, middle) in ratios.items()}, indent=2)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Count the instructions of an append, a context and a cold start by valgrind: the same however busy the machine is.

    python bench/instructions.py [--json] [--gate]      three minutes; needs `valgrind`

Only what a process does itself is counted, not what the kernel does for it, and an instruction that waits for memory
counts as one. So a ratio says how much more is done; the times of `append.py` and `cold.py` say how long that takes.
What a process does once is subtracted: each is run with few calls and with more. What SQLite's store does by the clock
is left out: every 5 ms it checks that its path still names the file, and once a second it moves a session's mark.
Valgrind makes a process a hundred times slower, so it would do so with most appends; it does with one in twenty.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cold import ASYNC, NOTHING, RAW, SYNC
from cold import prepare as prepare_cold
from context import prepare as prepare_context
from measure import SESSION, Figure, arguments, memory_folder, report, scratch, store
from raw import filled
from workload import history

from palimpsest import Memory

BUDGET = 8_000
SIZE = 1_000
FEW, MORE = 20, 120

RAW_LOG = """
import sys
from pathlib import Path
from raw import RawLog
from workload import some
path, calls = Path(sys.argv[1]), int(sys.argv[2])
work, log = some(200, seed=5), RawLog(path)
{do}
log.close()
"""
OURS = f"""
import sys
from pathlib import Path
from palimpsest import Memory
from palimpsest.stores.sqlite import db, tables
from workload import some
path, calls = Path(sys.argv[1]), int(sys.argv[2])
work = some(200, seed=5)
db.LOOK, tables.MARKED = 3_600.0, 3_600_000_000
with Memory.open(path, view_bytes=0) as memory:
    session = memory.session({SESSION!r}, max_tokens={BUDGET})
    {{do}}
"""
APPENDS = "for turn in work[:calls]: {}.add(turn)"
SHORT = "for turn in [turn for turn in some(400, seed=5) if len(turn) == 2][:calls]: {}.add(turn)"
"""Turns without tool calls. They are six in ten, so the median of times is that of such a turn."""
CONTEXTS = "for _ in range(calls): {}"


def ran(script: str, *given: object, within: Sequence[str] = ()) -> str:
    """Run the script in a new interpreter, inside the program `within` if one is given, and return its stderr."""
    bench_folder = str(Path(__file__).parent)
    environment = dict(os.environ)
    paths = ":".join(filter(None, (bench_folder, environment.get("PYTHONPATH", ""))))
    command = [*within, sys.executable, "-c", script, *map(str, given)]
    environment |= {"PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr


def instructions(script: str, *given: object) -> int:
    """Return how many instructions a new interpreter takes for the script.

    It must have been run once before, since compiling counts, too.
    """
    output = ran(script, *given, within=["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"])
    match = re.search(r"Collected : (\d+)", output)
    assert match is not None, output
    return int(match[1])


def each(script: str, path: Path) -> float:
    """Return the instructions of one call among many. Each run has a copy of the file."""
    with scratch(path.parent) as own:
        copy = own / path.name

        def counted(calls: int) -> int:
            shutil.copy(path, copy)
            return instructions(script, copy, calls)

        shutil.copy(path, copy)
        ran(script, copy, 1)  # makes the byte code
        return (counted(MORE) - counted(FEW)) / (MORE - FEW)


def started(folder: Path) -> dict[str, float]:
    """Return the instructions of fresh processes to their first context, less those of an empty script."""
    path = folder / "cold.db"
    first, last = prepare_cold(path, SIZE)
    scripts = {"pass": (NOTHING,), "raw": (RAW, path, first, last), "sync": (SYNC, path), "async": (ASYNC, path)}
    for script, *given in scripts.values():  # byte code
        ran(script, *given)
    counts = {name: instructions(script, *given) for name, (script, *given) in scripts.items()}
    return {name: count - counts["pass"] for name, count in counts.items()}


def called(folder: Path) -> dict[str, float]:
    """Return the instructions of an append and of a context that is not remembered, on both sides."""
    ours, raw = folder / "ours.db", folder / "raw.db"
    store(ours, history(SIZE), counted=True)
    filled(raw, history(SIZE)).close()
    place = prepare_context(folder, SIZE, 0)
    with Memory.open(place.path, view_bytes=0) as memory:
        shown = len(memory.session(SESSION, max_tokens=BUDGET).context().messages)
    windows = f"budget = log.budget_of({shown})\n" + CONTEXTS.format("log.window(budget)")
    return {
        "append": each(OURS.format(do=APPENDS.format("session")), ours),
        "raw append": each(RAW_LOG.format(do=APPENDS.format("log")), raw),
        "append of two messages": each(OURS.format(do=SHORT.format("session")), ours),
        "raw append of two messages": each(RAW_LOG.format(do=SHORT.format("log")), raw),
        "context": each(OURS.format(do=CONTEXTS.format("session.context()")), place.path),
        "raw context": each(RAW_LOG.format(do=windows), place.raw),
    }


def main() -> int:
    """Count and print."""
    given = arguments(__doc__ or "", runs=1)
    if shutil.which("valgrind") is None:
        print("Instructions: skipped, for valgrind is not installed.")
        return 0
    with scratch(memory_folder() or given.disk) as folder:
        starts, calls = started(folder), called(folder)
    bounds = {"append": 1.3, "append of two messages": 1.5, "context": 2.0}
    figures = [
        Figure(
            f"{name}, N = {SIZE:,}",
            calls[name] / calls[f"raw {name}"],
            bound,
            f"{calls[name] / 1e3:,.0f} / {calls[f'raw {name}'] / 1e3:,.0f} thousand",
        )
        for name, bound in bounds.items()
    ]
    figures += [
        Figure(
            f"cold start, {kind}",
            starts[kind] / starts["raw"],
            bound,
            f"{starts[kind] / 1e6:,.0f} / {starts['raw'] / 1e6:,.0f} million",
        )
        for kind, bound in (("sync", 2.0), ("async", 3.0))
    ]
    return report("Instructions", figures, given, "Counted by valgrind, less those that a process takes once.")


if __name__ == "__main__":
    sys.exit(main())

"""Time a fresh process up to the first context of a session with stored counts, beside the least that could do it.

    python bench/cold.py [--runs 3] [--starts 10] [--large 100000] [--json] [--gate]

The script that is compared with imports msgspec and sqlite3, opens the same file, and reads and decodes the same rows.
Both are net of `python -c pass`, and all four (the asynchronous entry is the fourth) are started alternately. The file
is given as an address: a `pathlib.Path` would add its own import on our side alone. What an import loads is a list, and
needs no clock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from measure import SESSION, Figure, arguments, over_runs, report, scratch, store
from workload import history, some

from palimpsest import Memory

BUDGET = 8_000
SIZES = (100, 1_000)
LAST = some(40, seed=501)

NOTHING = "pass"
RAW = """
import sys, sqlite3, msgspec
path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = sqlite3.connect(path)
rows = db.execute("SELECT pos, value FROM entry WHERE pos BETWEEN ? AND ? ORDER BY pos", (first, last)).fetchall()
decode = msgspec.json.Decoder().decode
print(len([decode(value[:-8]) for _, value in rows]))
db.close()
"""
SYNC = f"""
import sys
from palimpsest import Memory
with Memory.open("sqlite:///" + sys.argv[1]) as memory:
    print(len(memory.session({SESSION!r}, max_tokens={BUDGET}).context().messages))
"""
MODEL = SYNC.replace(f"max_tokens={BUDGET}", f"max_tokens={BUDGET}, model='gpt-4o'")
ASYNC = f"""
import asyncio, sys
from palimpsest import AsyncMemory
async def main():
    async with AsyncMemory.open("sqlite:///" + sys.argv[1]) as memory:
        print(len((await memory.session({SESSION!r}, max_tokens={BUDGET}).context()).messages))
asyncio.run(main())
"""
LOADED = """
import json, sys
import msgspec
before = set(sys.modules)
from palimpsest import Memory
print(json.dumps(sorted(set(sys.modules) - before)))
"""
UNWANTED = ("asyncio", "tiktoken", "click")


def start(script: str, *given: object) -> float:
    """Return the seconds that a new interpreter takes for the script."""
    command = [sys.executable, "-c", script, *map(str, given)]
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - begin


def loaded(script: str = LOADED) -> list[str]:
    """Return the modules that importing `Memory` loads besides those of msgspec and the interpreter."""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    modules: list[str] = json.loads(done.stdout)
    return modules


def prepare(path: Path, size: int, model: str | None = None) -> tuple[int, int]:
    """Write the session, commit its cut, and return the first and the last row that its context shows."""
    store(path, history(size), counted=model is None)
    with Memory.open(path) as memory:
        session = memory.session(SESSION, max_tokens=BUDGET, model=model)
        session.add([message for turn in LAST for message in turn])
        session.count()
        shown = session.context().report
    number = 1 << 32  # the first log of a file
    return number | shown.first_seq, number | shown.last_seq


def run(places: dict[int, tuple[Path, int, int]], modelled: tuple[Path, int, int], starts: int) -> dict[str, float]:
    """Start everything alternately, and return medians in milliseconds, net of an empty script."""
    seconds: dict[str, list[float]] = {}
    for _ in range(starts):
        seconds.setdefault("pass", []).append(start(NOTHING))
        for size, (path, first, last) in places.items():
            seconds.setdefault(f"raw {size}", []).append(start(RAW, path, first, last))
            seconds.setdefault(f"sync {size}", []).append(start(SYNC, path))
            seconds.setdefault(f"async {size}", []).append(start(ASYNC, path))
        seconds.setdefault("raw model", []).append(start(RAW, *modelled))
        seconds.setdefault("model", []).append(start(MODEL, modelled[0]))
    empty = median(seconds["pass"])
    return {name: (median(times) - empty) * 1e3 for name, times in seconds.items()} | {"pass": empty * 1e3}


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", starts=10, large=100_000)
    modules = loaded()
    foreign = [name for name in modules if name.partition(".")[0] not in {*sys.stdlib_module_names, "palimpsest"}]
    unwanted = [name for name in modules if name.partition(".")[0] in UNWANTED]
    with scratch(given.disk) as folder:
        places: dict[int, tuple[Path, int, int]] = {}
        for size in (*SIZES, given.large):
            path = folder / f"{size}.db"
            places[size] = (path, *prepare(path, size))
        path = folder / "model.db"
        modelled = (path, *prepare(path, SIZES[1], "gpt-4o"))
        run(places, modelled, 1)  # byte code and page cache
        m = over_runs(given.runs, lambda: run(places, modelled, given.starts))
    figures: list[Figure] = []
    for size in places:
        raw = m[f"raw {size}"]
        for kind, target in (("sync", 2.0), ("async", 3.5)):
            ours = m[f"{kind} {size}"]
            figures.append(Figure(f"{kind}, N = {size:,}", ours / raw, target, f"{ours:.1f} / {raw:.1f} ms"))
    detail = f"{m['model']:.1f} / {m['raw model']:.1f} ms"
    figures.append(Figure(f"sync with model=, N = {SIZES[1]:,}", m["model"] / m["raw model"], 2.0, detail))
    small, large = m[f"sync {SIZES[0]}"], m[f"sync {given.large}"]
    figures += [
        Figure(f"sync, N = {given.large:,} / N = {SIZES[0]}", large / small, 1.1),
        Figure("modules of others beside msgspec", len(foreign), 0, " ".join(foreign)),
        Figure("asyncio, tiktoken, click", len(unwanted), 0, " ".join(unwanted)),
        Figure("modules of the standard library", len(modules) - len(_own(modules)), None, "beside those of msgspec"),
        Figure("modules of Palimpsest", len(_own(modules)), None, "to import Memory"),
    ]
    note = f"Wall time, less {m['pass']:.1f} ms of `python -c pass`."
    return report("From a fresh process to the first context", figures, given, note)


def _own(modules: list[str]) -> list[str]:
    return [name for name in modules if name.partition(".")[0] == "palimpsest"]


if __name__ == "__main__":
    sys.exit(main())

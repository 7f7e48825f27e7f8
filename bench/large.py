"""Measure what reads all of a large log, imports one, or rebuilds an earlier context: time, and additional peak memory.

    python bench/large.py [--large N] [--disk FOLDER] [--json] [--gate]

Each runs in a process of its own, after a first context: `context(at=)` of the middle (as it was given, and for another
budget), `entries()`, `interactions()`, `stats()`, `verify()`, `export_to()`, `import_session()` of an export in memory,
`import_file()` of messages, on SQLite and in files. Beside it plain `sqlite3` reads and decodes all messages, into a
list or one by one, or 64 of the middle.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import SESSION, Figure, arguments, report, scratch
from raw import RawLog
from workload import history

from palimpsest import Memory, Session

BUDGET = 8_000
EVERY = 10
"""Turns from one context to the next while the log is written."""

MEBIBYTE = 1 << 20
STATUS = Path("/proc/self/status")
SHOWN = ("context(at=)", "context(at=) anew")
LISTS = ("entries", "interactions")
PASSES = ("stats", "verify", "export_to")


def memory_used(name: str) -> int:
    """Return the bytes of memory that this process has (`VmRSS`), or the most that it had (`VmHWM`)."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def costs(act: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of an action, and the most mebibytes that it took in addition."""
    before, begin = memory_used("VmRSS"), time.perf_counter()
    result = act()
    seconds = time.perf_counter() - begin
    peak = memory_used("VmHWM") - before
    del result
    return {"seconds": seconds, "peak": max(peak, 0) / MEBIBYTE}


def ours(what: str, where: str, given: str) -> dict[str, float]:
    """Return what a method costs."""
    with Memory.open(where, synchronous="NORMAL") as memory:
        if what == "import_session":
            memory.session("other").add_user_message("what is loaded once")
            data = json.loads(Path(given).read_bytes())
            return costs(lambda: memory.import_session(data, session_id="taken"))
        if what == "import_file":
            memory.session("other").add_user_message("what is loaded once")
            return costs(lambda: memory.import_file(given, session_id="read"))
        session = memory.session(SESSION, max_tokens=BUDGET)
        session.context()
        return costs(lambda: verb(session, what, given))


def verb(session: Session, what: str, given: str) -> object:
    """Call the method."""
    if what in SHOWN:
        return session.context(at=int(given), **({"max_tokens": BUDGET // 2} if what != SHOWN[0] else {}))
    if what == "export_to":
        return session.export_to(given)
    result: object = getattr(session, what)()
    return result


def raw(what: str, where: str) -> dict[str, float]:
    """Read the same rows through plain `sqlite3`: all as a list, all one after the other, or those of a window."""
    log = RawLog(Path(where))
    sql = "SELECT body FROM message WHERE session = 's' ORDER BY seq"
    log.window(BUDGET)
    if what == "window":
        half = "SELECT tokens, body FROM message WHERE session = 's' AND seq < ? ORDER BY seq DESC LIMIT 64"
        (last,) = log.db.execute("SELECT max(seq) FROM message").fetchone()
        return costs(lambda: [json.loads(body) for _, body in log.db.execute(half, (last // 2,))])
    if what == "list":
        return costs(lambda: [json.loads(body) for (body,) in log.db.execute(sql)])
    return costs(lambda: sum(len(json.loads(body)) for (body,) in log.db.execute(sql)))


def fill(where: str, turns: list[Any]) -> int:
    """Write a session with a context every `EVERY` turns; return the revision of one in the middle."""
    middle = 0
    with Memory.open(where, synchronous="NORMAL") as memory:
        session = memory.session(SESSION, max_tokens=BUDGET)
        for number, turn in enumerate(turns):
            session.add(turn)
            if number % EVERY == 0:
                given = session.context()
                middle = given.revision if number <= len(turns) // 2 else middle
        session.count()
    return middle


def apart(*arguments: object) -> dict[str, float]:
    """Measure in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measured(folder: Path, turns: list[Any]) -> list[Figure]:
    """Measure everything in a folder."""
    stores = {"SQLite": f"sqlite:///{folder}/ours.db", "files": f"file://{folder}/logs"}
    middle = {name: fill(where, turns) for name, where in stores.items()}
    log = RawLog(folder / "raw.db", "NORMAL")
    log.add(*turns)
    log.close()
    lines = folder / "messages.jsonl"
    lines.write_text("".join(json.dumps(message) + "\n" for turn in turns for message in turn))
    raw_costs = {what: apart("raw", what, folder / "raw.db") for what in ("window", "list", "pass")}
    figures = []

    def add(what: str, took: dict[str, float], beside: str, most: float | None = None) -> None:
        other = raw_costs[beside]
        detail = f"{took['seconds'] * 1e3:,.0f} / {other['seconds'] * 1e3:,.0f} ms"
        figures.append(Figure(f"{what}: time, raw = 1", took["seconds"] / other["seconds"], None, detail))
        figures.append(Figure(f"{what}: peak, MiB", took["peak"], most, f"raw {other['peak']:,.1f}"))

    export = folder / "export.json"
    for name, where in stores.items():
        for what in SHOWN:
            add(f"{what}, {name}", apart("ours", what, where, middle[name]), "window", 16)
        for what in LISTS:
            add(f"{what}(), {name}", apart("ours", what, where, ""), "list")
        for what in PASSES:
            add(f"{what}(), {name}", apart("ours", what, where, export), "pass", 24)
        add(f"import_session(), {name}", apart("ours", "import_session", where, export), "list")
        add(f"import_file(), {name}", apart("ours", "import_file", where, lines), "pass", 32)
    return figures


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", runs=1, large=100_000)
    with scratch(given.disk) as folder:
        figures = measured(folder, history(given.large))
    return report("A large log", figures, given, f"{given.large:,} entries in one session.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        side, *rest = sys.argv[2:]
        print(json.dumps(ours(*rest) if side == "ours" else raw(*rest)))
    else:
        sys.exit(main())

"""Measure erasing in a large file: an entry, a query, an idle sweep, `forget`, `vacuum`; and how long others wait.

    python bench/erasing.py [--large N] [--disk FOLDER] [--json] [--gate]

Wall time on disk in the default mode (FULL), beside plain `sqlite3` that does the same with one table, with
secure_delete on, and with the write-ahead log truncated after each deletion, as erasing requires. `forget` of a user
and a query read what they erase, which a condition in SQL does faster than any code that decodes; the rest is the same
work. During each, a process adds to another session every two milliseconds: its longest wait is in the details, for
both sides.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Self

from measure import SESSION, Figure, arguments, report, scratch, store
from raw import RawLog
from workload import history

from palimpsest import Memory, Query

TIMES = 20
"""How many entries are erased one by one."""

PAUSE = 0.002
USER, WORD = "quincy", "zanzibar"


class Beside:
    """A process that keeps adding messages to a file, and reports at its end how long each add took."""

    def __init__(self, kind: str, path: Path) -> None:
        command = [sys.executable, __file__, "--beside", kind, str(path)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._spans: list[tuple[str, float, float]] = []
        self.longest: dict[str, float] = {}
        """The longest wait in milliseconds, by what was done meanwhile."""

    def __enter__(self) -> Self:
        assert self._child.stdout is not None
        self._child.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        output, _err = self._child.communicate()
        waits = json.loads(output)
        for what, begin, end in self._spans:
            longest = max((took for at, took in waits if at + took > begin and at < end), default=0.0)
            self.longest[what] = max(self.longest.get(what, 0.0), longest * 1e3)

    def during(self, what: str, act: Callable[[], object]) -> float:
        """Do something, and return the seconds that it takes."""
        time.sleep(PAUSE * 50)  # let a writer that waited for the last step finish
        begin = time.monotonic()
        act()
        end = time.monotonic()
        self._spans.append((what, begin, end))
        return end - begin


def beside(kind: str, path: str) -> None:
    """Add messages until standard input ends."""
    import threading

    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    add, close = _adder(kind, Path(path))
    add()
    print("ready", flush=True)
    waits = []
    while not over.wait(PAUSE):
        at = time.monotonic()
        add()
        waits.append((at, time.monotonic() - at))
    close()
    print(json.dumps(waits))


def _adder(kind: str, path: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    if kind == "raw":
        log = RawLog(path, session="beside")
        return lambda: log.add([{"role": "user", "content": "beside it"}]), log.close
    memory = Memory.open(path)
    session = memory.session("beside")
    return lambda: session.add_user_message("beside it"), memory.close


def ours(path: Path, picks: list[int]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of each operation, and the longest wait of another writer meanwhile, in milliseconds."""
    with Memory.open(path) as memory:
        session = memory.session(SESSION)
        session.add([{"role": "user", "name": USER, "content": f"{WORD} {i}"} for i in range(20)])
        session.erase([1])
        with Beside("ours", path) as other:
            seconds = {"erase one": median(other.during("erase one", lambda: session.erase([seq])) for seq in picks)}  # noqa: B023
            seconds["erase a query"] = other.during("erase a query", lambda: session.erase(Query(text=f"{WORD} 1")))
            seconds["sweep"] = median(other.during("sweep", memory.sweep) for _ in range(TIMES))
            seconds["forget"] = other.during("forget", lambda: memory.forget(user=USER))
            seconds["vacuum"] = other.during("vacuum", memory.vacuum)
    return seconds, other.longest


def raw(path: Path, picks: list[int]) -> tuple[dict[str, float], dict[str, float]]:
    """Do the same through plain `sqlite3`."""
    log = RawLog(path)
    db = log.db
    db.execute("PRAGMA secure_delete=ON")
    db.execute("ALTER TABLE message ADD COLUMN expires INTEGER")
    db.execute("CREATE INDEX message_expires ON message(expires) WHERE expires IS NOT NULL")
    log.add([{"role": "user", "name": USER, "content": f"{WORD} {i}"} for i in range(20)])

    def delete(sql: str, *values: Any) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute(sql, values)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def one(seq: int) -> None:
        delete("DELETE FROM message WHERE session = ? AND seq = ?", "s", seq)

    def vacuum() -> None:
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    like = "DELETE FROM message WHERE body LIKE ?"
    with Beside("raw", path) as other:
        seconds = {"erase one": median(other.during("erase one", lambda: one(seq)) for seq in picks)}  # noqa: B023
        seconds["erase a query"] = other.during("erase a query", lambda: delete(like, f"%{WORD} 1%"))
        sql = "SELECT id FROM message WHERE expires <= ?"
        seconds["sweep"] = median(other.during("sweep", lambda: db.execute(sql, (9,)).fetchall()) for _ in range(TIMES))
        seconds["forget"] = other.during("forget", lambda: delete(like, f'%"name": "{USER}"%'))
        seconds["vacuum"] = other.during("vacuum", vacuum)
    log.close()
    return seconds, other.longest


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", runs=1, large=100_000)
    turns = history(given.large)
    step = given.large // (TIMES + 1)
    picks = [step * (i + 1) for i in range(TIMES)]
    with scratch(given.disk) as folder:
        store(folder / "ours.db", turns, counted=True)
        log = RawLog(folder / "raw.db", "NORMAL")
        log.add(*turns)
        log.close()
        size = (folder / "ours.db").stat().st_size
        raw_took, raw_waits = raw(folder / "raw.db", picks)
        ours_took, our_waits = ours(folder / "ours.db", picks)
    figures = [
        Figure(
            f"{what}, raw = 1",
            ours_took[what] / raw_took[what],
            None,
            f"{ours_took[what] * 1e3:,.2f} / {raw_took[what] * 1e3:,.2f} ms; another waited {our_waits[what]:,.0f} / "
            f"{raw_waits[what]:,.0f} ms at most",
        )
        for what in ours_took
    ]
    longest = max(our_waits.values())
    figures.append(Figure("longest wait of another / during a VACUUM", longest / raw_waits["vacuum"], 0.5))
    note = f"{given.large:,} entries in one session, a file of {size / 1e6:,.0f} MB."
    return report("Erasing in a large file", figures, given, note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--beside"]:
        beside(*sys.argv[2:])
    else:
        sys.exit(main())

"""Erasing in a large file: an entry, a query, a sweep with nothing due, `forget`, `vacuum`; and how long others wait.

    python bench/erasing.py [--large N] [--disk FOLDER] [--json] [--gate]

Wall time on disk in the default mode (FULL), beside plain `sqlite3` doing the same with one table, secure_delete on,
and the write-ahead log cut off after each deletion, as whoever erases has to. `forget` of a user and a query look into
what they erase, which a condition of SQL does faster than anybody can who decodes; the rest is the same work. During
each a process adds to another session every two milliseconds: what it waited longest is in the details, for both sides.
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
"""Entries that are erased one by one."""

PAUSE = 0.002
USER, WORD = "quincy", "zanzibar"


class Beside:
    """A process that adds messages to a file all the time, and tells at its end how long each took."""

    def __init__(self, kind: str, path: Path) -> None:
        command = [sys.executable, __file__, "--beside", kind, str(path)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._spans: list[tuple[str, float, float]] = []
        self.longest: dict[str, float] = {}
        """Milliseconds that it waited longest while something was done, by what."""

    def __enter__(self) -> Self:
        assert self._child.stdout is not None
        self._child.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        said, _err = self._child.communicate()
        waits = json.loads(said)
        for what, begin, end in self._spans:
            longest = max((took for at, took in waits if at + took > begin and at < end), default=0.0)
            self.longest[what] = max(self.longest.get(what, 0.0), longest * 1e3)

    def during(self, what: str, act: Callable[[], object]) -> float:
        """Seconds that something takes."""
        time.sleep(PAUSE * 50)  # whoever waited for the last one is through
        begin = time.monotonic()
        act()
        end = time.monotonic()
        self._spans.append((what, begin, end))
        return end - begin


def beside(kind: str, path: str) -> None:
    """Add until standard input ends."""
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
    """Seconds that each takes, and the milliseconds that another waited longest meanwhile."""
    with Memory.open(path) as memory:
        session = memory.session(SESSION)
        session.add([{"role": "user", "name": USER, "content": f"{WORD} {i}"} for i in range(20)])
        session.erase([1])
        with Beside("ours", path) as other:
            took = {"erase one": median(other.during("erase one", lambda: session.erase([seq])) for seq in picks)}  # noqa: B023
            took["erase a query"] = other.during("erase a query", lambda: session.erase(Query(text=f"{WORD} 1")))
            took["sweep"] = median(other.during("sweep", memory.sweep) for _ in range(TIMES))
            took["forget"] = other.during("forget", lambda: memory.forget(user=USER))
            took["vacuum"] = other.during("vacuum", memory.vacuum)
    return took, other.longest


def raw(path: Path, picks: list[int]) -> tuple[dict[str, float], dict[str, float]]:
    """The same through plain `sqlite3`."""
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
        took = {"erase one": median(other.during("erase one", lambda: one(seq)) for seq in picks)}  # noqa: B023
        took["erase a query"] = other.during("erase a query", lambda: delete(like, f"%{WORD} 1%"))
        sql = "SELECT id FROM message WHERE expires <= ?"
        took["sweep"] = median(other.during("sweep", lambda: db.execute(sql, (9,)).fetchall()) for _ in range(TIMES))
        took["forget"] = other.during("forget", lambda: delete(like, f'%"name": "{USER}"%'))
        took["vacuum"] = other.during("vacuum", vacuum)
    log.close()
    return took, other.longest


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
        theirs, theirs_waited = raw(folder / "raw.db", picks)
        took, waited = ours(folder / "ours.db", picks)
    figures = [
        Figure(
            f"{what}, raw = 1",
            took[what] / theirs[what],
            None,
            f"{took[what] * 1e3:,.2f} / {theirs[what] * 1e3:,.2f} ms; another waited {waited[what]:,.0f} / "
            f"{theirs_waited[what]:,.0f} ms at most",
        )
        for what in took
    ]
    longest = max(waited.values())
    figures.append(Figure("longest wait of another / during a VACUUM", longest / theirs_waited["vacuum"], 0.5))
    note = f"{given.large:,} entries in one session, a file of {size / 1e6:,.0f} MB."
    return report("Erasing in a large file", figures, given, note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--beside"]:
        beside(*sys.argv[2:])
    else:
        sys.exit(main())

"""Count bytes on disk for a byte of payload, after a checkpoint, with and without stored counts.

    python bench/storage.py [--json] [--gate]

Payload is the JSON of the messages with an id and a time each. Every turn is an append of its own, as in use. With "20
sessions" the turns go to that many sessions of one file in rotation. These are counts: one run, and the same on every
machine.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from measure import Figure, arguments, disk_use, memory_folder, report, scratch, store
from raw import RawLog, payload
from workload import Turn, history

from palimpsest import Memory

SIZES = (1_000, 10_000)
SESSIONS = 20


def ours(turns: list[Turn], under: Path | None, *, counted: bool) -> int:
    """Return the bytes of the folder that a session of these turns takes."""
    with scratch(under) as folder:
        store(folder / "ours.db", turns, counted=counted, batch=1)
        return _settled(folder, "ours.db")


def rotated(turns: list[Turn], under: Path | None) -> int:
    """Return the same for many sessions of one file, which grow side by side."""
    with scratch(under) as folder:
        with Memory.open(folder / "ours.db", synchronous="NORMAL") as memory:
            sessions = [memory.session(f"s{i}") for i in range(SESSIONS)]
            for i, turn in enumerate(turns):
                sessions[i % SESSIONS].add(turn)
        return _settled(folder, "ours.db")


def raw(turns: list[Turn], under: Path | None) -> int:
    """Return the same through plain `sqlite3`."""
    with scratch(under) as folder:
        log = RawLog(folder / "raw.db", "NORMAL")
        for turn in turns:
            log.add(turn)
        log.close()
        return _settled(folder, "raw.db")


def _settled(folder: Path, name: str) -> int:
    db = sqlite3.connect(folder / name)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    return disk_use(folder)


def main() -> int:
    """Count and print."""
    given = arguments(__doc__ or "", runs=1)
    figures: list[Figure] = []
    under = memory_folder() or given.disk
    for count in SIZES:
        turns = history(count)
        whole = payload(turns)
        for what, used, target in (
            ("raw", raw(turns, under), None),
            ("without counts", ours(turns, under, counted=False), 1.35),
            ("with counts", ours(turns, under, counted=True), 1.35),
            (f"{SESSIONS} sessions", rotated(turns, under), None),
        ):
            detail = f"{used / len(turns):,.0f} / {whole / len(turns):,.0f} bytes a turn"
            figures.append(Figure(f"N = {count:,}, {what}", used / whole, target, detail))
    return report("Bytes on disk for a byte of payload", figures, given)


if __name__ == "__main__":
    sys.exit(main())

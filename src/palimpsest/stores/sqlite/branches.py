"""Which logs the sessions of the SQLite store read: branches share the rows before the point where they parted.

Each session writes into a log of its own number. What it shares stands in the table `share`: up to `last` its
entries are those of `log`, in the order of `last`, then its own. A log whose session is gone stays as long as
a branch reads it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from palimpsest.stores.sqlite.rows import LAST, Span, place

Shared = tuple[tuple[int, int], ...]
"""(last seq, log), ascending."""


def spans(number: int, shared: Shared, after: int, before: int | None) -> list[Span]:
    """Return where the entries with `after` < seq < `before` of a session lie, in order."""
    found: list[Span] = []
    until = LAST if before is None else before
    for last, log in shared:
        if after < last and after + 1 < until:
            found.append((place(log, after), place(log, min(last + 1, until))))
        after = max(after, last)
    found.append((place(number, after), place(number, until)))
    return found


def home(number: int, shared: Shared, seq: int) -> int:
    """Return the log that holds the session's entry at `seq`."""
    return next((log for last, log in shared if seq <= last), number)


def by_log(number: int, shared: Shared, seqs: Iterable[int]) -> dict[int, list[int]]:
    """Return the seqs by the log that holds them."""
    found: dict[int, list[int]] = {}
    for seq in seqs:
        found.setdefault(home(number, shared, seq), []).append(seq)
    return found


class Branches:
    """The table `share`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def shared(self, number: int) -> Shared:
        """Return what a session shares."""
        return tuple(
            self._db.execute("SELECT last, log FROM share WHERE number = ? ORDER BY last", (number,)).fetchall()
        )

    def part(self, number: int, of: int, shared: Shared, point: int) -> Shared:
        """Let the session `number` share what `of` reads up to the seq `point`; return what it shares."""
        parts, covered = [], 0
        for last, log in (*shared, (LAST, of)):
            if covered < point:
                parts.append((min(last, point), log))
            covered = last
        rows = [(number, last, log) for last, log in parts]
        self._db.executemany("INSERT INTO share(number, last, log) VALUES(?, ?, ?)", rows)
        return tuple(parts)

    def leave(self, number: int) -> list[int]:
        """Let a session share nothing any more; return the logs that it shared."""
        rows = self._db.execute("SELECT DISTINCT log FROM share WHERE number = ?", (number,)).fetchall()
        self._db.execute("DELETE FROM share WHERE number = ?", (number,))
        return [log for (log,) in rows]

    def readers(self, log: int, seqs: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield every session that reads some of these entries of a log, and which."""
        readers = [(log, LAST), *self._db.execute("SELECT number, last FROM share WHERE log = ?", (log,)).fetchall()]
        for number, last in readers:
            read = tuple(seq for seq in seqs if seq <= last)
            if read:
                yield number, read

    def kept(self, log: int) -> int:
        """Return the last seq of a log that a branch still reads; 0 for none."""
        last: int = self._db.execute("SELECT coalesce(max(last), 0) FROM share WHERE log = ?", (log,)).fetchone()[0]
        return last

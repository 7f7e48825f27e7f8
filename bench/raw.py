"""What the benchmarks compare with: the same messages through plain `sqlite3` and `json`, and nothing else.

One table, a unique index on session and seq, a token count in each row, one transaction for each turn. A message is
stored as its JSON with an id and a time, which every log needs. There is no validation, no links between calls and
results, and no head to compare: it is a lower bound, not a product.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from workload import Message, Turn

_TABLE = (
    "CREATE TABLE IF NOT EXISTS message(id INTEGER PRIMARY KEY, session TEXT NOT NULL, seq INTEGER NOT NULL, "
    "role TEXT NOT NULL, tokens INTEGER NOT NULL, body TEXT NOT NULL)"
)
_INDEX = "CREATE UNIQUE INDEX IF NOT EXISTS message_seq ON message(session, seq)"
_INSERT = "INSERT INTO message(session, seq, role, tokens, body) VALUES(?, ?, ?, ?, ?)"
_LAST = "SELECT seq FROM message WHERE session = ? ORDER BY seq DESC LIMIT 1"
_NEWEST = "SELECT tokens, body FROM message WHERE session = ? ORDER BY seq DESC"


def stored(message: Message, number: int, at: float) -> str:
    """Return the JSON of a row: the message with an id and a time."""
    return json.dumps({"id": f"m-{number:012}", "at": at, **message}, ensure_ascii=False)


def payload(turns: Sequence[Turn]) -> int:
    """Return the bytes of the rows of these turns: what any store has to keep."""
    messages = [message for turn in turns for message in turn]
    return sum(len(stored(message, i, time.time()).encode()) for i, message in enumerate(messages))


def estimate(message: Message) -> int:
    """Return a stand-in for a stored count: a quarter of the characters, and four."""
    calls = message.get("tool_calls") or ()
    chars = len(message["content"]) + sum(len(call["function"]["arguments"]) for call in calls)
    return chars // 4 + 4


class RawLog:
    """One session in one table of an SQLite file in write-ahead log mode."""

    def __init__(self, path: Path, synchronous: str = "FULL", session: str = "s") -> None:
        self._session = session
        self.db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={synchronous}")
        self.db.execute(_TABLE)
        self.db.execute(_INDEX)

    def add(self, *turns: Turn) -> None:
        """Append turns in one transaction."""
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        last = db.execute(_LAST, (self._session,)).fetchone()
        seq = last[0] if last else 0
        rows, now = [], time.time()
        for turn in turns:
            for message in turn:
                seq += 1
                rows.append((self._session, seq, message["role"], estimate(message), stored(message, seq, now)))
        db.executemany(_INSERT, rows)
        db.execute("COMMIT")

    def window(self, budget: int) -> list[Message]:
        """Return the newest messages whose stored counts fit the budget, oldest first."""
        used, bodies = 0, []
        rows = self.db.execute(_NEWEST, (self._session,))
        for tokens, body in rows:
            used += tokens
            if used > budget:
                break
            bodies.append(body)
        rows.close()
        return [json.loads(body) for body in reversed(bodies)]

    def budget_of(self, messages: int) -> int:
        """Return the budget for which `window` returns exactly the newest `messages` messages."""
        rows = self.db.execute(_NEWEST + " LIMIT ?", (self._session, messages))
        return sum(tokens for tokens, _ in rows.fetchall())

    def bodies(self, messages: int) -> int:
        """Return the stored bytes of the newest `messages` messages."""
        rows = self.db.execute(_NEWEST + " LIMIT ?", (self._session, messages)).fetchall()
        return sum(len(body.encode()) for _, body in rows)

    def close(self) -> None:
        """Close the file."""
        self.db.close()


def filled(path: Path, turns: Sequence[Turn], synchronous: str = "FULL") -> RawLog:
    """Return a log that holds these turns, opened again.

    Closing it removes the write-ahead log of the filling. Otherwise the raw side would overwrite a long file while the
    other side extends a new one, which costs each commit 40 us more on ext4.
    """
    log = RawLog(path, synchronous)
    log.add(*turns)
    log.close()
    return RawLog(path, synchronous)

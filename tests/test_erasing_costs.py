"""The cost of erasing and sweeping does not grow with what else is stored: statements, rows, scans."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from palimpsest import Memory, Query
from palimpsest.testing import FakeClock
from sqlitestore import connection
from writer import quarters

SCANS = re.compile(r"SCAN (?!pragma_)")
"""Matches a step of a query plan that scans a whole table or index."""


@pytest.fixture
def filled(tmp_path: Path, clock: FakeClock) -> Callable[[int], Memory]:
    """Yield a memory with so many entries in five sessions, all counted and none due to expire."""

    def fill(entries: int) -> Memory:
        memory = Memory.open(tmp_path / f"{entries}.db", clock=clock, synchronous="NORMAL")
        for number in range(5):
            session = memory.session(f"s{number}", counter=quarters)
            session.add([{"role": "user", "content": f"text {number}.{i}"} for i in range(entries // 5)])
            session.count()
            session.add_user_message("later", expires_at=datetime(2100, 1, 1, tzinfo=UTC))
        return memory

    return fill


class Watched:
    """The statements that a memory runs, and how many rows they return and change."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db, self.statements, self.changed = db, list[str](), db.total_changes

    def done(self) -> tuple[list[str], int]:
        """Return the statements in order without their values, and the number of changed rows."""
        kinds = [re.sub(r"x?'[^']*'|-?\d+", "?", statement) for statement in self.statements]
        return kinds, self._db.total_changes - self.changed

    def rows(self) -> int:
        """Return the number of rows that the queries return when they are run again."""
        asks = [statement for statement in self.statements if statement.startswith("SELECT")]
        return sum(len(self._db.execute(statement).fetchall()) for statement in asks)

    def plans(self) -> list[str]:
        """Return the steps of the query plans of all statements."""
        known = ("SELECT", "INSERT", "UPDATE", "DELETE")
        asks = [statement for statement in self.statements if statement.startswith(known)]
        return [step for one in asks for *_, step in self._db.execute(f"EXPLAIN QUERY PLAN {one}").fetchall()]


@contextmanager
def watched(memory: Memory) -> Iterator[Watched]:
    """Record the statements of a memory's connection."""
    seen = Watched(connection(memory))
    connection(memory).set_trace_callback(lambda said: seen.statements.append(said) if said[:2] != "--" else None)
    try:
        yield seen
    finally:
        connection(memory).set_trace_callback(None)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every file as large, so that none is rewritten, which these tests do not measure."""
    monkeypatch.setattr("palimpsest.stores.sqlite.scrubbing.SMALL", 0)


def test_an_erasure_costs_the_same_among_more_entries(filled: Callable[[int], Memory]) -> None:
    """Erasing one entry takes the same statements and rows among 1,000 and among 20,000 entries."""
    found = []
    for entries in (1_000, 20_000):
        with filled(entries) as memory:
            session = memory.session("s1", counter=quarters)
            session.erase([11])
            with watched(memory) as seen:
                session.erase([13])
            found.append((*seen.done(), seen.rows()))

    (few, changed, rows), more = found[0], found[1]
    assert (few, changed, rows) == more
    assert len(few) < 80
    assert rows < 40
    assert changed < 12


def test_no_statement_of_an_erasure_or_a_sweep_scans_a_table(filled: Callable[[int], Memory]) -> None:
    """Every statement of an erasure or a sweep finds its rows by a key or an index."""
    with filled(1_000) as memory:
        with watched(memory) as seen:
            memory.session("s1", counter=quarters).erase([13])
            memory.session("s2", counter=quarters).erase(Query(text="text 2.17"))
            memory.forget(session="s3")
            memory.sweep()
        plans = seen.plans()

    assert len(plans) > 50
    assert [step for step in plans if SCANS.match(step)] == []


def test_a_sweep_with_nothing_due_reads_nothing(filled: Callable[[int], Memory]) -> None:
    """A sweep with nothing due takes the same few statements in any store, and reads no entry."""
    found = []
    for entries in (1_000, 20_000):
        with filled(entries) as memory:
            memory.session("s1").erase([7])
            with watched(memory) as seen:
                assert memory.sweep() == 0
            found.append((seen.done(), seen.rows()))
            assert "wal_checkpoint" not in " ".join(seen.statements)

    assert found[0] == found[1]
    ((statements, changed), rows) = found[0]
    assert (changed, len(statements) < 30, rows < 6) == (0, True, True)


def test_a_sweep_finds_due_rows_by_an_index(filled: Callable[[int], Memory]) -> None:
    """A sweep finds what is due by a range of the index on expiry, in both tables of rows and among places."""
    with filled(1_000) as memory:
        with watched(memory) as seen:
            memory.sweep()
        steps = [step for step in seen.plans() if "expires" in step]

    assert len(steps) == 2 * 3  # once to find what is due, and once to erase it
    assert all(step.startswith("SEARCH") and "expires" in step for step in steps)

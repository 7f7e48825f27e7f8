"""Access to the inside of the SQLite store for tests: its writing connection and the statements that it runs."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from palimpsest import AsyncMemory, Memory
from palimpsest.stores import Store
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.stores.sqlite.db import Database


def database(memory: Memory | AsyncMemory | Store) -> Database:
    """Return the database of a memory or of a store."""
    store = memory if isinstance(memory, Store) else memory.store
    backend = getattr(store.backend, "below", store.backend)  # below the encryption, if there is one
    assert isinstance(backend, SQLiteBackend)
    return backend._database


def connection(memory: Memory | AsyncMemory | Store) -> sqlite3.Connection:
    """Return the connection that writes."""
    return database(memory)._writer.use().connection


def commits(statements: Sequence[str]) -> int:
    """Count the committed transactions that write. Those that only read do not count."""
    ends = [statement for statement in statements if statement in {"BEGIN IMMEDIATE", "BEGIN", "COMMIT", "ROLLBACK"}]
    return sum(pair == ("BEGIN IMMEDIATE", "COMMIT") for pair in pairwise(ends))


def synced(statements: Sequence[str]) -> int:
    """Count the committed write transactions that wait for the disk; the connection is set to wait at the beginning."""
    synced_commits, waits, writes = 0, True, False
    for statement in statements:
        if statement.startswith("PRAGMA synchronous="):
            waits = statement.endswith("FULL")
        elif statement.startswith("BEGIN"):
            writes = statement == "BEGIN IMMEDIATE"
        synced_commits += waits and writes and statement == "COMMIT"
    return synced_commits


def of(table: str) -> str:
    """Return an SQL condition that selects the rows of one of the seam's tables in SQLite's table `other`."""
    return f"pos >> 32 IN (SELECT number FROM part WHERE name GLOB '{table}')"


class Held:
    """Holds the next write transaction of a memory before its commit (then `inside` is set) until a test sets `let`."""

    def __init__(self, memory: Memory) -> None:
        self.inside, self.let = threading.Event(), threading.Event()
        connection(memory).set_trace_callback(self._stop)

    def _stop(self, statement: str) -> None:
        if statement == "COMMIT" and not self.let.is_set():
            self.inside.set()
            self.let.wait()


@contextmanager
def traced(memory: Memory) -> Iterator[list[str]]:
    """Yield the list of statements, with their values, that the memory runs on the writing connection."""
    statements: list[str] = []
    connection(memory).set_trace_callback(statements.append)
    try:
        yield statements
    finally:
        connection(memory).set_trace_callback(None)


def scans(memory: Memory, statements: Sequence[str]) -> list[str]:
    """Return the statements that scan whole tables according to SQLite's own query plan."""
    scanning = []
    for statement in statements:
        if statement.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "REPLACE")):
            for *_, plan in connection(memory).execute(f"EXPLAIN QUERY PLAN {statement}"):
                if plan.startswith("SCAN"):
                    scanning.append(f"{plan}: {statement[:200]}")
    return scanning

"""What tests look at in the SQLite store: its writing connection, and which statements that has run."""

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
    """The file of a memory, or of a store."""
    store = memory if isinstance(memory, Store) else memory.store
    backend = getattr(store.backend, "below", store.backend)  # of an encrypted one
    assert isinstance(backend, SQLiteBackend)
    return backend._database


def connection(memory: Memory | AsyncMemory | Store) -> sqlite3.Connection:
    """The connection that writes."""
    return database(memory)._writer.use().connection


def commits(statements: Sequence[str]) -> int:
    """How many transactions among the statements wrote and were committed. Those that read do not count."""
    ends = [statement for statement in statements if statement in {"BEGIN IMMEDIATE", "BEGIN", "COMMIT", "ROLLBACK"}]
    return sum(pair == ("BEGIN IMMEDIATE", "COMMIT") for pair in pairwise(ends))


def synced(statements: Sequence[str]) -> int:
    """How many of these transactions waited for the disk, on a connection that did before them."""
    found, waits, writes = 0, True, False
    for statement in statements:
        if statement.startswith("PRAGMA synchronous="):
            waits = statement.endswith("FULL")
        elif statement.startswith("BEGIN"):
            writes = statement == "BEGIN IMMEDIATE"
        found += waits and writes and statement == "COMMIT"
    return found


def of(table: str) -> str:
    """What says of rows in the file's `other` that they are of this table of the seam."""
    return f"pos >> 32 IN (SELECT number FROM part WHERE name GLOB '{table}')"


class Held:
    """The next transaction of a memory that writes stops at its commit until it is `let` go on."""

    def __init__(self, memory: Memory) -> None:
        self.inside, self.let = threading.Event(), threading.Event()
        connection(memory).set_trace_callback(self._stop)

    def _stop(self, statement: str) -> None:
        if statement == "COMMIT" and not self.let.is_set():
            self.inside.set()
            self.let.wait()


@contextmanager
def traced(memory: Memory) -> Iterator[list[str]]:
    """The statements, with their values, that a memory of one thread runs."""
    statements: list[str] = []
    connection(memory).set_trace_callback(statements.append)
    try:
        yield statements
    finally:
        connection(memory).set_trace_callback(None)


def scans(memory: Memory, statements: Sequence[str]) -> list[str]:
    """What of these statements looks at whole tables, by SQLite's own plan for each."""
    found = []
    for statement in statements:
        if statement.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "REPLACE")):
            for *_, plan in connection(memory).execute(f"EXPLAIN QUERY PLAN {statement}"):
                if plan.startswith("SCAN"):
                    found.append(f"{plan}: {statement[:200]}")
    return found

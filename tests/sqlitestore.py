"""What tests look at in the SQLite store: its writing connection, and which statements that has run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import pairwise

from palimpsest import AsyncMemory, Memory
from palimpsest.stores.sqlite.store import SQLiteStore


def connection(memory: Memory | AsyncMemory) -> sqlite3.Connection:
    """The connection that writes."""
    store = memory.store
    assert isinstance(store, SQLiteStore)
    return store.backend._database._writer.use().connection


def commits(statements: Sequence[str]) -> int:
    """How many transactions among the statements wrote and were committed. Those that read do not count."""
    ends = [statement for statement in statements if statement in {"BEGIN IMMEDIATE", "BEGIN", "COMMIT", "ROLLBACK"}]
    return sum(pair == ("BEGIN IMMEDIATE", "COMMIT") for pair in pairwise(ends))

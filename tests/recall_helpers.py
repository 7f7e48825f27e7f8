"""Helpers for tests of recall: words to search for in bytes, the bytes of an index, and the texts of hits."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import postgresstore

LETTERS = "bcdfghjkmnpqvwxz"


def marks(seed: object, number: int) -> list[str]:
    """Return so many unstemmed words whose endings are unique, since an index shortens common beginnings of terms."""
    dice = random.Random(str(seed))
    return ["".join(dice.choice(LETTERS) for _ in range(14)) + "q" for _ in range(number)]


@cache
def place_of(kind: str, folder: Path) -> str:
    """Return the address of a store of this kind for a folder; it is empty when it is first asked for."""
    if kind == "postgres":
        return postgresstore.address_of("recalls")
    return f"file://{folder}/logs" if kind == "file" else f"sqlite:///{folder}/log.db"


def companion(kind: str, folder: Path) -> Path:
    """Return the file of the index beside a store."""
    return folder / ("logs.recall" if kind == "file" else "log.db.recall")


def index_bytes(kind: str, folder: Path) -> bytes:
    """Return all bytes of the index's files, or, on PostgreSQL, of all rows in its tables."""
    if kind == "postgres":
        return b"\n".join(row.encode() for row in _rows(place_of(kind, folder)))
    path = companion(kind, folder)
    files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]
    return b"".join(file.read_bytes() for file in files if file.exists())


def _rows(address: str) -> list[str]:
    """Return all rows of an index in PostgreSQL, as text."""
    schema = postgresstore.schema_of("recalls")
    named = f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' AND tablename ~ '^(recall_|vector)'"
    tables = [name for (name,) in postgresstore.asked(address, named)]
    every = " UNION ALL ".join(f"SELECT t::text FROM {schema}.{table} t" for table in tables)
    return [row for (row,) in postgresstore.asked(address, every)] if tables else []


def remaining(report: Any) -> list[str]:
    """Return what an erasure reports as remaining, without what a PostgreSQL server keeps after any erasure."""
    return [remain for remain in getattr(report, "remains", ()) if not remain.startswith("PostgreSQL keeps")]


def traces(words: Iterable[str], found: bytes) -> list[str]:
    """Return those of the words whose endings are in the bytes."""
    return [word for word in words if word[-9:].encode() in found]


def texts(memory: Any, query: str, **options: Any) -> list[str]:
    """Return the texts of the hits that contain a word of the query, best first; neighbours do not count."""
    hits = memory.recall(query, max_tokens=None, neighbours=0, **options).hits
    return [hit.text for hit in hits if any(word in f"{hit.text} {hit.name}" for word in query.split())]


def finds(memory: Any, word: str, **options: Any) -> bool:
    """Whether a memory or a session finds an entry with the word."""
    return bool(texts(memory, word, **options))


def rows(path: Path, sql: str) -> list[Any]:
    """Return the rows of a query in an index file."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()

"""What tests of recall share: words that leave a trace, the bytes of an index, what is found."""

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
    """So many words that no stem is taken off, whose ends no other word has: an index shortens what terms begin with
    alike."""
    dice = random.Random(str(seed))
    return ["".join(dice.choice(LETTERS) for _ in range(14)) + "q" for _ in range(number)]


@cache
def place_of(kind: str, folder: Path) -> str:
    """The address of a store of this kind: each folder's own, empty when it is first asked for."""
    if kind == "postgres":
        return postgresstore.address_of("recalls")
    return f"file://{folder}/logs" if kind == "file" else f"sqlite:///{folder}/log.db"


def companion(kind: str, folder: Path) -> Path:
    """Where the index beside it is."""
    return folder / ("logs.recall" if kind == "file" else "log.db.recall")


def index_bytes(kind: str, folder: Path) -> bytes:
    """All bytes of the index's files; on PostgreSQL of all rows that are in its tables."""
    if kind == "postgres":
        return b"\n".join(row.encode() for row in _rows(place_of(kind, folder)))
    path = companion(kind, folder)
    files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]
    return b"".join(file.read_bytes() for file in files if file.exists())


def _rows(address: str) -> list[str]:
    """All rows of an index in PostgreSQL, as text."""
    schema = postgresstore.schema_of("recalls")
    named = f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' AND tablename ~ '^(recall_|vector)'"
    tables = [name for (name,) in postgresstore.asked(address, named)]
    every = " UNION ALL ".join(f"SELECT t::text FROM {schema}.{table} t" for table in tables)
    return [row for (row,) in postgresstore.asked(address, every)] if tables else []


def remaining(done: Any) -> list[str]:
    """What an erasure says is left, but for what a server of PostgreSQL keeps of any."""
    return [told for told in getattr(done, "remains", ()) if not told.startswith("PostgreSQL keeps")]


def traces(words: Iterable[str], found: bytes) -> list[str]:
    """Those of these words whose end stands in bytes."""
    return [word for word in words if word[-9:].encode() in found]


def texts(memory: Any, query: str, **options: Any) -> list[str]:
    """The texts of the hits that hold what was asked for, best first: beside them stand others that do not."""
    hits = memory.recall(query, max_tokens=None, neighbours=0, **options).hits
    return [one.text for one in hits if any(word in f"{one.text} {one.name}" for word in query.split())]


def finds(memory: Any, word: str, **options: Any) -> bool:
    """Whether a memory, or a session, finds what holds a word."""
    return bool(texts(memory, word, **options))


def rows(path: Path, sql: str) -> list[Any]:
    """What a query of an index's file gives."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()

"""What tests of recall share: words that leave a trace, the bytes of an index, what is found."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

LETTERS = "bcdfghjkmnpqvwxz"


def marks(seed: object, number: int) -> list[str]:
    """So many words that no stem is taken off, whose ends no other word has: an index shortens what terms begin with
    alike."""
    dice = random.Random(str(seed))
    return ["".join(dice.choice(LETTERS) for _ in range(14)) + "q" for _ in range(number)]


def place_of(kind: str, folder: Path) -> str:
    """The address of a store of this kind."""
    return f"file://{folder}/logs" if kind == "file" else f"sqlite:///{folder}/log.db"


def companion(kind: str, folder: Path) -> Path:
    """Where the index beside it is."""
    return folder / ("logs.recall" if kind == "file" else "log.db.recall")


def index_bytes(kind: str, folder: Path) -> bytes:
    """All bytes of the index's files."""
    path = companion(kind, folder)
    files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]
    return b"".join(file.read_bytes() for file in files if file.exists())


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

"""Helpers of the tests of the file store: opening it, short forms of its verbs, and its files."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from palimpsest import Entry
from palimpsest.log.change import Change
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Appended, Store
from palimpsest.stores.file import folder as folders
from palimpsest.stores.file.lines import Writing, read_batch, shown, value_of
from palimpsest.stores.opening import open_store

KEY = SessionKey("tenant", "one")
OTHER = SessionKey("tenant", "other")
BIG = "a picture of many bytes " * 3000
"""A text so large that it is stored beside its entry."""


def opened(folder: Path, **options: Any) -> Store:
    """Open the store of this folder."""
    return open_store(f"file://{folder}", Inline(), **options)


def quick(folder: Path, **options: Any) -> Store:
    """Open the store of this folder without waiting for the disk."""
    return opened(folder, synchronous="NORMAL", **options)


def add(store: Store, *texts: str, key: SessionKey = KEY, **fields: Any) -> Appended:
    """Append messages in one commit."""
    return drive(store.append(key, [Entry(content=text, **fields) for text in texts]))


def texts(store: Store, key: SessionKey = KEY, **how: Any) -> list[str]:
    """Return the texts that `read` returns."""
    return [entry.text for entry in drive(store.read(key, **how))]


def erase(store: Store, *seqs: int, key: SessionKey = KEY) -> Head:
    """Erase these entries."""
    return drive(store.commit(key, Change(kind="erase", reason="asked", seqs=seqs)))


def fork(store: Store, key: SessionKey = KEY, into: str = OTHER.session) -> None:
    """Make a branch at the end."""
    head = drive(store.head(key)) or Head()
    drive(store.fork(key, into, replace(head, forked_from=(key.session, head.revision)), expect_epoch=head.epoch))


def log_of(folder: Path, key: SessionKey = KEY) -> Path:
    """Return the file of a session's log."""
    return Path(folders.log_of(str(folder), key.tenant, key.session))


def lines_of(folder: Path, key: SessionKey = KEY) -> list[bytes]:
    """Return the lines of that file."""
    return log_of(folder, key).read_bytes().splitlines(keepends=True)


def files(folder: Path, pattern: str) -> list[Path]:
    """Return all files in the folder whose names match the pattern."""
    return [file for file in sorted(folder.rglob(pattern)) if file.is_file()]


def everything(folder: Path) -> bytes:
    """Return every byte of every file."""
    return b"".join(file.read_bytes() for file in files(folder, "*"))


def readable(folder: Path) -> None:
    """Let every user read the store in this folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock a file or folder, as another writer does."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def changed_line(line: bytes, how: Callable[[str, int, bytes], bytes | None], *, mended: bool) -> bytes:
    """Return a line of a log with other values of rows, by table and key; None keeps a value.

    With `mended` the line is valid, as if it had been written so; otherwise its bytes are changed in place.
    """
    found = read_batch(line, True)
    if found is None:
        return line
    (batch, at), writing, raw = found, Writing(), line
    for step in batch.steps:
        pieces = []
        for size in filter(None, (step.hot, step.cold)):
            pieces.append(value_of(line[at : at + abs(size)], size < 0))
            at += abs(size) + 1
        if pieces:
            writing.head(step, pieces[0], pieces[1] if step.cold else None)
    for step in batch.steps:
        for table, rows in step.put.items():
            for i, row in enumerate(rows):
                text, ours = line[at : at + abs(row.size)], row.size < 0
                at += abs(row.size) + 1
                value = how(table, row.key, value_of(text, ours))
                if value is not None:
                    other, size = shown(value)
                    text, raw = other, raw.replace(text[:-_CHECK], other[:-_CHECK])
                    rows[i] = row._replace(size=size)
                rows[i] = writing.shown(rows[i], text)
    writing.steps = batch.steps
    return writing.line(batch.at, fleeting=batch.fleeting) if mended else raw


_CHECK = len(',"12345678"')

"""What the tests of the file store share: a store over a folder, its verbs in short, and its files."""

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
"""A text that is kept apart."""


def opened(folder: Path, **options: Any) -> Store:
    """Open the store of this folder."""
    return open_store(f"file://{folder}", Inline(), **options)


def quick(folder: Path, **options: Any) -> Store:
    """Open it so that it does not wait for the disk."""
    return opened(folder, synchronous="NORMAL", **options)


def add(store: Store, *texts: str, key: SessionKey = KEY, **fields: Any) -> Appended:
    """Append messages in one commit."""
    return drive(store.append(key, [Entry(content=text, **fields) for text in texts]))


def texts(store: Store, key: SessionKey = KEY, **how: Any) -> list[str]:
    """The texts that `read` gives."""
    return [entry.text for entry in drive(store.read(key, **how))]


def erase(store: Store, *seqs: int, key: SessionKey = KEY) -> Head:
    """Erase these entries."""
    return drive(store.commit(key, Change(kind="erase", reason="asked", seqs=seqs)))


def fork(store: Store, key: SessionKey = KEY, into: str = OTHER.session) -> None:
    """Branch off at the end."""
    head = drive(store.head(key)) or Head()
    drive(store.fork(key, into, replace(head, forked_from=(key.session, head.revision)), expect_epoch=head.epoch))


def log_of(folder: Path, key: SessionKey = KEY) -> Path:
    """The file of a session's log."""
    return Path(folders.log_of(str(folder), key.tenant, key.session))


def lines_of(folder: Path, key: SessionKey = KEY) -> list[bytes]:
    """The lines of that file."""
    return log_of(folder, key).read_bytes().splitlines(keepends=True)


def files(folder: Path, pattern: str) -> list[Path]:
    """The files whose names are like this, wherever they are in the folder."""
    return [file for file in sorted(folder.rglob(pattern)) if file.is_file()]


def everything(folder: Path) -> bytes:
    """Every byte of every file."""
    return b"".join(file.read_bytes() for file in files(folder, "*"))


def readable(folder: Path) -> None:
    """Let every user read the store in this folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep a file or folder locked, as another writer would."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def changed_line(line: bytes, how: Callable[[str, int, bytes], bytes | None], *, mended: bool) -> bytes:
    """A line of a log with other values of rows, by table and key; None leaves one as it is.

    Where it is `mended` it is as if it had been written so; else bytes were changed where they stand.
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

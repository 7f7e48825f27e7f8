"""`Journal`: the entries of one namespace in an append-only file of JSON lines, with an index in memory.

    {"namespace": "user/1", "version": 1, "file": "…"}      the first line: which namespace this is
    {"entry_id": …, "key": …, "content": …, …, "at": …}     an entry is saved, at so many microseconds since 1970
    {"deleted": "…", "at": …}                               an entry is deleted

Writers hold the lock of the file. When most of its lines are obsolete, a new file replaces it. Readers take no lock of
the file: they read the lines that are new since their last look, or the whole file if it was replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, TypeVar

from palimpsest.compat.firefly.entries import Packed, dumped, parsed
from palimpsest.compat.firefly.in_memory import Shelf
from palimpsest.errors import StoreTooNew
from palimpsest.runtime.logs import warn
from palimpsest.runtime.once import ProcessLock
from palimpsest.runtime.private_files import private
from palimpsest.stores.file.disk import Files, remove, sync, write

T = TypeVar("T")

VERSION = 1

BAD = ".bad"
"""The suffix of the file to which unreadable lines are moved."""

SPARE = 100
"""A file is rewritten when its obsolete lines outnumber its entries by more than this."""


class Tail:
    """Remembers how far a file of lines has been read, and recognises when another file has replaced it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._begin = self._last = b""
        self.end = 0

    def is_known(self) -> bool:
        """Return whether the file is unchanged since it was last read."""
        try:
            return self._seen == _look(os.stat(self.path))
        except FileNotFoundError:
            return not self.end

    def news(self, fd: int) -> tuple[bool, bytes]:
        """Return the whole lines that have not been read yet, as `(anew, lines)`.

        `anew` means that the file is not the one that was read before, so these are all of its lines.
        """
        status = os.fstat(fd)
        same = (
            0 < self.end <= status.st_size
            and os.pread(fd, len(self._begin), 0) == self._begin
            and os.pread(fd, len(self._last), self.end - len(self._last)) == self._last
        )
        if not same:
            self.end, self._begin, self._last = 0, b"", b""
        parts, offset = list[bytes](), self.end
        while offset < status.st_size and (part := os.pread(fd, status.st_size - offset, offset)):
            parts.append(part)
            offset += len(part)
        data = b"".join(parts)
        data = data[: data.rfind(b"\n") + 1]
        self.take(data)
        self._seen = _look(status)  # of before the read: what was appended meanwhile is read next time
        return not same, data

    def take(self, data: bytes) -> None:
        """Count these whole lines as read."""
        if data:
            self._begin = self._begin or data[: data.index(b"\n") + 1]
            self._last = data[data.rfind(b"\n", 0, -1) + 1 :]
            self.end += len(data)

    @property
    def begins(self) -> int:
        """Length of the first line, in bytes."""
        return len(self._begin)

    def is_headed(self) -> bool:
        """Return whether the first line is the header that names the namespace."""
        return self._begin.startswith(b'{"namespace": ')

    def forget(self) -> None:
        """Forget what was read, so that the next read starts at the beginning."""
        self.end, self._begin, self._last, self._seen = 0, b"", b"", None


def _look(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Journal:
    """The entries of one namespace, in a file and its index.

    `before` is a file that the original program wrote. It is read as long as this journal's own file is empty or
    missing. The index is not locked while a write, or another writer, is waited for: reads do not wait for writes.
    """

    def __init__(self, files: Files, path: str, namespace: str, before: str | None) -> None:
        self._files, self.path, self.namespace, self._before = files, path, namespace, before
        self._tail, self._lock, self._process = Tail(path), ProcessLock(), os.getpid()
        self._shelf, self._lines, self._bad = Shelf(), 0, list[bytes]()
        self._has_before = False  # whether the index holds what is in `before`

    def _indexed(self, do: Callable[[], T]) -> T:
        """Run `do` with the index locked, and return its result.

        If it raises, the index is emptied, since it may be incomplete.
        """
        with self._lock.own():
            if self._process != os.getpid():  # another thread may have been changing the index at the fork
                self._begin_anew()
                self._process = os.getpid()
            try:
                result = do()
            except BaseException:
                self._begin_anew()
                raise
        return result

    # --- reading

    def read(self, do: Callable[[Shelf], T]) -> T:
        """Bring the index up to date with the file, and return what `do` finds in it."""

        def refreshed() -> T:
            if not (self._tail.is_known() and (self._tail.end or self._has_before)):
                self._refresh()
            return do(self._shelf)

        return self._indexed(refreshed)

    def _refresh(self) -> None:
        try:
            with open(self.path, "rb", buffering=0) as file:
                self._read(file.fileno())
        except FileNotFoundError:
            self._begin_anew()
            self._read_before()

    def _read(self, fd: int) -> None:
        anew, data = self._tail.news(fd)
        if anew:
            self._begin_anew(keeps=True)
        self._feed(data)
        if not self._tail.end:
            self._read_before()

    def _read_before(self) -> None:
        self._feed(self._lines_before())
        self._has_before = True

    def _begin_anew(self, *, keeps: bool = False) -> None:
        self._shelf, self._lines, self._bad, self._has_before = Shelf(), 0, [], False
        if not keeps:
            self._tail.forget()

    def _feed(self, data: bytes) -> None:
        """Apply these lines to the index. One that cannot be read is logged, and kept aside for the next rewrite."""
        for line in data.split(b"\n")[:-1]:
            self._lines += 1
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError) as fault:
                self._bad.append(line)
                message = "%s, line %d, cannot be read, and is set aside: %s"
                warn(message, self.path, self._lines, fault)

    def _take(self, record: Any) -> None:
        if "deleted" in record:
            place = self._shelf.ids.get(record["deleted"])
            if place is not None:
                self._shelf.take(place)
        elif "version" in record:
            if record["version"] > VERSION:
                raise StoreTooNew(self.path, record["version"], VERSION)
        else:
            self._shelf.put(parsed(record), int(record["at"]))

    def _lines_before(self) -> bytes:
        """Return what the original program kept of the namespace, as lines of a journal; b"" if it cannot be read."""
        try:
            if self._before is None:
                return b""
            with open(self._before, "rb") as file:
                content = json.loads(file.read())
            records = content.values() if isinstance(content, Mapping) else content
            return b"".join(_line({**record, "at": 0}) for record in records if isinstance(record, Mapping))
        except FileNotFoundError:
            return b""
        except (ValueError, TypeError, RecursionError) as fault:
            warn("%s cannot be read, and is left unchanged: %s", self._before, fault)
            return b""

    # --- writing

    def change(self, do: Callable[[Shelf], tuple[T, dict[str, Any] | None]]) -> T:
        """Append a record that depends on the current entries, and return a result. The file is locked throughout.

        `do` gets the current index, and returns the result and the record to append (None: nothing is written).
        """
        return self._files.locked(self.path, "ab+", partial(self._changed, do))

    def _changed(self, do: Callable[[Shelf], tuple[T, dict[str, Any] | None]], fd: int, status: os.stat_result) -> T:
        def planned() -> tuple[T, bytes, int]:
            self._read(fd)
            result, record = do(self._shelf)
            if record is None:
                return result, b"", 0
            first = b"" if self._tail.end else self._header() + self._lines_before()
            return result, first + _line(record), self._tail.end

        def rows_if_crowded() -> tuple[list[Packed], list[bytes]] | None:
            self._read(fd)
            is_crowded = self._lines > 2 * len(self._shelf.rows) + SPARE
            return (list(self._shelf.rows.values()), self._bad) if is_crowded else None

        result, data, end = self._indexed(planned)
        if data:
            self._files.append(fd, self.path, data, status.st_size, end)
        if data and (crowded := self._indexed(rows_if_crowded)) is not None:
            self._write_anew(*crowded)
        return result

    def keep(self, wanted: Callable[[Packed], bool]) -> int:
        """Rewrite the file with only the entries that are `wanted`, and return how many were removed.

        Nothing of a removed or replaced entry stays in the file.
        """

        def kept(fd: int, _: os.stat_result) -> int:
            def chosen() -> tuple[list[Packed], list[bytes], int, bool]:
                self._read(fd)
                rows = list(self._shelf.rows.values())
                return [row for row in rows if wanted(row)], self._bad, len(rows), self._lines > 1 + len(rows)

            rows, bad, total, has_obsolete_lines = self._indexed(chosen)
            if len(rows) < total or has_obsolete_lines:
                self._write_anew(rows, bad)
            return total - len(rows)

        return self._files.locked(self.path, "ab+", kept)

    def clear(self) -> None:
        """Cut the file down to its header, which works on a full disk, too."""

        def cleared(fd: int, _: os.stat_result) -> None:
            self._indexed(partial(self._read, fd))
            if self._tail.is_headed():
                os.ftruncate(fd, self._tail.begins)
                sync(fd)
            else:
                self._write_anew([], [])
            remove(self.path + BAD)

        self._files.locked(self.path, "ab+", cleared)

    def _write_anew(self, rows: list[Packed], bad: list[bytes]) -> None:
        """Replace the file by a new one with these entries. Unreadable lines are appended to the file of such lines."""
        if bad:
            with open(self.path + BAD, "ab", opener=private) as aside:
                write(aside.fileno(), b"".join(line + b"\n" for line in bad))
                sync(aside.fileno())

        def fill(file: BinaryIO) -> None:
            file.write(self._header())
            file.writelines(_line(saved(row, 0)) for row in rows)

        self._files.replace(self.path, fill)

    def _header(self) -> bytes:
        return _line({"namespace": self.namespace, "version": VERSION, "file": os.urandom(8).hex()})


def saved(row: Packed, at: int) -> dict[str, Any]:
    """Return the record of an entry that is saved, as the line of a journal has it."""
    return {**json.loads(dumped(row)), "at": at}


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def namespace_in(path: str) -> str | None:
    """Return the namespace that the header of a journal names; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline(64 * 1024))
        return str(header["namespace"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

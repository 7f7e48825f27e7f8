"""The entries of a namespace in a file of lines that only grows, and an index of it in memory.

    {"namespace": "user/1", "version": 1, "file": "…"}      the first line: whose entries these are
    {"entry_id": …, "key": …, "content": …, …, "at": …}     an entry is saved, at so many microseconds since 1970
    {"deleted": "…", "at": …}                               one is taken away

Whoever writes has the lock of the file. Where much in it is not there any more another file takes its place. Readers
take no lock: they read what is new, and the whole file where another has taken its place.
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
"""Ends the name of the file that lines are put aside in which cannot be read."""

SPARE = 100
"""Lines that stand for nothing any more, beside as many as there are entries, before a file is written anew."""


class Tail:
    """What of a file of lines has been read, and whether it is still the same file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._begin = self._last = b""
        self.end = 0

    def is_known(self) -> bool:
        """Whether nothing has come since it was read."""
        try:
            return self._seen == _look(os.stat(self.path))
        except FileNotFoundError:
            return not self.end

    def news(self, fd: int) -> tuple[bool, bytes]:
        """The whole lines that have not been read, and whether these are all that there are."""
        status = os.fstat(fd)
        same = (
            0 < self.end <= status.st_size
            and os.pread(fd, len(self._begin), 0) == self._begin
            and os.pread(fd, len(self._last), self.end - len(self._last)) == self._last
        )
        if not same:
            self.end, self._begin, self._last = 0, b"", b""
        parts, at = list[bytes](), self.end
        while at < status.st_size and (part := os.pread(fd, status.st_size - at, at)):
            parts.append(part)
            at += len(part)
        data = b"".join(parts)
        data = data[: data.rfind(b"\n") + 1]
        self.take(data)
        self._seen = _look(status)  # as it was before it was read: what has come meanwhile is news
        return not same, data

    def take(self, data: bytes) -> None:
        """Know of whole lines."""
        if data:
            self._begin = self._begin or data[: data.index(b"\n") + 1]
            self._last = data[data.rfind(b"\n", 0, -1) + 1 :]
            self.end += len(data)

    @property
    def begins(self) -> int:
        """Bytes of the first line."""
        return len(self._begin)

    def is_headed(self) -> bool:
        """Whether the first line says whose entries these are."""
        return self._begin.startswith(b'{"namespace": ')

    def forget(self) -> None:
        """Know nothing of it."""
        self.end, self._begin, self._last, self._seen = 0, b"", b"", None


def _look(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Journal:
    """The entries of a namespace. `before` is a file that the original program has written, which is read until this
    one is.

    Who reads does not wait for who writes: the index is not locked while the disk, or somebody else, is waited for.
    """

    def __init__(self, files: Files, path: str, namespace: str, before: str | None) -> None:
        self._files, self.path, self.namespace, self._before = files, path, namespace, before
        self._tail, self._lock, self._process = Tail(path), ProcessLock(), os.getpid()
        self._shelf, self._lines, self._bad = Shelf(), 0, list[bytes]()
        self._is_before = False

    def _indexed(self, do: Callable[[], T]) -> T:
        """Return what this does with the index, of which nothing is known any more where that fails."""
        with self._lock.own():
            if self._process != os.getpid():  # a fork may have come while another thread was at it
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
        """Return what `do` finds in the index."""

        def found() -> T:
            if not (self._tail.is_known() and (self._tail.end or self._is_before)):
                self._refresh()
            return do(self._shelf)

        return self._indexed(found)

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
        self._is_before = True

    def _begin_anew(self, *, keeps: bool = False) -> None:
        self._shelf, self._lines, self._bad, self._is_before = Shelf(), 0, [], False
        if not keeps:
            self._tail.forget()

    def _feed(self, data: bytes) -> None:
        """Put lines into the index. One that cannot be read is named, and set aside."""
        for line in data.split(b"\n")[:-1]:
            self._lines += 1
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError) as fault:
                self._bad.append(line)
                told = "%s: line %d cannot be read, and is set aside: %s"
                warn(told, self.path, self._lines, fault)

    def _take(self, told: Any) -> None:
        if "deleted" in told:
            place = self._shelf.ids.get(told["deleted"])
            if place is not None:
                self._shelf.take(place)
        elif "version" in told:
            if told["version"] > VERSION:
                raise StoreTooNew(self.path, told["version"], VERSION)
        else:
            self._shelf.put(parsed(told), int(told["at"]))

    def _lines_before(self) -> bytes:
        """What the original program has kept of the namespace, as lines."""
        try:
            if self._before is None:
                return b""
            with open(self._before, "rb") as file:
                held = json.loads(file.read())
            told = held.values() if isinstance(held, Mapping) else held
            return b"".join(_line({**one, "at": 0}) for one in told if isinstance(one, Mapping))
        except FileNotFoundError:
            return b""
        except (ValueError, TypeError, RecursionError) as fault:
            warn("%s: it cannot be read, and is left as it is: %s", self._before, fault)
            return b""

    # --- writing

    def change(self, do: Callable[[Shelf], tuple[T, dict[str, Any] | None]]) -> T:
        """Return the first of what `do` says of the index; the second is the line that is written, None for nothing."""
        return self._files.locked(self.path, "ab+", partial(self._changed, do))

    def _changed(self, do: Callable[[Shelf], tuple[T, dict[str, Any] | None]], fd: int, status: os.stat_result) -> T:
        def planned() -> tuple[T, bytes, int]:
            self._read(fd)
            result, told = do(self._shelf)
            if told is None:
                return result, b"", 0
            first = b"" if self._tail.end else self._header() + self._lines_before()
            return result, first + _line(told), self._tail.end

        def over() -> tuple[list[Packed], list[bytes]] | None:
            self._read(fd)
            crowded = self._lines > 2 * len(self._shelf.rows) + SPARE
            return (list(self._shelf.rows.values()), self._bad) if crowded else None

        result, data, end = self._indexed(planned)
        if data:
            self._files.append(fd, self.path, data, status.st_size, end)
        if data and (left := self._indexed(over)) is not None:
            self._write_anew(*left)
        return result

    def keep(self, wanted: Callable[[Packed], bool]) -> int:
        """Write the file anew with the entries that are wanted, without a trace of any other; return how many went."""

        def kept(fd: int, _: os.stat_result) -> int:
            def chosen() -> tuple[list[Packed], list[bytes], int, bool]:
                self._read(fd)
                rows = list(self._shelf.rows.values())
                return [row for row in rows if wanted(row)], self._bad, len(rows), self._lines > 1 + len(rows)

            rows, bad, many, has_more = self._indexed(chosen)
            if len(rows) < many or has_more:
                self._write_anew(rows, bad)
            return many - len(rows)

        return self._files.locked(self.path, "ab+", kept)

    def clear(self) -> None:
        """Leave nothing but the first line, which takes no room that a full disk has not."""

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
        """Give another file the name of this one, with these; lines that cannot be read go to a file beside."""
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
    """The line of an entry that is saved."""
    return {**json.loads(dumped(row)), "at": at}


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def namespace_in(path: str) -> str | None:
    """Whose entries a file has, as its first line says; None where that cannot be read."""
    try:
        with open(path, "rb") as file:
            told = json.loads(file.readline(64 * 1024))
        return str(told["namespace"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

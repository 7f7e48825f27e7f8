"""The file behind an import: a path or a stream that can be peeked into, unpacked while reading if it is an archive."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeVar

from palimpsest.errors import ImportFailed
from palimpsest.transfer.sources import databases
from palimpsest.transfer.sources.archives import Archive
from palimpsest.transfer.sources.databases import LEAST, is_database
from palimpsest.transfer.sources.encodings import LOOKED_AT, Readable, Recoded, encoding_of
from palimpsest.transfer.sources.limits import Limits

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")

CHUNK = 1 << 16
SQLITE, ZIP = b"SQLite format 3\0", b"PK\x03\x04"
PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!": "RAR",
}
"""The first bytes of compressed files that are not unpacked here, and the name of the compression."""


class Window:
    """The bytes of a file from one position to another (None: the end). Others may read the same file meanwhile."""

    def __init__(self, raw: IO[bytes], begin: int, end: int | None = None) -> None:
        self._raw, self._begin, self._end = raw, begin, end
        self._at = begin

    def read(self, size: int, /) -> bytes:
        self._raw.seek(self._at)
        chunk = self._raw.read(size if self._end is None else min(size, self._end - self._at))
        self._at += len(chunk)
        return chunk

    def part(self, begin: int, end: int | None) -> Window:
        """Return the bytes between two positions of this window."""
        return Window(self._raw, self._begin + begin, None if end is None else self._begin + end)


class Ahead:
    """A stream of bytes that can be peeked into. `taken` is how many bytes were taken by `read`, `skip` or `lines`.

    An error met while peeking is raised only when the bytes before it have been taken.
    """

    def __init__(self, stream: Readable, taken: int = 0) -> None:
        self._stream, self._over = stream, False
        self._waiting, self._at = b"", 0  # the bytes that were peeked at, and how many of them were taken
        self._stopped: ImportFailed | OSError | None = None
        self.taken = taken
        self._cached: Any = None

    def once(self, make: Callable[[], T]) -> T:
        """Return the result of `make`, which reads through the stream. It is called once and its result is cached."""
        if self._cached is None:
            self._cached = (make(),)
        result: T = self._cached[0]
        return result

    def part(self, begin: int, end: int | None) -> Ahead | None:
        """Return the bytes between two positions (None: to the end) as a stream of its own.

        None if the stream cannot be read twice.
        """
        return Ahead(self._stream.part(begin, end), begin) if isinstance(self._stream, Window) else None

    def ahead(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end, without taking them."""
        pieces, length = [self._waiting[self._at :]], len(self._waiting) - self._at
        while length < size and not self._over:
            try:
                pieces.append(self._stream.read(max(size - length, CHUNK)))
            except (ImportFailed, OSError) as fault:
                self._stopped, self._over = fault, True
                break
            length += len(pieces[-1])
            self._over = not pieces[-1]
        self._waiting, self._at = b"".join(pieces), 0
        return self._waiting[:size]

    def read(self, size: int = CHUNK) -> bytes:
        """Take the next bytes, at most `size`; none at the end."""
        if self._at < len(self._waiting):
            chunk = self._waiting[self._at : self._at + size]
            self._at += len(chunk)
        elif self._stopped is not None:
            raise self._stopped
        else:
            self._waiting, self._at = b"", 0
            chunk = b"" if self._over else self._stream.read(size)
        self.taken += len(chunk)
        return chunk

    def skip(self) -> None:
        """Take the bytes that were peeked at, and free them."""
        self.taken += len(self._waiting) - self._at
        self._waiting, self._at = b"", 0

    def lines(self, most: int) -> Iterator[bytes | None]:
        """Take all remaining lines, with their line ends; None for each that has more than `most` bytes."""
        begun, length = list[bytes](), 0
        while chunk := self.read():
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield b"".join([*begun, end, b"\n"]) if length + len(end) <= most else None
                begun, length = [], 0
            length += len(rest)
            begun = [*begun, rest] if length <= most and rest else begun if length <= most else []
        if length:
            yield b"".join(begun) if length <= most else None


class SourceFile:
    """The file that a source reads, from a path or a stream.

    `name` is the file's own name ("" for a stream without one), `size` the number of bytes to read (None: unknown).
    `stream` gives the bytes of the file, or of the conversations in an archive; `others` is the number of members of an
    archive that hold no conversations. For an SQLite database (`is_sqlite`) at a path the stream is empty: use
    `database`. With `twice` the file can be read a second time after `again`.

    Raises OSError if the path cannot be opened, ImportFailed for an archive that cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        twice: bool = False,
        limits: Limits = Limits(),  # noqa: B008 (it is frozen)
    ) -> None:
        self._opened = ExitStack()
        self.limits, self.others = limits, 0
        self._path = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        self._held: bytearray | None = None
        self._is_database = False
        if isinstance(path, str | os.PathLike):
            self._raw: IO[bytes] = self._of_path(os.fspath(path))
            self.name = os.path.basename(os.fspath(path))
        else:
            self._raw, named = path, getattr(path, "name", None)
            self.name = os.path.basename(named) if isinstance(named, str) and not named.startswith("<") else ""
        try:
            self._start = self._raw.tell() if _is_seekable(self._raw) else None
            self._measure()
            self.stream = Ahead(self._raw if self._start is None else Window(self._raw, self._start))
            if twice and self._start is None:
                self._copy()
            self._look()
        except BaseException:
            self.close()
            raise

    @property
    def stem(self) -> str:
        """The file's name without its ending. It names the sessions of a file that names none itself."""
        before, dot, _ = self.name.rpartition(".")
        return before if dot else self.name

    def database(self) -> Connection:
        """Return a new connection to the SQLite database in this file. One from a stream is held in memory.

        Raises ImportFailed if it cannot be opened, or if a stream has more bytes than the limit `database`.
        """
        name = self.name or "the file"
        if self._path is not None:
            return databases.opened(self._path, name, self.limits)
        if self._held is None:
            self._held = bytearray()
            while chunk := self.stream.read():
                self._held += chunk
                if len(self._held) > self.limits.database:
                    hint = "it is held in memory, as it comes as a stream: give its path, or "
                    excess = self.limits.more_than("database", "bytes").replace("; ", f"; {hint}", 1)
                    raise ImportFailed(name, f"is an SQLite database of {excess}")
        return databases.loaded(self._held, name, self.limits)

    def again(self) -> None:
        """Go back to the beginning."""
        assert self._start is not None, "only for a file that was opened with `twice`"
        self._raw.seek(self._start)
        self.stream, self.others = Ahead(Window(self._raw, self._start)), 0
        self._look()

    def close(self) -> None:
        """Close what was opened here. A stream that the caller gave stays open."""
        self._opened.close()

    def _of_path(self, path: str) -> IO[bytes]:
        """Open the file at a path; an empty stream for an SQLite database, and for an empty file.

        An empty file may be a database that a process is about to write: only SQLite may open it.
        """
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            self._is_database = status.st_size >= LEAST and is_database(path)
            if self._is_database or (not status.st_size and os.access(path, os.R_OK)):
                self._size = status.st_size
                return io.BytesIO()
        return self._opened.enter_context(open(path, "rb"))

    def _measure(self) -> None:
        self.size: int | None = None
        if self._is_database:
            self.size = self._size
        elif self._start is not None:
            self.size = self._raw.seek(0, os.SEEK_END) - self._start
            self._raw.seek(self._start)

    def _look(self) -> None:
        head = self.stream.ahead(len(SQLITE))
        self.is_sqlite = self._is_database or head == SQLITE
        if head.startswith(ZIP):
            self._unpack()
        compression_found = next((compression for begin, compression in PACKED.items() if head.startswith(begin)), None)
        if compression_found is not None:
            raise ImportFailed(
                self.name or "the file", f"is compressed with {compression_found}: unpack it, and import its content"
            )
        if (encoding := encoding_of(self.stream.ahead(LOOKED_AT))) is not None:
            self.size = None  # converted to UTF-8 it has another length
            self.stream = Ahead(Recoded(self.stream, encoding, self.name or "the file"))

    def _unpack(self) -> None:
        if self._start is None:
            self._copy()
        archive = self._opened.enter_context(Archive(self._raw, self.name or "the archive", self.limits))
        self.size, self.others = archive.size, archive.others
        self.stream = Ahead(archive)

    def _copy(self) -> None:
        """Copy the stream to an unnamed temporary file, which ends with this process, and read from that."""
        copy: IO[bytes] = self._opened.enter_context(_nameless())
        while chunk := self.stream.read():
            copy.write(chunk)
        copy.flush()
        copy.seek(0)
        self._raw, self._start = copy, 0
        self._measure()
        self.stream = Ahead(Window(copy, 0))


def _is_seekable(stream: IO[bytes]) -> bool:
    """Whether a stream can be read twice. One of the caller's may have no method but `read`."""
    seekable = getattr(stream, "seekable", None)
    return seekable is not None and seekable()


def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="palimpsest-")

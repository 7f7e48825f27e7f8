"""The file behind an import: a path or a stream, looked ahead into, unpacked on the way where it is an archive."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, BinaryIO, Protocol

from palimpsest.errors import ImportFailed

CHUNK = 1 << 16
SQLITE, ZIP = b"SQLite format 3\0", b"PK\x03\x04"

_CONVERSATIONS = re.compile(r"(?:.*/)?conversations(?:[-_]?\d+)?\.json")
"""What both vendors' archives call what holds the conversations; where that is many files, they are numbered."""


class Readable(Protocol):
    """What bytes come from."""

    def read(self, size: int, /) -> bytes: ...


class Ahead:
    """A stream of bytes that can be looked ahead into. `taken` is how many bytes were read for good.

    What stops the reading is raised where it stands in the stream: not before what comes before it was taken.
    """

    def __init__(self, stream: Readable) -> None:
        self._stream, self._waiting, self._over = stream, b"", False
        self._stopped: ImportFailed | OSError | None = None
        self.taken = 0

    def ahead(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end, without taking them."""
        pieces, length = [self._waiting], len(self._waiting)
        while length < size and not self._over:
            try:
                pieces.append(self._stream.read(max(size - length, CHUNK)))
            except (ImportFailed, OSError) as fault:
                self._stopped, self._over = fault, True
                break
            length += len(pieces[-1])
            self._over = not pieces[-1]
        self._waiting = b"".join(pieces)
        return self._waiting[:size]

    def read(self, size: int = CHUNK) -> bytes:
        """Take the next bytes: some, or none at the end."""
        if self._waiting:
            found, self._waiting = self._waiting[:size], self._waiting[size:]
        elif self._stopped is not None:
            raise self._stopped
        else:
            found = b"" if self._over else self._stream.read(size)
        self.taken += len(found)
        return found

    def lines(self) -> Iterator[bytes]:
        """Take all lines that are left, with their ends."""
        begun: list[bytes] = []
        while more := self.read():
            first, *rest = more.split(b"\n")
            begun.append(first)
            for line in rest:
                yield b"".join(begun) + b"\n"
                begun = [line]
        if last := b"".join(begun):
            yield last


class File:
    """What a path or a stream gives to a source.

    `name` is the file's own name ("" for a stream without one), `size` how many bytes there are to read (None where
    nobody knows). `stream` is what is to be read: the file, or what an archive holds of conversations; `others` says
    how many members of an archive hold none. With `twice` it can be read once more, by `again`.

    Raises OSError where the path cannot be opened, ImportFailed for an archive that cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | BinaryIO, *, twice: bool = False) -> None:
        self._opened = ExitStack()
        self.others = 0
        self._path = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if isinstance(path, str | os.PathLike):
            self._raw: IO[bytes] = self._opened.enter_context(open(path, "rb"))  # noqa: SIM115 (`close` closes it)
            self.name = os.path.basename(os.fspath(path))
        else:
            self._raw, named = path, getattr(path, "name", None)
            self.name = os.path.basename(named) if isinstance(named, str) and not named.startswith("<") else ""
        try:
            self._start = self._raw.tell() if self._raw.seekable() else None
            self._measure()
            self.stream = Ahead(self._raw)
            if twice and self._start is None:
                self._copy()
            self._look()
        except BaseException:
            self.close()
            raise

    @property
    def stem(self) -> str:
        """What names the sessions of a file that names none itself."""
        return self.name.split(".")[0]

    @property
    def path(self) -> str:
        """Where the file is on disk; a stream is copied to a temporary file first."""
        if self._path is None:
            self._copy()
        assert self._path is not None, "a copy has a path"
        return self._path

    def again(self) -> None:
        """Go back to the beginning."""
        assert self._start is not None, "opened to be read twice"
        self._raw.seek(self._start)
        self.stream = Ahead(self._raw)
        self._look()

    def close(self) -> None:
        """Close and remove what was opened here; a stream that was given stays open."""
        self._opened.close()

    def _measure(self) -> None:
        self.size: int | None = None
        if self._start is not None:
            self.size = self._raw.seek(0, os.SEEK_END) - self._start
            self._raw.seek(self._start)

    def _look(self) -> None:
        head = self.stream.ahead(len(SQLITE))
        self.is_sqlite = head == SQLITE
        if head.startswith(ZIP):
            self._unpack()

    def _unpack(self) -> None:
        import zipfile

        if self._start is None:
            self._copy()
        try:
            archive = self._opened.enter_context(zipfile.ZipFile(self._raw))
        except (zipfile.BadZipFile, NotImplementedError) as fault:
            raise ImportFailed(self.name or "the archive", f"the archive cannot be read ({fault})") from fault
        found = sorted(info.filename for info in archive.infolist() if _CONVERSATIONS.fullmatch(info.filename))
        if not found:
            seen = ", ".join(archive.namelist()[:5]) or "nothing"
            raise ImportFailed(self.name or "the archive", f"there is no conversations.json in it, but {seen}")
        self.size = sum(archive.getinfo(name).file_size for name in found)
        self.others = sum(not info.is_dir() for info in archive.infolist()) - len(found)
        self.stream = Ahead(_Members(archive.open, found))

    def _copy(self) -> None:
        """Put the stream into a temporary file and go on with that."""
        import tempfile

        folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-"))
        self._path = os.path.join(folder, "copy")
        copy = self._opened.enter_context(open(self._path, "w+b"))  # noqa: SIM115 (`close` closes it)
        while waiting := self.stream.read():
            copy.write(waiting)
        copy.flush()
        copy.seek(0)
        self._raw, self._start = copy, 0
        self._measure()
        self.stream = Ahead(copy)


class _Members:
    """Members of an archive, one after the other. Raises ImportFailed where they cannot be unpacked."""

    def __init__(self, opened: _Opener, names: list[str]) -> None:
        self._opened, self._names = opened, names
        self._current: IO[bytes] | None = None

    def read(self, size: int, /) -> bytes:
        import zipfile
        import zlib

        name = self._names[0] if self._names else ""
        try:
            while self._names:
                name = self._names[0]
                if self._current is None:
                    self._current = self._opened(name)
                if found := self._current.read(min(size, CHUNK)):
                    return found
                self._current.close()
                self._current = None
                del self._names[0]
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as fault:
            raise ImportFailed(name, f"cannot be unpacked ({fault})") from fault
        return b""


class _Opener(Protocol):
    def __call__(self, name: str, /) -> IO[bytes]: ...

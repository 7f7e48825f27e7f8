"""Archives of data exports: their conversations, one member after the other, within limits that are looked at first."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from types import TracebackType
from typing import IO, Self

from palimpsest.errors import ImportFailed
from palimpsest.transfer.sources.limits import MEBIBYTE, Limits

CHUNK = 1 << 16
FREE = 64 * MEBIBYTE
"""Bytes that may come of an archive of any size."""

PER_MEMBER = 160
"""Bytes that the directory of an archive may have for each member, at most."""

_CONVERSATIONS = re.compile(r"(?:.*/)?conversations(?:[-_]?\d+)?\.json")
"""What both vendors' archives call what holds the conversations; where that is many files, they are numbered."""


class Archive:
    """A stream of the conversations in an archive. Raises ImportFailed where they cannot be unpacked.

    `size` is how many bytes there are, `others` how many files beside the conversations.
    """

    def __init__(self, raw: IO[bytes], name: str, limits: Limits) -> None:
        self._name, self._limits = name, limits
        begin = raw.tell()
        packed = raw.seek(0, os.SEEK_END) - begin
        raw.seek(begin)
        try:
            self._archive = zipfile.ZipFile(_Bounded(raw, name, limits))
        except ImportFailed:
            raise
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError) as fault:
            raise ImportFailed(name, f"the archive cannot be read ({fault})") from fault
        members = self._archive.infolist()
        if len(members) > limits.members:
            raise ImportFailed(name, f"the archive holds {limits.told('members', 'files')}")
        found = sorted((one for one in members if _CONVERSATIONS.fullmatch(one.filename)), key=lambda one: one.filename)
        if not found:
            seen = ", ".join(one.filename for one in members[:5]) or "nothing"
            raise ImportFailed(name, f"there is no conversations.json in it, but {seen}")
        self.size = sum(member.file_size for member in found)
        self.others = sum(not member.filename.endswith("/") for member in members) - len(found)
        self._check(found, packed)
        self._left = found[::-1]
        self._current: IO[bytes] | None = None

    def _check(self, found: list[zipfile.ZipInfo], packed: int) -> None:
        """Look at what the directory says; no more than that is unpacked."""
        for member in found:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                reason = "is packed in a way that is not read here; unpack it, and import the conversations.json"
                raise ImportFailed(member.filename, reason)
        if self.size > self._limits.unpacked:
            raise ImportFailed(self._name, f"unpacked, it has {self._limits.told('unpacked', 'bytes')}")
        if self.size > max(FREE, packed * self._limits.ratio):
            told = self._limits.told("ratio", "times the bytes of the archive")
            raise ImportFailed(self._name, f"unpacked, it has {told}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._archive.close()

    def read(self, size: int, /) -> bytes:
        """Return the next bytes: some, or none at the end."""
        name = self._left[-1].filename if self._left else ""
        try:
            while self._left:
                name = self._left[-1].filename
                if self._current is None:
                    self._current = self._archive.open(self._left[-1])
                if found := self._current.read(min(size, CHUNK)):
                    return found
                self._current.close()
                self._current = None
                self._left.pop()
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError) as fault:
            raise ImportFailed(name, f"cannot be unpacked ({fault})") from fault
        return b""


class _Bounded:
    """A file whose pieces are of a bounded size: the directory of an archive is read in one."""

    def __init__(self, raw: IO[bytes], name: str, limits: Limits) -> None:
        self._raw, self._name, self._limits = raw, name, limits
        self.seek, self.tell, self.seekable = raw.seek, raw.tell, raw.seekable

    def read(self, size: int = -1, /) -> bytes:
        if size > max(self._limits.members * PER_MEMBER, MEBIBYTE):
            raise ImportFailed(self._name, f"the archive names {self._limits.told('members', 'files')}")
        return self._raw.read(size)

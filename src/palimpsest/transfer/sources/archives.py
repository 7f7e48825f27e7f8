"""Archives of data exports: a stream of the conversations in all members, within limits that are checked first."""

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
"""Bytes that any archive may have unpacked, whatever its ratio."""

PER_MEMBER = 160
"""The most bytes that the directory of an archive may have for each member."""

_CONVERSATIONS = re.compile(r"(?:.*/)?conversations(?:[-_]?\d+)?\.json")
"""The name of the member with the conversations in archives of both vendors; several are numbered."""


class Archive:
    """A stream of the conversations in an archive. Raises ImportFailed if they cannot be unpacked.

    `size` is the number of unpacked bytes, `others` the number of files that hold no conversations.
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
            raise ImportFailed(name, f"the archive holds {limits.more_than('members', 'files')}")
        conversations = sorted(
            (member for member in members if _CONVERSATIONS.fullmatch(member.filename)),
            key=lambda member: member.filename,
        )
        if not conversations:
            names = ", ".join(member.filename for member in members[:5]) or "nothing"
            raise ImportFailed(name, f"the archive has no conversations.json; it has {names}")
        self.size = sum(member.file_size for member in conversations)
        self.others = sum(not member.filename.endswith("/") for member in members) - len(conversations)
        self._check(conversations, packed)
        self._remaining = conversations[::-1]
        self._current: IO[bytes] | None = None

    def _check(self, conversations: list[zipfile.ZipInfo], packed: int) -> None:
        """Check the sizes in the archive's directory. `zipfile` never unpacks more than the directory says."""
        for member in conversations:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                reason = "is compressed by an unknown method; unpack the archive, and import its conversations.json"
                raise ImportFailed(member.filename, reason)
        if self.size > self._limits.unpacked:
            raise ImportFailed(self._name, f"the archive unpacks to {self._limits.more_than('unpacked', 'bytes')}")
        if self.size > max(FREE, packed * self._limits.ratio):
            excess = self._limits.more_than("ratio", "times the bytes of the archive")
            raise ImportFailed(self._name, f"the archive unpacks to {excess}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._archive.close()

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""
        name = self._remaining[-1].filename if self._remaining else ""
        try:
            while self._remaining:
                name = self._remaining[-1].filename
                if self._current is None:
                    self._current = self._archive.open(self._remaining[-1])
                if chunk := self._current.read(min(size, CHUNK)):
                    return chunk
                self._current.close()
                self._current = None
                self._remaining.pop()
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError) as fault:
            raise ImportFailed(name, f"cannot be unpacked ({fault})") from fault
        return b""


class _Bounded:
    """A file that refuses very large reads: `zipfile` reads the directory of an archive in one piece."""

    def __init__(self, raw: IO[bytes], name: str, limits: Limits) -> None:
        self._raw, self._name, self._limits = raw, name, limits
        self.seek, self.tell, self.seekable = raw.seek, raw.tell, raw.seekable

    def read(self, size: int = -1, /) -> bytes:
        if size > max(self._limits.members * PER_MEMBER, MEBIBYTE):
            raise ImportFailed(self._name, f"the archive lists {self._limits.more_than('members', 'files')}")
        return self._raw.read(size)

"""Finding an entry by an id that does not name its place: an index in memory, made by one scan when it is first asked.

Eight bytes an entry: 32 bits of the id's hash, 32 of its place. Only ids that callers gave stand in it; what it finds
is compared with the entry itself.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from palimpsest.log.entry import placed_at
from palimpsest.stores.file.log import ENDLESS, Found, Log

SESSIONS = 8
"""Sessions whose index is remembered at once: 8 MB each for a million entries."""

FEW = 32
"""Entries that are sorted in one by one."""


class _Index:
    """The given ids of one file, up to the byte `end`."""

    def __init__(self, file: str, end: int) -> None:
        self.file, self.end = file, end
        self.rows = array("Q")


class Ids:
    """The indices of the sessions that were asked for last, for one thread at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Index] = OrderedDict()
        self._lock = allocate_lock()
        self._key = os.urandom(16)  # so that nobody can make ids that all meet

    def find(self, log: Log, ids: Sequence[str]) -> dict[str, Found]:
        """The entries of these ids, as far as the log has them."""
        found: dict[str, Found] = {}
        for id in ids if log.exists else ():
            if id not in found:
                there = self._at(log, id, [placed_at(id)]) or self._at(log, id, self._seqs(log, id))
                if there is not None:
                    found[id] = there
        return found

    def forget(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._known.clear()

    def _at(self, log: Log, id: str, seqs: Sequence[int]) -> Found | None:
        """The entry of this id at one of these places."""
        for seq in seqs:
            for found in log.entries(seq, seq + 1) if 0 < seq < ENDLESS else ():
                if found[0].id == id:
                    return found
        return None

    def _seqs(self, log: Log, id: str) -> list[int]:
        """The places of entries whose given id may be this one."""
        beginning = self._hash(id) << 32
        with self._lock:
            rows = self._index(log).rows
            first = bisect_left(rows, beginning)
            return [row & 0xFFFFFFFF for row in rows[first : bisect_left(rows, beginning + (1 << 32), first)]]

    def _index(self, log: Log) -> _Index:
        """The index of all that the log holds now."""
        assert log.header is not None, "a log that has entries begins with its header"
        index = self._known.pop(log.path, None)
        if index is None or index.file != log.header.file:
            index = _Index(log.header.file, log.start)
        if index.end < log.end:
            self._go_on(index, log)
        self._known[log.path] = index
        if len(self._known) > SESSIONS:
            self._known.popitem(last=False)
        return index

    def _go_on(self, index: _Index, log: Log) -> None:
        new = array("Q")
        for line in log.lines(index.end) if log.lenient else log.sound_lines(index.end):
            if not line.sound:
                continue
            new.extend(self._hash(at.id) << 32 | at.seq for at, _ in log.found_in(line) if placed_at(at.id) != at.seq)
        if len(new) <= FEW:
            for row in new:
                insort(index.rows, row)
        else:
            index.rows = array("Q", sorted(index.rows + new))
        index.end = log.end

    def _hash(self, id: str) -> int:
        return int.from_bytes(blake2b(id.encode("utf-8", "surrogatepass"), digest_size=4, key=self._key).digest())

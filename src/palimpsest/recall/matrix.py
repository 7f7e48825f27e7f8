"""Vectors of parts in memory, searched by comparing a question with every one of them in numpy. Pure.

Memory: four bytes a number, and some 130 bytes a part for its key: 100,000 parts of 384 numbers take 170 MB. No more
than `MOST` parts are held. If there are more, parts of the sessions that began first are left out, and are found by
their words alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from palimpsest.recall.postings import PART_BITS, SEQ_BITS
from palimpsest.runtime.once import new_lock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Keys = NDArray[np.int64]

NUMBER_SHIFT = SEQ_BITS + PART_BITS
"""How many bits of a part's key are below its session's number."""

MOST = 250_000
"""How many parts are held: with 384 numbers each they take some 420 MB, and a search through all of them 40 ms."""

BLOCK = 4096
"""Rows that are allocated at once, so that growing copies no vectors."""


class Matrix:
    """Vectors of length 1, one row each, by the keys of their parts. Threads may share it."""

    def __init__(self, dimension: int, most: int = MOST) -> None:
        self.dimension, self._most = dimension, most
        self._lock = new_lock()
        self._blocks: list[Floats] = []
        self._keys: Keys = np.empty(BLOCK, np.int64)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self._rows)

    def put(self, keys: Sequence[int], vectors: Floats) -> None:
        """Add vectors, replacing those with the same keys.

        Args:
            keys: one for each row, all different.
            vectors: rows of length 1, or of zeros.
        """
        with self._lock:
            replaced = [number for number, key in enumerate(keys) if key in self._rows]
            for number in replaced:
                self._set(self._rows[keys[number]], vectors[number])
            added = sorted(set(range(len(keys))).difference(replaced)) if replaced else range(len(keys))
            self._append([keys[number] for number in added], vectors[list(added)] if replaced else vectors)
            if len(self._rows) > self._most:
                self._shrink()

    def keep(self, keys: Keys) -> None:
        """Remove all vectors but those with these keys.

        Args:
            keys: of parts, in no order.
        """
        with self._lock:
            own = self._keys[: len(self._rows)]
            for key in own[~np.isin(own, keys)].tolist():
                self._drop(key)

    def search(
        self, vector: Floats, numbers: Collection[int] | None, limit: int, among: Collection[int] | None = None
    ) -> dict[int, float]:
        """Return the cosines of the nearest parts, by key, nearest first.

        Args:
            vector: of length 1.
            numbers: the sessions to search; None for all.
            limit: how many parts at most.
            among: places of entries; the nearest parts of these, up to as many again, are returned, too. None for none.
        """
        with self._lock:
            keys = self._keys[: len(self._rows)]
            if numbers is not None:
                rows = np.flatnonzero(np.isin(keys >> NUMBER_SHIFT, np.fromiter(numbers, np.int64)))
                keys, scores = keys[rows], self._scores(vector, rows)
            else:
                keys, scores = keys.copy(), self._scores(vector, None)
        best = _best(scores, limit)
        if among is not None:
            mine = np.flatnonzero(np.isin(keys >> PART_BITS, np.fromiter(among, np.int64)))
            best = np.union1d(best, mine[_best(scores[mine], limit)])
        keys, scores = keys[best], scores[best]
        order = np.lexsort((-keys, -scores))
        return dict(zip(keys[order].tolist(), scores[order].tolist(), strict=True))

    # --- called with the lock held

    def _scores(self, vector: Floats, rows: Keys | None) -> Floats:
        """Return the cosines of these rows, or of all."""
        count = len(self._rows)
        scores = np.empty(count, np.float32)
        if rows is not None and len(rows) * 4 < count:
            scores = np.empty(len(rows), np.float32)
            blocks = rows // BLOCK
            for number in np.unique(blocks).tolist():
                mine = blocks == number
                scores[mine] = self._blocks[number][rows[mine] % BLOCK] @ vector
            return scores
        for start in range(0, count, BLOCK):
            end = min(start + BLOCK, count)
            np.dot(self._blocks[start // BLOCK][: end - start], vector, out=scores[start:end])
        return scores if rows is None else scores[rows]

    def _set(self, row: int, vector: Floats) -> None:
        self._blocks[row // BLOCK][row % BLOCK] = vector

    def _append(self, keys: Sequence[int], vectors: Floats) -> None:
        """Add rows at the end, in blocks."""
        start = len(self._rows)
        end = start + len(keys)
        if end > len(self._keys):
            self._keys = np.resize(self._keys, max(end, 2 * len(self._keys)))
        self._keys[start:end] = keys
        self._rows.update(zip(keys, range(start, end), strict=True))
        copied = 0
        while copied < len(keys):
            block, at = divmod(start + copied, BLOCK)
            if block == len(self._blocks):
                self._blocks.append(np.empty((BLOCK, self.dimension), np.float32))
            count = min(BLOCK - at, len(keys) - copied)
            self._blocks[block][at : at + count] = vectors[copied : copied + count]
            copied += count

    def _drop(self, key: int) -> None:
        """Remove a vector; the last row moves to its place."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        last = len(self._rows)
        if row != last:
            moved = int(self._keys[last])
            self._set(row, self._blocks[last // BLOCK][last % BLOCK])
            self._keys[row], self._rows[moved] = moved, row
        self._blocks[last // BLOCK][last % BLOCK] = 0  # no removed vector stays in memory
        del self._blocks[-(-last // BLOCK) :]

    def _shrink(self) -> None:
        """Remove the lowest keys: somewhat more than are too many, so that this happens seldom."""
        own = self._keys[: len(self._rows)]
        over = len(own) - self._most + self._most // 16
        for key in np.partition(own, over)[:over].tolist():
            self._drop(key)


def _best(scores: Floats, limit: int) -> Keys:
    """Return the positions of the greatest scores, at most `limit`, in no order."""
    if len(scores) <= limit:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - limit)[-limit:] if limit > 0 else np.empty(0, np.int64)

"""Vectors of parts in memory, and which of them are nearest to a question's: every one is compared, by numpy. Pure.

Memory: four bytes a number, and some 130 a part for its key: 100,000 parts of 384 numbers take 170 MB. No more than
`MOST` parts are held: when there are more, those of the sessions that began first are found by their words alone.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from palimpsest.recall.postings import PART_BITS, SEQ_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Keys = NDArray[np.int64]

NUMBER_SHIFT = SEQ_BITS + PART_BITS
"""Bits of a part's key below the number of its session."""

MOST = 250_000
"""Parts that are held: of 384 numbers each they take some 420 MB, and a search through all of them 40 ms."""

BLOCK = 4096
"""Rows that are allocated at once, so that growing copies none."""


class Matrix:
    """Vectors of length 1, a row each, by the keys of their parts. Threads may share it."""

    def __init__(self, dimension: int, most: int = MOST) -> None:
        self.dimension, self._most = dimension, most
        self._lock = allocate_lock()
        self._blocks: list[Floats] = []
        self._keys: Keys = np.empty(BLOCK, np.int64)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        """How many vectors it has."""
        return len(self._rows)

    def put(self, keys: Sequence[int], vectors: Floats) -> None:
        """Add vectors, each in the place of one of the same key.

        Args:
            keys: one for each row, none of them twice.
            vectors: rows of length 1, or of zeros.
        """
        with self._lock:
            old = [number for number, key in enumerate(keys) if key in self._rows]
            for number in old:
                self._set(self._rows[keys[number]], vectors[number])
            new = sorted(set(range(len(keys))).difference(old)) if old else range(len(keys))
            self._append([keys[number] for number in new], vectors[list(new)] if old else vectors)
            if len(self._rows) > self._most:
                self._shrink()

    def keep(self, keys: Keys) -> None:
        """Take out whatever is none of these keys.

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
            numbers: the sessions that are meant; None for all.
            limit: how many parts at most.
            among: the places of entries of whose parts as many are returned beside these, the nearest; None for none.
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

    # --- for who has the lock

    def _scores(self, vector: Floats, rows: Keys | None) -> Floats:
        """The cosines of these rows, or of all."""
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
        start = len(self._rows)
        end = start + len(keys)
        if end > len(self._keys):
            self._keys = np.resize(self._keys, max(end, 2 * len(self._keys)))
        self._keys[start:end] = keys
        self._rows.update(zip(keys, range(start, end), strict=True))
        done = 0
        while done < len(keys):
            block, at = divmod(start + done, BLOCK)
            if block == len(self._blocks):
                self._blocks.append(np.empty((BLOCK, self.dimension), np.float32))
            some = min(BLOCK - at, len(keys) - done)
            self._blocks[block][at : at + some] = vectors[done : done + some]
            done += some

    def _drop(self, key: int) -> None:
        """The last row takes the place of the one that goes."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        last = len(self._rows)
        if row != last:
            moved = int(self._keys[last])
            self._set(row, self._blocks[last // BLOCK][last % BLOCK])
            self._keys[row], self._rows[moved] = moved, row
        self._blocks[last // BLOCK][last % BLOCK] = 0  # nothing of what is gone stays in memory
        del self._blocks[-(-last // BLOCK) :]

    def _shrink(self) -> None:
        """Take out the lowest keys, some more than there are too many, so that this is seldom done."""
        own = self._keys[: len(self._rows)]
        over = len(own) - self._most + self._most // 16
        for key in np.partition(own, over)[:over].tolist():
            self._drop(key)


def _best(scores: Floats, limit: int) -> Keys:
    """Where the greatest of these are, at most so many, in no order."""
    if len(scores) <= limit:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - limit)[-limit:] if limit > 0 else np.empty(0, np.int64)

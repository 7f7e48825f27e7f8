"""Vectors of parts in this process's memory, beside an index that is in memory, too."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from palimpsest.recall.vectors import Changes, Row, State


class PlainVectors:
    """The vectors of one tenant, in memory. Its verbs are those of `palimpsest.recall.vectors.VectorRows`."""

    def __init__(self) -> None:
        self._state, self._last = State("", 0, 0), 0
        self._rows = dict[int, tuple[int, bytes, bytes]]()

    async def state(self) -> State:
        return self._state

    async def claim(self, model: str, dimension: int) -> State:
        if (self._state.model, self._state.dimension) != (model, dimension):
            self._rows = {}
            self._state = self._state._replace(model=model, dimension=dimension)
        return self._state

    async def changes(self, state: State, last: int, limit: int) -> Changes:
        goes_on, rows = self._state.continues(state), dict(self._rows)
        begin = last if goes_on else 0
        has_removals = goes_on and self._state.generation != state.generation
        new = sorted((place, key, value) for key, (place, _, value) in rows.items() if place > begin)[:limit]
        keys = np.array(list(rows), np.int64) if has_removals else None
        return Changes(self._state, new[-1][0] if new else begin, keys, [(key, value) for _, key, value in new])

    async def known(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        wanted = set(digests)
        return {digest: value for _, digest, value in dict(self._rows).values() if digest in wanted}

    async def missing(self, keys: Collection[int]) -> list[int]:
        return [key for key in keys if key not in self._rows]

    async def put(self, rows: Sequence[Row], expect: State) -> bool:
        if self._state != expect:
            return False
        for key, digest, value in rows:
            self._last += 1
            self._rows[key] = self._last, digest, value
        return True

    def let_go(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove the vectors in these ranges of keys (ends excluded), synchronously."""
        for key in list(self._rows):
            if any(low <= key < high for low, high in ranges):
                self._rows.pop(key, None)
        self._state = self._state._replace(generation=self._state.generation + 1)

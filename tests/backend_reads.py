"""Counts the looks at a memory's backend and the rows they return, which do not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from palimpsest import Memory
from palimpsest.stores.backend import Ask, Seen


class Reads:
    """What was read: looks, rows of entries, and in `most` the rows of any kind in the largest answer."""

    def __init__(self) -> None:
        self.looks = self.rows = self.most = 0


@contextmanager
def watched(memory: Memory) -> Iterator[Reads]:
    """Count the looks at the memory's backend in the block, and the rows of entries in their answers."""
    backend: Any = memory.store.backend
    reads, look = Reads(), backend.look

    async def looking(asks: list[Ask]) -> list[Seen]:
        seen: list[Seen] = await look(asks)
        reads.looks += 1
        for ask, one in zip(asks, seen, strict=True):
            named = [rows for wanted, rows in zip(ask.rows, one.rows, strict=True) if wanted.table == "entry"]
            reads.rows += sum(map(len, named))
            reads.most = max([reads.most, *map(len, one.rows)])
        return seen

    backend.look = looking
    try:
        yield reads
    finally:
        del backend.look

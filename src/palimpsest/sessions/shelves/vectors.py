"""Vectors of chunks and questions, as they are kept: whole numbers from -127 to 127."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul
from typing import TYPE_CHECKING, Any

from palimpsest.log import values

if TYPE_CHECKING:
    from palimpsest.recall.embedders import Embedder, Floats

SCALE = 127


async def embedded(embedder: Embedder, texts: Sequence[str]) -> list[list[int]]:
    """Return the vectors of texts that are to be found. Raises EmbedderFailed."""
    return await embedder.runner.read(_wholes, await embedder.embed(texts))


async def embedded_query(embedder: Embedder, text: str) -> list[int]:
    """Return the vector of a question. Raises EmbedderFailed."""
    return _whole((await embedder.embed_query(text)).tolist())


def _wholes(rows: Floats) -> list[list[int]]:
    return [_whole(row) for row in rows.tolist()]


def _whole(row: Sequence[float]) -> list[int]:
    return [round(number * SCALE) for number in row]


def likeness(one: Sequence[int], other: Sequence[int]) -> float:
    """The cosine of two vectors, 0 where it is less, or they are not of one length."""
    if len(one) != len(other):
        return 0.0
    size = sqrt(sum(map(mul, one, one)) * sum(map(mul, other, other)))
    return min(max(sum(map(mul, one, other)) / size, 0.0), 1.0) if size else 0.0


def vector_of(metadata: Any) -> list[int] | None:
    """The vector that is kept with a chunk."""
    found = (metadata or {}).get("vector")
    return found if isinstance(found, list) and all(values.is_whole(one) for one in found) else None

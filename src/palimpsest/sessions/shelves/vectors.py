"""Vectors of chunks and questions as they are stored: whole numbers from -127 to 127."""

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
    """Return the vectors of chunks. Raises EmbedderFailed."""
    return await embedder.runner.read(_wholes, await embedder.embed(texts))


async def embedded_query(embedder: Embedder, text: str) -> list[int]:
    """Return the vector of a question. Raises EmbedderFailed."""
    return _whole((await embedder.embed_query(text)).tolist())


def _wholes(rows: Floats) -> list[list[int]]:
    return [_whole(row) for row in rows.tolist()]


def _whole(row: Sequence[float]) -> list[int]:
    return [round(number * SCALE) for number in row]


def likeness(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the cosine of two vectors, but 0 if it is negative or the vectors have different lengths."""
    if len(first) != len(second):
        return 0.0
    size = sqrt(sum(map(mul, first, first)) * sum(map(mul, second, second)))
    return min(max(sum(map(mul, first, second)) / size, 0.0), 1.0) if size else 0.0


def vector_of(metadata: Any) -> list[int] | None:
    """Return the vector in a chunk's metadata, or None."""
    vector = (metadata or {}).get("vector")
    return vector if isinstance(vector, list) and all(values.is_whole(number) for number in vector) else None

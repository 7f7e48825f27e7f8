"""The vectors of an index: one for each part, made from its text by one embedder.

Vectors are derived data. They are made from the text of parts, never from withheld text, and removed together with
their parts. They are kept as 16-bit floats, which changes a cosine by less than 0.001, together with the embedder's
name and their dimension. Vectors of different embedders are never compared: the first write of a new embedder drops the
old vectors, and all parts that are then `missing` one are embedded again. A text that was embedded before, recognised
by a hash of it and the embedder's name, is not embedded again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from palimpsest.errors import EmbedderFailed
from palimpsest.recall.embedders import Embedder, normalised
from palimpsest.recall.generations import tables_of
from palimpsest.recall.matrix import MOST, Matrix
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.runner import Runner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Keys = NDArray[np.int64]

STEP = 256
"""Parts that are embedded and written in one step. A crash loses the work of one step at most."""

LOADED = 4096
"""Vectors that are read in one step."""


class State(NamedTuple):
    """Which `model` made the kept vectors, and their `dimension` ("" and 0: there are none yet).

    `generation` changes whenever vectors are removed, or their tables are made anew.
    """

    model: str = ""
    dimension: int = 0
    generation: int = 0

    def continues(self, former: State) -> bool:
        """Return whether the vectors are of the same model as in a former state, and in the same tables."""
        return self[:2] == former[:2] and tables_of(self.generation) == tables_of(former.generation)


class Row(NamedTuple):
    """A part's key, the hash of its embedded text (`digest_of`), and its vector (`packed`)."""

    key: int
    digest: bytes
    vector: bytes


class Changes(NamedTuple):
    """What is new to a reader who has all vectors up to a position.

    `added` are the vectors put after it, by key, in order; `last` is the position to read on from. `keys` are all keys
    that exist, if vectors were removed since the reader's state, so that the reader can drop the others; else None.
    """

    state: State
    last: int
    keys: Keys | None
    added: Sequence[tuple[int, bytes]]


class VectorRows(Protocol):
    """Where the vectors of one tenant's index are kept. Every verb is atomic: it happens as a whole, or not at all.

    When the index removes parts, their vectors are removed in the same step, and the generation changes. Verbs raise
    StoreUnavailable if the vectors cannot be reached, or their place is full or locked for too long.
    """

    async def state(self) -> State:
        """Return the state as it is now."""
        ...

    async def claim(self, model: str, dimension: int) -> State:
        """Keep vectors of this model and dimension from now on; drop the vectors of another model or dimension."""
        ...

    async def changes(self, state: State, last: int, limit: int) -> Changes:
        """Return what is new since `state` and position `last`, at most `limit` vectors.

        If the vectors do not continue those of `state`, all are new.
        """
        ...

    async def known(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the vectors of those of these digests whose texts were embedded before."""
        ...

    async def missing(self, keys: Collection[int]) -> list[int]:
        """Return which of these parts have no vector, in their order."""
        ...

    async def put(self, rows: Sequence[Row], expect: State) -> bool:
        """Put vectors, replacing those with the same keys; return False, with none put, if the state is not
        `expect`."""
        ...


@runtime_checkable
class Searching(Protocol):
    """Rows that can be searched where they are kept, as pgvector can, so that no copy in memory is needed."""

    async def nearest(
        self, vector: Floats, numbers: Collection[int] | None, limit: int, among: Collection[int] | None = None
    ) -> dict[int, float]:
        """Return the cosines of the nearest parts of these sessions, by key, like `Vectors.search`."""
        ...


class Vectors:
    """A tenant's vectors, made by one embedder.

    Every verb may raise EmbedderFailed; search by words still works then.
    """

    def __init__(self, rows: VectorRows, embedder: Embedder, *, most: int = MOST) -> None:
        self._rows, self._embedder = rows, embedder
        self._mirror = Mirror(rows, embedder.runner, most)
        self._unsaved: dict[bytes, bytes] = {}  # vectors by digest, until they are written
        self._claimed = False  # whether this process has claimed the rows for its embedder
        self.renewed = False
        """Whether vectors with this embedder's name but another dimension were dropped: then all parts miss one."""

    async def state(self) -> State:
        """Return the state as it is now. Ask before reading the texts that are to be `put`."""
        return await self._rows.state()

    async def missing(self, keys: Collection[int]) -> list[int]:
        """Return which of these parts have no vector of this embedder.

        Args:
            keys: of parts.
        """
        if (await self._rows.state()).model != self._embedder.name:
            return list(keys)
        return await self._rows.missing(keys)

    async def put(self, texts: Mapping[int, str], generation: int) -> bool:
        """Embed texts of parts and keep their vectors; return False if anything was removed since `generation`.

        Some of the vectors may have been kept then, and the texts must be read again, since one of them may be erased.
        Raises EmbedderFailed, with the kind `replaced` if another process has kept vectors of another embedder here
        meanwhile.

        Args:
            texts: by the keys of parts.
            generation: that of `state`, as it was before the texts were read.
        """
        parts = iter(texts.items())
        while step := dict(islice(parts, STEP)):
            rows = await self._embedded_rows(step)
            if rows and not await self._write(rows, generation):
                return False
        return True

    async def search(
        self,
        text: str,
        numbers: Collection[int] | None = None,
        *,
        limit: int = 100,
        among: Collection[int] | None = None,
    ) -> dict[int, float]:
        """Return the cosines of the parts nearest to a question, by key, nearest first.

        Args:
            text: the question.
            numbers: the sessions to search; None for all.
            limit: how many parts at most.
            among: places of entries; the nearest parts of these, up to as many again, are returned, too. None for none.
        """
        vector = await self._embedder.embed_query(text)
        if isinstance(self._rows, Searching):
            state = await self._rows.state()
            if (state.model, state.dimension) == (self._embedder.name, len(vector)):
                return await self._rows.nearest(vector, numbers, limit, among)
        elif (matrix := await self._mirror.matrix(self._embedder.name, len(vector))) is not None:
            found: dict[int, float] = await self._embedder.runner.read(matrix.search, vector, numbers, limit, among)
            return found
        await self._renew(len(vector))
        return {}

    async def _renew(self, dimension: int) -> None:
        """Drop vectors that were made under this embedder's name with another dimension, before this process used it.

        The question could be compared with none of them. This is done once only, since an embedder may give questions
        and texts different dimensions.
        """
        state = await self._rows.state() if not self._claimed else None
        if state is not None and state.model == self._embedder.name and state.dimension != dimension:
            self._claimed = True
            await self._rows.claim(state.model, dimension)
            self.renewed = True

    async def _embedded_rows(self, texts: Mapping[int, str]) -> list[Row]:
        """Return the rows of parts: with the vectors that exist for the same texts, and new ones for the others."""
        name = self._embedder.name
        digests = {key: digest_of(name, text) for key, text in texts.items()}
        vectors = dict(self._unsaved)
        state = await self._rows.state()
        if state.model == name:
            vectors.update(await self._rows.known(set(digests.values()).difference(vectors)))
        missing_texts = {digest: texts[key] for key, digest in digests.items() if digest not in vectors}
        new_vectors = await self._embedder.embed(list(missing_texts.values()))
        # Existing vectors of another length are from before the model behind the name changed.
        if len(new_vectors) and any(len(vector) != 2 * len(new_vectors[0]) for vector in vectors.values()):
            vectors, missing_texts = {}, {digest: texts[key] for key, digest in digests.items()}
            new_vectors = await self._embedder.embed(list(missing_texts.values()))
        vectors.update((digest, packed(vector)) for digest, vector in zip(missing_texts, new_vectors, strict=True))
        rows = [Row(key, digest, vectors[digest]) for key, digest in digests.items()]
        self._unsaved = {row.digest: row.vector for row in rows}  # so that a failed write embeds nothing twice
        return rows

    async def _write(self, rows: Sequence[Row], generation: int) -> bool:
        """Write rows; return False if something was removed since `generation`."""
        name, dimension = self._embedder.name, len(rows[0].vector) // 2
        state = await self._rows.state()
        if (state.model, state.dimension) != (name, dimension):
            if self._claimed and state.model not in ("", name):
                why = (
                    f"the index now keeps vectors of {state.model}, since another process was opened with that embedder"
                )
                raise EmbedderFailed(name, "replaced", why)
            await self._rows.claim(name, dimension)
            self.renewed |= state.model == name and state.dimension > 0
        self._claimed = True
        is_written = await self._rows.put(rows, State(name, dimension, generation))
        if is_written:
            self._unsaved = {}
        return is_written


class Mirror:
    """A copy of the rows' vectors in memory, brought up to date whenever it is asked for."""

    def __init__(self, rows: VectorRows, runner: Runner, most: int = MOST) -> None:
        self._rows, self._runner, self._most, self._lock = rows, runner, most, new_lock()
        self._state, self._position = State(), 0
        self._matrix: Matrix | None = None

    async def matrix(self, model: str, dimension: int) -> Matrix | None:
        """Return the vectors as they are now; None if they are of another model or dimension."""
        while True:
            state, at = self._state, self._position
            changes = await self._rows.changes(state, at, LOADED)
            if changes.state[:2] != (model, dimension):
                return None
            if await self._runner.read(self._apply, state, at, changes) and len(changes.added) < LOADED:
                return self._matrix

    def _apply(self, state: State, at: int, changes: Changes) -> bool:
        """Apply changes to the copy; return False if another thread has changed it meanwhile."""
        with self._lock:
            if (state, at) != (self._state, self._position):
                return False
            if self._matrix is None or not changes.state.continues(state):
                self._matrix = Matrix(changes.state.dimension, self._most)
            elif changes.keys is not None:
                self._matrix.keep(changes.keys)
            if changes.added:
                self._matrix.put([key for key, _ in changes.added], unpacked([vector for _, vector in changes.added]))
            self._state, self._position = changes.state, changes.last
            return True


def digest_of(model: str, text: str) -> bytes:
    """Return what identifies a text embedded by a model: a 128-bit hash of both.

    Args:
        model: the embedder's name.
        text: the whole text that is embedded.
    """
    return blake2b(f"{model}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def packed(vector: Floats) -> bytes:
    """Return a vector as bytes: 16-bit floats, little-endian.

    Args:
        vector: of length 1.
    """
    return vector.astype("<f2").tobytes()


def unpacked(vectors: Sequence[bytes]) -> Floats:
    """Return vectors of one dimension as rows of length 1.

    Args:
        vectors: as `packed` made them, at least one.
    """
    rows = np.frombuffer(b"".join(vectors), "<f2").reshape(len(vectors), -1)
    return normalised(rows.astype(np.float32))

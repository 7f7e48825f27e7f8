"""What an index keeps of its parts' meaning: a vector for each part, made by one embedder, as the index has the parts.

Vectors are derived: made of the text of parts, never of withheld text, and dropped with what they were made of.
They are kept as 16-bit numbers, which moves a cosine by less than 0.001, with the embedder's name and their dimension.
Those of another embedder are never compared with these: the first write of the new one drops them, and what is then
`missing` is embedded again. A text that was embedded before, by a hash of it and the name, is not embedded again.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from palimpsest.errors import EmbedderFailed
from palimpsest.recall.embedders import Embedder, normalised
from palimpsest.recall.matrix import MOST, Matrix
from palimpsest.runtime.runner import Runner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Keys = NDArray[np.int64]

STEP = 256
"""Parts that are embedded and written in one step: what a crash can cost."""

LOADED = 4096
"""Vectors that are read in one step."""


class State(NamedTuple):
    """What is kept: by which `model`, of which `dimension` ("" and 0: nothing yet). `generation` is another number
    whenever something was dropped."""

    model: str = ""
    dimension: int = 0
    generation: int = 0


class Row(NamedTuple):
    """A part's key, the hash of what was embedded (`digest_of`), and the vector (`packed`)."""

    key: int
    digest: bytes
    vector: bytes


class Changes(NamedTuple):
    """What is new to somebody who knows it as of `since`: vectors that were put after `last`, by key, in order.

    `keys` are all that there are, where something was dropped since then, else None. `last` is where to go on.
    """

    state: State
    last: int
    keys: Keys | None
    added: Sequence[tuple[int, bytes]]


class VectorRows(Protocol):
    """Where vectors of one tenant's index are kept. Every verb is one step: it happens whole, or not at all.

    The index drops those of parts that go, in the step in which these go, and moves the generation.
    Verbs raise StoreUnavailable where it cannot be reached, is full, or locked for too long.
    """

    async def state(self) -> State:
        """Return what is kept now."""
        ...

    async def claim(self, model: str, dimension: int) -> State:
        """Drop what another model made, or one of another dimension, and keep what this one makes from now on."""
        ...

    async def changes(self, state: State, last: int, limit: int) -> Changes:
        """Return what is new since `last`, at most `limit` vectors; of another model or dimension, all is."""
        ...

    async def known(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the vectors of texts that were embedded before, by the hashes of those that were."""
        ...

    async def missing(self, keys: Collection[int]) -> list[int]:
        """Return which of these parts have no vector, in their order."""
        ...

    async def put(self, rows: Sequence[Row], expect: State) -> bool:
        """Put vectors, each in the place of one of the same key, if the state is still this one; else return False."""
        ...


@runtime_checkable
class Searching(Protocol):
    """Rows that are searched where they are, as pgvector does: nothing of them is kept in memory."""

    async def nearest(
        self, vector: Floats, numbers: Collection[int] | None, limit: int, among: Collection[int] | None = None
    ) -> dict[int, float]:
        """Return the cosines of the nearest parts of these sessions, by key, as `Vectors.search` does."""
        ...


class Vectors:
    """A tenant's vectors, made by one embedder. Every verb may raise EmbedderFailed; words find all the same then."""

    def __init__(self, rows: VectorRows, embedder: Embedder, *, most: int = MOST) -> None:
        self._rows, self._embedder = rows, embedder
        self._mirror = Mirror(rows, embedder.runner, most)
        self._made: dict[bytes, bytes] = {}
        self._claimed = False
        self.renewed = False
        """Whether vectors of the same name and another dimension were met, and dropped: then all are missing."""

    async def state(self) -> State:
        """Return what is kept now: asked before texts are read that are to be `put`."""
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
        """Embed texts of parts, and keep their vectors; return False where something was dropped since `generation`.

        Then some of them may have been kept, and the texts are to be read anew: one of them may be erased. Raises
        EmbedderFailed, with the kind replaced where another process keeps vectors of another embedder here since.

        Args:
            texts: by the keys of parts.
            generation: that of `state`, as it was before the texts were read.
        """
        parts = iter(texts.items())
        while some := dict(islice(parts, STEP)):
            rows = await self._embedded(some)
            if rows and not await self._kept(rows, generation):
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
            numbers: the sessions that are meant; None for all.
            limit: how many parts at most.
            among: the places of entries of whose parts as many are returned beside these, the nearest; None for none.
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
        """Drop what an embedder of the same name has made with another dimension before this process had it: what is
        asked now can be compared with none of it. Once, for one may give questions another dimension than texts."""
        state = await self._rows.state() if not self._claimed else None
        if state is not None and state.model == self._embedder.name and state.dimension != dimension:
            self._claimed = True
            await self._rows.claim(state.model, dimension)
            self.renewed = True

    async def _embedded(self, texts: Mapping[int, str]) -> list[Row]:
        """The rows of parts: with vectors that there are of the same texts, and new ones of the others."""
        name = self._embedder.name
        digests = {key: digest_of(name, text) for key, text in texts.items()}
        there = dict(self._made)
        state = await self._rows.state()
        if state.model == name:
            there.update(await self._rows.known(set(digests.values()).difference(there)))
        new = {digest: texts[key] for key, digest in digests.items() if digest not in there}
        made = await self._embedder.embed(list(new.values()))
        if len(made) and any(len(vector) != 2 * len(made[0]) for vector in there.values()):  # of before it changed
            there, new = {}, {digest: texts[key] for key, digest in digests.items()}
            made = await self._embedder.embed(list(new.values()))
        there.update((digest, packed(vector)) for digest, vector in zip(new, made, strict=True))
        rows = [Row(key, digest, there[digest]) for key, digest in digests.items()]
        self._made = {row.digest: row.vector for row in rows}  # until they are kept, if they cannot be at first
        return rows

    async def _kept(self, rows: Sequence[Row], generation: int) -> bool:
        name, dimension = self._embedder.name, len(rows[0].vector) // 2
        state = await self._rows.state()
        if (state.model, state.dimension) != (name, dimension):
            if self._claimed and state.model != name:
                why = f"the index keeps vectors of {state.model} since: another process was opened with that embedder"
                raise EmbedderFailed(name, "replaced", why)
            await self._rows.claim(name, dimension)
            self.renewed |= state.model == name and state.dimension > 0
        self._claimed = True
        kept = await self._rows.put(rows, State(name, dimension, generation))
        if kept:
            self._made = {}
        return kept


class Mirror:
    """The vectors of rows in memory, brought up to date whenever they are asked for."""

    def __init__(self, rows: VectorRows, runner: Runner, most: int = MOST) -> None:
        self._rows, self._runner, self._most, self._lock = rows, runner, most, allocate_lock()
        self._state, self._at = State(), 0
        self._last: Matrix | None = None

    async def matrix(self, model: str, dimension: int) -> Matrix | None:
        """Return the vectors as they are now; None where they are another model's, or of another dimension."""
        while True:
            state, at = self._state, self._at
            changes = await self._rows.changes(state, at, LOADED)
            if changes.state[:2] != (model, dimension):
                return None
            if await self._runner.read(self._taken, state, at, changes) and len(changes.added) < LOADED:
                return self._last

    def _taken(self, state: State, at: int, changes: Changes) -> bool:
        """Take changes over, unless somebody else has moved on meanwhile."""
        with self._lock:
            if (state, at) != (self._state, self._at):
                return False
            if self._last is None or changes.state[:2] != state[:2]:
                self._last = Matrix(changes.state.dimension, self._most)
            elif changes.keys is not None:
                self._last.keep(changes.keys)
            if changes.added:
                self._last.put([key for key, _ in changes.added], unpacked([one for _, one in changes.added]))
            self._state, self._at = changes.state, changes.last
            return True


def digest_of(model: str, text: str) -> bytes:
    """Return what a text that a model embeds is known by: 128 bits of a hash of both.

    Args:
        model: the embedder's name.
        text: all of what is embedded.
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

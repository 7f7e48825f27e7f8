"""Vectors on PostgreSQL, compared by pgvector if the server has it, otherwise stored as bytes: the results are
equal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

import servers
from palimpsest.recall.embedders import embedder
from palimpsest.recall.index import Cursor, Document, Update
from palimpsest.recall.postgres.index import PostgresIndex
from palimpsest.recall.postgres.vectors import TABLES, BytesRows, PgvectorRows, prepare, rows_of
from palimpsest.recall.postings import key_of
from palimpsest.recall.ranking import Facts
from palimpsest.recall.vectors import State, Vectors
from palimpsest.runtime.threaded import Threaded
from postgresstore import schema_of

np = pytest.importorskip("numpy", reason="the extra vectors is not installed")
asyncpg = pytest.importorskip("asyncpg", reason="the extra postgres is not installed")

T = TypeVar("T")
TEXTS = {1 << 8: "cat and dog", 2 << 8: "boat", (1 << 36) + (1 << 8): "dog dog", (1 << 36) + (2 << 8): "bread moon"}
CAT, BOAT, DOG, BREAD = TEXTS


def words(texts: list[str]) -> list[list[float]]:
    return [[*(float(text.count(word)) for word in ["cat", "dog", "boat", "bread", "moon"]), 0.1] for text in texts]


class Opened:
    """The tables of a schema as one process opens them."""

    def __init__(self, pool: Any, schema: str, where: str | None) -> None:
        self._pool, self.schema, self.where = pool, schema, where
        self.runner = Threaded()

    async def step(self, body: Callable[[Any], Awaitable[T]], *, writes: bool) -> T:
        """Run the statements of rows in a transaction."""
        async with self._pool.acquire() as db, db.transaction(readonly=not writes):
            return await body(db)

    async def do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> T:
        async with self._pool.acquire() as db:
            return await work(db)

    def rows(self, tenant: str = "t") -> BytesRows:
        return rows_of(self.step, self.schema, tenant, self.where)

    def vectors(self, name: str = "words", tenant: str = "t") -> Vectors:
        return Vectors(self.rows(tenant), embedder(words, self.runner, name=name))


Run = Callable[[Callable[[Opened], Awaitable[T]]], T]


@pytest.fixture(params=["pgvector", "bytes"])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    """Run a coroutine function with new tables, with pgvector or without."""
    url, schema = servers.address("postgres"), schema_of(f"vectors_{request.param}")

    async def ran(use: Callable[[Opened], Awaitable[Any]]) -> Any:
        async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
            async with pool.acquire() as db, db.transaction():
                await db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")
                await db.execute(
                    "SELECT pg_advisory_xact_lock(1789)"
                )  # other processes of the run may create it at the same time
                if request.param == "pgvector":
                    await db.execute("CREATE EXTENSION IF NOT EXISTS vector")
                else:  # tables made before the server had pgvector stay as they are
                    await db.execute(TABLES.format(s=schema, type="bytea"))
                where = await prepare(db, schema)
                assert where == await prepare(db, schema) == {"pgvector": "public", "bytes": None}[request.param]
            opened = Opened(pool, schema, where)
            try:
                return await use(opened)
            finally:
                await opened.runner.close()
                await pool.execute(f"DROP SCHEMA {schema} CASCADE")

    return lambda use: asyncio.run(ran(use))


async def put(vectors: Vectors, texts: dict[int, str]) -> bool:
    return await vectors.put(texts, (await vectors.state()).generation)


async def found(vectors: Vectors, text: str, numbers: list[int] | None = None, limit: int = 10) -> list[int]:
    return list(await vectors.search(text, numbers, limit=limit))


def test_parts_are_found_nearest_first(run: Run[None]) -> None:
    """The nearest parts come first, with their cosines, in all or in some sessions."""

    async def use(opened: Opened) -> None:
        assert isinstance(opened.rows(), PgvectorRows) == (opened.where is not None)
        vectors = opened.vectors()
        assert await vectors.missing(list(TEXTS)) == list(TEXTS)
        assert await put(vectors, TEXTS)
        assert await vectors.missing([7, *TEXTS]) == [7]
        cosines = await vectors.search("dog", limit=2)
        assert list(cosines) == [DOG, CAT]
        assert cosines[DOG] == pytest.approx(1.0, abs=0.01)
        assert cosines[CAT] == pytest.approx(0.5**0.5, abs=0.01)
        assert await found(vectors, "dog", [0]) == [CAT, BOAT]
        assert await found(vectors, "dog", []) == []

    run(use)


def _document(seq: int, text: str) -> Document:
    return Document(seq, Facts(seq, "message", "user", len(text), None), [text.split()])


def test_erased_parts_are_not_found_and_late_writes_are_refused(run: Run[None]) -> None:
    """An erased part is found by nobody, and a write whose text was read before the erasure is refused."""

    async def use(opened: Opened) -> None:
        index = PostgresIndex(opened, "t", "n", "w")
        await index.open(vectors=True)
        vectors, other = opened.vectors(), opened.vectors()
        cat, boat, dog = [key_of(1, seq, 0) for seq in (1, 2, 3)]
        documents = [_document(seq, text) for seq, text in enumerate(["cat and dog", "boat", "dog dog"], 1)]
        cursor = Cursor(created=1, revision=1, next_seq=4)
        assert await index.update("s", Update(expect=None, generation=0, cursor=cursor, add=documents))
        assert await index.parts(1) == [cat, boat, dog]
        await put(vectors, {cat: "cat and dog", boat: "boat", dog: "dog dog"})
        assert await found(other, "boat", limit=1) == [boat]
        before = (await vectors.state()).generation
        await index.block("s", documents[1:2], [2, 3], 1)
        assert await vectors.put({boat: "boat"}, before) is False
        assert await found(vectors, "boat dog") == await found(other, "boat dog") == [cat]
        assert await put(vectors, {dog: "boat"})
        assert await found(other, "boat", limit=1) == [dog]

    run(use)


def test_the_vector_of_a_known_text_is_reused(run: Run[None]) -> None:
    """The vector of a known text is copied exactly instead of being computed again."""

    async def use(opened: Opened) -> None:
        calls: list[str] = []

        def counted(texts: list[str]) -> list[list[float]]:
            calls.extend(texts)
            return words(texts)

        vectors = Vectors(opened.rows(), embedder(counted, opened.runner, name="words"))
        await put(vectors, {CAT: "cat dog"})
        await put(vectors, {DOG: "cat dog"})
        assert calls == ["cat dog"]
        cosines = await vectors.search("cat dog")
        assert cosines[CAT] == cosines[DOG]

    run(use)


def test_vectors_are_found_only_by_their_model_and_tenant(run: Run[None]) -> None:
    """Neither another model nor another tenant finds the vectors."""

    async def use(opened: Opened) -> None:
        await put(opened.vectors(), TEXTS)
        assert await found(opened.vectors(tenant="other"), "dog") == []
        await put(opened.vectors(tenant="other"), {CAT: "cat"})
        new = opened.vectors("new")
        assert await found(new, "dog") == []
        await put(new, {BOAT: "boat"})
        assert (await new.state())[:2] == ("new", 6)
        assert await found(new, "boat dog") == [BOAT]
        assert await found(opened.vectors(tenant="other"), "cat") == [CAT]
        assert await opened.rows("nobody").state() == State()

    run(use)

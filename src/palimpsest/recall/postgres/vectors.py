"""Vectors in tables of a PostgreSQL schema: as pgvector's `halfvec`, compared by the server, if pgvector is installed.

Without pgvector they are bytes, and are compared by numpy in this process, like those of a file. Which of the two it is
is decided when the tables are made, and stays so. `CREATE EXTENSION vector` must be run before that, which is left to
the owner of the database. Statements run on asyncpg's connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from palimpsest.recall.matrix import NUMBER_SHIFT
from palimpsest.recall.postings import PART_BITS
from palimpsest.recall.vectors import Changes, Row, State, packed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

T = TypeVar("T")

Connection: TypeAlias = Any
"""A connection of asyncpg, which has no type hints."""

TABLES = """
CREATE TABLE IF NOT EXISTS {s}.vectors(tenant text PRIMARY KEY, model text NOT NULL DEFAULT '',
    dimension int NOT NULL DEFAULT 0, generation bigint NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS {s}.vector(tenant text NOT NULL, position bigint GENERATED ALWAYS AS IDENTITY,
    key bigint NOT NULL, digest bytea NOT NULL, value {type} NOT NULL, PRIMARY KEY (tenant, key));
CREATE INDEX IF NOT EXISTS vector_position ON {s}.vector(tenant, position);
CREATE INDEX IF NOT EXISTS vector_digest ON {s}.vector(tenant, digest);
"""

EXTENSION = "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'"
KIND = "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'value'"


class Do(Protocol):
    """Runs a coroutine function of a connection in one transaction, and returns its result."""

    def __call__(self, body: Callable[[Connection], Awaitable[T]], *, writes: bool) -> Awaitable[T]: ...


async def prepare(db: Connection, schema: str) -> str | None:
    """Make the tables if there are none; return the schema of pgvector, or None if vectors are kept as bytes.

    Args:
        db: a connection, in a transaction.
        schema: a checked name; the schema exists.
    """
    await db.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"palimpsest vectors {schema}")
    extension_schema: str | None = await db.fetchval(EXTENSION)
    column_type = await db.fetchval(KIND, f"{schema}.vector")
    if column_type is None:
        column_type = "bytea" if extension_schema is None else f"{extension_schema}.halfvec"
        await db.execute(TABLES.format(s=schema, type=column_type))
    return None if column_type == "bytea" else extension_schema


def rows_of(do: Do, schema: str, tenant: str, where: str | None) -> BytesRows:
    """Return the vectors of one tenant.

    Args:
        do: runs statements, in one transaction each.
        schema: a checked name, whose tables `prepare` has made.
        tenant: as it stands in a text column.
        where: what `prepare` returned.
    """
    return BytesRows(do, schema, tenant) if where is None else PgvectorRows(do, schema, tenant, where)


async def opened(do: Do, schema: str, tenant: str) -> BytesRows:
    """Return the vectors of one tenant; make the tables if there are none.

    Args:
        do: runs statements, in one transaction each.
        schema: a checked name; the schema exists.
        tenant: as it stands in a text column.
    """
    return rows_of(do, schema, tenant, await do(lambda db: prepare(db, schema), writes=True))


class BytesRows:
    """The vectors of one tenant, kept as bytes. Its verbs are those of `VectorRows`."""

    def __init__(self, do: Do, schema: str, tenant: str) -> None:
        self._do, self._s, self._tenant = do, schema, tenant

    async def state(self) -> State:
        return await self._do(self._state, writes=False)

    async def _state(self, db: Connection, lock: str = "") -> State:
        sql = f"SELECT model, dimension, generation FROM {self._s}.vectors WHERE tenant = $1 {lock}"
        row = await db.fetchrow(sql, self._tenant)
        return State(*row) if row is not None else State()

    async def _locked(self, db: Connection) -> State:
        """Return the state, and lock it until the transaction ends."""
        sql = f"INSERT INTO {self._s}.vectors(tenant) VALUES($1) ON CONFLICT DO NOTHING"
        await db.execute(sql, self._tenant)
        return await self._state(db, "FOR UPDATE")

    async def claim(self, model: str, dimension: int) -> State:
        async def body(db: Connection) -> State:
            state = await self._locked(db)
            if (state.model, state.dimension) != (model, dimension):
                await db.execute(f"DELETE FROM {self._s}.vector WHERE tenant = $1", self._tenant)
                sql = f"UPDATE {self._s}.vectors SET model = $2, dimension = $3 WHERE tenant = $1"
                await db.execute(sql, self._tenant, model, dimension)
            return await self._state(db)

        return await self._do(body, writes=True)

    async def changes(self, state: State, last: int, limit: int) -> Changes:
        async def body(db: Connection) -> Changes:
            # With the lock, every earlier `put` is committed: no lower position can appear later.
            current = await self._locked(db)
            goes_on = current.continues(state)
            keys = None
            if goes_on and current.generation != state.generation:
                rows_with_keys = await db.fetch(f"SELECT key FROM {self._s}.vector WHERE tenant = $1", self._tenant)
                keys = np.array([row[0] for row in rows_with_keys], np.int64)
            sql = f"""SELECT position, key, value FROM {self._s}.vector WHERE tenant = $1 AND position > $2
                ORDER BY position LIMIT $3"""
            rows = await db.fetch(sql, self._tenant, last if goes_on else 0, limit)
            end = rows[-1][0] if rows else last if goes_on else 0
            return Changes(current, end, keys, [(key, value) for _, key, value in rows])

        return await self._do(body, writes=True)

    async def known(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        sql = f"""SELECT DISTINCT ON (digest) digest, {self._out("value")} FROM {self._s}.vector
            WHERE tenant = $1 AND digest = ANY($2)"""

        async def body(db: Connection) -> dict[bytes, bytes]:
            return {digest: self._bytes(value) for digest, value in await db.fetch(sql, self._tenant, list(digests))}

        return await self._do(body, writes=False)

    async def missing(self, keys: Collection[int]) -> list[int]:
        sql = f"SELECT key FROM {self._s}.vector WHERE tenant = $1 AND key = ANY($2)"

        async def body(db: Connection) -> list[int]:
            existing = {row[0] for row in await db.fetch(sql, self._tenant, list(keys))}
            return [key for key in keys if key not in existing]

        return await self._do(body, writes=False)

    async def put(self, rows: Sequence[Row], expect: State) -> bool:
        sql = f"DELETE FROM {self._s}.vector WHERE tenant = $1 AND key = ANY($2)"
        add = f"""INSERT INTO {self._s}.vector(tenant, key, digest, value)
            SELECT $1, key, digest, {self._in("value")} FROM unnest($2::bigint[], $3::bytea[], $4::{self._given}[])
            AS given(key, digest, value)"""

        async def body(db: Connection) -> bool:
            if await self._locked(db) != expect:
                return False
            keys = [row.key for row in rows]
            await db.execute(sql, self._tenant, keys)
            values = [self._value(row.vector) for row in rows]
            await db.execute(add, self._tenant, keys, [row.digest for row in rows], values)
            return True

        return await self._do(body, writes=True)

    # --- how a vector is kept in a column

    _given = "bytea"

    def _in(self, column: str) -> str:
        return column

    def _out(self, column: str) -> str:
        return column

    def _value(self, vector: bytes) -> Any:
        return vector

    def _bytes(self, value: Any) -> bytes:
        found: bytes = value
        return found


class PgvectorRows(BytesRows):
    """The vectors of one tenant as `halfvec`.

    The server compares a question with every vector of the sessions searched.
    """

    _given = "text"

    def __init__(self, do: Do, schema: str, tenant: str, where: str) -> None:
        super().__init__(do, schema, tenant)
        self._where = where

    async def nearest(
        self, vector: Floats, numbers: Collection[int] | None, limit: int, among: Collection[int] | None = None
    ) -> dict[int, float]:
        """See `Searching.nearest`. The result is exact, since every vector is compared."""
        pg = self._where
        sql = f"""SELECT key, -(value OPERATOR({pg}.<#>) $2::text::{pg}.halfvec) AS cosine FROM {self._s}.vector
            WHERE tenant = $1 AND {pg}.vector_dims(value) = {len(vector)}
            AND ($4::bigint[] IS NULL OR key >> {NUMBER_SHIFT} = ANY($4::bigint[]))
            AND ($5::bigint[] IS NULL OR key >> {PART_BITS} = ANY($5::bigint[]))
            ORDER BY cosine DESC, key DESC LIMIT $3"""
        given = self._tenant, self._value(packed(vector)), limit, None if numbers is None else list(numbers)

        async def body(db: Connection) -> dict[int, float]:
            cosines = dict[int, float](await db.fetch(sql, *given, None))
            if among is not None:
                cosines |= dict(await db.fetch(sql, *given, list(among)))
            return dict(sorted(cosines.items(), key=lambda hit: (-hit[1], -hit[0])))

        return await self._do(body, writes=False)

    def _in(self, column: str) -> str:
        return f"{column}::{self._where}.halfvec"

    def _out(self, column: str) -> str:
        return f"{column}::text"

    def _value(self, vector: bytes) -> Any:
        return "[" + ",".join(map(repr, np.frombuffer(vector, "<f2").astype(np.float64).tolist())) + "]"

    def _bytes(self, value: Any) -> bytes:
        return np.array(value.strip("[]").split(","), np.float64).astype("<f2").tobytes()

"""What is done to a tenant's index in one transaction, over a connection that holds the lock of its row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.recall.index import LAST_NUMBER, LAST_PART, Cursor, Document, fit
from palimpsest.recall.postings import PART_BITS, key_of, place_of
from palimpsest.stores.postgres.names import text_of

LOCK = "SELECT number, generation FROM {s}.recall_tenants WHERE name = $1 FOR UPDATE"
TENANT = "INSERT INTO {s}.recall_tenants(name) VALUES($1) ON CONFLICT (name) DO NOTHING"
CURSOR = "SELECT number, cursor FROM {s}.recall_sessions WHERE tenant = $1 AND name = $2"
BLOCKED = "SELECT seq FROM {s}.recall_blocked WHERE tenant = $1 AND session = $2"
NUMBER = "UPDATE {s}.recall_tenants SET sessions = sessions + 1 WHERE number = $1 RETURNING sessions"
SESSION = """INSERT INTO {s}.recall_sessions(tenant, number, name, cursor) VALUES($1, $2, $3, $4)
ON CONFLICT (tenant, number) DO UPDATE SET cursor = excluded.cursor"""
DROP = f"""WITH entries AS (
    DELETE FROM {{s}}.recall_entries e USING unnest($2::bigint[], $3::bigint[]) AS r(low, high)
    WHERE e.tenant = $1 AND e.place BETWEEN r.low >> {PART_BITS} AND r.high >> {PART_BITS} RETURNING 1
), parts AS (
    DELETE FROM {{s}}.recall_parts p USING unnest($2::bigint[], $3::bigint[]) AS r(low, high)
    WHERE p.tenant = $1 AND p.key BETWEEN r.low AND r.high RETURNING p.length
), counted AS (
    SELECT (SELECT count(*) FROM entries) AS entries, count(*) AS parts, coalesce(sum(length), 0) AS terms FROM parts
), less AS (
    UPDATE {{s}}.recall_tenants t SET entries = t.entries - c.entries, parts = t.parts - c.parts,
        terms = t.terms - c.terms FROM counted c WHERE t.number = $1 AND c.entries > 0
) SELECT parts FROM counted"""
PUT = """WITH entries AS (
    INSERT INTO {s}.recall_entries(tenant, place, at, kind, role, chars, name)
    SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[])
), parts AS (
    INSERT INTO {s}.recall_parts(tenant, key, length, words)
    SELECT $1, * FROM unnest($8::bigint[], $9::int[], $10::text[])
) UPDATE {s}.recall_tenants SET entries = entries + cardinality($2::bigint[]),
    parts = parts + cardinality($8::bigint[]), terms = terms + $11 WHERE number = $1"""
DROP_VECTORS = """DELETE FROM {s}.vector v USING unnest($2::bigint[], $3::bigint[]) AS r(low, high)
WHERE v.tenant = $1 AND v.key BETWEEN r.low AND r.high"""
MOVED_VECTORS = """INSERT INTO {s}.vectors(tenant, generation) VALUES($1, 1)
ON CONFLICT (tenant) DO UPDATE SET generation = vectors.generation + 1"""
MOVED = "UPDATE {s}.recall_tenants SET generation = generation + 1 WHERE number = $1"

_cursor = msgspec.json.Decoder(Cursor).decode


class Locked(NamedTuple):
    """A tenant whose row is locked, in a transaction that is under way."""

    db: Any
    schema: str
    tenant: str
    number: int
    generation: int

    @classmethod
    async def of(cls, db: Any, schema: str, tenant: str) -> Locked:
        """Begin a transaction, and lock the tenant's row, which is made where there is none."""
        await db.execute("BEGIN")
        row = await db.fetchrow(LOCK.replace("{s}", schema), tenant)
        if row is None:
            await db.execute(TENANT.replace("{s}", schema), tenant)
            row = await db.fetchrow(LOCK.replace("{s}", schema), tenant)
        return cls(db, schema, tenant, row["number"], row["generation"])

    def over(self, sql: str) -> str:
        """A statement over the schema."""
        return sql.replace("{s}", self.schema)

    async def cursor(self, session: str) -> Cursor | None:
        """The cursor of a session."""
        row = await self.db.fetchrow(self.over(CURSOR), self.number, text_of(session))
        return None if row is None else with_number(row["cursor"], row["number"])

    async def blocked(self, session: str) -> set[int]:
        """Which places of a session are blocked."""
        return {seq for (seq,) in await self.db.fetch(self.over(BLOCKED), self.number, text_of(session))}

    async def new_number(self) -> int:
        """The number of a session that has none."""
        number: int = await self.db.fetchval(self.over(NUMBER), self.number)
        assert number <= LAST_NUMBER, "nobody has had 134 million sessions"
        return number

    async def move(self, session: str, cursor: Cursor, number: int) -> None:
        """Set a session's cursor."""
        kept = msgspec.json.encode(msgspec.structs.replace(cursor, number=0))
        await self.db.execute(self.over(SESSION), self.number, number, text_of(session), kept)

    async def drop(self, number: int, where: Iterable[Span]) -> int:
        """Drop what there is of these entries of a session; return how many parts that was."""
        given = list(where)
        if not given:
            return 0
        low = [key_of(number, first) for first, _ in given]
        high = [key_of(number, last, LAST_PART) for _, last in given]
        gone: int = await self.db.fetchval(self.over(DROP), self.number, low, high)
        if gone:
            await self.drop_vectors(low, high)
        return gone

    async def drop_vectors(self, low: Sequence[int], high: Sequence[int]) -> None:
        """Drop the vectors of these ranges of keys, where somebody has made some."""
        if await self.db.fetchval("SELECT to_regclass($1)::oid", f"{self.schema}.vector"):
            await self.db.execute(self.over(MOVED_VECTORS), self.tenant)
            await self.db.execute(self.over(DROP_VECTORS), self.tenant, low, high)

    async def put(self, number: int, documents: Sequence[Document]) -> None:
        """Put documents in the place of what there is of these entries."""
        if not documents:
            return
        await self.drop(number, spans.of(one.seq for one in documents))
        facts = [one.facts for one in documents]
        parts = [(key_of(number, one.seq, n), *_words(part)) for one in documents for n, part in enumerate(one.parts)]
        await self.db.execute(
            self.over(PUT),
            self.number,
            [place_of(key_of(number, one.seq)) for one in documents],
            [one.at for one in facts],
            [one.kind for one in facts],
            [one.role for one in facts],
            [one.chars for one in facts],
            [None if one.name is None else text_of(one.name) for one in facts],
            [key for key, _, _ in parts],
            [length for _, length, _ in parts],
            [words for _, _, words in parts],
            sum(length for _, length, _ in parts),
        )

    async def move_on(self) -> None:
        """Have another generation: something was removed."""
        await self.db.execute(self.over(MOVED), self.number)

    async def done(self) -> None:
        """End the transaction."""
        await self.db.execute("COMMIT")

    async def undone(self) -> None:
        """End the transaction, of which nothing is kept."""
        await self.db.execute("ROLLBACK")


def with_number(kept: bytes, number: int) -> Cursor:
    """A cursor as it was kept, of the session of this number."""
    return msgspec.structs.replace(_cursor(kept), number=number)


def _words(part: Sequence[str]) -> tuple[int, str]:
    """How many terms a part has, and the text that it is kept as: two blanks before each, and one at the end."""
    words = fit(" ".join(part)).split()
    return len(words), f"  {'  '.join(words)} " if words else ""

"""Changes to a tenant's index inside one transaction, over a connection that holds the lock of the tenant's row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.recall.index import LAST_NUMBER, LAST_PART, Cursor, Document, fit
from palimpsest.recall.postgres.layout import FIRST
from palimpsest.recall.postings import PART_BITS, key_of, place_of
from palimpsest.stores.postgres.names import text_of

LOCK = "SELECT number, generation FROM {s}.recall_tenants WHERE name = $1 FOR UPDATE"
TENANT = f"INSERT INTO {{s}}.recall_tenants(name, generation) VALUES($1, {FIRST}) ON CONFLICT (name) DO NOTHING"
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
        """Begin a transaction and lock the tenant's row, which is made if there is none."""
        await db.execute("BEGIN")
        row = await db.fetchrow(LOCK.replace("{s}", schema), tenant)
        if row is None:
            await db.execute(TENANT.replace("{s}", schema), tenant)
            row = await db.fetchrow(LOCK.replace("{s}", schema), tenant)
        return cls(db, schema, tenant, row["number"], row["generation"])

    def in_schema(self, sql: str) -> str:
        """Return a statement with the schema's name put in."""
        return sql.replace("{s}", self.schema)

    async def cursor(self, session: str) -> Cursor | None:
        """Return the cursor of a session, or None."""
        row = await self.db.fetchrow(self.in_schema(CURSOR), self.number, text_of(session))
        return None if row is None else with_number(row["cursor"], row["number"])

    async def blocked(self, session: str) -> set[int]:
        """Return the blocked places of a session."""
        return {seq for (seq,) in await self.db.fetch(self.in_schema(BLOCKED), self.number, text_of(session))}

    async def new_number(self) -> int:
        """Return a new session number."""
        number: int = await self.db.fetchval(self.in_schema(NUMBER), self.number)
        assert number <= LAST_NUMBER, "a key has room for the numbers of 134 million sessions"
        return number

    async def set_cursor(self, session: str, cursor: Cursor, number: int) -> None:
        """Set a session's cursor."""
        kept = msgspec.json.encode(msgspec.structs.replace(cursor, number=0))
        await self.db.execute(self.in_schema(SESSION), self.number, number, text_of(session), kept)

    async def drop(self, number: int, where: Iterable[Span]) -> int:
        """Remove what the index has of these entries of a session; return how many parts that was."""
        ranges = list(where)
        if not ranges:
            return 0
        low = [key_of(number, first) for first, _ in ranges]
        high = [key_of(number, last, LAST_PART) for _, last in ranges]
        gone: int = await self.db.fetchval(self.in_schema(DROP), self.number, low, high)
        if gone:
            await self.drop_vectors(low, high)
        return gone

    async def drop_vectors(self, low: Sequence[int], high: Sequence[int]) -> None:
        """Remove the vectors in these ranges of keys, if the tables of vectors exist."""
        if await self.db.fetchval("SELECT to_regclass($1)::oid", f"{self.schema}.vector"):
            await self.db.execute(self.in_schema(MOVED_VECTORS), self.tenant)
            await self.db.execute(self.in_schema(DROP_VECTORS), self.tenant, low, high)

    async def put(self, number: int, documents: Sequence[Document]) -> None:
        """Put documents in the index, replacing those of the same entries."""
        if not documents:
            return
        await self.drop(number, spans.of(document.seq for document in documents))
        all_facts = [document.facts for document in documents]
        parts = [
            (key_of(number, document.seq, n), *_words(part))
            for document in documents
            for n, part in enumerate(document.parts)
        ]
        await self.db.execute(
            self.in_schema(PUT),
            self.number,
            [place_of(key_of(number, document.seq)) for document in documents],
            [facts.at for facts in all_facts],
            [facts.kind for facts in all_facts],
            [facts.role for facts in all_facts],
            [facts.chars for facts in all_facts],
            [None if facts.name is None else text_of(facts.name) for facts in all_facts],
            [key for key, _, _ in parts],
            [length for _, length, _ in parts],
            [words for _, _, words in parts],
            sum(length for _, length, _ in parts),
        )

    async def next_generation(self) -> None:
        """Begin another generation, because something was removed."""
        await self.db.execute(self.in_schema(MOVED), self.number)

    async def commit(self) -> None:
        """Commit the transaction."""
        await self.db.execute("COMMIT")

    async def rollback(self) -> None:
        """Roll the transaction back."""
        await self.db.execute("ROLLBACK")


def with_number(kept: bytes, number: int) -> Cursor:
    """Return a cursor read from its row, with the session's number."""
    return msgspec.structs.replace(_cursor(kept), number=number)


def _words(part: Sequence[str]) -> tuple[int, str]:
    """Return how many terms a part has, and the text that is stored: two blanks before each term, one at the end."""
    words = fit(" ".join(part)).split()
    return len(words), f"  {'  '.join(words)} " if words else ""

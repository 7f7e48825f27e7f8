"""The search index of a PostgreSQL store, in the store's database: shared by all machines that open the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from palimpsest.errors import StoreCorrupt, StoreUnavailable
from palimpsest.log import spans
from palimpsest.log.checks import unfit
from palimpsest.recall.index import COMMON, LAST_SEQ, Cursor, Document, Filter, Size, Update, is_same
from palimpsest.recall.postgres.layout import FIRST, NAMES, VECTORS, prepare
from palimpsest.recall.postgres.matching import Matching
from palimpsest.recall.postgres.writing import Locked, with_number
from palimpsest.recall.postings import SEQ_BITS, key_of
from palimpsest.recall.ranking import Facts
from palimpsest.runtime.logs import warn
from palimpsest.stores.postgres.names import name_of, text_of
from palimpsest.stores.values import Tables

if TYPE_CHECKING:
    from palimpsest.recall.vectors import VectorRows

T = TypeVar("T")

KEPT = (
    "PostgreSQL keeps terms of what was erased in the files of the search index, schema {schema}, until {tables} are "
    "written anew by VACUUM FULL, and in its write-ahead log, archives and backups"
)
"""What remains after every erasure, as it does of the store's own tables."""

_OF = "(SELECT number FROM {s}.recall_tenants WHERE name = $1)"
CURSORS = (
    f"SELECT name, number, cursor FROM {{s}}.recall_sessions WHERE tenant = {_OF} "
    "AND ($2::text[] IS NULL OR name = ANY($2::text[]))"
)
SESSIONS = f"SELECT number, name FROM {{s}}.recall_sessions WHERE tenant = {_OF} AND number = ANY($2::bigint[])"
FACTS = f"""SELECT place, at, kind, role, chars, name FROM {{s}}.recall_entries
WHERE tenant = {_OF} AND place = ANY($2::bigint[])"""
PLACES = f"""SELECT place FROM {{s}}.recall_entries WHERE tenant = {_OF}
AND ($2::text[] IS NULL OR kind = ANY($2::text[])) AND ($3::text[] IS NULL OR role = ANY($3::text[]))
AND ($4::bigint[] IS NULL OR place >> {SEQ_BITS} = ANY($4::bigint[]))
AND ($5::text[] IS NULL OR name = ANY($5::text[]))
AND ($6::bigint IS NULL OR at >= $6::bigint) AND ($7::bigint IS NULL OR at < $7::bigint)"""
PARTS = f"SELECT key FROM {{s}}.recall_parts WHERE tenant = {_OF} AND key >= $2 AND key < $3 ORDER BY key"
BLOCK = """INSERT INTO {s}.recall_blocked(tenant, session, seq, since) SELECT $1, $2, seq, $4
FROM unnest($3::bigint[]) AS seq ON CONFLICT (tenant, session, seq) DO UPDATE SET since = excluded.since"""
BLOCKED = f"SELECT session, seq FROM {{s}}.recall_blocked WHERE tenant = {_OF} AND since < $2"
UNBLOCK = "DELETE FROM {s}.recall_blocked WHERE tenant = $1 AND session = $2 AND seq = ANY($3::bigint[])"
END = "DELETE FROM {s}.recall_sessions WHERE tenant = $1 AND number = $2"
TOTALS = """SELECT mark, generation, entries, parts FROM {s}.recall_tenants WHERE name IN ($1, '')
ORDER BY name DESC LIMIT 1"""
MARK = f"""WITH risen AS (UPDATE {{s}}.recall_tenants SET mark = $2 WHERE name = $1 AND mark < $2 AND generation = $3)
INSERT INTO {{s}}.recall_tenants(name, mark, generation) SELECT $1, $2, $3
WHERE $3 = {FIRST} AND NOT EXISTS (SELECT FROM {{s}}.recall_tenants WHERE name = $1) ON CONFLICT (name) DO NOTHING"""
SIZE = "SELECT count(*) FROM {s}.recall_sessions WHERE tenant = " + _OF
TAKEN = "SELECT sum(pg_total_relation_size(to_regclass(name))) FROM unnest($1::text[]) AS name"
"""Bytes that tables take; tables that do not exist take none."""

NONE = """UPDATE {s}.recall_tenants SET mark = 0, generation = generation + 1, entries = 0, parts = 0, terms = 0
WHERE number = $1"""


PASSING = ("08", "40", "532", "533", "534", "55", "57")
"""Classes of SQLSTATE codes with which a server says that it cannot do something now: it will later."""


def passes(fault: StoreUnavailable) -> bool:
    """Whether the tables may be made another time: the server gave no answer, or one that says so."""
    code = getattr(fault.__cause__, "sqlstate", None)
    return code is None or code.startswith(PASSING)


class PostgresIndex:
    """The index of one tenant in tables beside the store's. Its verbs are those of `palimpsest.recall.index.Index`."""

    def __init__(self, tables: Tables, tenant: str, name: str, where: str) -> None:
        self.name, self.where = name, f"{where}, schema {tables.schema}"
        self._tables, self._schema, self._tenant = tables, tables.schema, text_of(tenant)
        self._matching = Matching(self._schema, self._tenant)
        self._vectors: VectorRows | None = None

    async def open(self, *, vectors: bool = False) -> None:
        """Make the tables, with `vectors` also those of vectors.

        Raises StoreUnavailable if they are missing and may not be made.
        """
        await self._tables.do(lambda db: prepare(db, self._schema), writes=True)
        if vectors:
            from palimpsest.recall.postgres.vectors import opened  # an extra

            self._vectors = await opened(self._step, self._schema, self._tenant)

            async def nothing(_: Locked) -> int | None:
                return None

            # A removal that began before these tables existed does not remove vectors: wait until it has ended.
            await self._change(nothing, 0)

    async def _do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> T:
        """Run `work` on a connection. If the index is damaged, make its tables anew and run it again."""
        try:
            return await self._tables.do(work, writes=writes)
        except StoreCorrupt as fault:
            warn("the search index in %s is damaged, and is built anew: %s", self.where, fault.reason)
        self._matching.forget()
        await self._tables.do(lambda db: prepare(db, self._schema, anew=True), writes=True)
        return await self._tables.do(work, writes=writes)

    async def _step(self, body: Callable[[Any], Awaitable[T]], *, writes: bool) -> T:
        """Run `body` in a transaction and return its result."""

        async def work(db: Any) -> T:
            await db.execute("BEGIN")
            result = await body(db)
            await db.execute("COMMIT")
            return result

        return await self._tables.do(work, writes=writes)

    async def _fetch(self, sql: str, *given: object) -> list[Any]:
        rows: list[Any] = await self._do(lambda db: db.fetch(sql.replace("{s}", self._schema), self._tenant, *given))
        return rows

    async def _number_of(self, column: str) -> int:
        rows = await self._fetch(TOTALS)
        return int(rows[0][column]) if rows else 0

    async def _change(self, change: Callable[[Locked], Awaitable[T | None]], nothing: T) -> T:
        """Run `change` in a transaction that locks the tenant. If it returns None, roll back and return `nothing`."""

        async def work(db: Any) -> T:
            locked = await Locked.of(db, self._schema, self._tenant)
            result = await change(locked)
            await (locked.rollback() if result is None else locked.commit())
            return nothing if result is None else result

        return await self._do(work, writes=True)

    # --- cursors

    async def cursors(self, sessions: Collection[str] | None) -> dict[str, Cursor]:
        wanted = None if sessions is None else [text_of(session) for session in sessions]
        rows = await self._fetch(CURSORS, wanted)
        return {name_of(name): with_number(cursor, number) for name, number, cursor in rows}

    async def parts(self, number: int) -> list[int]:
        ends = key_of(number, 0), key_of(number + 1, 0)
        return [key for (key,) in await self._fetch(PARTS, *ends)]

    async def vectors(self) -> VectorRows | None:
        return self._vectors

    async def sessions(self, numbers: Collection[int]) -> dict[int, str]:
        return {number: name_of(name) for number, name in await self._fetch(SESSIONS, list(numbers))}

    async def mark(self) -> int:
        return await self._number_of("mark")

    async def set_mark(self, mark: int, generation: int) -> None:
        given = self._tenant, mark, generation
        await self._do(lambda db: db.execute(MARK.replace("{s}", self._schema), *given), writes=True)

    async def generation(self) -> int:
        return await self._number_of("generation")

    # --- writing

    async def update(self, session: str, update: Update) -> bool:
        async def change(locked: Locked) -> bool | None:
            current = await locked.cursor(session)
            if not is_same(current, update.expect) or locked.generation != update.generation:
                return None
            blocked = await locked.blocked(session)
            if 0 in blocked:
                return None
            number = current.number if current is not None else await locked.new_number()
            gone = spans.union(spans.of(document.seq for document in update.drop), update.lost)
            await locked.drop(number, gone)
            await locked.put(number, [document for document in update.add if document.seq not in blocked])
            await locked.set_cursor(session, update.cursor, number)
            return True

        return await self._change(change, False)

    async def block(self, session: str, drop: Sequence[Document], seqs: Collection[int], now: int) -> int:
        async def change(locked: Locked) -> int:
            await locked.db.execute(locked.in_schema(BLOCK), locked.number, text_of(session), list(seqs), now)
            cursor = await locked.cursor(session)
            gone = 0
            if cursor is not None:
                gone = await locked.drop(cursor.number, spans.of({*seqs, *(document.seq for document in drop)}))
            await locked.next_generation()
            return gone

        return await self._change(change, 0)

    async def blocked(self, before: int) -> dict[str, list[int]]:
        seqs_of = dict[str, list[int]]()
        for session, seq in await self._fetch(BLOCKED, before):
            seqs_of.setdefault(name_of(session), []).append(seq)
        return seqs_of

    async def unblock(self, session: str, seqs: Collection[int], generation: int, add: Sequence[Document] = ()) -> bool:
        async def change(locked: Locked) -> bool | None:
            if locked.generation != generation:
                return None
            await locked.db.execute(locked.in_schema(UNBLOCK), locked.number, text_of(session), list(seqs))
            cursor = await locked.cursor(session)
            if cursor is not None:
                await locked.drop(cursor.number, spans.of({*seqs}.difference([0])))
                await locked.put(cursor.number, [document for document in add if document.seq < cursor.next_seq])
            await locked.next_generation()
            return True

        return await self._change(change, False)

    async def end(self, session: str) -> int:
        async def change(locked: Locked) -> int:
            cursor = await locked.cursor(session)
            gone = 0
            if cursor is not None:
                gone = await locked.drop(cursor.number, [(0, LAST_SEQ)])
                await locked.db.execute(locked.in_schema(END), locked.number, cursor.number)
            await locked.next_generation()
            return gone

        return await self._change(change, 0)

    # --- searching

    async def matches(
        self, terms: Sequence[str], numbers: Collection[int] | None = None, most: int = COMMON
    ) -> list[Mapping[int, float]]:
        return await self._do(lambda db: self._matching.matches(db, terms, numbers, most))

    async def facts(self, places: Sequence[int]) -> dict[int, Facts]:
        return {
            place: Facts(at, kind, role, chars, None if name is None else name_of(name))
            for place, at, kind, role, chars, name in await self._fetch(FACTS, list(places))
        }

    async def places(self, only: Filter, numbers: Collection[int] | None = None) -> list[int]:
        names = None if only.names is None else [text_of(name) for name in only.names if unfit(name) is None]
        filters = [None if given is None else list(given) for given in (only.kinds, only.roles, numbers)]
        rows = await self._fetch(PLACES, *filters, names, only.since, only.until)
        return [place for (place,) in rows]

    # --- the index as a whole

    async def size(self) -> Size:
        rows, (sessions,) = await self._fetch(TOTALS), (await self._fetch(SIZE))[0]
        tables = [f"{self._schema}.{name}" for name in (*NAMES, *VECTORS)]
        bytes_taken = int(await self._do(lambda db: db.fetchval(TAKEN, tables)))
        entries, parts = (rows[0]["entries"], rows[0]["parts"]) if rows else (0, 0)
        return Size(sessions=sessions, entries=entries, parts=parts, bytes=bytes_taken, stale=0)

    async def empty(self) -> None:
        async def change(locked: Locked) -> int:
            for name in ("sessions", "entries", "parts"):
                await locked.db.execute(f"DELETE FROM {self._schema}.recall_{name} WHERE tenant = $1", locked.number)
            await locked.db.execute(locked.in_schema(NONE), locked.number)
            await locked.drop_vectors([0], [2**63 - 1])
            return 1

        await self._change(change, 0)
        self._matching.forget()

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        is_there = f"SELECT to_regclass('{self._schema}.vector')::oid"
        vectors = VECTORS if await self._do(lambda db: db.fetchval(is_there)) else ()
        names = [f"{self._schema}.{name}" for name in (*NAMES, *vectors)]
        remains = (KEPT.format(schema=self._schema, tables=", ".join(names)),)
        if not whole:
            return remains

        async def work(db: Any) -> None:
            await db.execute(f"VACUUM {', '.join(names)}")
            # VACUUM leaves terms in this index that no part holds any more.
            await db.execute(f"REINDEX INDEX {self._schema}.recall_terms")

        try:
            await self._tables.do(work, writes=True)
        except StoreUnavailable as fault:
            return (*remains, f"VACUUM of the search index did not finish ({fault.reason}); the server does it later")
        return remains

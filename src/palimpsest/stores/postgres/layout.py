"""The tables of a PostgreSQL store: numbered migrations, each applied and recorded in one transaction.

    store    one row: the number of the last migration, the server (`cluster`), and the number added to marks (`base`)
    places   one row for each place with a head: its address, the head's two values, its expiry, its mark
    rows     one row for each row: the key of its place, its table, its key, its value, its id, its expiry

`home`, a number hashed from tenant and home, leads every key and is in every statement about a session, so that the
tables can be partitioned and distributed by it. `place` is 128 bits of a hash of the whole address: names may be longer
than an index takes. Names are text that sorts by code point (`COLLATE "C"`), escaped by `names`. Rows that expire also
hold the address of their place: expired rows are searched by tenant, and their place may have no head.

The cold value of a head is the last column, and stored out of line when long: an append neither moves nor logs it.
`mark` is the number of the transaction that wrote the head, plus `base`: on another server, where the database was
restored, transactions are numbered anew, and `base` keeps marks rising.

The view `palimpsest_entries` is for people: nothing here reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.stores.postgres.pool import Connection

OURS = "Palimpsest"
"""The comment on the table `store`: a table without it belongs to another program."""

ADDRESS = "(tenant || E'\\x01' || space || E'\\x01' || name || E'\\x01' || home_name)"
"""SQL for a place's address, from its columns; equal to what `names.address_of` returns."""

Migration = tuple[str, ...]

MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE {s}.store(version integer NOT NULL, base bigint NOT NULL, cluster text NOT NULL)",
        f"COMMENT ON TABLE {{s}}.store IS '{OURS}'",
        "CREATE TABLE {s}.places(home bigint NOT NULL, mark bigint NOT NULL, expires bigint, place uuid NOT NULL, "
        'tenant text COLLATE "C" NOT NULL, home_name text COLLATE "C" NOT NULL, space text COLLATE "C" NOT NULL, '
        'name text COLLATE "C" NOT NULL, hot bytea NOT NULL, cold bytea NOT NULL, PRIMARY KEY(home, place)) '
        "WITH (fillfactor = 60, toast_tuple_target = 1024)",
        "ALTER TABLE {s}.places ALTER hot SET STORAGE MAIN, ALTER tenant SET STORAGE MAIN, "
        "ALTER home_name SET STORAGE MAIN, ALTER space SET STORAGE MAIN, ALTER name SET STORAGE MAIN",
        f"CREATE INDEX places_listed ON {{s}}.places(left({ADDRESS}, 400))",
        "CREATE INDEX places_mark ON {s}.places(left(tenant, 100), left(space, 100), mark)",
        "CREATE INDEX places_due ON {s}.places(left(tenant, 100), expires) WHERE expires IS NOT NULL",
        "CREATE TABLE {s}.rows(home bigint NOT NULL, key bigint NOT NULL, expires bigint, place uuid NOT NULL, "
        '"table" text COLLATE "C" NOT NULL, table_name text COLLATE "C", id text COLLATE "C", '
        'address text COLLATE "C", value bytea NOT NULL, PRIMARY KEY(home, place, "table", key))',
        "CREATE INDEX rows_id ON {s}.rows(home, place, left(id, 100)) WHERE id IS NOT NULL",
        "CREATE INDEX rows_due ON {s}.rows(left(split_part(address, E'\\x01', 1), 100), expires) "
        "WHERE expires IS NOT NULL",
        """CREATE FUNCTION {s}.readable(value bytea) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN replace(convert_from(substr(value, 1, greatest(length(value) - 8, 0)), 'UTF8'), '\\u0000', '\\ufffd')::json;
EXCEPTION WHEN others THEN
    RETURN NULL;
END $$""",
        """CREATE FUNCTION {s}.shown(entry json) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE json_typeof(entry -> 'content') WHEN 'string' THEN entry ->> 'content' WHEN 'array' THEN (
        SELECT string_agg(part ->> 'text', E'\\n' ORDER BY n)
        FROM json_array_elements(entry -> 'content') WITH ORDINALITY AS parts(part, n)
        WHERE json_typeof(part) = 'object') END;
EXCEPTION WHEN others THEN
    RETURN NULL;
END $$""",
        """CREATE VIEW {s}.palimpsest_entries AS
SELECT p.tenant, p.name AS session, r.key & 4294967295 AS seq, coalesce(e.entry ->> 'kind', 'message') AS kind,
    coalesce(e.entry ->> 'role', 'user') AS role, {s}.shown(e.entry) AS text
FROM {s}.places p
CROSS JOIN LATERAL (SELECT {s}.readable(p.hot) AS hot) h
JOIN {s}.rows r ON r.home = p.home AND r."table" = 'entry' AND (r.key >> 32)::text = CASE json_typeof(h.hot)
    WHEN 'array' THEN h.hot ->> 0 END
CROSS JOIN LATERAL (SELECT {s}.readable(r.value) AS entry) e
WHERE p.space = 'session' AND json_typeof(e.entry) = 'object'""",
        "INSERT INTO {s}.store VALUES(0, 0, '')",
    ),
)
"""The statements of each migration: the first creates version 1, each later one the next version."""

TABLES = ("store", "places", "rows", "palimpsest_entries")


async def prepare(db: Connection, url: str, schema: str, writable: bool) -> None:
    """Bring the schema to the present version. May be called again, and by several processes at once.

    Raises StoreTooNew for a newer version, StoreCorrupt for tables of another program or a database that is not in
    UTF-8, and StoreUnavailable if the schema must change but the store is read-only. Nothing is changed then.
    """
    if await db.fetchval("SELECT getdatabaseencoding()") != "UTF8":
        raise StoreCorrupt(url, "the database is not encoded in UTF-8; make one that is (CREATE DATABASE … ENCODING)")
    newest, cluster = len(MIGRATIONS), await _cluster(db)
    version, recorded_cluster = await _recorded(db, url, schema, newest)
    if version == newest and (recorded_cluster == cluster or not writable):
        return
    if not writable:
        problem = f"schema {schema} needs migration to version {newest}" if version else f"there is no schema {schema}"
        raise StoreUnavailable(url, f"{problem}: open it once without readonly=True")
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1346456905))", schema)
        version, recorded_cluster = await _recorded(db, url, schema, newest)  # another process may have been first
        if not version and not await db.fetchval("SELECT to_regnamespace($1)::oid", schema):
            await db.execute(f"CREATE SCHEMA {schema}")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                await db.execute(statement.replace("{s}", schema))
        if recorded_cluster != cluster:  # another server numbers its transactions anew: go on behind the last mark
            await db.execute(
                f"UPDATE {schema}.store SET cluster = $1, base = coalesce((SELECT max(mark) FROM {schema}.places), 0)",
                cluster,
            )
        await db.execute(f"UPDATE {schema}.store SET version = $1", newest)


async def _recorded(db: Connection, url: str, schema: str, newest: int) -> tuple[int, str]:
    """Return the schema's version (0: it has no tables), and the server that it was last opened on."""
    tables: Sequence[Any] = await db.fetch(
        "SELECT c.relname, obj_description(c.oid, 'pg_class') AS comment FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = ANY($2::text[])",
        schema,
        list(TABLES),
    )
    comments = {row["relname"]: row["comment"] for row in tables}
    if not comments:
        return 0, ""
    if comments.get("store") != OURS:
        problem = f"schema {schema} has tables of another program ({', '.join(sorted(comments))}); nothing was changed"
        raise StoreCorrupt(url, f"{problem}. Give another schema_name")
    row = await db.fetchrow(f"SELECT version, cluster FROM {schema}.store")
    if row is None:
        raise StoreCorrupt(url, f"the table {schema}.store is empty: it is damaged. Nothing was changed")
    if row["version"] > newest:
        raise StoreTooNew(url, row["version"], newest)
    return row["version"], row["cluster"]


async def _cluster(db: Connection) -> str:
    """Return the server's own identifier, "" if this user may not read it. Each numbers its own transactions."""
    allowed = await db.fetchval("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")
    return str(await db.fetchval("SELECT system_identifier FROM pg_control_system()")) if allowed else ""

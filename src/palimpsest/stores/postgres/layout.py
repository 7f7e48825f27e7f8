"""The tables of a PostgreSQL store: numbered migrations, each applied and recorded in one transaction.

    store    one row: the number of the last migration, and where marks begin
    places   a row a place with a head: its address, the head's two values, when it expires, when it was written
    rows     a row a row: the key of its place, its table, its key, its value, its id, when it expires

`home`, a number made of tenant and home, leads every key and is in every statement about a session, so that the tables
can be spread by it over partitions and servers. `place` is 128 bits of a hash of the whole address: names may be longer
than an index takes. Names are text that sorts by code point (`COLLATE "C"`), as `names` writes them. The address of a
place without a head stands with those of its rows that expire, which are looked for by tenant.

The cold value of a head is the last column, and off the row when long: an append neither moves nor logs it. `mark` is
the number of the transaction that wrote the head; where the database was restored on another server, whose numbers
begin anew, `base` makes up for it.

`palimpsest_entries` is for people: nothing here reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.stores.postgres.pool import Connection

OURS = "Palimpsest"
"""The comment on the table `store`, by which it is known for ours."""

ADDRESS = "(tenant || E'\\x01' || space || E'\\x01' || name || E'\\x01' || home_name)"
"""A place's address, of its columns, as `names.address_of` makes it."""

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
"""What makes each version of the one before."""

TABLES = ("store", "places", "rows", "palimpsest_entries")


async def prepare(db: Connection, url: str, schema: str, writable: bool) -> None:
    """Bring the schema to the present version; does the rest when it is called again, beside others, too.

    Raises StoreTooNew for a newer version, StoreCorrupt for tables of somebody else's, or a database that is not UTF-8,
    and StoreUnavailable where something is to be made and the store is read-only: none of these is touched.
    """
    if await db.fetchval("SELECT getdatabaseencoding()") != "UTF8":
        raise StoreCorrupt(url, "the database is not encoded in UTF-8; make one that is (CREATE DATABASE … ENCODING)")
    newest, cluster = len(MIGRATIONS), await _cluster(db)
    version, at = await _found(db, url, schema, newest)
    if version == newest and (at == cluster or not writable):
        return
    if not writable:
        told = f"schema {schema} needs migration to version {newest}" if version else f"there is no schema {schema}"
        raise StoreUnavailable(url, f"{told}: open it writable once")
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1346456905))", schema)
        version, at = await _found(db, url, schema, newest)  # another process may have been first
        if not version and not await db.fetchval("SELECT to_regnamespace($1)::oid", schema):
            await db.execute(f"CREATE SCHEMA {schema}")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                await db.execute(statement.replace("{s}", schema))
        if at != cluster:  # transactions are numbered anew on another server: marks go on behind the last
            await db.execute(
                f"UPDATE {schema}.store SET cluster = $1, base = coalesce((SELECT max(mark) FROM {schema}.places), 0)",
                cluster,
            )
        await db.execute(f"UPDATE {schema}.store SET version = $1", newest)


async def _found(db: Connection, url: str, schema: str, newest: int) -> tuple[int, str]:
    """The version that there is, 0 for none, and the server that it was last opened on."""
    found: Sequence[Any] = await db.fetch(
        "SELECT c.relname, obj_description(c.oid, 'pg_class') AS comment FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = ANY($2::text[])",
        schema,
        list(TABLES),
    )
    names = {row["relname"]: row["comment"] for row in found}
    if not names:
        return 0, ""
    if names.get("store") != OURS:
        told = f"schema {schema} has tables of another program ({', '.join(sorted(names))}); nothing was changed"
        raise StoreCorrupt(url, f"{told}. Give another schema_name")
    row = await db.fetchrow(f"SELECT version, cluster FROM {schema}.store")
    if row is None:
        raise StoreCorrupt(url, f"the table {schema}.store is empty: it is damaged. Nothing was changed")
    if row["version"] > newest:
        raise StoreTooNew(url, row["version"], newest)
    return row["version"], row["cluster"]


async def _cluster(db: Connection) -> str:
    """What tells the server from others with numbers of transactions of their own."""
    may = await db.fetchval("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")
    return str(await db.fetchval("SELECT system_identifier FROM pg_control_system()")) if may else ""

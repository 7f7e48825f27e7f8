"""The tables of a search index in PostgreSQL. Their keys begin with the tenant's number.

    recall_tenants    one row a tenant: its mark, its generation, and totals of its entries, parts and terms; in tables
                      made anew also one with an empty name, which has the generation that the others begin with
    recall_sessions   one row a session: its number in keys, its cursor
    recall_entries    one row an entry: its facts
    recall_parts      one row a part: its terms in order, and how many
    recall_blocked    one row a place of which no entry is taken in for now

The terms of a part are one text, each with a blank before and behind it. So how often a term, or several side by side,
stand there is counted by one call of C code. A `tsvector` takes twice the room and ten times as long, and counts no
more than 255. Terms are found by a GIN index over them, each with the tenant's number before it, so that a search reads
no other tenant's. PostgreSQL's own parser and dictionaries are not used.
"""

from __future__ import annotations

from typing import Any

from palimpsest.recall.generations import first_generation
from palimpsest.recall.index import FORMAT

LAYOUT = 1
"""Version of the layout. If it or `FORMAT` of an index differ, the tables are made anew."""

OURS = f"Palimpsest's search index, {FORMAT}.{LAYOUT}"
"""The comment on the first of the tables, which says their versions."""

NAMES = ("recall_tenants", "recall_sessions", "recall_entries", "recall_parts", "recall_blocked")

VECTORS = ("vectors", "vector")
"""The tables of `palimpsest.recall.postgres.vectors`, which exist once the store was opened with an embedder."""


FIRST = "coalesce((SELECT generation FROM {s}.recall_tenants WHERE name = ''), 0)"
"""SQL: the generation that the row of a tenant begins with."""


def found_by(words: str, tenant: str) -> str:
    """Return SQL for the array that terms are found by, from SQL for their text and for the tenant's number."""
    return f"string_to_array(btrim(replace({words}, '  ', ' ' || ({tenant})::text || '.')), ' ')"


MADE = (
    "CREATE TABLE {s}.recall_tenants(number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    'name text COLLATE "C" NOT NULL UNIQUE, mark bigint NOT NULL DEFAULT 0, generation bigint NOT NULL DEFAULT 0, '
    "sessions bigint NOT NULL DEFAULT 0, entries bigint NOT NULL DEFAULT 0, parts bigint NOT NULL DEFAULT 0, "
    "terms bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)",
    f"COMMENT ON TABLE {{s}}.recall_tenants IS '{OURS.replace(chr(39), chr(39) * 2)}'",
    "CREATE TABLE {s}.recall_sessions(tenant bigint NOT NULL, number bigint NOT NULL, "
    'name text COLLATE "C" NOT NULL, cursor bytea NOT NULL, PRIMARY KEY(tenant, number), UNIQUE(tenant, name)) '
    "WITH (fillfactor = 80)",
    "CREATE TABLE {s}.recall_entries(tenant bigint NOT NULL, place bigint NOT NULL, at bigint NOT NULL, "
    'kind text COLLATE "C" NOT NULL, role text COLLATE "C" NOT NULL, '
    'chars bigint NOT NULL, name text COLLATE "C", PRIMARY KEY(tenant, place))',
    "CREATE TABLE {s}.recall_parts(tenant bigint NOT NULL, key bigint NOT NULL, length integer NOT NULL, "
    'words text COLLATE "C" NOT NULL, PRIMARY KEY(tenant, key))',
    # Every search scans GIN's list of pending entries, so the list is kept small.
    f"CREATE INDEX recall_terms ON {{s}}.recall_parts USING gin(({found_by('words', 'tenant')})) "
    "WITH (gin_pending_list_limit = 256)",
    'CREATE TABLE {s}.recall_blocked(tenant bigint NOT NULL, session text COLLATE "C" NOT NULL, '
    "seq bigint NOT NULL, since bigint NOT NULL, PRIMARY KEY(tenant, session, seq))",
)


async def prepare(db: Any, schema: str, *, anew: bool = False) -> None:
    """Make the tables if they do not exist or have another version, or if `anew`.

    Safe beside other processes that do the same.
    """
    if not anew and await _is_there(db, schema):
        return
    await db.execute(f"BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('{schema}', 1346456907))")
    if anew or not await _is_there(db, schema):  # another process may have been first
        gone = ", ".join(f"{schema}.{name}" for name in NAMES)
        statements = "; ".join(statement.replace("{s}", schema) for statement in MADE)
        await db.execute(f"DROP TABLE IF EXISTS {gone}; {statements}")
        if anew:  # whoever has put something into the tables before must not take these for them
            first = f"INSERT INTO {schema}.recall_tenants(name, generation) VALUES('', $1)"
            await db.execute(first, first_generation())
        if await db.fetchval("SELECT to_regclass($1)::oid", f"{schema}.vector"):  # vectors of the parts dropped above
            await db.execute(f"UPDATE {schema}.vectors SET generation = generation + 1; DELETE FROM {schema}.vector")
    await db.execute("COMMIT")


async def _is_there(db: Any, schema: str) -> bool:
    comment = "SELECT obj_description(to_regclass($1)::oid, 'pg_class')"
    return bool(await db.fetchval(comment, f"{schema}.recall_tenants") == OURS)

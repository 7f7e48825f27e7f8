"""The SQL statements of a PostgreSQL store. There are few, so that each connection plans each of them once.

`{s}` stands for the schema, whose name is checked. Reads of many places take arrays as parameters. A statement that
changes heads and rows compares the heads first, and changes nothing if one is not as expected. It sees rows as of its
beginning, which is before it has waited for the lock of a head. So without locks beforehand it may only put rows, which
needs to see none; before rows are dropped, the caller locks the heads.

The end of the module holds what differs if the tables are on other servers, as foreign tables of `postgres_fdw`. It
replaces the other names in braces, such as `{put_plain}`.
"""

from __future__ import annotations

import re

from palimpsest.stores.postgres.layout import ADDRESS

_HEADS = """SELECT a.n, -1 AS i, NULL::bigint AS key, p.hot AS value, NULL::text AS id, NULL::bigint AS expires, p.cold
FROM unnest($1::int[], $2::bigint[], $3::uuid[]) AS a(n, home, place)
CROSS JOIN LATERAL (SELECT hot, cold FROM {s}.places WHERE home = a.home AND place = a.place LIMIT 1) p"""

_RANGES = """SELECT a.n, a.i, r.key, r.value, r.id, r.expires, NULL::bytea
FROM unnest($4::int[], $5::int[], $6::bigint[], $7::uuid[], $8::text[], $9::int[], $10::int[], $11::bigint[],
    $12::bool[]) AS a(n, i, home, place, tbl, first, last, most, newest)
CROSS JOIN LATERAL (
    SELECT found.* FROM unnest(($13::bigint[])[a.first:a.last], ($14::bigint[])[a.first:a.last]) AS s(low, high)
    CROSS JOIN LATERAL (
        (SELECT key, value, id, expires FROM {s}.rows
        WHERE home = a.home AND place = a.place AND "table" = a.tbl AND key BETWEEN s.low AND s.high AND NOT a.newest
        ORDER BY key LIMIT a.most)
        UNION ALL
        (SELECT key, value, id, expires FROM {s}.rows
        WHERE home = a.home AND place = a.place AND "table" = a.tbl AND key BETWEEN s.low AND s.high AND a.newest
        ORDER BY key DESC LIMIT a.most)
    ) found LIMIT a.most
) r"""

_NAMED = """SELECT a.n, a.i, r.key, r.value, r.id, r.expires, NULL::bytea
FROM unnest($15::int[], $16::int[], $17::bigint[], $18::uuid[], $19::text[], $20::text[])
    AS a(n, i, home, place, tbl, id)
CROSS JOIN LATERAL (
    SELECT key, value, id, expires FROM {s}.rows WHERE home = a.home AND place = a.place
    AND left(id, 100) = left(a.id, 100) AND id = a.id AND "table" = a.tbl AND id IS NOT NULL {sent_names}
) r"""

_ROW = 'home, place, "table", key, value, id, expires, address, table_name'
_INSTEAD = """ON CONFLICT (home, place, "table", key) DO UPDATE SET value = excluded.value, id = excluded.id,
    expires = excluded.expires, address = excluded.address, table_name = excluded.table_name"""
_MARK = "(SELECT base FROM {s}.store) + pg_current_xact_id()::text::bigint"

HASTE = """SELECT concat(CASE WHEN $24::int IS NOT NULL
    THEN set_config('synchronous_commit', 'off', true) || set_config('lock_timeout', $24::text, true) END)"""
"""If $24 is given, commits without waiting for the disk, and fails rather than wait longer than that many milliseconds
for a lock. Only for what may be lost. That excludes leases and cuts: a client that has seen one lives on when the
server crashes, and would rely on it."""

PLAIN = f"""WITH moved AS (
    UPDATE {{s}}.places SET hot = $4, cold = coalesce($5, cold), expires = $6, mark = {_MARK}
    WHERE home = $1 AND place = $2 AND hot = $3 RETURNING 1
), {{put_plain}}
SELECT EXISTS (SELECT FROM moved) AS done"""
"""Moves one existing head and puts rows of one table without ids and expiry: most appends do just that. If the head is
not as expected it returns false, but not the present head. It has fewer arrays than `CHANGE`, each of which the driver
encodes and the server expands value by value: `CHANGE` takes more than a tenth longer."""
CHANGE = f"""WITH haste(h) AS MATERIALIZED ({HASTE}), want AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bool[], $8::text[],
        $9::text[]) WITH ORDINALITY AS w(place, expect, hot, cold, expires, moves, space, name, n)
    WHERE (SELECT h FROM haste) IS NOT NULL
), present AS MATERIALIZED (
    SELECT w.n, p.hot, p.cold FROM want w CROSS JOIN LATERAL (
        SELECT hot, cold FROM {{s}}.places WHERE home = $1 AND place = w.place FOR UPDATE
    ) p
), ok AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT FROM want w LEFT JOIN present c USING (n) WHERE c.hot IS DISTINCT FROM w.expect) AS ok
), removed AS (
    DELETE FROM {{s}}.places p USING want w
    WHERE (SELECT ok FROM ok) AND p.home = $1 AND p.place = w.place AND w.moves AND w.hot IS NULL
    {{sent_heads}}
), moved AS (
    UPDATE {{s}}.places p SET hot = w.hot, cold = coalesce(w.cold, p.cold), expires = w.expires, mark = {_MARK}
    FROM want w WHERE (SELECT ok FROM ok) AND p.home = $1 AND p.place = w.place AND w.moves AND w.hot IS NOT NULL
    AND w.expect IS NOT NULL {{sent_heads}}
), created AS (
    INSERT INTO {{s}}.places(home, place, mark, expires, tenant, home_name, space, name, hot, cold)
    SELECT $1, w.place, {_MARK}, w.expires, $10, $11, w.space, w.name, w.hot, coalesce(w.cold, ''::bytea)
    FROM want w WHERE (SELECT ok FROM ok) AND w.moves AND w.hot IS NOT NULL AND w.expect IS NULL
), given AS MATERIALIZED (
    SELECT * FROM unnest($16::uuid[], $17::text[], $18::bigint[], $19::bytea[], $20::text[], $21::bigint[], $22::text[],
        $23::text[]) AS g(place, tbl, key, value, id, expires, address, table_name) WHERE (SELECT ok FROM ok)
), dropped AS (
    DELETE FROM {{s}}.rows r
    USING unnest($12::uuid[], $13::text[], $14::bigint[], $15::bigint[]) AS d(place, tbl, low, high)
    WHERE (SELECT ok FROM ok) AND r.home = $1 AND r.place = d.place AND r."table" = d.tbl
    AND r.key BETWEEN d.low AND d.high {{sent_drops}}
    AND NOT EXISTS (SELECT FROM given g WHERE g.place = r.place AND g.tbl = r."table" AND g.key = r.key)
), {{put_given}}
SELECT o.ok, c.n, c.hot, c.cold FROM ok o LEFT JOIN present c ON NOT o.ok"""
"""Writes a whole batch, or returns the heads that are present if one is not as expected. A row that is also put is not
dropped before: the two parts of one statement must not change the same row."""

LOCK = "SELECT FROM {s}.places WHERE home = %d AND place IN (%s) ORDER BY place FOR UPDATE"
TABLES = """WITH RECURSIVE t(tbl) AS (
    (SELECT "table" COLLATE "default" AS tbl FROM {s}.rows WHERE home = $1 AND place = $2 ORDER BY "table" LIMIT 1)
    UNION ALL
    SELECT next.tbl FROM t CROSS JOIN LATERAL (
        SELECT "table" COLLATE "default" AS tbl FROM {s}.rows WHERE home = $1 AND place = $2 AND "table" > t.tbl
        ORDER BY "table" LIMIT 1
    ) next
) SELECT t.tbl, (SELECT table_name FROM {s}.rows WHERE home = $1 AND place = $2 AND "table" = t.tbl LIMIT 1) FROM t"""
"""The tables in which a place has rows, with one index lookup for each table."""

_LISTED = f"SELECT {ADDRESS} AS address, hot, cold, mark FROM {{s}}.places "
PLACES = (
    _LISTED + f"WHERE left({ADDRESS}, 400) >= left($1, 400) AND left({ADDRESS}, 400) <= left($2, 400) "
    f"AND {ADDRESS} > $1 AND {ADDRESS} < $2 ORDER BY left({ADDRESS}, 400), {ADDRESS} LIMIT $3"
)
WITHIN = "left(tenant, 100) = left($1, 100) AND tenant = $1 AND left(space, 100) = left($2, 100) AND space = $2"
HORIZON = """SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next,
    (SELECT base FROM {s}.store) AS base, ARRAY(
    SELECT x.transactionid::text::bigint FROM pg_locks x JOIN pg_locks r USING (virtualtransaction)
    WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted AND r.locktype = 'relation'
    AND r.relation = '{s}.places'::regclass AND r.mode <> 'AccessShareLock'
    AND r.database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS writing"""
"""The lowest number that a later transaction can have, and the numbers of the transactions that are writing heads now.
"""

RECENT = f"""SELECT address, hot, cold, mark FROM (
    (SELECT {ADDRESS} AS address, hot, cold, mark FROM {{s}}.places WHERE {WITHIN} AND mark >= $3 AND mark < $4
    AND (mark > $3 OR {ADDRESS} > $5) ORDER BY left(tenant, 100), left(space, 100), mark, {ADDRESS} LIMIT $6)
    UNION ALL
    (SELECT {ADDRESS}, hot, cold, $4 - 1 FROM {{s}}.places WHERE {WITHIN} AND mark >= $4 AND $4 - 1 >= $3
    AND ($4 - 1 > $3 OR {ADDRESS} > $5) ORDER BY {ADDRESS} LIMIT $6)
) l ORDER BY mark, address LIMIT $6"""
NEWEST = (
    _LISTED + f"WHERE {WITHIN} AND mark <= $3 AND (mark < $3 OR {ADDRESS} > $4) "
    f"ORDER BY left(tenant, 100) DESC, left(space, 100) DESC, mark DESC, {ADDRESS} LIMIT $5"
)
TENANTS = f"""WITH RECURSIVE t(tenant, next, first) AS (
    SELECT NULL::text, $1::text, left($1, 400)
    UNION ALL
    SELECT p.tenant, p.tenant || E'\\x02', left(p.tenant || E'\\x02', 400) FROM t CROSS JOIN LATERAL (
        SELECT tenant COLLATE "default" AS tenant FROM {{s}}.places
        WHERE left({ADDRESS}, 400) >= t.first AND {ADDRESS} >= t.next ORDER BY left({ADDRESS}, 400), {ADDRESS} LIMIT 1
    ) p
) SELECT tenant FROM t WHERE tenant IS NOT NULL LIMIT $2"""

EXPIRED = f"""SELECT * FROM (
    (SELECT expires, {ADDRESS} AS address, '' AS tbl, NULL::text AS table_name, 0::bigint AS key, place
    FROM {{s}}.places WHERE left(tenant, 100) = left($1, 100) AND tenant = $1 AND expires <= $2 AND expires >= $3
    AND (expires, {ADDRESS}, '', 0::bigint) > ($3, $4, $5, $6) ORDER BY expires, {ADDRESS} LIMIT $7)
    UNION ALL
    (SELECT expires, coalesce(address, ''), "table", table_name, key, place FROM {{s}}.rows
    WHERE left(split_part(address, E'\\x01', 1), 100) = left($1, 100) AND split_part(address, E'\\x01', 1) = $1
    AND expires <= $2 AND expires >= $3
    AND (expires, address, "table", key) > ($3, $4, $5, $6) ORDER BY expires, address, "table", key LIMIT $7)
) d ORDER BY expires, address, tbl, key LIMIT $7"""

SIZE = "SELECT pg_total_relation_size('{s}.places') + pg_total_relation_size('{s}.rows')"


# --- tables on other servers
#
# A foreign table has no unique index, so there is no `ON CONFLICT`: rows that exist are updated, the others inserted. A
# writer who is overtaken in between violates the key that the other server has, and tries again.
#
# Joins are done by the local server; the other one is sent only conditions that compare its columns with values. So
# beside each join the arrays of the statement are compared once more, as plain parameters, and only matching rows are
# transferred. A home is on one server, which the planner must know before the statement runs, so that it does not even
# connect to the others.

FOREIGN = """SELECT EXISTS (SELECT FROM pg_class WHERE relkind = 'f' AND oid IN (
    SELECT to_regclass(name) FROM unnest(ARRAY[$1, $2]) AS t(name) UNION ALL
    SELECT relid FROM unnest(ARRAY[$1, $2]) AS t(name), pg_partition_tree(to_regclass(name))))"""
"""Whether one of two tables, or a partition of one, is on another server."""

PLANS_APART = "SET enable_sort = off"
"""Makes the other server sort what is read in order, so that only as many rows are transferred as are needed. Without
statistics PostgreSQL takes foreign tables for small, and would transfer and sort all rows."""


def _put_apart(sent: str) -> str:
    """Return SQL that puts the rows of `given` into a foreign table; `sent` is a condition on existing rows that the
    other server can check."""
    return f"""kept AS (
    UPDATE {{s}}.rows r SET value = g.value, id = g.id, expires = g.expires, address = g.address,
        table_name = g.table_name
    FROM given g WHERE r.home = $1 AND {sent} AND r.place = g.place AND r."table" = g.tbl AND r.key = g.key
    RETURNING r.place, r."table" AS tbl, r.key
), put AS (
    INSERT INTO {{s}}.rows({_ROW}) SELECT $1, * FROM given g
    WHERE NOT EXISTS (SELECT FROM kept k WHERE k.place = g.place AND k.tbl = g.tbl AND k.key = g.key)
)"""


_FIRSTS = "(SELECT array_agg(left(id, 100)) FROM unnest($20::text[]) AS id)"
_LOW, _HIGH = "(SELECT min(n) FROM unnest($14::bigint[]) AS n)", "(SELECT max(n) FROM unnest($15::bigint[]) AS n)"

_HERE = {
    "sent_names": "",
    "sent_heads": "",
    "sent_drops": "",
    "put_plain": f"""put AS (
    INSERT INTO {{s}}.rows(home, place, "table", key, value) SELECT $1, $7, $8, g.key, g.value
    FROM unnest($9::bigint[], $10::bytea[]) AS g(key, value) WHERE EXISTS (SELECT FROM moved) {_INSTEAD}
)""",
    "put_given": f"""put AS (
    INSERT INTO {{s}}.rows({_ROW}) SELECT $1, * FROM given {_INSTEAD}
)""",
}
_APART = {
    "sent_names": f"AND place = ANY($18::uuid[]) AND id = ANY($20::text[]) AND left(id, 100) = ANY({_FIRSTS}::text[])",
    "sent_heads": "AND p.place = ANY($2::uuid[])",
    "sent_drops": (
        f'AND r.place = ANY($12::uuid[]) AND r."table" = ANY($13::text[]) AND r.key BETWEEN {_LOW} AND {_HIGH}'
    ),
    "put_plain": f"""given AS MATERIALIZED (
    SELECT $7::uuid AS place, $8::text AS tbl, g.key, g.value, NULL::text AS id, NULL::bigint AS expires,
        NULL::text AS address, NULL::text AS table_name
    FROM unnest($9::bigint[], $10::bytea[]) AS g(key, value) WHERE EXISTS (SELECT FROM moved)
), {_put_apart('r.place = $7::uuid AND r."table" = $8::text AND r.key = ANY($9::bigint[])')}""",
    "put_given": _put_apart(
        'r.place = ANY($16::uuid[]) AND r."table" = ANY($17::text[]) AND r.key = ANY($18::bigint[])'
    ),
}
"""What replaces the names in braces, for local tables (`_HERE`) and foreign ones (`_APART`): how rows are put, and the
conditions that repeat a join for the other server."""


def _over_homes(text: str, n: int) -> str:
    """Replace the join over homes by a comparison with the first home in the array of parameter `n`."""
    return text.replace("home = a.home", f"home = (${n}::bigint[])[1]")


def _sent(text: str) -> str:
    """Make each `left($n, …)` a subquery: that is computed once when the statement begins, and its value is sent."""
    return re.sub(r"left\(\$\d, \d+\)", r"(SELECT \g<0>)", text)


class Statements:
    """The statements over one schema; `foreign` if its tables are on other servers."""

    def __init__(self, schema: str, *, foreign: bool = False) -> None:
        def over(text: str) -> str:
            for name, part in (_APART if foreign else _HERE).items():
                text = text.replace(f"{{{name}}}", part)
            return (_sent(text) if foreign else text).replace("{s}", schema)

        self.foreign = foreign
        heads, ranges, named = _HEADS, _RANGES, _NAMED
        if foreign:
            heads, ranges, named = _over_homes(heads, 2), _over_homes(ranges, 6), _over_homes(named, 17)
        both = f"{heads}\nUNION ALL\n{ranges}"
        self.heads, self.look, self.look_named = over(heads), over(both), over(f"{both}\nUNION ALL\n{named}")
        self.plain, self.change, self.lock, self.tables = over(PLAIN), over(CHANGE), over(LOCK), over(TABLES)
        self.places, self.recent, self.newest = over(PLACES), over(RECENT), over(NEWEST)
        self.horizon, self.tenants, self.expired = over(HORIZON), over(TENANTS), over(EXPIRED)
        self.size, self.vacuum = over(SIZE), over("VACUUM {s}.places, {s}.rows")

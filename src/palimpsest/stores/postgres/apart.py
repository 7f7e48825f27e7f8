"""What statements are over tables that are on other servers, as foreign tables of `postgres_fdw`.

PostgreSQL knows no unique index of a foreign table, so there is no `ON CONFLICT`. Rows that are found are updated, and
the others inserted. Who is overtaken in between meets the key that the other server has, and tries again.

A join is done where the statement is: the other server is sent what compares its columns with values. So the arrays
of a statement stand once more beside each join, as they are, and no more rows than that come from there. A home is on
one server. Which one is found before a statement begins, so that it does not even connect to others.
"""

from __future__ import annotations

import re

FOREIGN = """SELECT EXISTS (SELECT FROM pg_class WHERE relkind = 'f' AND oid IN (
    SELECT to_regclass(name) FROM unnest(ARRAY[$1, $2]) AS t(name) UNION ALL
    SELECT relid FROM unnest(ARRAY[$1, $2]) AS t(name), pg_partition_tree(to_regclass(name))))"""
"""Whether one of two tables, or a partition of them, is on another server."""

_FIRSTS = "(SELECT array_agg(left(id, 100)) FROM unnest($20::text[]) AS id)"
_LOW, _HIGH = "(SELECT min(n) FROM unnest($14::bigint[]) AS n)", "(SELECT max(n) FROM unnest($15::bigint[]) AS n)"

SENT = {
    "sent_names": f"AND place = ANY($18::uuid[]) AND id = ANY($20::text[]) AND left(id, 100) = ANY({_FIRSTS}::text[])",
    "sent_heads": "AND p.place = ANY($2::uuid[])",
    "sent_drops": (
        f'AND r.place = ANY($12::uuid[]) AND r."table" = ANY($13::text[]) AND r.key BETWEEN {_LOW} AND {_HIGH}'
    ),
}
"""By the names of their slots, what is compared once more."""

PLANS = "SET enable_sort = off"
"""Has the other server sort what is read in order, from which only as much comes as is read. Without figures about
foreign tables PostgreSQL takes them for small, and would have all of it come."""


def put(row: str, first: int) -> str:
    """What puts the rows `given`, which are the parameters from this number on."""
    kinds = (("place", "uuid"), ('"table"', "text"), ("key", "bigint"))
    sent = " AND ".join(f"r.{name} = ANY(${first + i}::{kind}[])" for i, (name, kind) in enumerate(kinds))
    return f"""kept AS (
    UPDATE {{s}}.rows r SET value = g.value, id = g.id, expires = g.expires, address = g.address,
        table_name = g.table_name
    FROM given g WHERE r.home = $1 AND {sent} AND r.place = g.place AND r."table" = g.tbl AND r.key = g.key
    RETURNING r.place, r."table" AS tbl, r.key
), put AS (
    INSERT INTO {{s}}.rows({row}) SELECT $1, * FROM given g
    WHERE NOT EXISTS (SELECT FROM kept k WHERE k.place = g.place AND k.tbl = g.tbl AND k.key = g.key)
)"""


def over_homes(text: str, n: int) -> str:
    """A statement over the home that is the first of an array, the parameter of this number."""
    return text.replace("home = a.home", f"home = (${n}::bigint[])[1]")


def sent(text: str) -> str:
    """A statement whose parts of parameters are known when it begins, as they have to be to be sent."""
    return re.sub(r"left\(\$\d, \d+\)", r"(SELECT \g<0>)", text)

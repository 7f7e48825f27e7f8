"""A store on PostgreSQL whose tables are on two other servers: those of the run, behind the run's own as the front.

It is made by the statements that `docs/postgres.md` has for that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import servers
from palimpsest import Memory
from postgresstore import emptied, schema_of

PAGE = Path(__file__).parent.parent / "docs" / "postgres.md"


def address_of(name: str, **more: object) -> str:
    """The address of an empty store of that kind, in a schema of this name; skips where there are no servers."""
    front, schema = _front(name), schema_of(name)
    asyncio.run(emptied(front, schema))
    return servers.with_options(front, schema_name=schema, application_name=schema, **more)


@lru_cache
def _front(name: str) -> str:
    front = servers.address("postgres")
    spread(front, [servers.address("shard_0"), servers.address("shard_1")], schema_of(name))
    return front


def spread(front: str, others: Sequence[str], schema: str) -> None:
    """Make a new store in a schema of a server, with its tables on two others."""
    for address in (front, *others):
        asyncio.run(_done(address, f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        with Memory.open(servers.with_options(address, schema_name=schema)) as memory:
            memory.sessions()
    asyncio.run(_done(front, "CREATE EXTENSION IF NOT EXISTS postgres_fdw"))
    asyncio.run(
        _done(front, *(f"DROP SERVER IF EXISTS {schema}_{n} CASCADE" for n in (0, 1)), *_statements(others, schema))
    )


def _statements(others: Sequence[str], schema: str) -> list[str]:
    """Those of the page, for these servers and this schema."""
    (text,) = (one for one in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL) if "FOREIGN" in one)
    for name, address in zip(("one", "two"), others, strict=True):
        at = urlsplit(address)
        text = text.replace(
            f"host '{name}.internal', port '5432', dbname 'agents'",
            f"host '{at.hostname}', port '{at.port or 5432}', dbname '{at.path[1:]}'",
        )
    at = urlsplit(others[0])
    text = text.replace("user 'agent', password 'secret'", f"user '{at.username}', password '{at.password or ''}'")
    text = text.replace("OPTIONS (table_name", f"OPTIONS (schema_name '{schema}', table_name")
    statements = re.sub(r"\bpalimpsest(?=[._])(?!_entries)", schema, text).split(";")
    return [one for one in map(str.strip, statements) if one and "EXTENSION" not in one]


async def _done(address: str, *statements: str) -> None:
    import asyncpg

    db = await asyncpg.connect(address.partition("?")[0])
    try:
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock(1346456906)")  # two at once cannot make an extension
            for statement in statements:
                await db.execute(statement)
    finally:
        await db.close()

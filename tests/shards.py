"""A PostgreSQL store whose tables are on two other servers; the run's own server is the front.

It is set up by the statements that `docs/postgres.md` shows for this.
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
    """Return the address of an empty store of that kind in a schema; skip the test where there are no servers."""
    front, schema = _front(name), schema_of(name)
    asyncio.run(emptied(front, schema))
    return servers.with_options(front, schema_name=schema, application_name=schema, **more)


@lru_cache
def _front(name: str) -> str:
    front = servers.address("postgres")
    spread(front, [servers.address("shard_0"), servers.address("shard_1")], schema_of(name))
    return front


def spread(front: str, others: Sequence[str], schema: str) -> None:
    """Make a new store in a schema of the front server, with its tables on two other servers."""
    for address in (front, *others):
        asyncio.run(_done(address, f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        with Memory.open(servers.with_options(address, schema_name=schema)) as memory:
            memory.sessions()
    asyncio.run(_done(front, "CREATE EXTENSION IF NOT EXISTS postgres_fdw"))
    asyncio.run(
        _done(front, *(f"DROP SERVER IF EXISTS {schema}_{n} CASCADE" for n in (0, 1)), *_statements(others, schema))
    )


def _statements(others: Sequence[str], schema: str) -> list[str]:
    """Return the statements of the page, rewritten for these servers and this schema."""
    (text,) = (block for block in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL) if "FOREIGN" in block)
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
    return [block for block in map(str.strip, statements) if block and "EXTENSION" not in block]


async def _done(address: str, *statements: str) -> None:
    import asyncpg

    db = await asyncpg.connect(address.partition("?")[0])
    try:
        async with db.transaction():
            await db.execute(
                "SELECT pg_advisory_xact_lock(1346456906)"
            )  # two processes cannot create an extension at the same time
            for statement in statements:
                await db.execute(statement)
    finally:
        await db.close()

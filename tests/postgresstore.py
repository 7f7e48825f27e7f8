"""Stores on the run's PostgreSQL server, each in a schema that is emptied for each test."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import servers


def schema_of(name: str) -> str:
    """Return a schema that no other process of the run uses."""
    return f"{name}_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"


def address_of(name: str, **more: object) -> str:
    """Return the address of an empty store in such a schema; skip the test where there is no server."""
    url, schema = servers.address("postgres"), schema_of(name)
    asyncio.run(emptied(url, schema))
    return servers.with_options(url, schema_name=schema, application_name=schema, **more)


async def emptied(url: str, schema: str) -> None:
    """Delete everything that a schema stores."""
    import asyncpg

    db = await asyncpg.connect(url)
    try:
        if await db.fetchval("SELECT to_regclass($1)::oid", f"{schema}.places"):
            await db.execute(f"DELETE FROM {schema}.places; DELETE FROM {schema}.rows")
        if await db.fetchval("SELECT to_regclass($1)::oid", f"{schema}.vectors"):
            await db.execute(f"DELETE FROM {schema}.vectors; DELETE FROM {schema}.vector")
        if await db.fetchval("SELECT to_regclass($1)::oid", f"{schema}.recall_tenants"):
            names = ("tenants", "sessions", "entries", "parts", "blocked")
            await db.execute("; ".join(f"DELETE FROM {schema}.recall_{name}" for name in names))
    finally:
        await db.close()


def asked(address: str, *statements: str) -> list[Any]:
    """Run statements on a new connection and return the rows of the last one."""

    async def ask() -> list[Any]:
        import asyncpg

        db = await asyncpg.connect(address.partition("?")[0])
        try:
            rows: list[Any] = []
            for statement in statements:
                rows = await db.fetch(statement)
            return rows
        finally:
            await db.close()

    return asyncio.run(ask())

"""A process that adds to a session on a PostgreSQL server: `postgres_writer.py SESSION ADDRESS NAME MANY`.

It prints "ready", waits for a line, and prints at the end how many round trips it has made since then.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from palimpsest import AsyncMemory
from palimpsest.stores.postgres.backend import PostgresBackend
from writer import say


@contextmanager
def watched() -> Iterator[list[tuple[str, tuple[Any, ...]]]]:
    """Yield the list of queries, with their values, of connections that are made in the block. A batch is one query."""
    sent: list[tuple[str, tuple[Any, ...]]] = []
    connect = PostgresBackend._connection

    async def watching(self: Any) -> Any:
        db = await connect(self)
        db.add_query_logger(lambda record: sent.append((record.query, tuple(record.args))))
        return db

    PostgresBackend._connection = watching  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        PostgresBackend._connection = connect  # type: ignore[method-assign]


async def write(address: str, session: str, name: str, many: int) -> None:
    """Add so many entries, one after the other."""
    with watched() as sent:
        async with AsyncMemory.open(address) as memory:
            log = memory.session(session)
            await log.stats()
            say("ready")
            sys.stdin.readline()
            sent.clear()
            for number in range(many):
                await log.add_user_message(f"{name} {number}")
            say(len(sent))


if __name__ == "__main__":
    asyncio.run(write(sys.argv[2], sys.argv[1], sys.argv[3], int(sys.argv[4])))

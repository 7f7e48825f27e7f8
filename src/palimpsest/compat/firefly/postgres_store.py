"""`PostgreSQLStore`: entries in a table of a PostgreSQL server, shared by processes of many machines."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256

from palimpsest.compat.firefly.served import ServedStore, driven
from palimpsest.compat.firefly.store import Conversations
from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.stores.postgres.address import check_address


class PostgreSQLStore(ServedStore):
    """Entries in the table `memory_entries` of a schema.

    `await store.initialize()` connects and creates what is missing; every other method does so first if need be. Needs
    the extra `postgres`.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        pool_min_size: int = 2,
        timeout: float = 30.0,
        schema_name: str = "firefly_memory",
        clock: Callable[[], int] = now_us,
    ) -> None:
        """Raises ConfigError, naming the option, and MissingExtra, which is an ImportError. Nothing is opened yet.

        Args:
            url: `postgresql://user:password@host:5432/database`.
            pool_size: the most connections.
            pool_min_size: how many of them are opened at the start.
            timeout: how many seconds a call may take, with all that it waits for.
            schema_name: the schema that the table is in: a name of letters, digits and `_`, in lower case.
            clock: a function that returns microseconds since 1970.
        """
        check_address(url if isinstance(url, str) else "")
        values.whole("pool_min_size", pool_min_size)
        schema = schema_name.lower() if isinstance(schema_name, str) else ""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema, re.ASCII) or schema.startswith("pg_"):
            allowed = "a name of 1 to 63 letters, digits and _, no digit first, that does not begin with pg_"
            raise ConfigError("schema_name", schema_name, allowed)
        kind = driven(
            "postgres_table:Table", "asyncpg", "PostgreSQLStore", "postgres", timeout=timeout, pool_size=pool_size
        )
        if pool_min_size > pool_size:
            raise ConfigError("pool_min_size", pool_min_size, f"at most pool_size, {pool_size}")
        table = kind(url, schema, size=pool_size, least=pool_min_size, seconds=timeout)
        super().__init__(url, table, timeout=timeout, clock=clock)
        self._address, self._schema, self._size = url, schema, pool_size

    def conversations_at(self) -> Conversations:
        schema = f"{self._schema}_log"
        if len(schema) > 63:  # PostgreSQL would cut it off
            schema = f"firefly_log_{sha256(self._schema.encode()).hexdigest()[:32]}"
        return Conversations(
            self._address, {"schema_name": schema, "pool_size": self._size, "timeout_seconds": self._seconds}
        )

"""`postgresql://user:password@host/database`: a store on a PostgreSQL server, shared by processes on many machines.

It is the engine over two tables, which `palimpsest.stores.postgres.layout` describes. An append is one statement, and
so is each read for a context. Needs the extra `postgres`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError, MissingExtra
from palimpsest.runtime.runner import Runner
from palimpsest.stores.postgres.address import PostgresOptions, check_address
from palimpsest.stores.servers import server_options

if TYPE_CHECKING:
    from palimpsest.stores.postgres.backend import PostgresBackend


def open_postgres(url: str, runner: Runner, **options: Any) -> PostgresBackend:  # noqa: ARG001 (as all)
    """Open `postgresql://…` or `postgres://…` with the options of `PostgresOptions`. The address may hold options of
    the driver, too."""
    address, checked = accepted(url, **options)
    if find_spec("asyncpg") is None:
        raise MissingExtra("a store on PostgreSQL", "postgres")
    from palimpsest.stores.postgres.backend import PostgresBackend  # the driver: an extra

    return PostgresBackend(address, checked)


def accepted(url: str, **options: Any) -> tuple[str, PostgresOptions]:
    """Return the address to give to the driver, and the checked options. Raises ConfigError for an invalid one."""
    address, checked = server_options(PostgresOptions, url, options)
    if checked.schema_name.startswith("pg_"):
        raise ConfigError("schema_name", checked.schema_name, "a name that does not begin with pg_, PostgreSQL's own")
    check_address(address)
    return address, checked

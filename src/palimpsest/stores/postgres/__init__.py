"""`postgresql://user:password@host/database`: a store on a PostgreSQL server, shared by processes of many machines.

It is the engine over two tables, which `palimpsest.stores.postgres.layout` describes. An append is one statement, and
so is whatever is read for a context. Needs the extra `postgres`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from palimpsest.errors import ConfigError, MissingExtra
from palimpsest.runtime.runner import Runner
from palimpsest.stores.options import discreet_address
from palimpsest.stores.postgres.options import PostgresOptions
from palimpsest.stores.servers import server_options

if TYPE_CHECKING:
    from palimpsest.stores.postgres.backend import PostgresBackend


def open_postgres(url: str, runner: Runner, **options: Any) -> PostgresBackend:  # noqa: ARG001 (as all)
    """Open `postgresql://…` or `postgres://…`. Options are those of `PostgresOptions`; others are the driver's."""
    address, checked = server_options(PostgresOptions, url, options)
    if checked.schema_name.startswith("pg_"):
        raise ConfigError("schema_name", checked.schema_name, "a name that does not begin with pg_, PostgreSQL's own")
    check_address(address)
    if find_spec("asyncpg") is None:
        raise MissingExtra("a store on PostgreSQL", "postgres")
    from palimpsest.stores.postgres.backend import PostgresBackend  # the driver: an extra

    return PostgresBackend(address, checked)


def check_address(address: str) -> None:
    """Raise ConfigError for an address that the driver would not take, whose complaint may quote a password."""
    allowed = "postgresql://user:password@host:5432/database, options behind a question mark"
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("postgresql", "postgres") and "://" in address and "#" not in address
        hosts = parts.netloc.rpartition("@")[2]
        ports = [host.rpartition(":")[2] for host in hosts.split(",") if ":" in host.rpartition("]")[2]]
        sound = sound and all(port.isdecimal() and 0 < int(port) < 65_536 for port in ports)
        parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError("store", discreet_address(address), allowed)

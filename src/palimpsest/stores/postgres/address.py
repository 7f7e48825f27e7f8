"""What stands in the address of a store on PostgreSQL: options of ours, and what is the driver's. Needs no driver."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Meta

from palimpsest.errors import ConfigError
from palimpsest.stores.options import discreet_address
from palimpsest.stores.servers import ServerOptions

NAME = r"\A[a-z_][a-z0-9_]{0,62}\Z"
"""Names of schemas that need no quotes, and are no longer than PostgreSQL keeps them."""


class PostgresOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of all stores on servers, and `schema_name`, in which the tables are."""

    schema_name: Annotated[
        str, Meta(pattern=NAME, description="a name of 1 to 63 lower-case letters, digits and _, no digit first")
    ] = "palimpsest"


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


def driver_options(address: str) -> tuple[str, dict[str, Any]]:
    """The address without those options of the driver's that it takes beside it only, and these. Raises ConfigError."""
    bare, _, query = address.partition("?")
    kept, given = list[str](), dict[str, Any]()
    for part in filter(None, query.split("&")):
        name, _, text = part.partition("=")
        if name not in ("statement_cache_size", "max_cached_statement_lifetime"):
            kept.append(part)
        elif unquote(text).isdecimal():
            given[name] = int(unquote(text))
        else:
            raise ConfigError(name, "its value in the address", "a whole number, 0 or more")
    return "?".join(filter(None, (bare, "&".join(kept)))), given

"""The address of a store on PostgreSQL: Palimpsest's options in it, and the driver's. Importing it needs no driver."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Meta

from palimpsest.errors import ConfigError
from palimpsest.stores.options import discreet_address, has_valid_ports
from palimpsest.stores.servers import ServerOptions

NAME = r"\A[a-z_][a-z0-9_]{0,62}\Z"
"""Schema names that need no quotes in SQL and that PostgreSQL does not truncate (it keeps 63 bytes)."""


class PostgresOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of all stores on servers, and `schema_name`, the schema that holds the tables."""

    schema_name: Annotated[
        str, Meta(pattern=NAME, description="a name of 1 to 63 lower-case letters, digits and _, no digit first")
    ] = "palimpsest"


def check_address(address: str) -> None:
    """Raise ConfigError for an address that the driver would refuse: the driver's own error may quote a password."""
    allowed = "postgresql://user:password@host:5432/database, options behind a question mark"
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("postgresql", "postgres") and "://" in address and "#" not in address
        sound = sound and has_valid_ports(parts.netloc.rpartition("@")[2].split(","))
        parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError("store", discreet_address(address), allowed)


def driver_options(address: str) -> tuple[str, dict[str, Any]]:
    """Split off the driver options that asyncpg takes only as keyword arguments, not in its address.

    Returns the remaining address and those arguments. Raises ConfigError for a value that is not a whole number.
    """
    bare, _, query = address.partition("?")
    remaining, arguments = list[str](), dict[str, Any]()
    for part in filter(None, query.split("&")):
        name, _, text = part.partition("=")
        if name not in ("statement_cache_size", "max_cached_statement_lifetime"):
            remaining.append(part)
        elif unquote(text).isdecimal():
            arguments[name] = int(unquote(text))
        else:
            raise ConfigError(name, "its value in the address", "a whole number, 0 or more")
    return "?".join(filter(None, (bare, "&".join(remaining)))), arguments

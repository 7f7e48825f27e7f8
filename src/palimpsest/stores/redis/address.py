"""The address of a store on Redis: Palimpsest's options in it, and the driver's. Importing it needs no driver."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from msgspec import Meta

from palimpsest.errors import ConfigError
from palimpsest.stores.options import discreet_address
from palimpsest.stores.servers import ServerOptions

PREFIX = r"\A[A-Za-z0-9_.:/-]{1,64}\Z"
"""Prefixes that keys may have: no characters with a meaning in patterns of keys or, like braces, in a cluster."""

DRIVERS = ("client_name", "health_check_interval", "socket_connect_timeout", "socket_keepalive")
"""Options of the driver that an address may hold, beside those that begin with `ssl_`."""


class RedisOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of all stores on servers; `prefix`, with which every key begins; and `cluster`, which says that the
    address names a node of a cluster (any of them)."""

    prefix: Annotated[
        str, Meta(pattern=PREFIX, description="1 to 64 letters, digits and characters out of _ . : / -")
    ] = "palimpsest"
    cluster: Annotated[bool, Meta(description="true or false")] = False


def check_address(address: str, options: RedisOptions) -> None:
    """Raise ConfigError for an address that the driver would refuse: the driver's own error may quote a password."""
    allowed = "redis://user:password@host:6379/0, options behind a question mark; rediss:// for one with TLS"
    given: list[tuple[str, str]] = []
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("redis", "rediss") and "://" in address and "#" not in address
        sound = sound and bool(parts.hostname) and parts.port != 0
        sound = sound and (parts.path in ("", "/") or parts.path[1:].isdecimal())
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError("store", discreet_address(address), allowed)
    for name, _ in given:
        if name not in DRIVERS and not name.startswith("ssl_"):
            known = ", ".join((*RedisOptions.__struct_fields__, *DRIVERS, "ssl_…"))
            raise ConfigError("store option", name if name.isidentifier() else "text that is no name", known)
        if name not in DRIVERS and parts.scheme == "redis":
            raise ConfigError("store option", name, "it only in an address that begins with rediss://, for TLS")
    if options.cluster and parts.path.strip("/0"):
        raise ConfigError("store", discreet_address(address), "database 0, the only one that a cluster has")

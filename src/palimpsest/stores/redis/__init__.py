"""`redis://host:6379/0`: a store on a Redis or Valkey server, or a cluster, shared by processes of many machines.

It is the engine over hashes and sorted sets, which `palimpsest.stores.redis.layout` describes. A write is one call of a
script, and so is whatever is read for a context. Needs the extra `redis`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from palimpsest.errors import ConfigError, MissingExtra
from palimpsest.runtime.runner import Runner
from palimpsest.stores.options import discreet_address
from palimpsest.stores.redis.options import RedisOptions
from palimpsest.stores.servers import server_options

if TYPE_CHECKING:
    from palimpsest.stores.redis.backend import RedisBackend

DRIVERS = ("client_name", "health_check_interval", "socket_connect_timeout", "socket_keepalive")
"""Options of the driver that an address may have, beside those that begin with `ssl_`."""


def open_redis(url: str, runner: Runner, **options: Any) -> RedisBackend:  # noqa: ARG001 (as all)
    """Open `redis://…` or `rediss://…`. Options are those of `RedisOptions`; some others are the driver's."""
    address, checked = server_options(RedisOptions, url, options)
    check_address(address, checked)
    if find_spec("redis") is None:
        raise MissingExtra("a store on Redis", "redis")
    from palimpsest.stores.redis.backend import RedisBackend  # the driver: an extra

    return RedisBackend(address, checked)


def check_address(address: str, options: RedisOptions) -> None:
    """Raise ConfigError for an address that the driver would not take, whose complaint may quote a password."""
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
            raise ConfigError("store option", name if name.isidentifier() else "what is no name", known)
    if options.cluster and parts.path.strip("/0"):
        raise ConfigError("store", discreet_address(address), "database 0, the only one that a cluster has")

"""`redis://host:6379/0`: a store on a Redis or Valkey server, or a cluster, shared by processes of many machines.

It is the engine over hashes and sorted sets, which `palimpsest.stores.redis.layout` describes. A write is one call of a
script, and so is whatever is read for a context. Needs the extra `redis`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palimpsest.errors import MissingExtra
from palimpsest.runtime.runner import Runner
from palimpsest.stores.redis.address import RedisOptions, check_address
from palimpsest.stores.servers import server_options

if TYPE_CHECKING:
    from palimpsest.stores.redis.backend import RedisBackend


def open_redis(url: str, runner: Runner, **options: Any) -> RedisBackend:  # noqa: ARG001 (as all)
    """Open `redis://…` or `rediss://…`. Options are those of `RedisOptions`; some others are the driver's."""
    address, checked = accepted(url, **options)
    if find_spec("redis") is None:
        raise MissingExtra("a store on Redis", "redis")
    from palimpsest.stores.redis.backend import RedisBackend  # the driver: an extra

    return RedisBackend(address, checked)


def accepted(url: str, **options: Any) -> tuple[str, RedisOptions]:
    """The address as the driver is to have it, and the options. Raises ConfigError for what is not accepted."""
    address, checked = server_options(RedisOptions, url, options)
    check_address(address, checked)
    return address, checked

"""`redis://host:6379/0`: a store on a Redis or Valkey server, or a cluster, shared by processes on many machines.

It is the engine over hashes and sorted sets, which `palimpsest.stores.redis.layout` describes. A write is one call of a
script, and so is each read for a context. Needs the extra `redis`.
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
    """Open `redis://…` or `rediss://…` with the options of `RedisOptions`. The address may hold some options of the
    driver, too (`palimpsest.stores.redis.address.DRIVERS`)."""
    address, checked = accepted(url, **options)
    if find_spec("redis") is None:
        raise MissingExtra("a store on Redis", "redis")
    from palimpsest.stores.redis.backend import RedisBackend  # the driver: an extra

    return RedisBackend(address, checked)


def accepted(url: str, **options: Any) -> tuple[str, RedisOptions]:
    """Return the address to give to the driver, and the checked options. Raises ConfigError for an invalid one."""
    address, checked = server_options(RedisOptions, url, options)
    check_address(address, checked)
    return address, checked

"""`RedisStore`: entries on a Redis or Valkey server, or a cluster, shared by processes of many machines."""

from __future__ import annotations

from collections.abc import Callable

from palimpsest.compat.firefly.served import ServedStore, driven
from palimpsest.compat.firefly.store import Conversations
from palimpsest.errors import ConfigError
from palimpsest.log.entry import now_us
from palimpsest.stores.redis.address import RedisOptions, check_address
from palimpsest.stores.servers import server_options


class RedisStore(ServedStore):
    """Entries under keys with a common prefix. Each change is one script.

    `await store.initialize()` connects; every other method does so first if need be. Needs the extra `redis`. What a
    crash of the server loses depends on its append-only file.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "firefly_memory",
        pool_size: int = 10,
        timeout: float = 30.0,
        cluster: bool = False,
        clock: Callable[[], int] = now_us,
    ) -> None:
        """Raises ConfigError, naming the option, and MissingExtra, which is an ImportError. Nothing is opened yet.

        Args:
            url: `redis://user:password@host:6379/0`, or `rediss://` for one with TLS.
            prefix: the beginning of every key: 1 to 60 letters, digits and characters out of `_ . : / -`.
            pool_size: the most connections.
            timeout: how many seconds a call may take, with all that it waits for.
            cluster: whether the address names a node of a cluster; all entries are in one of its slots.
            clock: a function that returns microseconds since 1970.
        """
        given = {"prefix": prefix, "pool_size": pool_size, "timeout_seconds": timeout, "cluster": cluster}
        address, options = server_options(RedisOptions, url if isinstance(url, str) else "", given)
        check_address(address, options)
        if len(prefix) > 60:  # the conversations add to it
            raise ConfigError("prefix", prefix, "1 to 60 letters, digits and characters out of _ . : / -")
        kind = driven("redis_hashes:Hashes", "redis", "RedisStore", "redis", timeout=timeout, pool_size=pool_size)
        hashes = kind(address, prefix, size=pool_size, seconds=timeout, in_cluster=cluster)
        super().__init__(url, hashes, timeout=timeout, clock=clock)
        self._address, self._options = address, {**given, "prefix": f"{prefix}:log"}

    def conversations_at(self) -> Conversations:
        return Conversations(self._address, self._options)

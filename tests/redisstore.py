"""Stores of the run's Redis server: each under a prefix of its own, so that it is empty."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import servers
from palimpsest.runtime.runner import Inline
from palimpsest.stores.redis import open_redis

if TYPE_CHECKING:
    from palimpsest.stores.redis.backend import RedisBackend


def address_of(name: str = "t", **more: object) -> str:
    """The address of an empty store; skips where there is no server."""
    return servers.with_options(servers.address("redis"), prefix=f"{name}{os.getpid()}-{secrets.token_hex(6)}", **more)


def opened(address: str, **options: Any) -> RedisBackend:
    """The backend at an address."""
    return open_redis(address, Inline(), **options)


def raw(address: str) -> Any:
    """A client of the driver's own, for tests that look, or meddle, behind the store's back."""
    import redis

    return redis.Redis.from_url(address.partition("?")[0], protocol=2)


def documented_user(more: str = "") -> list[str]:
    """What makes the user that the page on Redis has, with what it says that is needed, too, in some cases."""
    page = (Path(__file__).parent.parent / "docs" / "redis.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    assert f"`{more}`" in page or not more
    return [*line.split(), *more.split()]


def keys_of(address: str) -> list[bytes]:
    """The keys of the store at this address."""
    prefix = address.partition("prefix=")[2].partition("&")[0]
    with raw(address) as client:
        return sorted(client.scan_iter(f"{prefix}:*", count=1000))


@contextmanager
def watched() -> Iterator[list[tuple[Any, ...]]]:
    """The commands that stores send in the block, each a round trip."""
    from palimpsest.stores.redis.link import Link

    sent: list[tuple[Any, ...]] = []
    call = Link.call

    async def watching(self: Link, *command: Any) -> Any:
        sent.append(command)
        return await call(self, *command)

    Link.call = watching  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        Link.call = call  # type: ignore[method-assign]

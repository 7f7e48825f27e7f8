"""Stores on the run's Redis server, each empty because it has a new prefix."""

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
    """Return the address of an empty store; skip the test where there is no server."""
    return servers.with_options(servers.address("redis"), prefix=f"{name}{os.getpid()}-{secrets.token_hex(6)}", **more)


def opened(address: str, **options: Any) -> RedisBackend:
    """Open the backend at an address."""
    return open_redis(address, Inline(), **options)


def raw(address: str) -> Any:
    """Return a client of the driver, for tests that read or change keys behind the store's back."""
    import redis

    return redis.Redis.from_url(address.partition("?")[0], protocol=2)


def documented_user(more: str = "") -> list[str]:
    """Return the ACL command of docs/redis.md that makes the store's user, with rights `more` that the page names."""
    page = (Path(__file__).parent.parent / "docs" / "redis.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    assert f"`{more}`" in page or not more
    return [*line.split(), *more.split()]


def keys_of(address: str) -> list[bytes]:
    """Return the keys of the store at this address."""
    prefix = address.partition("prefix=")[2].partition("&")[0]
    with raw(address) as client:
        return sorted(client.scan_iter(f"{prefix}:*", count=1000))


@contextmanager
def watched() -> Iterator[list[tuple[Any, ...]]]:
    """Yield the list of commands that stores send in the block, each of which is one round trip."""
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

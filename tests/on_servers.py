"""The stores on servers, for tests that run over each of them: an empty store, or a server that a test may kill."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import mongostore
import postgresstore
import redisstore
from servers import Server, started


class OnServer(NamedTuple):
    """A kind of store on a server. `address_of(name, **options)` returns the address of an empty store.

    `scheme` and `database` are parts of its addresses; `driver` is the module that the package's `extra` installs.
    """

    address_of: Callable[..., str]
    scheme: str
    database: str
    driver: str
    extra: str


KINDS = {
    "postgres": OnServer(postgresstore.address_of, "postgresql", "x", "asyncpg", "postgres"),
    "redis": OnServer(redisstore.address_of, "redis", "0", "redis", "redis"),
    "mongodb": OnServer(mongostore.address_of, "mongodb", "x", "pymongo", "mongodb"),
}
"""Kinds of stores by the names in `servers.KINDS`. For MongoDB the server is SecantusDB, which speaks its protocol."""


@contextmanager
def own_server(kind: str, *more: str) -> Iterator[Server]:
    """Start a server for one test, with more arguments, in a folder that the server's user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with started(kind, Path(folder) / "server", *more) as server:
            yield server


SERVERS = [
    pytest.param(
        kind,
        marks=[
            pytest.mark.slow if kind == "mongodb" else pytest.mark.wide,
            pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
        ],
    )
    for kind in KINDS
]
"""Each kind of server as a parameter. `slow` for SecantusDB, because it takes its time.

The warning is ignored because a driver leaves a socket to the garbage collector.
"""

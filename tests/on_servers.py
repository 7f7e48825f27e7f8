"""The stores on servers, for tests that are the same for all of them: an empty store, or a server to kill."""

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
    """A kind of store on a server. `address_of` gives an empty store, by a name and with options.

    `scheme` and `database` are of its addresses, `driver` is the module that its `extra` brings.
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
"""By the names that `servers` has for them; that for MongoDB is SecantusDB, which speaks its protocol."""


@contextmanager
def own_server(kind: str) -> Iterator[Server]:
    """A server of a test's own, in a folder that its user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with started(kind, Path(folder) / "server") as server:
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
"""Each kind, for tests that say of it what they say of stores on a disk. SecantusDB takes its time; a driver leaves a
socket to the collector."""

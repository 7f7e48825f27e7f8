"""Databases on the run's server that speaks MongoDB's protocol, emptied for each test."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import servers

CLIENTS: dict[str, Any] = {}
"""Clients of the driver with which tests look into databases, by address."""


def name_of(name: str) -> str:
    """Return a database name that no other process of the run uses."""
    return f"palimpsest_{name}_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"


def address_of(name: str = "one", **more: object) -> str:
    """Return the address of an empty store in such a database; skip the test where there is no server."""
    documents(name).delete_many({})
    return named(name, **more)


def named(name: str, **more: object) -> str:
    """Return the same address without emptying the store."""
    bare, _, query = servers.address("mongodb").partition("?")
    host = bare.partition("://")[2].partition("/")[0]
    own = f"{bare.partition('://')[0]}://{host}/{name_of(name)}" + (f"?{query}" if query else "")
    return servers.with_options(own, **more)


def documents(name: str = "one") -> Any:
    """Return the store's collection, to look into it with the driver."""
    from pymongo import MongoClient

    address = servers.address("mongodb")
    if address not in CLIENTS:
        CLIENTS[address] = MongoClient(address)
        atexit.register(CLIENTS[address].close)
    return CLIENTS[address][name_of(name)]["palimpsest"]


@contextmanager
def watched(commands: list[dict[str, Any]] | None = None) -> Iterator[list[str]]:
    """Yield the names of the commands that clients made in the block send; `commands` collects the whole commands."""
    from pymongo import monitoring

    sent: list[str] = []

    class Watching(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            sent.append(event.command_name)
            if commands is not None:
                commands.append(dict(event.command))

        def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
            pass

        def failed(self, event: monitoring.CommandFailedEvent) -> None:
            pass

    backend: Any = importlib.import_module("palimpsest.stores.mongodb.backend")
    client = backend.AsyncMongoClient
    backend.AsyncMongoClient = partial(client, event_listeners=[Watching()])
    try:
        yield sent
    finally:
        backend.AsyncMongoClient = client

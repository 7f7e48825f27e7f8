"""Stores on MongoDB for tests: a database a process, emptied for each test."""

from __future__ import annotations

import os

from pymongo import MongoClient

import servers
from palimpsest.stores.mongodb import open_mongodb
from palimpsest.stores.mongodb.backend import MongoBackend
from palimpsest.stores.mongodb.layout import COLLECTION
from palimpsest.runtime.runner import Inline

_CLIENTS: dict[str, MongoClient[dict[str, object]]] = {}


def database() -> tuple[str, str]:
    """The address of a database of this process's own, and its name."""
    address = servers.address("mongodb")
    bare, mark, query = address.partition("?")
    name = f"palimpsest_test_{os.getpid()}"
    head, _, rest = bare.partition("://")
    return f"{head}://{rest.partition('/')[0]}/{name}{mark}{query}", name


def client() -> MongoClient[dict[str, object]]:
    """A driver of the tests' own."""
    address, _ = database()
    if address not in _CLIENTS:
        _CLIENTS[address] = MongoClient(address)
    return _CLIENTS[address]


def documents():
    """What the store keeps."""
    return client()[database()[1]][COLLECTION]


def empty() -> str:
    """The address of an empty store: one whose indexes are there is only emptied."""
    documents().delete_many({})
    return database()[0]


def opened(address: str, **options: object) -> MongoBackend:
    """A backend at this address."""
    return open_mongodb(address, Inline(), **options)

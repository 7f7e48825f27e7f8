"""`MongoDBStore`: entries in a collection of MongoDB, shared by processes of many machines."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from urllib.parse import parse_qsl

from palimpsest.compat.firefly.served import ServedStore, driven
from palimpsest.compat.firefly.store import Conversations
from palimpsest.errors import ConfigError
from palimpsest.log.entry import now_us
from palimpsest.stores.options import discreet_address

OURS = ("palimpsest", "palimpsest_meta")
"""The collections that hold the conversations."""


class MongoDBStore(ServedStore):
    """Entries as documents of a collection.

    `await store.initialize()` connects and creates what is missing; every other method does so first if need be. Needs
    the extra `mongodb`, and a replica set, which may consist of one server.
    """

    def __init__(
        self,
        url: str,
        *,
        database: str = "firefly_memory",
        collection: str = "entries",
        pool_size: int = 10,
        timeout: float = 30.0,
        clock: Callable[[], int] = now_us,
    ) -> None:
        """Raises ConfigError, naming the option, and MissingExtra, which is an ImportError. Nothing is opened yet.

        Args:
            url: `mongodb://user:password@host:27017/`, options of the driver after a question mark.
            database: the database. One in the address is only where the user is authenticated.
            collection: the collection of the entries. The conversations are in others of the same database.
            pool_size: the most connections.
            timeout: how many seconds a call may take, with all that it waits for.
            clock: a function that returns microseconds since 1970.
        """
        if not isinstance(url, str) or not url.startswith(("mongodb://", "mongodb+srv://")):
            shown = discreet_address(url) if isinstance(url, str) else url
            raise ConfigError("store", shown, "mongodb://user:password@host:27017/, options behind a question mark")
        _check_name("database", database, '/\\. "$*<>:|?\0')
        _check_name("collection", collection, "$\0")
        if collection in OURS or collection.startswith("system."):
            raise ConfigError("collection", collection, f"another name: {' and '.join(OURS)} have the conversations")
        kind = driven(
            "mongodb_documents:Documents", "pymongo", "MongoDBStore", "mongodb", timeout=timeout, pool_size=pool_size
        )
        documents = kind(url, database, collection, size=pool_size, seconds=timeout)
        super().__init__(url, documents, timeout=timeout, clock=clock)
        self._address, self._database, self._size = url, database, pool_size
        self._collection = collection

    def conversations_at(self) -> Conversations:
        # Stores of one database differ by their collections. Not every collection's name is allowed as a tenant's.
        tenant = f"firefly:{sha256(self._collection.encode()).hexdigest()[:32]}"
        options = {"pool_size": self._size, "timeout_seconds": self._seconds, "tenant": tenant}
        return Conversations(within(self._address, self._database), options)


def _check_name(what: str, name: object, without: str) -> None:
    if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) < 64 or set(name) & set(without):
        raise ConfigError(what, name, f"a name of 1 to 63 bytes without any of {' '.join(without[:-1])}")


def within(address: str, database: str) -> str:
    """Return the address with this database. The user is authenticated in the same database as before."""
    bare, _, query = address.partition("?")
    kind, _, rest = bare.partition("://")
    hosts, _, address_database = rest.partition("/")
    given = {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)}
    if "@" in hosts and "authsource" not in given:
        query = f"{query}&authSource={address_database or 'admin'}".lstrip("&")
    return f"{kind}://{hosts}/{database}{'?' if query else ''}{query}"

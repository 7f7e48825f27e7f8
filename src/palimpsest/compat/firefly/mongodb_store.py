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
"""Collections of the conversations."""


class MongoDBStore(ServedStore):
    """Entries as documents of a collection. `await store.initialize()` connects and makes what is missing; what is
    called without it does that first. Needs the extra `mongodb`, and a replica set, be it of one server.
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
            url: `mongodb://user:password@host:27017/`, options of the driver behind a question mark.
            database: the database; one that the address names is where the user is known.
            collection: the collection of the entries; those of the conversations are beside it.
            pool_size: how many connections there are at most.
            timeout: seconds that a call may take, whatever it waits for.
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
        # Stores of one database differ by their collections, which a tenant's name may not all be.
        tenant = f"firefly:{sha256(self._collection.encode()).hexdigest()[:32]}"
        options = {"pool_size": self._size, "timeout_seconds": self._seconds, "tenant": tenant}
        return Conversations(within(self._address, self._database), options)


def _check_name(what: str, name: object, without: str) -> None:
    if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) < 64 or set(name) & set(without):
        raise ConfigError(what, name, f"a name of 1 to 63 bytes without any of {' '.join(without[:-1])}")


def within(address: str, database: str) -> str:
    """The address with this database, in which the user is known where it was before."""
    bare, _, query = address.partition("?")
    kind, _, rest = bare.partition("://")
    hosts, _, named = rest.partition("/")
    given = {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)}
    if "@" in hosts and "authsource" not in given:
        query = f"{query}&authSource={named or 'admin'}".lstrip("&")
    return f"{kind}://{hosts}/{database}{'?' if query else ''}{query}"

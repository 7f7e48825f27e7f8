"""`mongodb://host/database`: a store on MongoDB, shared by processes on many machines.

It is the engine over documents that `palimpsest.stores.mongodb.layout` describes. An append is one update of one
document, and a read for a context is one query. A write that changes more documents is a transaction, so the server
must belong to a replica set, if only of itself. Needs the extra `mongodb`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palimpsest.errors import MissingExtra
from palimpsest.runtime.runner import Runner
from palimpsest.stores.mongodb.address import check_address
from palimpsest.stores.servers import ServerOptions, server_options

if TYPE_CHECKING:
    from palimpsest.stores.mongodb.backend import MongoBackend


def open_mongodb(url: str, runner: Runner, **options: Any) -> MongoBackend:  # noqa: ARG001 (as all)
    """Open `mongodb://…` or `mongodb+srv://…` with the options of `ServerOptions`. The address may hold options of the
    driver, too."""
    address, checked = accepted(url, **options)
    if find_spec("pymongo") is None:
        raise MissingExtra("a store on MongoDB", "mongodb")
    from palimpsest.stores.mongodb.backend import MongoBackend  # the driver: an extra

    return MongoBackend(address, checked)


def accepted(url: str, **options: Any) -> tuple[str, ServerOptions]:
    """Return the address to give to the driver, and the checked options.

    Raises ConfigError for what can be seen to be invalid without the driver.
    """
    address, checked = server_options(ServerOptions, url, options)
    check_address(address)
    return address, checked

"""`mongodb://host/database`: a store on MongoDB, shared by processes of many machines.

It is the engine over documents that `palimpsest.stores.mongodb.layout` describes. An append is one update of one
document, and what is read for a context is one query. Whatever changes more than that is a transaction, so a replica
set is needed, be it of one server. Needs the extra `mongodb`.
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
    """Open `mongodb://…` or `mongodb+srv://…`. Options are those of `ServerOptions`; others are the driver's."""
    address, checked = accepted(url, **options)
    if find_spec("pymongo") is None:
        raise MissingExtra("a store on MongoDB", "mongodb")
    from palimpsest.stores.mongodb.backend import MongoBackend  # the driver: an extra

    return MongoBackend(address, checked)


def accepted(url: str, **options: Any) -> tuple[str, ServerOptions]:
    """The address as the driver is to have it, and the options. Raises ConfigError for what is not accepted, as far as
    that is known without the driver."""
    address, checked = server_options(ServerOptions, url, options)
    check_address(address)
    return address, checked

"""Checks of the address of a store on MongoDB that need no driver; the driver reads the rest of it."""

from __future__ import annotations

from palimpsest.errors import ConfigError
from palimpsest.stores.options import discreet_address

ADDRESS = "mongodb://user:password@host:27017/database, options of the driver behind a question mark"


def check_address(address: str) -> None:
    """Raise ConfigError for an address without a host, with an invalid port, or with a database that is no name."""
    _, mark, rest = address.partition("?")[0].partition("://")
    names, _, database = rest.rpartition("@")[2].partition("/")
    hosts = names.split(",")
    ports = [host.rpartition(":")[2] for host in hosts if ":" in host.rpartition("]")[2]]
    sound = mark and all(hosts) and "/" not in database
    if not (sound and all(port.isdecimal() and 0 < int(port) < 65_536 for port in ports)):
        raise ConfigError("store", discreet_address(address), ADDRESS)

"""The address of a store on MongoDB, as far as no driver is needed: checks, and the driver's settings beside it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from palimpsest.errors import ConfigError
from palimpsest.stores.options import discreet_address, has_valid_ports

ADDRESS = "mongodb://user:password@host:27017/database, options of the driver behind a question mark"


LONGEST = 999_999_999
"""The most milliseconds that the driver accepts for any of its timeouts."""


def check_address(address: str) -> None:
    """Raise ConfigError for an address without a host, with an invalid port, or with a database that is no name."""
    _, mark, rest = address.partition("?")[0].partition("://")
    names, _, database = rest.rpartition("@")[2].partition("/")
    hosts = names.split(",")
    if not (mark and all(hosts) and "/" not in database and has_valid_ports(hosts)):
        raise ConfigError("store", discreet_address(address), ADDRESS)


def driver_settings(address: str, pool_size: int, seconds: float) -> dict[str, Any]:
    """Return what the driver is given beside the address, whose own options take precedence.

    `seconds` is how long a call may take. The driver waits a little less, so that its error, which says why, comes
    first.
    """
    milliseconds = int(min(max(seconds * 1000, 1), LONGEST))
    settings = {
        "maxPoolSize": pool_size,
        "serverSelectionTimeoutMS": max(1, int(0.9 * milliseconds)),
        "connectTimeoutMS": min(milliseconds, 20_000),
        "waitQueueTimeoutMS": milliseconds,
        "appname": "palimpsest",
    }
    given = {name.lower() for name, _ in parse_qsl(address.partition("?")[2], keep_blank_values=True)}
    return {name: value for name, value in settings.items() if name.lower() not in given}

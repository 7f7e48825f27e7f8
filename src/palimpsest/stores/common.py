"""What stores on a disk share: their options, also in an address; and how an address is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.stores.values import LARGE

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
"""What survives a loss of power: all that was acknowledged, or all but the last commits."""


class StoreOptions(TypedDict, total=False):
    """The options that `Memory.open` hands to a store, as those of disks and of servers have them (a test compares).

    A store of your own may take others: hand them as `**options`, of type `dict[str, Any]`.
    """

    synchronous: Synchronous
    busy_seconds: float
    readonly: bool
    large_bytes: int
    timeout_seconds: float
    pool_size: int
    schema_name: str
    prefix: str
    cluster: bool


class DiskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of stores on this machine's disk.

    `synchronous` is FULL (what was acknowledged survives a loss of power) or NORMAL (it survives the process, a loss of
    power may take the last commits); `busy_seconds` is how long to wait for other writers; a text or the data of an
    image of more than `large_bytes` is kept once, however many entries hold it.
    """

    synchronous: Synchronous = "FULL"
    busy_seconds: float = 30
    readonly: bool = False
    large_bytes: int = LARGE


def has_options(path: str) -> bool:
    """Whether a path goes on, behind a question mark, with an option of stores on a disk, as an address may."""
    return path.partition("?")[2].partition("=")[0] in _READ


def options_in(query: str) -> dict[str, Any]:
    """Return the options of stores on a disk that stand in an address, behind its question mark.

    Raises ConfigError, naming it, for one that is unknown, comes twice or cannot be read. Only names are quoted.
    """
    from urllib.parse import unquote_plus  # four milliseconds, only for options in an address

    found: dict[str, Any] = {}
    for part in query.split("&"):
        name, mark, text = part.partition("=")
        reads = _READ.get(name)
        if reads is None:
            known = ", ".join(_READ)
            allowed = f"{known}, as in sqlite:///agent.db?synchronous=NORMAL (a file whose name has a question mark is "
            shown = name if name.isidentifier() or not name else "what is no name"
            raise ConfigError("store option", shown, allowed + "given as a pathlib.Path)", nearest=nearest(name, _READ))
        if name in found:
            raise ConfigError("store option", name, "each option once")
        try:
            found[name] = reads(unquote_plus(text))
        except (ValueError, KeyError):
            allowed = _ALLOWED[name] if mark else f"a value: {name}=…"
            raise ConfigError(name, "its value in the address", allowed) from None
    return found


_READ: dict[str, Callable[[str], Any]] = {
    "synchronous": str,
    "busy_seconds": float,
    "readonly": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()],
    "large_bytes": int,
}
"""How options are read that stand in an address."""

_ALLOWED = {
    "busy_seconds": "a number of seconds",
    "readonly": "true or false",
    "large_bytes": "a whole number of bytes",
}


def disk_options(given: Mapping[str, Any]) -> DiskOptions:
    """Return the options that were given. Raises ConfigError, naming it, for one that is unknown or not accepted."""
    values.known("option", given, DiskOptions.__struct_fields__)
    options = DiskOptions(**given)
    synchronous, seconds, large = options.synchronous, options.busy_seconds, options.large_bytes
    if not isinstance(synchronous, str) or synchronous.upper() not in ("FULL", "NORMAL"):
        raise ConfigError("synchronous", synchronous, "FULL or NORMAL")
    if not values.is_number(seconds) or not seconds >= 0:
        raise ConfigError("busy_seconds", seconds, "a number of seconds, 0 or more")
    values.switch("readonly", options.readonly)
    if not values.is_whole(large, 64):
        raise ConfigError("large_bytes", large, "a whole number of bytes, at least 64")
    return msgspec.structs.replace(options, synchronous=synchronous.upper())


HARMLESS = (
    "synchronous",
    "busy_seconds",
    "readonly",
    "large_bytes",
    "timeout_seconds",
    "pool_size",
    "schema_name",
    "prefix",
    "cluster",
)
"""Options whose values are no secrets: our own."""


def discreet_address(address: str) -> str:
    """The address as an error may show it: without user and password, and without values that may be credentials.

    Those are the values of all options but the harmless ones, under their own names or misspelt ones.
    """
    masked = re.sub(r"^([^:/@]*:/*)?.*@", lambda found: f"{found[1] or ''}…@", address, flags=re.DOTALL)
    bare, mark, query = masked.partition("?")
    return bare + mark + "&".join(map(_discreet_option, query.split("&")))


def _discreet_option(text: str) -> str:
    name, mark, _ = text.partition("=")
    if not mark:
        return text
    return text if nearest(name, HARMLESS, cutoff=0.85) else f"{name}=…"


def on_disk(durable: bool) -> str:
    """What a store on a disk loses with its machine."""
    if durable:
        return "a loss of power loses nothing that was acknowledged (synchronous=FULL)"
    return "a loss of power loses the last commits; a killed process nothing (synchronous=NORMAL)"

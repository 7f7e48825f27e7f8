"""Options of stores: how they are given, how they appear in an address, and which parts of an address may be shown.

Options of all stores and of stores on a disk are defined here, those of stores on servers in
`palimpsest.stores.servers`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.stores.values import LARGE

Options = TypeVar("Options", bound=msgspec.Struct)

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
"""What survives a power loss: everything acknowledged, or all but the last commits."""


class StoreOptions(TypedDict, total=False):
    """The options that `Memory.open` passes on to a store: those of disks and of servers (a test compares).

    A store of your own may take others: pass them as `**options`, of type `dict[str, Any]`.
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


class CommonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of all stores, except those in memory, which have none.

    A text or the data of an image of more than `large_bytes` is kept once, however many entries hold it.
    """

    readonly: Annotated[bool, Meta(description="True or False (in an address true or false)")] = False
    large_bytes: Annotated[int, Meta(ge=64, description="a whole number of bytes, at least 64")] = LARGE


class DiskOptions(CommonOptions, frozen=True, kw_only=True):
    """The options of stores on this machine's disk.

    `synchronous` is FULL (what was acknowledged survives a power loss) or NORMAL (it survives the process; a power loss
    may take the last commits). `busy_seconds` is how long to wait for other writers.
    """

    synchronous: Annotated[Synchronous, Meta(description="FULL or NORMAL")] = "FULL"
    busy_seconds: Annotated[float, Meta(ge=0, description="a number of seconds, 0 or more")] = 30


SQLITE_PARAMETERS = ("cache", "immutable", "mode", "modeof", "nolock", "psow", "vfs")
"""The query parameters of SQLite's own file addresses. Source: sqlite.org/uri.html."""


def has_options(path: str) -> bool:
    """Return whether a path ends like an address: a question mark and an option of ours, or a parameter of SQLite's."""
    return path.partition("?")[2].partition("=")[0] in {*DiskOptions.__struct_fields__, *SQLITE_PARAMETERS}


def options_in(query: str) -> dict[str, Any]:
    """Return the options of stores on a disk in the query of an address.

    Raises ConfigError, which names the option, for one that is unknown, appears twice or cannot be read. Values are not
    quoted.
    """
    texts, rest = texts_in(query, DiskOptions)
    if rest:
        name, allowed = rest[0].partition("=")[0], DiskOptions.__struct_fields__
        shown = name if name.isidentifier() or not name else "text that is no name"
        message = (
            f"{', '.join(allowed)}, as in sqlite:///agent.db?synchronous=NORMAL (give a file with a question mark in"
            " its name as a pathlib.Path; a folder with one cannot be given)"
        )
        raise ConfigError("store option", shown, message, nearest=nearest(name, allowed))
    return _read(DiskOptions, texts, strict=False)


def disk_options(given: Mapping[str, Any]) -> DiskOptions:
    """Return the options given. Raises ConfigError, which names it, for one that is unknown or not accepted."""
    return read_options(DiskOptions, given, {}) if given else DiskOptions()


def texts_in(query: str, kind: type[msgspec.Struct]) -> tuple[dict[str, str], list[str]]:
    """Return the texts of options of this kind in the query of an address, and the remaining parts of the query.

    Raises ConfigError, which names it, for an option that appears twice.
    """
    from urllib.parse import unquote_plus  # four milliseconds, only for options in an address

    texts, rest = dict[str, str](), list[str]()
    for part in query.split("&"):
        name, _, text = part.partition("=")
        if name in texts:
            raise ConfigError("store option", name, "each option only once")
        if name in kind.__struct_fields__:
            texts[name] = unquote_plus(text)
        else:
            rest.append(part)
    return texts, rest


def read_options(kind: type[Options], given: Mapping[str, Any], texts: Mapping[str, str]) -> Options:
    """Return the options of this kind: those given, and those whose texts are in an address. Given ones win.

    Raises ConfigError, which names it, for one that is unknown or not accepted. No text of an address is quoted.
    """
    values.known("option", given, kind.__struct_fields__)
    return kind(**{**_read(kind, texts, strict=False), **_read(kind, given, strict=True)})


def _read(kind: type[msgspec.Struct], given: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the values of options, given as values (`strict`) or as texts."""
    types, read = {field.name: field.type for field in msgspec.structs.fields(kind)}, dict[str, Any]()
    for name, value in given.items():
        spelt = value.upper() if name == "synchronous" and isinstance(value, str) else value
        # Their messages quote the value, which may be a misplaced key. Converting to a decimal raises ValueError.
        with suppress(msgspec.ValidationError, ValueError):
            read[name] = msgspec.convert(spelt, types[name], strict=strict)
        if name not in read:
            (meta,) = types[name].__metadata__
            raise ConfigError(name, value if strict else "its value in the address", meta.description)
    return read


HARMLESS = tuple(StoreOptions.__annotations__)
"""Options whose values are no secrets: our own."""


def has_valid_ports(hosts: Sequence[str]) -> bool:
    """Return whether the ports of hosts in an address, of those that have one, are valid."""
    ports = [host.rpartition(":")[2] for host in hosts if ":" in host.rpartition("]")[2]]
    return all(port.isdecimal() and 0 < int(port) < 65_536 for port in ports)


def discreet_address(address: str) -> str:
    """Return the address as an error may show it: without user, password, and values that may be credentials.

    Those are the values of all options but the harmless ones, which are also recognised if misspelt.
    """
    masked = address
    if "@" in address:
        masked = re.sub(r"^([^:/@]*:/*)?.*@", lambda match: f"{match[1] or ''}…@", address, flags=re.DOTALL)
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
    return "a loss of power loses the last commits, a killed process loses nothing (synchronous=NORMAL)"

"""The place of a declared memory: its store, how long its sessions last, its leases, breaker and keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.resources.definition import StorePlace
from palimpsest.resources.problems import Problems
from palimpsest.stores.opening import check_address
from palimpsest.stores.options import discreet_address, has_options

SERVERS = {"postgres": "PALIMPSEST_MEMORY_POSTGRES_URL", "mongodb": "PALIMPSEST_MEMORY_MONGODB_URL"}
SERVERS |= {"redis": "PALIMPSEST_MEMORY_REDIS_URL"}
"""The environment variable that holds the address of each server, if a resource does not give it."""

BACKENDS = ("in_memory", "file", "sqlite", *SERVERS)
LOCAL = {"in_memory": "memory://", "file": "file:.palimpsest", "sqlite": "sqlite:///palimpsest.db"}
"""The default addresses of the backends on this machine."""

KEYS = ("type", "ttl", "url", "path", "circuit_breaker")
BREAKER = ("enabled", "timeout", "max_failures", "reset_timeout")
LEASES = {"append_ttl": "turn_lease", "clear_ttl": "clear_lease", "flush_ttl": "compaction_lease"}
"""The document's names of leases, and Palimpsest's."""


def place_of(root: Mapping[str, Any], problems: Problems, warnings: list[str], *, required: bool) -> StorePlace:
    """Return the place that `persistence` or `store` names, and note what is wrong.

    `required`: there must be one, because the memory has a type.
    """
    given, own = root.get("persistence"), root.get("store")
    if own is not None:
        place = _own(own, given, problems)
    elif given is None:
        if required:
            problems.add(("persistence",), None, f"a mapping with a type: {', '.join(BACKENDS)}")
        place = StorePlace(backend="in_memory", address="memory://")
    else:
        place = _persistence(given, problems, warnings)
    breaker = _breaker(root.get("circuit_breaker"), ("circuit_breaker",), problems)
    if breaker is not None:
        if place.circuit_breaker is not None:
            problems.add(
                ("circuit_breaker",),
                root["circuit_breaker"],
                "only one of the two: persistence has a circuit_breaker, too",
            )
        place = msgspec.structs.replace(place, circuit_breaker=breaker)
    leases = {name: value for name, value in leases_of(root, problems).items() if name in StorePlace.__struct_fields__}
    return msgspec.structs.replace(place, keys_env=_keys_env(root, problems), **leases)


def lifetime_of(root: Mapping[str, Any]) -> str | None:
    """Return how long a session lasts, the `ttl`; None: for ever, also for a ttl of 0."""
    given = root.get("persistence")
    ttl = given.get("ttl") if isinstance(given, Mapping) else None
    try:
        return ttl if ttl is not None and values.microseconds("ttl", ttl, zero=True) else None
    except ConfigError:  # noted where the place is read
        return None


def _own(own: object, given: object, problems: Problems) -> StorePlace:
    """Return the place that Palimpsest's key `store` names; `given` is `persistence`, which excludes it."""
    if given is not None:
        problems.add(("store",), "together with persistence", "only one of the two")
    with problems.at("store"):
        if not isinstance(own, str) or "${" in own:
            raise ConfigError("store", own, "the address of a store; persistence.url may name a variable, as ${NAME}")
        check_address(own)
        return StorePlace(backend=own.partition(":")[0], address=own)
    return StorePlace(backend="in_memory")


def _persistence(given: object, problems: Problems, warnings: list[str]) -> StorePlace:
    """Return the place that `persistence` names, without leases and keys."""
    place = ("persistence",)
    if not isinstance(given, Mapping):
        problems.add(place, type(given).__name__, f"a mapping with a type: {', '.join(BACKENDS)}")
        return StorePlace(backend="in_memory")
    for key in given:
        if key not in KEYS:
            problems.add((*place, str(key)), key, ", ".join(KEYS), nearest=nearest(key, KEYS))
    backend = given.get("type")
    _check_ttl(given, str(backend), problems)
    breaker = _breaker(given.get("circuit_breaker"), (*place, "circuit_breaker"), problems)
    if backend not in BACKENDS:
        allowed = ", ".join(BACKENDS)
        problems.add((*place, "type"), backend, allowed, nearest=nearest(backend, BACKENDS))
        return StorePlace(backend="in_memory")
    address, url = LOCAL.get(str(backend)), given.get("url")
    if url is not None:
        with problems.at(*place, "url"):
            address = _address(url, str(backend))
    if given.get("path") is not None:
        with problems.at(*place, "path"):
            address = _path(given["path"], str(backend), beside=url)
    if backend == "in_memory":
        warnings.append("persistence.type: an in_memory store is lost when the process ends")
    variable = SERVERS.get(str(backend)) if address is None else None
    if address is not None and address.startswith("${"):
        return StorePlace(backend=str(backend), variable=address[2:-1], circuit_breaker=breaker)
    return StorePlace(backend=str(backend), address=address, variable=variable, circuit_breaker=breaker)


def _check_ttl(given: Mapping[str, Any], backend: str, problems: Problems) -> None:
    """Note an invalid `ttl`, and a missing one for Redis, where the document requires it."""
    ttl = given.get("ttl")
    if ttl is None:
        if backend == "redis":
            problems.add(("persistence", "ttl"), None, "how long a memory lasts, such as 24h; 0: for ever")
        return
    with problems.at("persistence", "ttl"):
        values.microseconds("ttl", ttl, zero=True)


def _address(url: object, backend: str) -> str:
    """Return an address, or `${NAME}` for the variable that holds it, after checking it. Raises ConfigError."""
    if isinstance(url, str) and url.startswith("${") and url.endswith("}") and url[2:-1].isidentifier():
        return url
    if not isinstance(url, str) or "${" in url:
        shown = discreet_address(url) if isinstance(url, str) else type(url).__name__
        raise ConfigError("url", shown, "an address, or ${NAME} alone: the variable NAME then holds the whole address")
    check_address(url)
    return address_of("url", url, backend)


def address_of(name: str, url: str, backend: str) -> str:
    """Return an address. Raises ConfigError, about the setting `name`, if it is that of another backend."""
    kinds = {
        "postgres": ("postgres", "postgresql"),
        "redis": ("redis", "rediss"),
        "mongodb": ("mongodb", "mongodb+srv"),
    }
    allowed = kinds.get(backend, ("memory",) if backend == "in_memory" else (backend,))
    if url.strip().partition(":")[0] not in allowed:
        raise ConfigError(name, discreet_address(url), f"an address of {backend}, such as {allowed[-1]}://…")
    return url


def _path(path: object, backend: str, beside: object) -> str:
    """Return the address of a path; `beside` is the url, which excludes it. Raises ConfigError."""
    if backend not in ("file", "sqlite") or beside is not None:
        raise ConfigError(
            "path", path, "no path: only the backends file and sqlite have one, and not together with url"
        )
    if not isinstance(path, str) or not path.strip() or "://" in path or "${" in path:
        shown = discreet_address(path) if isinstance(path, str) else path
        raise ConfigError("path", shown, "the path of a file, or of a folder for the backend file")
    address = local_address("path", path, backend)
    check_address(address)
    return address


def local_address(name: str, path: str, backend: str) -> str:
    """Return the address of a path. Raises ConfigError, about the setting `name`, if no address can hold it."""
    if "?" in path and not has_options(path):
        allowed = "a path without a question mark, which begins the options of a store, as in ?synchronous=NORMAL"
        raise ConfigError(name, path, allowed)
    return f"sqlite:///{path}" if backend == "sqlite" else f"file:{path}"


def _breaker(given: object, path: tuple[str, ...], problems: Problems) -> object:
    """Return a circuit breaker in the form that `Memory.open` takes; None: none."""
    if given is None or given is False:
        return None
    if given is True:
        return True
    if not isinstance(given, Mapping):
        problems.add(path, given, "a mapping, or True")
        return None
    for key in given:
        if key not in BREAKER:
            problems.add((*path, str(key)), key, ", ".join(BREAKER), nearest=nearest(key, BREAKER))
    with problems.at(*path, "enabled"):
        values.switch("enabled", given.get("enabled", True))
    for key in ("timeout", "reset_timeout"):
        if given.get(key) is not None:
            with problems.at(*path, key):
                values.microseconds(key, given[key])
    with problems.at(*path, "max_failures"):
        values.whole("max_failures", given.get("max_failures"), 1, none=True)
    if given.get("enabled") is False:
        return None
    return {key: value for key, value in given.items() if key != "enabled" and value is not None} or True


def _keys_env(root: Mapping[str, Any], problems: Problems) -> str | None:
    """Return the name of the variable that holds the keys of encryption; None: no encryption."""
    given = root.get("encryption")
    if given is None:
        return None
    name = given.get("keys_env") if isinstance(given, Mapping) and set(given) == {"keys_env"} else None
    if not isinstance(name, str) or not name.isidentifier():
        allowed = "{keys_env: NAME}, where the variable NAME holds the keys as ID:KEY; keys must not be in the file"
        problems.add(("encryption",), type(given).__name__, allowed)
        return None
    return name


def leases_of(root: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Return how long each lease lasts that `locking` names, by Palimpsest's names of leases."""
    given = root.get("locking")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        problems.add(("locking",), type(given).__name__, f"a mapping of {', '.join(LEASES)}")
        return {}
    leases = {}
    for key, value in given.items():
        if key not in LEASES:
            problems.add(("locking", str(key)), key, ", ".join(LEASES), nearest=nearest(key, tuple(LEASES)))
            continue
        with problems.at("locking", key):
            values.microseconds(key, value)
            leases[LEASES[key]] = value
    return leases

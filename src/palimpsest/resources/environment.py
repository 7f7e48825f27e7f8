"""A memory that environment variables declare: its place, its budget, and when it is summarised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.resources.places import BACKENDS, address_of, local_address
from palimpsest.resources.single import opening as opening_declared
from palimpsest.runtime.logs import warn_caller

PREFIX = "PALIMPSEST_MEMORY_"
NAMES = {
    **dict.fromkeys(
        ("RESOURCE", "BACKEND", "FILE_DIR", "SQLITE_PATH", "REDIS_URL", "POSTGRES_URL", "POSTGRES_SCHEMA"), str
    ),
    **dict.fromkeys(("MONGODB_URL", "MONGODB_DATABASE", "MONGODB_COLLECTION"), str),
    **dict.fromkeys(("MAX_CONVERSATION_TOKENS", "SUMMARIZE_THRESHOLD"), int),
    **dict.fromkeys(("POSTGRES_POOL_SIZE", "POSTGRES_POOL_MIN_SIZE", "MONGODB_POOL_SIZE"), int),
}
"""The variables, without the prefix, and the types of their values."""

WITHOUT_EFFECT = ("MONGODB_COLLECTION", "POSTGRES_POOL_MIN_SIZE")
"""Variables that are accepted but have no effect: Palimpsest names its collections itself, and opens connections when
they are needed."""

FOLDER, FILE = ".palimpsest", "palimpsest.db"


class Given(NamedTuple):
    """The values of the variables that are set, by their names without the prefix."""

    text: Mapping[str, str]
    number: Mapping[str, int]


def opening(environ: Mapping[str, str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `Memory.open`, and the options of its sessions, as these variables say.

    `environ` None stands for the variables of this process. Raises ConfigError, naming the variable, and
    InvalidResource for mistakes in the file that RESOURCE names.
    """
    if environ is not None and not isinstance(environ, Mapping):
        raise ConfigError("environ", type(environ).__name__, "a mapping of variables to their values, or None")
    given = _given(os.environ if environ is None else environ)
    if (file := given.text.get("RESOURCE")) is not None:
        others = [name for name in (*given.text, *given.number) if name != "RESOURCE" and not name.endswith("_URL")]
        if others:
            raise ConfigError(
                f"{PREFIX}RESOURCE", "together with others", f"only this variable, without {PREFIX}{others[0]}"
            )
        return opening_declared(file, None, environ)
    for name in WITHOUT_EFFECT:
        if name in given.text or name in given.number:
            warn_caller(f"{PREFIX}{name} has no effect here")
    declared: dict[str, Any] = {"store": _address(given)}
    if (max_tokens := given.number.get("MAX_CONVERSATION_TOKENS")) is not None:
        declared["max_tokens"] = max_tokens
    if threshold := given.number.get("SUMMARIZE_THRESHOLD", 0):
        declared["long_term_memory_strategy"] = {
            "long_term_memory_id": "summarizer",
            "interaction_threshold_qty": 0,
            "interaction_threshold_tokens": threshold,
            "interaction_keep": 1,
        }
    opened, options = opening_declared(declared, None)
    return {**opened, **_pool(given)}, options


def _given(environ: Mapping[str, str]) -> Given:
    """Read the variables that begin with the prefix and are not empty. Raises ConfigError, naming the variable."""
    text, number = dict[str, str](), dict[str, int]()
    for variable, content in sorted(environ.items(), key=str):
        if not isinstance(variable, str) or not isinstance(content, str):
            raise ConfigError("environ", variable, "names of variables, each with its value as text")
        name, value = variable.removeprefix(PREFIX), content.strip()
        if not variable.startswith(PREFIX) or not value:
            continue
        if name not in NAMES:
            near = nearest(name, NAMES)
            allowed = ", ".join(PREFIX + known for known in NAMES)
            raise ConfigError(variable, value, allowed, nearest=None if near is None else PREFIX + near)
        if NAMES[name] is int:
            least = 0 if name == "SUMMARIZE_THRESHOLD" else 1
            if not value.isdecimal() or len(value) > 18 or int(value) < least:
                raise ConfigError(variable, value, f"a whole number of at least {least}")
            number[name] = int(value)
        else:
            text[name] = value
    return Given(text, number)


def _address(given: Given) -> str:
    """Return the address of the store that the variables name. Raises ConfigError, naming the variable."""
    backend = given.text.get("BACKEND")
    if backend is None:
        others = [name for name in given.text if name.partition("_")[0].lower() in BACKENDS]
        if others:  # BACKEND was forgotten: a store in memory would lose everything when the process ends
            raise ConfigError(
                f"{PREFIX}BACKEND", None, f"a backend, since {PREFIX}{others[0]} is set: {', '.join(BACKENDS)}"
            )
        return "memory://"
    values.choice(f"{PREFIX}BACKEND", backend, BACKENDS)
    if backend == "in_memory":
        return "memory://"
    if backend == "file":
        return local_address(f"{PREFIX}FILE_DIR", given.text.get("FILE_DIR", FOLDER), backend)
    if backend == "sqlite":
        return local_address(f"{PREFIX}SQLITE_PATH", given.text.get("SQLITE_PATH", FILE), backend)
    variable = f"{backend.upper()}_URL"
    url = given.text.get(variable)
    if url is None:
        raise ConfigError(f"{PREFIX}{variable}", None, f"the address of the server, for the backend {backend}")
    address_of(f"{PREFIX}{variable}", url, backend)
    database = given.text.get("MONGODB_DATABASE")
    if backend == "mongodb" and database is not None:
        parts = urlsplit(url)
        if parts.path.strip("/") not in ("", database):
            raise ConfigError(
                f"{PREFIX}MONGODB_DATABASE",
                database,
                "the same database as in the address, or an address without a database",
            )
        url = urlunsplit(parts._replace(path=f"/{database}"))
    return url


def _pool(given: Given) -> dict[str, Any]:
    """Return the options of the store that the variables set."""
    backend = given.text.get("BACKEND", "")
    options: dict[str, Any] = {}
    if (size := given.number.get(f"{backend.upper()}_POOL_SIZE")) is not None:
        options["pool_size"] = size
    if backend == "postgres" and (schema := given.text.get("POSTGRES_SCHEMA")) is not None:
        options["schema_name"] = schema
    return options

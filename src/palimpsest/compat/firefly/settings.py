"""The settings of a memory in environment variables: every variable that Firefly has for one, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from palimpsest import ConfigError
from palimpsest.compat.firefly.store import MemoryStore
from palimpsest.compat.firefly.summarization import MODELS, create_llm_summarizer
from palimpsest.errors import nearest
from palimpsest.log import values
from palimpsest.runtime.logs import warn_caller

PREFIX = "FIREFLY_AGENTIC_"
MEMORY = f"{PREFIX}MEMORY_"
SMALL = 10
"""Firefly's default of `summarize_threshold`, in tokens: nearly every turn is summarised."""
THRESHOLD = f"{MEMORY}SUMMARIZE_THRESHOLD"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment may set, with the defaults of Firefly. Each field is a variable: `MEMORY` and its name."""

    backend: str = "in_memory"
    max_conversation_tokens: int = 128_000
    summarize_threshold: int = SMALL
    summarizer_model: str | None = None
    file_dir: str = ".firefly_memory"
    sqlite_path: str = ".firefly_memory.sqlite3"
    redis_url: str | None = None
    postgres_url: str | None = None
    postgres_pool_size: int = 10
    postgres_pool_min_size: int = 2
    postgres_schema: str = "firefly_memory"
    mongodb_url: str | None = None
    mongodb_database: str = "firefly_memory"
    mongodb_collection: str = "entries"
    mongodb_pool_size: int = 10
    given: frozenset[str] = frozenset()
    """The fields that the environment sets."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """Return the settings in `environ`. Raises ConfigError, naming the variable, for an invalid value."""
        fields: dict[str, Any] = {}
        for name, (kind, least) in _FIELDS.items():
            text = environ.get(MEMORY + name.upper(), "").strip()
            if text:
                fields[name] = _whole(MEMORY + name.upper(), text, least) if kind is int else text
        for variable in sorted(environ):
            if variable.startswith(MEMORY) and variable.removeprefix(MEMORY).lower() not in _FIELDS:
                near = nearest(variable.removeprefix(MEMORY), [name.upper() for name in _FIELDS])
                warn_caller(
                    f"{variable} is not a setting of a memory{f'; did you mean {MEMORY}{near}?' if near else ''}"
                )
        values.choice(f"{MEMORY}BACKEND", fields.get("backend", "in_memory"), tuple(STORES))
        return cls(**fields, given=frozenset(fields))


_FIELDS: dict[str, tuple[type, int]] = {
    field.name: (int if isinstance(field.default, int) else str, 0 if field.name == "summarize_threshold" else 1)
    for field in msgspec.structs.fields(Settings)
    if field.name != "given"
}


def _whole(variable: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(variable, text, f"a whole number of at least {least}")
    return number


def environment(env_file: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return the variables of this process, and those of a file that it lacks.

    Raises ConfigError for an invalid line.
    """
    if env_file is None:
        return dict(os.environ)
    if not isinstance(env_file, str | os.PathLike):
        raise ConfigError("env_file", env_file, "the path of a file, or None")
    variables: dict[str, str] = {}
    for number, line in enumerate(_lines(env_file), 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, sign, value = text.partition("=")
        if not sign or not name.strip().isidentifier():
            raise ConfigError(f"{os.fspath(env_file)}, line {number}", "a line of another kind", "NAME=value")
        variables[name.strip()] = _value(value.strip())
    return {**variables, **os.environ}


def _lines(path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a file, without the byte order mark that some editors write."""
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as fault:
        raise ConfigError("env_file", os.fspath(path), "a file of text in UTF-8") from fault
    except OSError as fault:
        raise ConfigError("env_file", os.fspath(path), f"a file that can be read ({fault.strerror})") from fault


def _value(text: str) -> str:
    """Return a value in a file: the text between quotes as it is, else without a trailing comment."""
    if len(text) > 1 and text[0] in "\"'" and (end := text.find(text[0], 1)) > 0:
        return text[1:end]
    return text.partition(" #")[0].rstrip()


# --- stores and summarizers from settings


def store_of(settings: Settings) -> MemoryStore:
    """Return the store of the configured backend.

    Raises ConfigError, naming the variable, if its address is not set.
    """
    return STORES[settings.backend](settings)


def summarizer_of(settings: Settings, given: Any) -> Any:
    """Return the given summarizer, or one that asks the configured model. Warns of a threshold without effect."""
    summarizer = given
    if summarizer is None and settings.summarizer_model is not None:
        summarizer = create_llm_summarizer(model=settings.summarizer_model)
    if summarizer is None and "summarize_threshold" in settings.given:
        warn_caller(f"{THRESHOLD} has no effect without a summarizer: give one, or set {MODELS[0]}")
    return summarizer


def warn_of_threshold(threshold: int | None, summarizer: object) -> None:
    """Warn of a manager's threshold without effect, or so small that nearly every turn is summarised."""
    if summarizer is None and threshold not in (None, 0, SMALL):
        warn_caller("summarize_threshold has no effect without a summarizer: give one")
    elif summarizer is not None and threshold == SMALL:
        advice = f"so nearly every turn is summarised: set a few thousand (`from_config` takes it from {THRESHOLD})"
        warn_caller(f"summarize_threshold is {SMALL} tokens, {advice}")


def _needed(settings: Settings, field: str, example: str) -> str:
    """Return a setting that its backend cannot do without. Raises ConfigError if it is not set."""
    value: str | None = getattr(settings, field)
    if value is None:
        allowed = f"an address such as {example}, for the backend {settings.backend}"
        raise ConfigError(MEMORY + field.upper(), "nothing", allowed)
    return value


def _store(name: str, *arguments: Any, **options: Any) -> MemoryStore:
    """Return a store of this package. Its module, which may load a driver, is imported only now."""
    store: MemoryStore = getattr(import_module("palimpsest.compat.firefly"), name)(*arguments, **options)
    return store


def _postgres(settings: Settings) -> MemoryStore:
    least = settings.postgres_pool_min_size
    if "postgres_pool_min_size" not in settings.given:
        least = min(least, settings.postgres_pool_size)
    return _store(
        "PostgreSQLStore",
        _needed(settings, "postgres_url", "postgresql://user:password@host/database"),
        pool_size=settings.postgres_pool_size,
        pool_min_size=least,
        schema_name=settings.postgres_schema,
    )


def _mongodb(settings: Settings) -> MemoryStore:
    return _store(
        "MongoDBStore",
        _needed(settings, "mongodb_url", "mongodb://host:27017/"),
        database=settings.mongodb_database,
        collection=settings.mongodb_collection,
        pool_size=settings.mongodb_pool_size,
    )


STORES: dict[str, Callable[[Settings], MemoryStore]] = {
    "in_memory": lambda _: _store("InMemoryStore"),
    "file": lambda settings: _store("FileStore", base_dir=settings.file_dir),
    "postgres": _postgres,
    "mongodb": _mongodb,
    "sqlite": lambda settings: _store("SQLiteStore", settings.sqlite_path),
    "redis": lambda settings: _store("RedisStore", _needed(settings, "redis_url", "redis://host:6379/0")),
}
"""The function that makes the store, by the name of the backend."""

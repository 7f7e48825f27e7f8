"""What the environment says of a memory: every variable of Firefly that is about one, checked."""

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
"""The threshold that Firefly has by default, which summarises nearly every turn."""
THRESHOLD = f"{MEMORY}SUMMARIZE_THRESHOLD"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment may say, with the defaults of Firefly. Each field is a variable, behind the prefix."""

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
    """The fields that the environment has said."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """The settings. Raises ConfigError, naming the variable, for a value that cannot be."""
        found: dict[str, Any] = {}
        for name, (kind, least) in _FIELDS.items():
            text = environ.get(MEMORY + name.upper(), "").strip()
            if text:
                found[name] = _whole(MEMORY + name.upper(), text, least) if kind is int else text
        for variable in sorted(environ):
            if variable.startswith(MEMORY) and variable.removeprefix(MEMORY).lower() not in _FIELDS:
                near = nearest(variable.removeprefix(MEMORY), [name.upper() for name in _FIELDS])
                warn_caller(f"{variable} is no setting of a memory{f'; did you mean {MEMORY}{near}?' if near else ''}")
        values.choice(f"{MEMORY}BACKEND", found.get("backend", "in_memory"), tuple(STORES))
        return cls(**found, given=frozenset(found))


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
    """The variables of this process, and beneath them those of a file. Raises ConfigError for a line that is none."""
    if env_file is None:
        return dict(os.environ)
    if not isinstance(env_file, str | os.PathLike):
        raise ConfigError("env_file", env_file, "the path of a file, or None")
    found: dict[str, str] = {}
    for number, line in enumerate(_lines(env_file), 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, sign, value = text.partition("=")
        if not sign or not name.strip().isidentifier():
            raise ConfigError(f"{os.fspath(env_file)}, line {number}", "a line of another kind", "NAME=value")
        found[name.strip()] = _value(value.strip())
    return {**found, **os.environ}


def _lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a file, which some editors begin with a mark of their own."""
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as fault:
        raise ConfigError("env_file", os.fspath(path), "a file of text in UTF-8") from fault
    except OSError as fault:
        raise ConfigError("env_file", os.fspath(path), f"a file that can be read ({fault.strerror})") from fault


def _value(text: str) -> str:
    """A value of a file: between quotes as it is, else without a remark behind it."""
    if len(text) > 1 and text[0] in "\"'" and (end := text.find(text[0], 1)) > 0:
        return text[1:end]
    return text.partition(" #")[0].rstrip()


# --- what it leads to


def store_of(settings: Settings) -> MemoryStore:
    """The store of a backend. Raises ConfigError, naming the variable that says where it is, where that is not set."""
    return STORES[settings.backend](settings)


def summarizer_of(settings: Settings, given: Any) -> Any:
    """The summarizer: the one given, or the configured model. Warns where the threshold does nothing."""
    found = given
    if found is None and settings.summarizer_model is not None:
        found = create_llm_summarizer(model=settings.summarizer_model)
    if found is None and "summarize_threshold" in settings.given:
        warn_caller(f"{THRESHOLD} has no effect without a summarizer: give one, or set {MODELS[0]}")
    return found


def warn_of_threshold(threshold: int | None, summarizer: object) -> None:
    """Warn where the threshold of a manager does nothing, or has nearly every turn summarised."""
    if summarizer is None and threshold not in (None, 0, SMALL):
        warn_caller("summarize_threshold has no effect without a summarizer: give one")
    elif summarizer is not None and threshold == SMALL:
        told = f"so nearly every turn is summarised: set a few thousand (`from_config` takes it from {THRESHOLD})"
        warn_caller(f"summarize_threshold is {SMALL} tokens, {told}")


def _needed(settings: Settings, field: str, example: str) -> str:
    found: str | None = getattr(settings, field)
    if found is None:
        told = f"an address such as {example}, for the backend {settings.backend}"
        raise ConfigError(MEMORY + field.upper(), "nothing", told)
    return found


def _store(name: str, *arguments: Any, **options: Any) -> MemoryStore:
    """A store of this door, which is loaded now: its driver is loaded by it."""
    made: MemoryStore = getattr(import_module("palimpsest.compat.firefly"), name)(*arguments, **options)
    return made


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
"""What each backend is."""

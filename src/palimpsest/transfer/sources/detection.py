"""Detecting the source of a file, from its first bytes and the shape of its first values."""

from __future__ import annotations

from typing import Any

from palimpsest.errors import ImportFailed, shorten
from palimpsest.transfer.sources import NAMES, SOURCES, Source
from palimpsest.transfer.sources.documents import Document
from palimpsest.transfer.sources.files import SourceFile

_DATABASE = "openai-agents"
"""The built-in source whose files are SQLite databases."""
_GIVE = "Give its source as `source`, or with --from: "


def find_source(name: str, file: SourceFile) -> tuple[str, type[Source]]:
    """Return the name and class of a source: the one named, or for `auto` the one that fits the file.

    Raises ConfigError for an unknown name, ImportFailed for a file that fits no source or several.
    """
    source_name = name if name != "auto" else _DATABASE if file.is_sqlite else _recognised(file)
    source: type[Source] = SOURCES.find(source_name)
    if file.is_sqlite and source_name != _DATABASE and source_name in NAMES:
        raise ImportFailed(
            file.name or "the file", f"is an SQLite database, which the source {source_name!r} does not read"
        )
    return source_name, source


def _recognised(file: SourceFile) -> str:
    document = Document(file.stream, file.name, file.limits)
    sample, where = document.sample(), file.name or "the file"
    samples: dict[str, Any] = {}
    for value in sample:
        name = next((name for name in NAMES if SOURCES.find(name).speaks(value)), None)
        if name is not None:
            samples.setdefault(name, value)
    if samples.keys() == {"messages", "palimpsest"}:
        return "messages"  # this source also reads exports on single lines
    if len(samples) == 1:
        return next(iter(samples))
    if samples:
        candidates = "; ".join(f"{name}: {_described(value)}" for name, value in sorted(samples.items()))
        raise ImportFailed(
            where,
            f"could be from more than one source ({candidates}). {_GIVE}{', '.join(NAMES)}",
        )
    if document.is_empty and not file.name.endswith((".jsonl", ".ndjson")):
        raise ImportFailed(where, "is empty")
    if document.is_blank:
        return "messages"
    known = ", ".join(NAMES)
    raise ImportFailed(
        where,
        f"is not recognised: {_seen(document)}. {_GIVE}{known}",
    )


def _seen(document: Document) -> str:
    """Describe the beginning of an unrecognised file."""
    for item in document.first:
        if item.fault is not None:
            return f"{item.fault} (line {item.place})" if document.layout != "list" else item.fault
        return f"it begins with {_described(item.value)}"
    return "it contains no complete JSON value"


def _described(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(shorten(key, 30) for key in list(value)[:6])
        return f"an object with {keys}" if keys else "an empty object"
    if isinstance(value, list):
        return f"a list of {_described(value[0])}" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return shorten(value, 40)

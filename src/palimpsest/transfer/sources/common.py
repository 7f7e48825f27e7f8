"""Helpers of several sources: times, storable values, parts of foreign kinds, the branches of a tree. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats.common import data_address
from palimpsest.log.checks import check
from palimpsest.log.entry import Audio, Entry, File, Image, Native, Opaque, Part, Text
from palimpsest.transfer.sources.limits import Limits

_DEEPEST = 80
"""Levels of a foreign value that are kept as values. Deeper ones are kept as JSON text."""

_LATEST = 253_402_300_799
"""The last second that a datetime, and so the time of an entry, can have."""


def microseconds(value: object) -> int:
    """Return a time in microseconds since 1970. Sources write seconds, or ISO 8601 text (without a time zone: UTC).

    0 for anything else, and for a time that no entry can have.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LATEST:
        return 0
    return round(value * 1_000_000)


def storable(value: Any, depth: int = 0) -> Any:
    """Return the value as a log can keep it: NaN and integers of more than 64 bits, for example, become text."""
    if isinstance(value, dict):
        if depth >= _DEEPEST:
            return json.dumps(value)
        return {key: storable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return json.dumps(value) if depth >= _DEEPEST else [storable(inner, depth + 1) for inner in value]
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def within(place: str, fault: InvalidEntry) -> str:
    """Return the place in the file of a fault within the message at `place`."""
    where = fault.where.removeprefix("messages[0]").removeprefix(".")
    return f"{place}.{where}" if where else place


def has_value(value: object) -> bool:
    """Return whether a value of a foreign record says anything: None, "", [] and {} do not."""
    return value not in (None, "", [], {})


def rest(value: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Return the values of a foreign record beside the known keys, as a log can keep them, without empty ones."""
    return {key: storable(inner) for key, inner in value.items() if key not in known and has_value(inner)}


def opaque(kind: str, value: Mapping[str, Any]) -> Opaque:
    """Return a foreign part that has no counterpart as an opaque part, whole and under its type."""
    return Opaque(item={"type": kind, **storable(dict(value))})


def content(parts: list[Part]) -> str | tuple[Part, ...]:
    """Return parts as the content of an entry: a single text becomes plain text."""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].extra is None:
        return parts[0].text
    return tuple(parts) if parts else ""


def native(source: str, parts: list[Part]) -> Native | None:
    """Mark the source of an entry that has opaque parts, so that these are not sent to a provider as they are."""
    return Native(format=source) if any(isinstance(part, Opaque) for part in parts) else None


_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def media(media_type: str, base64: str, filename: str | None = None) -> Part:
    """Return base64 data as the part for its media type: an image, a sound, or else a document."""
    if media_type in _SOUNDS:
        return Audio(data=base64, format=_SOUNDS[media_type])
    address = data_address(media_type, base64)
    return Image(source=address) if media_type.startswith("image/") else File(data=address, filename=filename)


def as_json(value: object) -> str:
    """Return a value as JSON text, for the arguments of a call and for results that are no text."""
    return json.dumps(storable(value), ensure_ascii=False)


def arguments(value: object, name: str) -> str:
    """Return the arguments of a call as JSON text. A value that is no JSON object is put into one under `name`."""
    if isinstance(value, str):
        try:
            if isinstance(json.loads(value), dict):
                return value
        except (ValueError, RecursionError):
            pass
        return as_json({name: value})
    return as_json(value if isinstance(value, dict) else {} if value is None else {name: value})


def metadata(source: str, kept: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return metadata that keeps values without a field in an entry, under the source's name."""
    return {source: dict(kept)} if kept else None


def need(value: Any, kind: type | tuple[type, ...], where: str, what: str) -> Any:
    """Return the value if it is of this kind. Else raise InvalidEntry at `where`, saying that it is not `what`."""
    if isinstance(value, kind):
        return value
    raise InvalidEntry(where, f"{shorten(value)} is not {what}")


def first_with(entries: list[Entry], source: str, kept: Mapping[str, Any]) -> list[Entry]:
    """Return the entries, with `kept` added to the metadata of the first one."""
    if not entries or not kept:
        return entries
    first = entries[0]
    before = (first.metadata or {}).get(source, {})
    return [replace(first, metadata={**(first.metadata or {}), source: {**kept, **before}}), *entries[1:]]


def checked(entries: list[Entry]) -> list[Entry]:
    """Return the entries. Raises InvalidEntry if a log would refuse one of them."""
    for entry in entries:
        check(entry, "messages[0]")
    return entries


class Tree:
    """The messages of a conversation with branches: each node names its parent.

    A node whose parent does not exist is a root. A cycle is cut where it closes.
    """

    def __init__(self, parents: Mapping[str, str | None]) -> None:
        self._parents = parents
        inner = {parent for parent in parents.values() if parent is not None}
        self.leaves = [node for node in parents if node not in inner] or list(parents)[-1:]

    def path(self, leaf: str) -> list[str]:
        """Return the nodes from the root to `leaf`."""
        path: dict[str, None] = {}
        node: str | None = leaf
        while node is not None and node in self._parents and node not in path:
            path[node] = None
            node = self._parents[node]
        return list(reversed(path))

    def paths(self, leaves: Sequence[str], limits: Limits) -> Iterator[list[str]]:
        """Yield the path to each of these leaves. Raises TooManyBranches before a path that is beyond a limit."""
        messages = 0
        for number, leaf in enumerate(leaves, 1):
            if number > limits.branches:
                raise TooManyBranches(limits.more_than("branches", "branches"))
            path = self.path(leaf)
            messages += len(path)
            if messages > limits.branch_messages:
                raise TooManyBranches(limits.more_than("branch_messages", "messages in its branches"))
            yield path


class TooManyBranches(ValueError):
    """The branches of a conversation are beyond a limit, which the error message names."""

"""What sources share: times, values that a log can keep, parts of foreign kinds, the branches of a tree. Pure."""

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
"""Levels of a foreign value that are kept as they are; what is deeper is kept as JSON text."""

_LATEST = 253_402_300_799
"""The last second that a datetime can tell, and an entry can be of."""


def microseconds(value: object) -> int:
    """A time as sources write it, in microseconds since 1970: seconds, or ISO 8601 text. 0 for what is neither.

    Text without a time zone is UTC. A time that no entry can have is none.
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
    """The value as a log can keep it: what JSON has no form for (NaN, integers of more than 64 bits) becomes text."""
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
    """The place of a fault that was found within a message, in the file."""
    where = fault.where.removeprefix("messages[0]").removeprefix(".")
    return f"{place}.{where}" if where else place


def said(value: object) -> bool:
    """Whether a value of a foreign record says anything: None, "", [] and {} do not."""
    return value not in (None, "", [], {})


def rest(value: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """What a foreign record says beside the keys that are known, as a log can keep it."""
    return {key: storable(inner) for key, inner in value.items() if key not in known and said(inner)}


def opaque(kind: str, value: Mapping[str, Any]) -> Opaque:
    """A foreign part that has no counterpart, kept whole under its type."""
    return Opaque(item={"type": kind, **storable(dict(value))})


def content(parts: list[Part]) -> str | tuple[Part, ...]:
    """Parts as an entry holds them: a single text is plain text."""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].extra is None:
        return parts[0].text
    return tuple(parts) if parts else ""


def native(source: str, parts: list[Part]) -> Native | None:
    """Whose the parts of an entry are, where that matters: opaque parts go back to no provider as they are."""
    return Native(format=source) if any(isinstance(part, Opaque) for part in parts) else None


_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def media(media_type: str, base64: str, filename: str | None = None) -> Part:
    """Data in base64 as the part for its media type: an image, a sound, or else a document."""
    if media_type in _SOUNDS:
        return Audio(data=base64, format=_SOUNDS[media_type])
    address = data_address(media_type, base64)
    return Image(source=address) if media_type.startswith("image/") else File(data=address, filename=filename)


def as_json(value: object) -> str:
    """A value as JSON text, for the arguments of a call and for results that are no text."""
    return json.dumps(storable(value), ensure_ascii=False)


def arguments(value: object, name: str) -> str:
    """The arguments of a call as JSON text: text that is a JSON object already, else an object with `name`."""
    if isinstance(value, str):
        try:
            if isinstance(json.loads(value), dict):
                return value
        except (ValueError, RecursionError):
            pass
        return as_json({name: value})
    return as_json(value if isinstance(value, dict) else {} if value is None else {name: value})


def metadata(source: str, kept: Mapping[str, Any]) -> dict[str, Any] | None:
    """What has no field of an entry, under the source's name."""
    return {source: dict(kept)} if kept else None


def need(value: Any, kind: type | tuple[type, ...], where: str, what: str) -> Any:
    """Return the value. Raises InvalidEntry at `where` unless it is of this kind, which `what` names."""
    if isinstance(value, kind):
        return value
    raise InvalidEntry(where, f"{shorten(value)} is not {what}")


def first_with(entries: list[Entry], source: str, kept: Mapping[str, Any]) -> list[Entry]:
    """The entries, the first of them with more in its metadata."""
    if not entries or not kept:
        return entries
    first = entries[0]
    before = (first.metadata or {}).get(source, {})
    return [replace(first, metadata={**(first.metadata or {}), source: {**kept, **before}}), *entries[1:]]


def checked(entries: list[Entry]) -> list[Entry]:
    """The entries. Raises InvalidEntry where a log would refuse one of them."""
    for entry in entries:
        check(entry, "messages[0]")
    return entries


class Tree:
    """The messages of a conversation that has branches: each node knows its parent.

    A node whose parent is not there begins a branch of its own; a circle is cut where it closes.
    """

    def __init__(self, parents: Mapping[str, str | None]) -> None:
        self._parents = parents
        inner = {parent for parent in parents.values() if parent is not None}
        self.leaves = [node for node in parents if node not in inner] or list(parents)[-1:]

    def path(self, leaf: str) -> list[str]:
        """The nodes from the root to `leaf`."""
        found: dict[str, None] = {}
        node: str | None = leaf
        while node is not None and node in self._parents and node not in found:
            found[node] = None
            node = self._parents[node]
        return list(reversed(found))

    def paths(self, leaves: Sequence[str], limits: Limits) -> Iterator[list[str]]:
        """The paths to these leaves. Raises TooManyBranches before one that is beyond a limit."""
        messages = 0
        for number, leaf in enumerate(leaves, 1):
            if number > limits.branches:
                raise TooManyBranches(limits.told("branches", "branches"))
            path = self.path(leaf)
            messages += len(path)
            if messages > limits.branch_messages:
                raise TooManyBranches(limits.told("branch_messages", "messages in its branches"))
            yield path


class TooManyBranches(ValueError):
    """The branches of a conversation are beyond a limit, which the message names."""

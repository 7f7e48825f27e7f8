"""`pydantic-ai`: message histories of Pydantic AI, as `ModelMessagesTypeAdapter.dump_json` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from palimpsest.errors import InvalidEntry
from palimpsest.log.entry import Entry, File, Image, Part, Reasoning, Role, Status, Text
from palimpsest.transfer.sources.common import (
    arguments,
    as_json,
    checked,
    content,
    first_with,
    media,
    metadata,
    microseconds,
    native,
    need,
    opaque,
    rest,
)
from palimpsest.transfer.sources.shapes import MessageSource, first_messages

NAME = "pydantic-ai"
SILENT = "requests that say nothing to the model but instructions or settings"
EMPTY = "responses without parts"
_OUTCOMES: dict[str, Status] = {
    "success": "success",
    "failed": "error",
    "retried": "error",
    "denied": "denied",
    "interrupted": "unknown",
}
_STANDARD = str.maketrans("-_", "+/")
"""Translates the URL-safe base64 that this source writes to standard base64."""

CHARACTERS = "characters"
"""The key that keeps the length of a part which is returned to the framework unchanged. If the length differs later,
the part was redacted since."""

HOSTED_CALL, HOSTED_RETURN = "builtin-tool-call", "builtin-tool-return"
"""A call of a tool that the provider runs itself, and its result: both are parts of one response."""

DATA = "data"
"""The key that marks content which was no text but a value. It is the value as JSON, or True: then the text is that."""

_MEDIA = {
    "binary": "data",
    "image-url": "url",
    "audio-url": "url",
    "document-url": "url",
    "video-url": "url",
    "uploaded-file": "file_id",
}
"""Kinds of media, each with its required key."""

BARE = "bare"
"""The key that marks a tool result which was a single medium, not in a list."""

CACHE_POINT, AT = "cache-point", "at"
"""What marks a place for the provider's cache in a prompt, and the key for the number of parts before it."""

_SPOKEN = ("system-prompt", "user-prompt", "tool-return", "retry-prompt", "retry-feedback", "speech")


class PydanticAI(MessageSource):
    """Message histories of Pydantic AI."""

    @staticmethod
    def speaks(value: object) -> bool:
        """Return whether this is a request or a response of Pydantic AI, a list of them, or an object that has them."""
        return any(isinstance(message, dict) and _is_message(message) for message in first_messages([value]))

    def is_message(self, value: Mapping[str, Any]) -> bool:
        """Return whether an object is a message."""
        return _is_message(value)

    def conversation_id(self, messages: list[Any]) -> str | None:
        """Return the conversation that the first message names, or None."""
        first = messages[0] if messages else None
        own = first.get("conversation_id") if isinstance(first, dict) else None
        return own if isinstance(own, str) and own else None

    def read(self, message: Any) -> tuple[list[Entry], dict[str, int]]:
        """Return a message's entries; one that says nothing is left out."""
        return read_message(message)


def read_message(message: Any) -> tuple[list[Entry], dict[str, int]]:
    """Return a message's entries; if there are none, also count it as left out, with the reason.

    Raises InvalidEntry, naming what is malformed.
    """
    if not _is_message(message):
        raise InvalidEntry("messages[0].kind", "is neither a request nor a response with a list of parts")
    at = microseconds(message.get("timestamp"))
    kept = rest(message, "kind", "parts", "timestamp")
    if message["kind"] == "request":
        entries, silent_parts = _request(message["parts"], at)
        if silent_parts:
            kept["parts"] = silent_parts
        return checked(first_with(entries, NAME, kept)), {} if entries else {SILENT: 1}
    entries = _Response(at).entries(message["parts"])
    return checked(first_with(entries, NAME, kept)), {} if entries else {EMPTY: 1}


def characters(item: Mapping[str, Any]) -> int:
    """Return the length of a part that is returned to the framework unchanged."""
    return len(as_json(item))


def _is_message(value: Mapping[str, Any]) -> bool:
    return value.get("kind") in ("request", "response") and isinstance(value.get("parts"), list)


def _request(parts: list[Any], at: int) -> tuple[list[Entry], list[dict[str, Any]]]:
    """Return the entries of a request's parts, and the parts that are only for the framework and not for the model."""
    entries, silent_parts = [], []
    for i, held in enumerate(parts):
        where = f"messages[0].parts[{i}]"
        part = need(held, dict, where, "a part: an object")
        kind = need(part.get("part_kind"), str, f"{where}.part_kind", "text")
        if kind not in _SPOKEN:
            silent_parts.append(rest(part))
            continue
        entries.append(_sent(part, kind, where, microseconds(part.get("timestamp")) or at))
    return entries, silent_parts


def _sent(part: Mapping[str, Any], kind: str, where: str, at: int) -> Entry:
    """Return the entry of a request's part that is sent to the model."""
    tool = part.get("tool_name")
    if kind == "tool-return" or (kind == "retry-prompt" and isinstance(tool, str)):
        return _result(part, where, at)
    if kind == "speech":
        return _speech(part, "user", at)
    role: Role = "system" if kind == "system-prompt" else "user"
    given = part.get("content")
    if kind == "user-prompt":
        parts, beside = _contents(given, where)
    else:
        parts, beside = [Text(text=_text(given))], []
    kept = rest(part, "part_kind", "content", "timestamp", *(("scope",) if part.get("scope") == "conversation" else ()))
    kept |= {**_beside_metadata(beside), **({} if kind == "user-prompt" or isinstance(given, str) else {DATA: True})}
    kept |= {"part_kind": kind} if kind.startswith("retry") else {}
    return Entry(role=role, content=content(parts), native=native(NAME, parts), at=at, metadata=metadata(NAME, kept))


def _result(part: Mapping[str, Any], where: str, at: int) -> Entry:
    call_id = part.get("tool_call_id")
    if not isinstance(call_id, str):
        raise InvalidEntry(f"{where}.tool_call_id", "is not text; the return of a tool needs the id of its call")
    name, given = part.get("tool_name"), part.get("content")
    is_bare = _is_medium(given)
    has_media = is_bare or (isinstance(given, list) and any(map(_is_medium, given)))
    if has_media:
        parts, beside = _contents([given] if is_bare else given, where)
    else:
        parts, beside = [Text(text=_text(given))], []
    retried = part.get("part_kind") == "retry-prompt"
    kept = rest(part, "part_kind", "content", "content_file_digests", "timestamp", "tool_name", "tool_call_id")
    kept |= {**_beside_metadata(beside), **({BARE: True} if is_bare else {})}
    kept |= {} if has_media or isinstance(given, str) else {DATA: True}
    return Entry(
        kind="tool_result",
        role="tool",
        content=content(parts),
        name=name if isinstance(name, str) else None,
        call_id=call_id,
        status="error" if retried else _OUTCOMES.get(str(part.get("outcome"))),
        native=native(NAME, parts),
        at=at,
        metadata=metadata(NAME, kept),
    )


def _text(given: Any) -> str:
    return given if isinstance(given, str) else as_json(given)


def _speech(part: Mapping[str, Any], role: Role, at: int) -> Entry:
    transcript, audio = part.get("transcript"), part.get("audio")
    parts: list[Part] = [Text(text=transcript)] if isinstance(transcript, str) and transcript else []
    beside = [dict[str, Any]() for _ in parts]
    if isinstance(audio, dict):
        audio_part, audio_beside = _medium(audio)
        parts.append(audio_part)
        beside.append(audio_beside)
    kept = rest(part, "part_kind", "transcript", "audio", "speaker") | _beside_metadata(beside)
    return Entry(role=role, content=content(parts), native=native(NAME, parts), at=at, metadata=metadata(NAME, kept))


class _Response:
    """Converts the parts of a response: reasoning and text in a row become one entry, each call becomes one."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._entries: list[Entry] = []
        self._parts: list[Part] = []
        self._beside: list[dict[str, Any]] = []
        """For each of these parts the values that it has no field for ({}: none)."""
        self._silent: list[dict[str, Any]] = []  # parts without text that have other values

    def entries(self, parts: list[Any]) -> list[Entry]:
        """Return the entries."""
        for i, held in enumerate(parts):
            self._take(need(held, dict, f"messages[0].parts[{i}]", "a part: an object"), i)
        self._end_message()
        return self._entries

    def _take(self, part: Mapping[str, Any], index: int) -> None:
        where, kind = f"messages[0].parts[{index}]", part.get("part_kind")
        given = part.get("content")
        if kind == "tool-call":
            self._end_message()
            self._add(self._call(part, where))
        elif kind in (HOSTED_CALL, HOSTED_RETURN):
            need(part.get("tool_call_id"), str, f"{where}.tool_call_id", "text")
            fields = {key: value for key, value in part.items() if key == "content" or value is not None}
            whole = opaque(fields.pop("part_kind"), fields)
            self._part(whole, {CHARACTERS: characters(whole.item)})
        elif kind == "speech":
            self._end_message()
            self._add(_speech(part, "assistant", self._at))
        elif kind in ("text", "thinking") and isinstance(given, str):
            kept = rest(part, "part_kind", "content")
            if given or kind == "thinking":
                self._part(Text(text=given) if kind == "text" else Reasoning(text=given), kept)
            elif kept:
                self._silent.append(kept)
        elif kind == "file" and isinstance(given, dict):
            medium, beside = _medium(given)
            self._part(medium, {**rest(part, "part_kind", "content"), **beside})
        else:
            self._part(opaque(str(kind or "part"), rest(part)), {})

    def _part(self, part: Part, beside: dict[str, Any]) -> None:
        self._parts.append(part)
        self._beside.append(beside)

    def _call(self, part: Mapping[str, Any], where: str) -> Entry:
        name = need(part.get("tool_name"), str, f"{where}.tool_name", "text")
        call_id = need(part.get("tool_call_id"), str, f"{where}.tool_call_id", "text")
        args = part.get("args")
        return Entry(
            kind="tool_call",
            role="assistant",
            content=args if isinstance(args, str) and args else arguments(args or None, "value"),
            name=name,
            call_id=call_id,
            at=self._at,
            metadata=metadata(NAME, rest(part, "part_kind", "tool_name", "tool_call_id", "args")),
        )

    def _end_message(self) -> None:
        """Make a message entry of the parts that were added since the last entry."""
        parts, self._parts = self._parts, []
        beside, self._beside = self._beside, []
        silent, self._silent = self._silent, []
        beside = [*beside, *silent] if any(beside) or silent else []
        if parts:
            about = metadata(NAME, {"parts": beside} if beside else {})
            entry = Entry(role="assistant", content=content(parts), native=native(NAME, parts), at=self._at)
            self._add(entry, about)

    def _add(self, entry: Entry, about: dict[str, Any] | None = None) -> None:
        """Add an entry, tied to those before it: calls of one response are answered together."""
        follows = bool(self._entries)
        self._entries.append(replace(entry, continues=follows, metadata=about if about is not None else entry.metadata))


def _contents(given: Any, where: str) -> tuple[list[Part], list[dict[str, Any]]]:
    """Return the parts of a prompt or a result, and for each part the values without a field.

    Behind these the second list has what is only for the framework, such as cache points.
    """
    if isinstance(given, str):
        return [Text(text=given)], [{}]
    pairs: list[tuple[Part, dict[str, Any]]] = []
    silent: list[dict[str, Any]] = []
    for held in need(given, list, f"{where}.content", "text or a list of contents"):
        if isinstance(held, str):
            pairs.append((Text(text=held), {}))
        elif not isinstance(held, dict) or not isinstance(held.get("kind"), str):
            pairs.append((Text(text=as_json(held)), {}))
        elif held["kind"] == CACHE_POINT:
            silent.append({**rest(held), AT: len(pairs)})  # the framework sets a mark for the provider's cache here
        else:
            pairs.append(_medium(held))
    return [part for part, _ in pairs], [*(beside for _, beside in pairs), *silent]


def _beside_metadata(beside: list[dict[str, Any]]) -> dict[str, Any]:
    """Return metadata that keeps, for each part, values without a field; {} if there are none."""
    return {"content": beside} if any(beside) else {}


def _is_medium(value: Any) -> bool:
    """Return whether a tool's return value is an image, a sound, a document or a video, and not other data."""
    if not isinstance(value, dict):
        return False
    kind = value.get("kind")
    return isinstance(kind, str) and kind in _MEDIA and isinstance(value.get(_MEDIA[kind]), str)


def _medium(held: Mapping[str, Any]) -> tuple[Part, dict[str, Any]]:
    """Return the part for a medium, and the values that it has no field for. A medium of unknown kind is kept whole."""
    kind, media_type = str(held.get("kind")), str(held.get("media_type") or "")
    about = held.get("vendor_metadata")
    given = about.get("detail") if isinstance(about, dict) else None
    detail = given if isinstance(given, str) else None
    if kind == "binary" and isinstance(held.get("data"), str):
        part = media(media_type or "application/octet-stream", held["data"].translate(_STANDARD))
        part = replace(part, detail=detail) if isinstance(part, Image) else part
        return part, rest(held, "kind", "data", "media_type")
    if kind == "image-url" and isinstance(held.get("url"), str):
        default = () if held.get("force_download") else ("force_download",)
        return Image(source=held["url"], detail=detail), rest(held, "kind", "url", *default)
    if kind in ("text-content", "structured-content") and isinstance(held.get("content"), str):
        return Text(text=held["content"]), rest(held, "kind", "content")
    if kind == "uploaded-file" and isinstance(held.get("file_id"), str):
        return File(file_id=held["file_id"]), rest(held, "kind", "file_id")
    return opaque(kind, rest(held, "kind")), {}

"""`pydantic-ai`: message histories of Pydantic AI, as `ModelMessagesTypeAdapter.dump_json` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from palimpsest.errors import InvalidEntry
from palimpsest.log.entry import Entry, File, Image, Part, Reasoning, Role, Status, Text
from palimpsest.transfer.sources import Piece
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
from palimpsest.transfer.sources.documents import DocumentSource
from palimpsest.transfer.sources.shapes import first_messages, pieces

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
"""The alphabet of base64 in addresses, as this source writes bytes, to the usual one."""

CHARACTERS = "characters"
"""The key under which the length of a part is kept that goes back as it came: in one of another length something was
redacted since."""

HOSTED_CALL, HOSTED_RETURN = "builtin-tool-call", "builtin-tool-return"
"""A call of a tool that the provider runs itself, and what it gave: both are of one response."""

_MEDIA = {
    "binary": "data",
    "image-url": "url",
    "audio-url": "url",
    "document-url": "url",
    "video-url": "url",
    "uploaded-file": "file_id",
}
"""Kinds of media, each with the key that it cannot be without."""

BARE = "bare"
"""The key that says of a tool's result that it was one medium, and no list of it."""

_SPOKEN = ("system-prompt", "user-prompt", "tool-return", "retry-prompt", "retry-feedback", "speech")


class PydanticAI(DocumentSource):
    """Message histories of Pydantic AI."""

    @staticmethod
    def speaks(value: object) -> bool:
        """Whether this is a request or a response of Pydantic AI, a list of them, or an object that has them."""
        return any(isinstance(message, dict) and _is_message(message) for message in first_messages([value]))

    def pieces(self) -> Iterator[Piece]:
        """Yield the messages."""
        return pieces(self._document, self)

    def begin(self) -> None:
        """Every message is read for itself."""

    def is_message(self, value: Mapping[str, Any]) -> bool:
        """Whether an object is a message."""
        return _is_message(value)

    def conversation_id(self, messages: list[Any]) -> str | None:
        """The conversation that the first message says it belongs to."""
        first = messages[0] if messages else None
        own = first.get("conversation_id") if isinstance(first, dict) else None
        return own if isinstance(own, str) and own else None

    def read(self, message: Any) -> tuple[list[Entry], dict[str, int]]:
        """Return a message's entries; one that says nothing is left out."""
        return read_message(message)


def read_message(message: Any) -> tuple[list[Entry], dict[str, int]]:
    """Return a message's entries, and what of it says nothing. Raises InvalidEntry naming what is malformed."""
    if not _is_message(message):
        raise InvalidEntry("messages[0].kind", "is neither request nor response with a list of parts")
    at = microseconds(message.get("timestamp"))
    kept = rest(message, "kind", "parts", "timestamp")
    if message["kind"] == "request":
        entries, more = _request(message["parts"], at)
        if more:
            kept["parts"] = more
        return checked(first_with(entries, NAME, kept)), {} if entries else {SILENT: 1}
    entries = _Response(at).entries(message["parts"])
    return checked(first_with(entries, NAME, kept)), {} if entries else {EMPTY: 1}


def characters(item: Mapping[str, Any]) -> int:
    """The length of a part that goes back as it came."""
    return len(as_json(item))


def _is_message(value: Mapping[str, Any]) -> bool:
    return value.get("kind") in ("request", "response") and isinstance(value.get("parts"), list)


def _request(parts: list[Any], at: int) -> tuple[list[Entry], list[dict[str, Any]]]:
    """The entries of a request's parts, and those parts that say nothing, which only tell the framework something."""
    entries, more = [], []
    for i, held in enumerate(parts):
        where = f"messages[0].parts[{i}]"
        part = need(held, dict, where, "a part, which is an object")
        kind = need(part.get("part_kind"), str, f"{where}.part_kind", "text")
        if kind not in _SPOKEN:
            more.append(rest(part))
            continue
        entries.append(_asked(part, kind, where, microseconds(part.get("timestamp")) or at))
    return entries, more


def _asked(part: Mapping[str, Any], kind: str, where: str, at: int) -> Entry:
    """The entry of a part that a model is sent."""
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
        text = given if isinstance(given, str) else as_json(given)
        parts, beside = [Text(text=text)], []
    kept = rest(part, "part_kind", "content", "timestamp", *(("scope",) if part.get("scope") == "conversation" else ()))
    kept |= _told(beside)
    kept |= {"part_kind": kind} if kind.startswith("retry") else {}
    return Entry(role=role, content=content(parts), native=native(NAME, parts), at=at, metadata=metadata(NAME, kept))


def _result(part: Mapping[str, Any], where: str, at: int) -> Entry:
    call_id = part.get("tool_call_id")
    if not isinstance(call_id, str):
        raise InvalidEntry(f"{where}.tool_call_id", "is not text; a tool's return names its call")
    name, given = part.get("tool_name"), part.get("content")
    is_bare = _is_medium(given)
    if is_bare or (isinstance(given, list) and any(map(_is_medium, given))):
        parts, beside = _contents([given] if is_bare else given, where)
    else:
        parts, beside = [Text(text=given if isinstance(given, str) else as_json(given))], []
    retried = part.get("part_kind") == "retry-prompt"
    kept = rest(part, "part_kind", "content", "content_file_digests", "timestamp", "tool_name", "tool_call_id")
    kept |= {**_told(beside), **({BARE: True} if is_bare else {})}
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


def _speech(part: Mapping[str, Any], role: Role, at: int) -> Entry:
    said, sound = part.get("transcript"), part.get("audio")
    parts: list[Part] = [Text(text=said)] if isinstance(said, str) and said else []
    beside = [dict[str, Any]() for _ in parts]
    if isinstance(sound, dict):
        made, more = _medium(sound)
        parts.append(made)
        beside.append(more)
    kept = rest(part, "part_kind", "transcript", "audio", "speaker") | _told(beside)
    return Entry(role=role, content=content(parts), native=native(NAME, parts), at=at, metadata=metadata(NAME, kept))


class _Response:
    """Makes entries of a response's parts: what is thought and said in a row is one entry, each call is one."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._entries: list[Entry] = []
        self._parts: list[Part] = []
        self._beside: list[dict[str, Any]] = []
        """For each part what it has no field for, so that it can be told whose that is."""
        self._silent: list[dict[str, Any]] = []
        self._runs = False

    def entries(self, parts: list[Any]) -> list[Entry]:
        """Return the entries."""
        for i, held in enumerate(parts):
            self._take(need(held, dict, f"messages[0].parts[{i}]", "a part, which is an object"), i)
        self._say()
        return self._entries

    def _take(self, part: Mapping[str, Any], index: int) -> None:
        where, kind = f"messages[0].parts[{index}]", part.get("part_kind")
        given = part.get("content")
        if kind == "tool-call":
            self._say()
            self._add(self._call(part, where))
        elif kind in (HOSTED_CALL, HOSTED_RETURN):
            need(part.get("tool_call_id"), str, f"{where}.tool_call_id", "text")
            said = {key: held for key, held in part.items() if key == "content" or held is not None}
            whole = opaque(said.pop("part_kind"), said)
            self._part(whole, {CHARACTERS: characters(whole.item)})
        elif kind == "speech":
            self._say()
            self._add(_speech(part, "assistant", self._at))
        elif kind in ("text", "thinking") and isinstance(given, str):
            kept = rest(part, "part_kind", "content")
            if given or kind == "thinking":
                self._part(Text(text=given) if kind == "text" else Reasoning(text=given), kept)
            elif kept:
                self._silent.append(kept)
        elif kind == "file" and isinstance(given, dict):
            made, more = _medium(given)
            self._part(made, {**rest(part, "part_kind", "content"), **more})
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

    def _say(self) -> None:
        parts, self._parts = self._parts, []
        beside, self._beside = self._beside, []
        silent, self._silent = self._silent, []
        beside = [*beside, *silent] if any(beside) or silent else []
        if parts:
            about = metadata(NAME, {"parts": beside} if beside else {})
            made = Entry(role="assistant", content=content(parts), native=native(NAME, parts), at=self._at)
            self._add(made, about)

    def _add(self, entry: Entry, about: dict[str, Any] | None = None) -> None:
        joins = self._runs and entry.kind == "tool_call"
        self._entries.append(replace(entry, continues=joins, metadata=about if about is not None else entry.metadata))
        self._runs = True


def _contents(given: Any, where: str) -> tuple[list[Part], list[dict[str, Any]]]:
    """What a prompt or a result is made of, and for each part what has no field; behind them, what says nothing."""
    if isinstance(given, str):
        return [Text(text=given)], [{}]
    pairs: list[tuple[Part, dict[str, Any]]] = []
    silent: list[dict[str, Any]] = []
    for held in need(given, list, f"{where}.content", "text or a list of contents"):
        if isinstance(held, str):
            pairs.append((Text(text=held), {}))
        elif not isinstance(held, dict) or not isinstance(held.get("kind"), str):
            pairs.append((Text(text=as_json(held)), {}))
        elif held["kind"] == "cache-point":
            silent.append(rest(held))  # where a provider's cache is to begin
        else:
            pairs.append(_medium(held))
    return [part for part, _ in pairs], [*(more for _, more in pairs), *silent]


def _told(beside: list[dict[str, Any]]) -> dict[str, Any]:
    """What parts have beside their fields, if there is any such thing."""
    return {"content": beside} if any(beside) else {}


def _is_medium(value: Any) -> bool:
    """Whether a tool that returned this returned an image, a sound, a document or a film, and not data of its own."""
    if not isinstance(value, dict):
        return False
    kind = value.get("kind")
    return isinstance(kind, str) and kind in _MEDIA and isinstance(value.get(_MEDIA[kind]), str)


def _medium(held: Mapping[str, Any]) -> tuple[Part, dict[str, Any]]:
    """The part for a medium, and what of it has no field. What has no counterpart is kept whole."""
    kind, media_type = str(held.get("kind")), str(held.get("media_type") or "")
    about = held.get("vendor_metadata")
    given = about.get("detail") if isinstance(about, dict) else None
    detail = given if isinstance(given, str) else None
    if kind == "binary" and isinstance(held.get("data"), str):
        made = media(media_type or "application/octet-stream", held["data"].translate(_STANDARD))
        seen = replace(made, detail=detail) if isinstance(made, Image) else made
        return seen, rest(held, "kind", "data", "media_type")
    if kind == "image-url" and isinstance(held.get("url"), str):
        default = () if held.get("force_download") else ("force_download",)
        return Image(source=held["url"], detail=detail), rest(held, "kind", "url", *default)
    if kind in ("text-content", "structured-content") and isinstance(held.get("content"), str):
        return Text(text=held["content"]), rest(held, "kind", "content")
    if kind == "uploaded-file" and isinstance(held.get("file_id"), str):
        return File(file_id=held["file_id"]), rest(held, "kind", "file_id")
    return opaque(kind, rest(held, "kind")), {}

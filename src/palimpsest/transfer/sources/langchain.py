"""`langchain`: messages of LangChain as `messages_to_dict`, `dumpd` or `model_dump` write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.log.entry import Audio, Entry, File, Image, Part, Reasoning, Role, Status, Text
from palimpsest.transfer.sources.common import (
    as_json,
    checked,
    content,
    first_with,
    media,
    metadata,
    native,
    need,
    opaque,
    rest,
)
from palimpsest.transfer.sources.shapes import MessageSource, first_messages

NAME = "langchain"
REMOVED = "orders to remove a message"
_TYPES = {"human", "ai", "system", "tool", "function", "chat", "remove", "developer"}
_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
}
_FIELDS = ("type", "content", "name", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "example")


class LangChain(MessageSource):
    """Dumps of LangChain's messages."""

    @staticmethod
    def speaks(value: object) -> bool:
        """Return whether this is a message of LangChain, a list of them, or an object that has them."""
        return any(_recognised(message) is not None for message in first_messages([value]))

    def is_message(self, value: Mapping[str, Any]) -> bool:
        """Return whether an object is a message."""
        return _recognised(value) is not None

    def read(self, message: Any) -> tuple[list[Entry], dict[str, int]]:
        """Return a message's entries; an order to remove another message is left out."""
        recognised = _recognised(message)
        if recognised is None:
            raise InvalidEntry(
                "messages[0]", "is not a message of LangChain: it has neither `type` and `data`, nor a constructor"
            )
        kind, body = recognised
        if kind == "remove":
            return [], {REMOVED: 1}
        kept = rest(body, *_FIELDS)
        return checked(first_with(_entries(kind, body), NAME, kept)), {}


def _recognised(message: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return the kind and the fields of a message written in any of the three ways; None for anything else.

    Fields of a message in one way may have the same names as marks of another, so the order of the checks matters.
    """
    if not isinstance(message, dict):
        return None
    body: Any = message
    named = message.get("type")
    if message.get("lc") == 1 and isinstance(message.get("id"), list) and isinstance(message.get("kwargs"), dict):
        named, body = str(message["id"][-1]) if message["id"] else "", message["kwargs"]
    elif "content" not in message:
        body = message.get("data")
    if not isinstance(named, str) or not isinstance(body, dict):
        return None
    kind = named.removesuffix("Chunk").removesuffix("Message").lower()
    return (kind, body) if kind in _TYPES and ("role" not in message or kind == "chat") else None


def _entries(kind: str, body: Mapping[str, Any]) -> list[Entry]:
    given = body.get("content", "")
    if not isinstance(given, str | list):
        raise InvalidEntry("messages[0].content", "is neither text nor a list of blocks")
    calls = need(body.get("tool_calls") or [], list, "messages[0].tool_calls", "a list")
    invalid_calls = need(body.get("invalid_tool_calls") or [], list, "messages[0].invalid_tool_calls", "a list")
    if not calls and not invalid_calls:
        calls = _older_calls(body.get("additional_kwargs"))
    ids = [call.get("id") for call in [*calls, *invalid_calls] if isinstance(call, dict)]
    blocks = _Blocks({id for id in ids if isinstance(id, str)})
    for block in [given] if isinstance(given, str) else given:
        blocks.take(block)
    name = body.get("name") if isinstance(body.get("name"), str) else None
    if kind in ("tool", "function"):
        return [_result(kind, body, name, blocks)]
    role = _ROLES.get(kind) or _ROLES.get(str(body.get("role", "")).lower()) or "user"
    if kind == "chat" and str(body.get("role", "")).lower() not in _ROLES:
        name = name or str(body.get("role") or "") or None
    body_content = content(blocks.parts)
    entries = []
    calling = [*blocks.calls, *calls, *invalid_calls]
    if body_content or not calling:
        about = metadata(NAME, {"blocks": blocks.beside} if blocks.beside else {})
        entries.append(
            Entry(role=role, content=body_content, name=name or None, native=native(NAME, blocks.parts), metadata=about)
        )
    for i, call in enumerate(calling):
        entries.append(_call(need(call, dict, f"messages[0].tool_calls[{i}]", "a call: an object"), i, entries))
    return entries


def _older_calls(given: Any) -> list[dict[str, Any]]:
    """Return the calls of a message that an older LangChain wrote: it kept them as OpenAI's answer had them."""
    kept = given if isinstance(given, dict) else {}
    listed = kept.get("tool_calls")
    calls = [call for call in listed if isinstance(call, dict)] if isinstance(listed, list) else []
    if not calls and isinstance(kept.get("function_call"), dict):
        calls = [{"function": kept["function_call"]}]
    return [
        {"name": call["function"].get("name"), "id": call.get("id"), "args": call["function"].get("arguments")}
        for call in calls
        if isinstance(call.get("function"), dict)
    ]


def _result(kind: str, body: Mapping[str, Any], name: str | None, blocks: _Blocks) -> Entry:
    call_id = body.get("tool_call_id")
    if kind == "tool" and not isinstance(call_id, str):
        raise InvalidEntry("messages[0].tool_call_id", "is not text; the message of a tool needs the id of its call")
    status: Status | None = body.get("status") if body.get("status") in ("success", "error") else None
    return Entry(
        kind="tool_result",
        role="tool",
        content=content(blocks.parts),
        name=name,
        call_id=call_id if isinstance(call_id, str) else None,
        status=status,
        native=native(NAME, blocks.parts),
        metadata=metadata(NAME, {"blocks": blocks.beside} if blocks.beside else {}),
    )


def _call(call: Mapping[str, Any], index: int, before: list[Entry]) -> Entry:
    """Return the entry of a call. The arguments of an invalid one are the text that could not be parsed as JSON."""
    where = f"messages[0].tool_calls[{index}]"
    name, call_id, args = call.get("name"), call.get("id"), call.get("args", {})
    if name is not None and not isinstance(name, str):
        raise InvalidEntry(f"{where}.name", "is not text")
    if call_id is not None and not isinstance(call_id, str):
        raise InvalidEntry(f"{where}.id", "is not text")
    beside = rest(call, "name", "id", "args", *(("type",) if call.get("type") == "tool_call" else ()))
    return Entry(
        kind="tool_call",
        role="assistant",
        content=args if isinstance(args, str) else as_json(args if args is not None else {}),
        name=name or None,
        call_id=call_id,
        continues=bool(before),
        metadata=metadata(NAME, beside),
    )


class _Blocks:
    """Converts content blocks of OpenAI, Anthropic and LangChain to parts, and collects calls among them.

    `known` are the ids of the calls that the message lists beside its content.
    """

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self.parts: list[Part] = []
        self.calls: list[dict[str, Any]] = []
        self.beside: list[dict[str, Any]] = []

    def take(self, block: Any) -> None:
        """Convert one block, or a text."""
        if isinstance(block, str):
            if block:
                self.parts.append(Text(text=block))
            return
        block = need(block, dict, "messages[0].content", "a list of texts and blocks")
        if block.get("type") in ("tool_call", "tool_use", "function_call", "invalid_tool_call"):
            self._call(block)
            return
        part, covered_keys = _part(block)
        self.parts.append(part)
        if covered_keys and (beside := rest(block, "type", *covered_keys)):
            self.beside.append({"type": block.get("type"), **beside})

    def _call(self, block: Mapping[str, Any]) -> None:
        id = block.get("call_id") or block.get("id")
        if isinstance(id, str) and id in self._known:
            return  # the message lists this call among its `tool_calls`, too
        args: Any = next((block[key] for key in ("args", "input", "arguments") if block.get(key) is not None), {})
        known = ("type", "id", "call_id", "name", "args", "input", "arguments")
        self.calls.append({**rest(block, *known), "name": block.get("name"), "id": id, "args": args})


def _part(block: Mapping[str, Any]) -> tuple[Part, tuple[str, ...]]:
    """Return the part for a block and the keys that the part covers; no keys if the block is kept whole."""
    kind = str(block.get("type", ""))
    for key in ("text", "thinking", "reasoning"):
        if kind in (key, "text-plain") and isinstance(block.get(key), str):
            return (Text if key == "text" else Reasoning)(text=block[key]), (key,)
    if kind == "reasoning" and isinstance(block.get("summary"), list):
        texts = [item.get("text") for item in block["summary"] if isinstance(item, dict)]
        return Reasoning(text="\n".join(text for text in texts if isinstance(text, str))), ("summary",)
    return _medium(kind, block) or (opaque(kind or "block", block), ())


def _medium(kind: str, block: Mapping[str, Any]) -> tuple[Part, tuple[str, ...]] | None:
    """Return the part for a medium in the shape of OpenAI, Anthropic or LangChain, and its keys; None for others."""
    if isinstance(block.get("source"), dict):
        return _of_anthropic(kind, block, block["source"])
    if kind in ("image_url", "input_audio", "file") and kind in block:
        return _of_openai(kind, block[kind])
    if _texts(block, "mime_type", "base64"):
        extras = block.get("extras")
        named = extras.get("filename") if isinstance(extras, dict) else None
        part = media(block["mime_type"], block["base64"], named if isinstance(named, str) else None)
        return part, ("mime_type", "base64")
    if kind == "image" and _texts(block, "url"):
        return Image(source=block["url"]), ("url",)
    return (File(file_id=block["file_id"]), ("file_id",)) if _texts(block, "file_id") else None


def _of_openai(kind: str, held: Any) -> tuple[Part, tuple[str, ...]] | None:
    if kind == "image_url":
        url = held.get("url") if isinstance(held, dict) else held
        detail = held.get("detail") if isinstance(held, dict) else None
        image = Image(source=url, detail=detail if isinstance(detail, str) else None) if isinstance(url, str) else None
        return (image, (kind,)) if image else None
    if not isinstance(held, dict):
        return None
    if kind == "input_audio":
        return (Audio(data=held["data"], format=held["format"]), (kind,)) if _texts(held, "data", "format") else None
    fields = {name: held[key] for key, name in _FILE.items() if isinstance(held.get(key), str)}
    return (File(**fields), (kind,)) if fields else None


def _of_anthropic(
    kind: str, block: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[Part, tuple[str, ...]] | None:
    if kind == "image" and _texts(source, "url"):
        return Image(source=source["url"]), ("source",)
    if not _texts(source, "media_type", "data") or source.get("type") == "text":
        return None
    title = block.get("title")
    return media(source["media_type"], source["data"], title if isinstance(title, str) else None), ("source",)


_FILE = {"file_id": "file_id", "file_data": "data", "filename": "filename"}


def _texts(value: Mapping[str, Any], *keys: str) -> bool:
    return all(isinstance(value.get(key), str) for key in keys)

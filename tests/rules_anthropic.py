"""The rules of Anthropic's Messages API for a request, checked independently of the library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, get_args, get_type_hints

Message = dict[str, Any]
Block = dict[str, Any]

MARKS = 4
USER_ONLY = {"image", "document", "search_result", "tool_result"}
ASSISTANT_ONLY = {"thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"}


def faults(messages: Sequence[Message]) -> list[str]:
    """Return every rule of the Messages API that the messages break."""
    found: list[str] = []
    open_calls: list[str] = []
    seen: list[str] = []
    hosted: list[str] = []
    for i, message in enumerate(messages):
        role, blocks = message["role"], blocks_of(message)
        expected = "user" if i % 2 == 0 else "assistant"
        if role != expected or message.keys() != {"role", "content"}:
            found.append(f"{i}: {role} where {expected} speaks, with the keys {sorted(message)}")
        if not blocks:
            found.append(f"{i}: says nothing")
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        leading = [block["tool_use_id"] for block in blocks[: len(answered)] if block["type"] == "tool_result"]
        if sorted(leading) != sorted(open_calls) or len(answered) != len(leading):
            found.append(f"{i}: begins with the results of {leading}, not of {open_calls}")
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        seen.extend(open_calls)
        seen.extend(block["id"] for block in blocks if block["type"] == "server_tool_use")
        if role == "user" and hosted and not answered:
            found.append(f"{i}: comes before the result of the search {hosted}")
        found.extend(f"{i}: {fault}" for fault in _search_faults(blocks, hosted))
        forbidden = ASSISTANT_ONLY if role == "user" else USER_ONLY
        for block in blocks:
            found.extend(f"{i}: {fault}" for fault in _block_faults(block))
            if block["type"] in forbidden:
                found.append(f"{i}: {block['type']} in a message of {role}")
        found.extend([f"{i}: ends with thinking"] if role == "assistant" and _ends_in_thought(blocks) else [])
    if open_calls:
        found.append(f"the end: no result of {open_calls}")
    if len(set(seen)) < len(seen):
        found.append(f"ids are repeated: {seen}")
    if messages and messages[-1]["role"] == "assistant":
        last = blocks_of(messages[-1])[-1]
        if last["type"] == "text" and last["text"][-1:].isspace():
            found.append("the end: white space")
    found.extend(_mark_faults(messages))
    try:
        json.dumps(messages, ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError) as fault:
        found.append(f"no JSON: {fault}")
    return found


def _mark_faults(messages: Sequence[Message]) -> Iterator[str]:
    if len(list(marks(messages))) > MARKS:
        yield "too many cache marks"
    if not in_order(messages):
        yield "a mark for an hour behind a shorter one"


def _ends_in_thought(blocks: Sequence[Block]) -> bool:
    return bool(blocks) and blocks[-1]["type"] in ("thinking", "redacted_thinking")


def _search_faults(blocks: Sequence[Block], hosted: list[str]) -> Iterator[str]:
    """Yield search results without a search; `hosted` has the ids of searches without a result, and is updated."""
    for block in blocks:
        if block["type"] == "server_tool_use":
            hosted.append(block["id"])
        elif block["type"] == "web_search_tool_result" and block["tool_use_id"] in hosted:
            hosted.remove(block["tool_use_id"])
        elif block["type"] == "web_search_tool_result":
            yield f"found {block['tool_use_id']}, which nobody searched for"


def _block_faults(block: Block) -> Iterator[str]:
    kind = block["type"]
    if kind == "text" and not block["text"].strip():
        yield "an empty text"
    if kind == "thinking" and not block.get("signature"):
        yield "thinking without signature"
    if kind == "redacted_thinking" and not block.get("data"):
        yield "redacted thinking without data"
    if kind == "tool_use":
        if not re.fullmatch("[a-zA-Z0-9_-]+", block["id"]) or not re.fullmatch("[a-zA-Z0-9_-]{1,128}", block["name"]):
            yield f"a call with the id {block['id']!r} of the tool {block['name']!r}"
        if not isinstance(block["input"], dict):
            yield "an input that is no object"
    if kind == "tool_result":
        content = block.get("content")
        inner = content if isinstance(content, list) else []
        yield from (f"in a result: {fault}" for one in inner for fault in _block_faults(one))
        if isinstance(content, str) and content and not content.strip():
            yield "a result of white space"
        if block.get("is_error") and (not content or any(one["type"] != "text" for one in inner)):
            yield "a failure that is not told in text"
        if any(one["type"] in ASSISTANT_ONLY or one["type"] == "tool_result" for one in inner):
            yield "a result that holds what only messages hold"


def blocks_of(message: Message) -> list[Block]:
    """Return a message's content as blocks; a string is short for one text block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def marks(value: Any) -> Iterator[Any]:
    """Yield every cache mark in a value, except within inputs and schemas of tools."""
    if isinstance(value, list):
        for one in value:
            yield from marks(one)
    elif isinstance(value, dict):
        if value.get("cache_control"):
            yield value["cache_control"]
        for key, inner in value.items():
            if key not in ("input", "cache_control", "input_schema"):
                yield from marks(inner)


def in_order(value: Any) -> bool:
    """Whether all cache marks for an hour come before shorter ones, as the API demands."""
    hours = [mark.get("ttl") == "1h" for mark in marks(value)]
    return hours == sorted(hours, reverse=True)


def blocks(messages: Sequence[Message]) -> list[bytes]:
    """Return every block with its role, as the bytes that are sent."""
    pairs = ((message["role"], block) for message in messages for block in blocks_of(message))
    return [json.dumps(pair, ensure_ascii=False).encode() for pair in pairs]


# --- what a request says


def texts(request: dict[str, Any]) -> list[str]:
    """Return every readable text of the request in order: system, messages, names and inputs of calls, results."""
    system = request.get("system") or ""
    found = [system] if isinstance(system, str) else [block["text"] for block in system]
    for message in request["messages"]:
        for block in blocks_of(message):
            found.extend(_said(block))
    return [text for text in found if text]


def _said(block: Block) -> list[str]:
    kind = block["type"]
    if kind == "text":
        return [block["text"]]
    if kind == "thinking":
        return [block["thinking"]]
    if kind == "tool_use":
        return [block["name"], json.dumps(block["input"], ensure_ascii=False)]
    if kind == "tool_result":
        content = block.get("content", "")
        return [content] if isinstance(content, str) else [text for one in content for text in _said(one)]
    if kind in ("image", "redacted_thinking"):
        return []
    if kind == "document" and block["source"]["type"] == "base64":
        return [block.get("title") or "", block.get("context") or ""]
    return [json.dumps(block, ensure_ascii=False, separators=(",", ":"))]


# --- the vendor's own types


def sdk_faults(request: dict[str, Any]) -> list[str]:
    """Return what the vendor's published types refuse in the arguments, and keys that they do not declare."""
    from pydantic import ValidationError

    adapter, known, inner = _sdk()
    found: list[str] = []
    trimmed = dict(request)
    trimmed["messages"] = []
    for i, message in enumerate(request["messages"]):
        kept = []
        for block in blocks_of(message):
            if block["type"] not in known:
                continue  # newer than the types: only its place can be judged
            kept.append(block)
            found.extend(f"{i}: unknown keys {keys}" for keys in _unknown(block, known))
            content = block.get("content") if block["type"] == "tool_result" else None
            for one in content if isinstance(content, list) else ():
                found.extend(f"{i}: unknown keys {keys} in a result" for keys in _unknown(one, inner))
            if isinstance(content, list):
                kept[-1] = {**block, "content": [one for one in content if one["type"] in inner]}
        trimmed["messages"].append({**message, "content": message["content"] if kept == [] else kept})
        if not kept:
            trimmed["messages"].pop()
    try:
        _consume(adapter.validate_python({**trimmed, "model": "claude", "max_tokens": 1}))
    except ValidationError as fault:
        found.append(str(fault.errors()[:3]))
    return found


def _unknown(block: Block, known: dict[str, set[str]]) -> Iterator[set[str]]:
    if block["type"] in known and (keys := block.keys() - known[block["type"]]):
        yield keys


@lru_cache
def _sdk() -> tuple[Any, dict[str, set[str]], dict[str, set[str]]]:
    """Return a validator of all arguments, and the declared keys of each type of block in messages and in results."""
    from anthropic.types import ContentBlockParam
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
    from anthropic.types.tool_result_block_param import Content
    from pydantic import TypeAdapter

    def keys(union: Any) -> dict[str, set[str]]:
        hints = [get_type_hints(member) for member in get_args(union)]
        return {get_args(hint["type"])[0]: set(hint) for hint in hints}

    return TypeAdapter(MessageCreateParamsNonStreaming), keys(ContentBlockParam), keys(Content)


def _consume(value: Any) -> None:
    """Iterate over a validated value to its end: pydantic checks the elements of iterables only then."""
    if isinstance(value, dict):
        for inner in value.values():
            _consume(inner)
    elif isinstance(value, list | tuple) or type(value).__name__ == "ValidatorIterator":
        for inner in value:
            _consume(inner)

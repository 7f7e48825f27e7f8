"""Gathering of streamed events of Anthropic's messages: the message, then its blocks, then why it ended. Pure."""

from __future__ import annotations

import json
from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.formats import Message

_GOES_ON = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class AnthropicAnswer:
    """The message of one stream."""

    def __init__(self) -> None:
        self.text, self.is_complete = "", False
        self._message: Message = {"type": "message", "role": "assistant", "stop_reason": None}
        self._blocks: dict[int, Message] = {}
        self._inputs: dict[int, str] = {}

    def take(self, event: Message) -> None:
        """Take one event."""
        kind = event["type"]
        if kind == "message_start":
            self._message |= _mapping(event, "message")
        elif kind == "content_block_start":
            block = self._blocks[_index(event)] = dict(_mapping(event, "content_block"))
            self.text += block.get("text", "") if block.get("type") == "text" else ""
        elif kind == "content_block_delta":
            self._go_on(_index(event), _mapping(event, "delta"))
        elif kind == "message_delta":
            self._message |= {key: value for key, value in _mapping(event, "delta").items() if value is not None}
            if isinstance(usage := event.get("usage"), dict):
                reported = {key: value for key, value in usage.items() if value is not None}
                self._message["usage"] = {**(self._message.get("usage") or {}), **reported}
        elif kind == "message_stop":
            self.is_complete = True

    def _go_on(self, index: int, delta: Message) -> None:
        block, kind = self._blocks.get(index), delta.get("type")
        if block is None:
            raise InvalidEntry("event.index", f"{index} is not a block that has begun")
        if kind in _GOES_ON:
            key = _GOES_ON[str(kind)]
            piece = delta.get(key) or ""
            block[key] = (block.get(key) or "") + piece
            self.text += piece if kind == "text_delta" else ""
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + (delta.get("partial_json") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        else:  # of an unknown type: its keys replace those of the block
            block.update({key: value for key, value in delta.items() if key != "type"})

    def whole(self) -> Message:
        """Return the message as it would look without streaming."""
        blocks = [_with_input(block, self._inputs.get(index)) for index, block in sorted(self._blocks.items())]
        return {**self._message, "content": blocks}


def _with_input(block: Message, text: str | None) -> Message:
    """Return a call's block with its input, which came as JSON text; text that is no JSON is wrapped in an object."""
    if not text:
        return block
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = {"input": text}
    return {**block, "input": value}


def _mapping(event: Message, key: str) -> Message:
    value = event.get(key)
    if not isinstance(value, dict):
        raise InvalidEntry(f"event.{key}", f"a {event['type']} event needs a mapping here")
    return value


def _index(event: Message) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise InvalidEntry("event.index", f"a {event['type']} event needs a number here")
    return index

"""One answer of each vendor, whole and as the events of its stream, and a server that streams them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from openai_server import Asked, Exchange, OpenAIServer, Play

Event = dict[str, Any]


class Streamed(NamedTuple):
    """An answer of a vendor: the format, the whole response, the events of its stream, and the text in both."""

    format: str
    whole: dict[str, Any]
    events: Sequence[Event]
    text: str


class StreamServer(OpenAIServer):
    """A server that lets the next play answer a request to any path."""

    def begin(self, exchange: Exchange) -> None:
        """Answer a request."""
        self.asked.append(Asked(exchange.asked.path, exchange.asked.headers, exchange.asked.body))
        self.plays.popleft()(exchange)

    @property
    def root(self) -> str:
        """The server's URL without a path."""
        return self.url.removesuffix("/v1")


def plays(events: Sequence[Event], *, cut: bool = False) -> Play:
    """Stream the events, named by their type if they have one; with `cut`, drop the connection after them."""

    def play(exchange: Exchange) -> None:
        exchange.open_stream()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            data = f"{name}data: {json.dumps(event)}\n\n".encode()
            exchange.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if cut:
            exchange.cut()
        else:
            exchange.wfile.write(b"0\r\n\r\n")

    return play


def answers(whole: dict[str, Any]) -> Play:
    """Answer with the whole response."""
    return lambda exchange: exchange.reply(200, json.dumps(whole).encode(), {})


# --- chat completions

_CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"what": "gate"}'}}
_CHAT_USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 9,
    "total_tokens": 49,
    "prompt_tokens_details": {"cached_tokens": 32},
}


def _chunk(*choices: Event, **more: Any) -> Event:
    made = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    return {**made, "choices": list(choices), **more}


def _delta(finish: str | None = None, **delta: Any) -> Event:
    return _chunk({"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish})


def _calling(**function: Any) -> Event:
    return _delta(tool_calls=[{"index": 0, "function": function}])


CHAT = Streamed(
    "openai",
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "logprobs": None,
                "message": {"role": "assistant", "content": "I look it up.", "refusal": None, "tool_calls": [_CALL]},
            }
        ],
        "usage": _CHAT_USAGE,
    },
    (
        _delta(role="assistant", content="", refusal=None),
        *(_delta(content=word) for word in ("I", " look", " it", " up.")),
        _delta(
            tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": ""}}]
        ),
        *(_calling(arguments=piece) for piece in ('{"wh', 'at": "', 'gate"}')),
        _delta("tool_calls"),
        _chunk(usage=_CHAT_USAGE),
    ),
    "I look it up.",
)


# --- responses

_REASONING = {"id": "rs_1", "type": "reasoning", "summary": []}
_SAID = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "I look it up.", "annotations": [], "logprobs": []}],
}
_FUNCTION_CALL = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "find",
    "arguments": '{"what": "gate"}',
}
_RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [_REASONING, _SAID, _FUNCTION_CALL],
    "usage": {
        "input_tokens": 40,
        "output_tokens": 9,
        "total_tokens": 49,
        "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
}


def _numbered(*events: Event) -> tuple[Event, ...]:
    return tuple({**event, "sequence_number": number} for number, event in enumerate(events))


def _said(text: str) -> Event:
    place = {"item_id": "msg_1", "output_index": 1, "content_index": 0, "logprobs": []}
    return {"type": "response.output_text.delta", **place, "delta": text}


_BEGUN = {**_RESPONSE, "status": "in_progress", "output": [], "usage": None}

RESPONSES = Streamed(
    "openai-responses",
    _RESPONSE,
    _numbered(
        {"type": "response.created", "response": _BEGUN},
        {"type": "response.output_item.added", "output_index": 0, "item": _REASONING},
        {"type": "response.output_item.done", "output_index": 0, "item": _REASONING},
        {
            "type": "response.output_item.added",
            "output_index": 1,
            "item": {**_SAID, "status": "in_progress", "content": []},
        },
        {
            "type": "response.content_part.added",
            "item_id": "msg_1",
            "output_index": 1,
            "content_index": 0,
            "part": {"type": "output_text", "text": "", "annotations": []},
        },
        *(_said(word) for word in ("I", " look", " it", " up.")),
        {"type": "response.output_item.done", "output_index": 1, "item": _SAID},
        {
            "type": "response.output_item.added",
            "output_index": 2,
            "item": {**_FUNCTION_CALL, "status": "in_progress", "arguments": ""},
        },
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc_1",
            "output_index": 2,
            "delta": '{"what": "gate"}',
        },
        {"type": "response.output_item.done", "output_index": 2, "item": _FUNCTION_CALL},
        {"type": "response.completed", "response": _RESPONSE},
    ),
    "I look it up.",
)


# --- Anthropic

_USAGE = {"input_tokens": 5, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 3, "output_tokens": 9}
_MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": _USAGE,
    "content": [
        {"type": "thinking", "thinking": "Which gate?", "signature": "c2lnbmVk"},
        {"type": "text", "text": "I look it up."},
        {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"what": "gate"}},
    ],
}


def _begins(index: int, block: Event) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _goes_on(index: int, **delta: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _ends(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


ANTHROPIC = Streamed(
    "anthropic",
    _MESSAGE,
    (
        {
            "type": "message_start",
            "message": {**_MESSAGE, "content": [], "stop_reason": None, "usage": {**_USAGE, "output_tokens": 1}},
        },
        _begins(0, {"type": "thinking", "thinking": "", "signature": ""}),
        {"type": "ping"},
        *(_goes_on(0, type="thinking_delta", thinking=piece) for piece in ("Which", " gate?")),
        _goes_on(0, type="signature_delta", signature="c2lnbmVk"),
        _ends(0),
        _begins(1, {"type": "text", "text": ""}),
        *(_goes_on(1, type="text_delta", text=word) for word in ("I", " look", " it", " up.")),
        _ends(1),
        _begins(2, {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}),
        *(_goes_on(2, type="input_json_delta", partial_json=piece) for piece in ("", '{"what"', ': "gate"}')),
        _ends(2),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ),
    "I look it up.",
)


# --- Gemini

_TOLD = {"promptTokenCount": 40, "cachedContentTokenCount": 32, "candidatesTokenCount": 9, "totalTokenCount": 49}


def _contents(*parts: Event, **more: Any) -> Event:
    candidate = {"index": 0, "content": {"role": "model", "parts": list(parts)}, **more}
    return {"candidates": [candidate], "usageMetadata": _TOLD, "modelVersion": "gemini-3", "responseId": "r1"}


_ASKED = {"functionCall": {"name": "find", "args": {"what": "gate"}}, "thoughtSignature": "c2lnbmVk"}

GEMINI = Streamed(
    "gemini",
    _contents({"text": "Which gate?", "thought": True}, {"text": "I look it up."}, _ASKED, finishReason="STOP"),
    (
        _contents({"text": "Which", "thought": True}),
        _contents({"text": " gate?", "thought": True}),
        *(_contents({"text": word}) for word in ("I", " look", " it", " up.")),
        _contents(_ASKED),
        _contents({"text": ""}, finishReason="STOP"),
    ),
    "I look it up.",
)

STREAMED = {one.format: one for one in (CHAT, RESPONSES, ANTHROPIC, GEMINI)}

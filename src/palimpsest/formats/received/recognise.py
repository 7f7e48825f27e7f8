"""Recognition of what vendors' clients give, by shape, in any mixture: objects, dumps of those, mappings. Pure.

A whole response yields its message or items, and its usage. What the response says around its message is put into the
message under the key `BESIDE`, which no request has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from palimpsest.errors import ConfigError, InvalidEntry, shorten
from palimpsest.formats import ANTHROPIC, CHAT, GEMINI, RESPONSES, Message
from palimpsest.formats.received.broken import is_broken_off, what_came
from palimpsest.formats.received.plain import is_model, plain
from palimpsest.formats.received.shapes import holder_of, joined, shape_of, taken_as
from palimpsest.formats.received.usage import reported
from palimpsest.formats.received.values import Received, Run
from palimpsest.formats.wording import BESIDE

_BESIDE = frozenset(
    {
        *("id", "response_id", "responseId", "model", "model_version", "modelVersion", "created", "created_at"),
        *("create_time", "createTime", "service_tier", "system_fingerprint", "status", "incomplete_details", "error"),
    }
)
_UNKEPT = frozenset({"message", "content", "index", "logprobs", "logprobs_result", "logprobsResult"})

_SPOKEN = (CHAT, RESPONSES, ANTHROPIC, GEMINI)

_NOBODY = "does not say whose it is; give the whole message around it, which has a role"

_WITH_FIELDS = ("message", "function_call", "reasoning")
"""Types of items that may carry `BESIDE`: they are sent by their fields. Others are kept whole, and may be sent so."""

_WHAT = (
    "give a message, a choice, a response, content blocks or items of the openai, anthropic or google-genai client, "
    'what their model_dump() gives, or mappings such as {"role": "user", "content": "Hello"}'
)

_LANGCHAIN = "a message of LangChain; give what langchain_core.messages.convert_to_openai_messages makes of it"
_PYDANTIC_AI = (
    "a message of Pydantic AI; give a run's `new_messages_json()`, as a binary stream, to "
    "memory.import_file(…, source='pydantic-ai', session_id=…)"
)
_BY_PACKAGE = {"langchain_core": _LANGCHAIN, "pydantic_ai": _PYDANTIC_AI}
_OF_LANGCHAIN = frozenset({"human", "ai", "system", "tool", "function", "chat", "remove", "constructor"})
"""The types of LangChain's messages, and of its serialised objects."""


def recognise(given: object, format: str, *, settled: bool = False) -> Received:
    """Return what was given as messages.

    `format` is the format of messages that could be of several; with `settled` of all messages. Raises InvalidEntry,
    naming the place, for what is not recognised.
    """
    # A user's own format, or plain text, takes messages as they are.
    said_settled, settled = settled, settled or format not in _SPOKEN
    batch = given if isinstance(given, Sequence) and not isinstance(given, bytes) else [given]
    found = Received([], {})
    follows_piece = False  # whether the message before is made of pieces, which a further piece may join
    for i, one in enumerate(batch):
        place = f"messages[{i}]"
        item = plain(one, place)
        if not settled and (framework := _framework_of(one, item)) is not None:
            raise InvalidEntry(place, f"{_named(one)} is {framework}")
        if not isinstance(item, dict) and format in _SPOKEN:
            raise InvalidEntry(place, f"{_named(one)} is {_unknown(one)}; {_WHAT}")
        as_is = settled and (said_settled or not _is_answer(item))
        own, messages, is_piece = _messages(one, item, format, place, settled=as_is, note=partial(_note, found, i))
        last = found.runs[-1] if found.runs else None
        both_pieces = follows_piece and is_piece
        if both_pieces and last is not None and last.format == own and joined(last.messages[-1], messages[0]):
            continue
        follows_piece = is_piece
        cut_off = is_broken_off(item)
        if last is None or (last.format, last.cut_off) != (own, cut_off):
            found.runs.append(last := Run(own, [], [], cut_off))
        last.messages.extend(messages)
        last.places.extend([i] * len(messages))
    for run in found.runs:
        for message, i in zip(run.messages, run.places, strict=True):
            if run.format == GEMINI and message.get("role") == "":
                raise InvalidEntry(f"messages[{i}]", _NOBODY)
    return found


def _framework_of(given: object, item: object) -> str | None:
    """Return which framework the message is from, and what to give instead; None if it is none.

    `item` is the message as plain JSON. A dump of such a message may look like a provider's empty message: one of
    Pydantic AI has `parts` like Google's. It would be stored as something that no model can read.
    """
    package = type(given).__module__.partition(".")[0]
    if package in _BY_PACKAGE or not isinstance(item, Mapping) or "role" in item:
        return _BY_PACKAGE.get(package)
    parts = item.get("parts")
    if isinstance(parts, list) and any(isinstance(part, Mapping) and "part_kind" in part for part in parts):
        return _PYDANTIC_AI
    kind = item.get("type")
    dumped = isinstance(kind, str) and kind in _OF_LANGCHAIN and not {"content", "data", "lc"}.isdisjoint(item)
    return _LANGCHAIN if dumped else None


def _is_answer(item: Any) -> bool:
    """Whether this is an answer of Anthropic: it has the shape of a message, and a usage."""
    return isinstance(item, dict) and "usage" in item and shape_of(item) == ("message", ANTHROPIC)


def _messages(
    one: object, item: Any, format: str, place: str, *, settled: bool, note: Callable[[Message, str], None]
) -> tuple[str, list[Message], bool]:
    """Return the format and messages of one given thing, and whether it is only a piece of a message.

    `note` is called with a response and its place, to record its usage.
    """
    if not isinstance(item, dict):
        return format, [item], False
    shape, own = shape_of(item)
    if settled and shape in ("message", "piece") and isinstance(one, dict):
        return format, [item], False
    if shape == "message":
        if own == ANTHROPIC and "usage" in item:
            note(item, place)
        return own or taken_as(item, format), [item], False
    if shape == "piece":
        if item.get("type") == "text" and own == ANTHROPIC != format and not (is_model(one) or "citations" in item):
            raise InvalidEntry(place, _NOBODY)
        return own, [holder_of(item, own)], True
    if shape in ("response", "choice"):
        if shape == "response":
            note(item, place)
        return own, _unpacked(item, own, shape, place), False
    if isinstance(one, dict) and shape == "unknown":
        return format, [item], False  # the format says what it wants
    raise InvalidEntry(
        place, f"{_named(one)} is {_MISPLACED.get(shape, 'not a kind of message that is known here')}; {_WHAT}"
    )


def _unknown(value: object) -> str:
    return (
        _MISPLACED["event"]
        if hasattr(value, "__next__") or hasattr(value, "__aiter__")
        else "not a kind of message that is known here"
    )


_MISPLACED = {
    "event": "a stream, or a piece of one: feed its events to `with session.stream() as answer`, "
    " or add its final result",
    "usage": "what a call used: give it to record_usage",
}


def _note(found: Received, number: int, response: Message, place: str) -> None:
    try:
        usage = reported(response, f"{place}.usage")
    except ConfigError as fault:  # which is the error of `record_usage`; here the figures are part of what is added
        raise InvalidEntry(fault.where, f"{shorten(fault.found)} is not {fault.allowed}") from fault
    if usage is not None:
        found.usages[number] = usage


def _named(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# --- whole responses


def _unpacked(item: Message, format: str, shape: str, place: str) -> list[Message]:
    if format == RESPONSES:
        return [what_came(item, place)] if is_broken_off(item) else _items(item, place)
    choices = {CHAT: "choices", GEMINI: "candidates"}[format]
    choice = item if shape == "choice" else _only(item, choices, place)
    around = _around(item) if shape == "response" else {}
    around |= {key: value for key, value in choice.items() if value is not None and key not in _UNKEPT}
    message = choice.get("message" if format == CHAT else "content")
    if message is None and format == GEMINI:  # the answer ended before it said anything
        message = {"role": "model", "parts": []}
    if not isinstance(message, dict):
        raise InvalidEntry(f"{place}.{choices}[0]", "holds no message")
    if format == GEMINI and message.get("role") is None:
        message = {**message, "role": "model"}
    return [{**message, BESIDE: around} if around else message]


def _only(response: Message, key: str, place: str) -> Message:
    """Return the only answer in a response. Raises InvalidEntry if it holds none, or several."""
    choices = response.get(key)
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        return choices[0]
    if isinstance(choices, list) and len(choices) > 1:
        raise InvalidEntry(
            f"{place}.{key}", f"holds {len(choices)} answers; add only the one that the conversation continues with"
        )
    blocked = response.get("prompt_feedback") or response.get("promptFeedback") or {}
    why = blocked.get("block_reason") or blocked.get("blockReason") if isinstance(blocked, dict) else None
    raise InvalidEntry(f"{place}.{key}", f"holds no answer{f' ({why})' if why else ''}, so there is nothing to add")


def _items(response: Message, place: str) -> list[Message]:
    items = response.get("output")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidEntry(f"{place}.output", "is not a list of items")
    around = _around(response)
    first = items[0] if items else {}
    if around and first.get("type") in _WITH_FIELDS:
        return [{**first, BESIDE: around}, *items[1:]]
    return items


def _around(response: Message) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key in _BESIDE and value is not None}

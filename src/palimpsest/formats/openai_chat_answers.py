"""Answers of OpenAI's chat completions as messages of a request. Pure.

Both have the same shape, but in a request the API refuses some keys that its own answers have. The log keeps them.
"""

from __future__ import annotations

from palimpsest.formats import Adapted, Message
from palimpsest.formats.common import fitting, has_words
from palimpsest.formats.openai_chat_rules import NAME_LENGTH
from palimpsest.formats.wording import ANSWERED, BESIDE, is_sound, said_in_sound
from palimpsest.log.entry import Entry

_NOT_SPEAKING = r"[\s<|\\/>]"
_STREAMED = ("index", "parsed_arguments")
_NOT_MISSED = ("parsed", BESIDE)
"""Keys that repeat the content, or hold no text for a reader: leaving them out is not reported."""


THOUGHT = "reasoning_content"
"""The key of an answer that holds the model's thoughts, at services that are compatible with OpenAI's."""

_WANTING = ("deepseek", "kimi")
"""Families of models that want their thoughts back, as of 2026-11.

DeepSeek refuses a request in which an answer with calls lacks its thoughts, and ignores other thoughts
(api-docs.deepseek.com/guides/thinking_mode). Kimi refuses it, too, and its newer models want the thoughts of all
earlier answers (platform.kimi.ai, "Use thinking models"). DeepSeek's R1 refused thoughts instead.
"""


def wants_thoughts(model: str | None) -> bool:
    """Whether the model of this name wants its thoughts back. A provider may stand before the name (`deepseek/...`),
    and a variant behind it (`...:free`)."""
    if not isinstance(model, str):
        return False
    for part in model.lower().replace(":", "/").split("/"):
        family, _, version = part.partition("-")
        if family in _WANTING and version:
            return not version.startswith("r1")
    return False


def accepted(message: Message, entry: Entry, adapted: list[Adapted], *, thoughts: bool = False) -> Message:
    """Return the message without what the API refuses in a request: invalid names, empty lists, keys that are null, and
    keys that only answers have. The model's `thoughts` stay if they are asked for."""
    message = {key: value for key, value in message.items() if value is not None or key == "content"}
    if isinstance(message.get("content"), list):
        message["content"] = [without_nulls(part) for part in message["content"]]
    if entry.kind == "tool_result":
        message["role"], message["content"] = "tool", message.get("content") or ""
        return message
    for key in ("name", "tool_calls", "function_call"):
        if key in message and not message[key]:
            del message[key]
    if entry.role == "assistant":
        _without_answered(message, entry, adapted, _ANSWERED if thoughts else ANSWERED)
    if message.get("content") == [] and message["role"] == "assistant":
        message["content"] = None
    if "name" in message:
        name = fitting(message["name"], _NOT_SPEAKING, NAME_LENGTH)
        if name != message["name"]:
            adapted.append(Adapted(entry.seq, f"name as {name}"))
            message["name"] = name
    return message


_ANSWERED = ANSWERED - {THOUGHT}


def without_nulls(part: Message) -> Message:
    """Return the part without keys that are null, which requests leave out."""
    return {key: value for key, value in part.items() if value is not None} if None in part.values() else part


def _without_answered(message: Message, entry: Entry, adapted: list[Adapted], keys: frozenset[str]) -> None:
    """Remove from an answer the keys that requests do not have. Sound that the model made becomes its transcript."""
    removed = {key: message.pop(key) for key in sorted(keys & message.keys())}
    missed = (key for key, value in removed.items() if key not in _NOT_MISSED and has_words(key, value))
    adapted.extend(Adapted(entry.seq, f"{key} left out") for key in missed)
    sound = message.get("audio")
    if isinstance(sound, dict) and is_sound(sound):  # its id is no substitute: the provider keeps it for an hour only
        del message["audio"]
        message["content"] = message.get("content") or said_in_sound(sound)
        adapted.append(Adapted(entry.seq, "audio as text"))


def sent_call(call: Message) -> Message:
    """Return a call as requests have it: without nulls, its index in a stream, and the arguments parsed by a client."""
    return {
        key: sent_call(value) if isinstance(value, dict) and key in ("function", "custom") else value
        for key, value in call.items()
        if value is not None and key not in _STREAMED
    }

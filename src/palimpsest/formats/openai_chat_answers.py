"""OpenAI's chat completions: what of an answer a request takes. Pure.

Both are messages, and the API refuses in a request some of what its own answers hold. All of it is kept in the log.
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
"""What says the same as the content, or nothing to a reader."""


def accepted(message: Message, entry: Entry, adapted: list[Adapted]) -> Message:
    """The message without what the API refuses: names that it takes for none, lists of nothing, keys that are null,
    and what only its answers have."""
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
        _without_answered(message, entry, adapted)
    if message.get("content") == [] and message["role"] == "assistant":
        message["content"] = None
    if "name" in message:
        name = fitting(message["name"], _NOT_SPEAKING, NAME_LENGTH)
        if name != message["name"]:
            adapted.append(Adapted(entry.seq, f"name as {name}"))
            message["name"] = name
    return message


def without_nulls(part: Message) -> Message:
    """The part without keys that are null, which requests leave out."""
    return {key: value for key, value in part.items() if value is not None} if None in part.values() else part


def _without_answered(message: Message, entry: Entry, adapted: list[Adapted]) -> None:
    """Take out of an answer what a request has not; of sound that was answered, its transcript stays."""
    taken = {key: message.pop(key) for key in sorted(ANSWERED & message.keys())}
    worded = (key for key, value in taken.items() if key not in _NOT_MISSED and has_words(key, value))
    adapted.extend(Adapted(entry.seq, f"{key} left out") for key in worded)
    sound = message.get("audio")
    if isinstance(sound, dict) and is_sound(sound):  # it is gone at the provider an hour later
        del message["audio"]
        message["content"] = message.get("content") or said_in_sound(sound)
        adapted.append(Adapted(entry.seq, "audio as text"))


def asked(call: Message) -> Message:
    """A call as requests have it: without nulls, its place in a stream, and what a client has read its arguments as."""
    return {
        key: asked(value) if isinstance(value, dict) and key in ("function", "custom") else value
        for key, value in call.items()
        if value is not None and key not in _STREAMED
    }

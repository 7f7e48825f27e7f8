"""The format `openai`, for OpenAI's chat completions: decode, encode, render, validate. Pure.

A provider's message becomes one or more entries. An assistant message with calls is a message entry (unless its
content is null) followed by an entry for each call, tied together by `continues`. Keys that entries have no field for
are kept in `native` and come back. The shapes are those of OpenAI's API reference, "Create chat completion".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from palimpsest.formats import CHAT, Adapted, Format, Joined, Message, Problem, Shown
from palimpsest.formats.common import (
    NAMELESS,
    background,
    fitting,
    is_own,
    mappings,
    own_native,
    renamed_tokens,
    replaced_by_text,
    stand_in_overhead,
    unused,
)
from palimpsest.formats.openai_chat_answers import THOUGHT, accepted, sent_call, wants_thoughts, without_nulls
from palimpsest.formats.openai_chat_decode import decode_message, lacking
from palimpsest.formats.openai_chat_parts import encode_part, has_counterpart, says_nothing, sent_part
from palimpsest.formats.openai_chat_rules import ID_LENGTH, NAME_LENGTH, SPEAKER_NAME, broken_rules, is_function_name
from palimpsest.formats.wording import SPEAKING
from palimpsest.log.entry import Entry, Opaque, Part, Reasoning, Text
from palimpsest.tokens.counter import MESSAGE_OVERHEAD, NAME_OVERHEAD, REPLY_OVERHEAD, ROLE_TOKENS

PER_CALL = 3
"""Tokens around a tool call, beside its name and arguments. OpenAI publishes no figure: this one was derived by others
from the reported usage of function calls. The first call of a message is also counted with the message's overhead."""

_NOT_IN_NAME = r"[^a-zA-Z0-9_-]"

_SIMPLE = {"role", "content"}
_RESULT = {"role", "content", "tool_call_id"}


class OpenAIChat(Format):
    """The format `openai`: messages of chat completions."""

    name = CHAT
    prime = REPLY_OVERHEAD
    bills_kept = True
    returns_thoughts = False
    """Whether the model's thoughts (`reasoning_content`) go back with its answers."""
    words = frozenset(
        {
            "arguments",
            "audio",
            "b64_json",
            "custom",
            "detail",
            "developer",
            "file",
            "file_data",
            "file_id",
            "filename",
            "format",
            "function",
            "function_call",
            "image_url",
            "input_audio",
            "reasoning",
            "refusal",
            "tool_call_id",
            "tool_calls",
            "url",
        }
    )

    # --- in

    def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
        """Return the messages as entries. Raises InvalidEntry naming the place of what is malformed."""
        entries: list[Entry] = []
        for i, message in enumerate(mappings(messages, where)):
            role, content, keys = message.get("role"), message.get("content"), message.keys()
            if type(content) is str and keys == _SIMPLE and (role == "user" or role == "assistant" or role == "system"):
                entries.append(Entry(role=role, content=content))
            elif role == "tool" and keys == _RESULT and type(content) is str and type(message["tool_call_id"]) is str:
                entries.append(Entry(kind="tool_result", role="tool", content=content, call_id=message["tool_call_id"]))
            else:
                entries.extend(decode_message(message, f"{where}[{i}]"))
        return entries

    # --- out

    def for_model(self, model: str | None) -> OpenAIChat:
        """Return the format as the model of this name wants it: some want their thoughts back."""
        return _RETURNING if type(self) is OpenAIChat and wants_thoughts(model) else self

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return entries as messages, as they came in; nothing is repaired."""
        messages: list[Message] = []
        run: list[Shown] = []
        for entry in entries:
            if run and not (entry.continues and _joins(run[0].entry, entry)):
                messages.append(_message(run))
                run = []
            run.append(Shown(entry, data=entry.kind in ("context", "summary")))
        if run:
            messages.append(_message(run))
        return messages

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group as messages that the API accepts.

        The group's calls become one assistant message. Their results follow, and then background data. What somebody
        else has said, to which a call without the beginning of its message was added, comes before.
        """
        if len(group) == 1:
            shown, entry = group[0], group[0].entry
            if entry.kind == "message" and type(entry.content) is str and entry.native is None and not entry.name:
                return [{"role": entry.role, "content": entry.content if shown.text is None else shown.text}]
            return _unless_empty(self._answer(group, [] if adapted is None else adapted))
        adapted = [] if adapted is None else adapted
        others: list[Shown] = []
        calling: list[Shown] = []
        results: list[Shown] = []
        data: list[Shown] = []
        calls: list[Entry] = []
        for shown in group:
            entry = shown.entry
            kind = entry.kind
            if shown.data:
                data.append(shown)
            elif kind == "tool_call":
                calling.append(shown)
                calls.append(entry)
            elif kind == "message":
                (calling if entry.role == "assistant" else others).append(shown)
            else:
                results.append(shown)
        if not calls:
            return [message for shown in group for message in _unless_empty(self._answer([shown], adapted))]
        messages = [message for shown in others for message in _unless_empty(_message([shown], adapted))]
        messages.append(self._answer(calling, adapted))
        ids = _with_valid_ids(messages[-1]["tool_calls"], calls, adapted)
        for shown in results:
            message = _message([shown], adapted)
            message["tool_call_id"] = ids.get(shown.entry.answers, message.get("tool_call_id"))
            messages.append(message)
        messages.extend([_message([shown], adapted) for shown in data])
        return messages

    def _answer(self, run: Sequence[Shown], adapted: list[Adapted]) -> Message:
        """Return the message of these entries for a context, with the model's thoughts if it wants them back."""
        message = _message(run, adapted, thoughts=self.returns_thoughts)
        if self.returns_thoughts and message.get("tool_calls"):  # an answer without thoughts has an empty one, too
            message.setdefault(THOUGHT, "")
        return message

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the messages, after a system message with the caller's text."""
        return Joined([{"role": "system", "content": system}, *messages] if system else messages)

    def overhead(self, entry: Entry) -> int:
        """Return the tokens that the provider adds to this entry beside its texts."""
        name, kind = entry.name, entry.kind
        if type(entry.content) is str and (kind == "tool_result" or (name is None and kind != "tool_call")):
            return MESSAGE_OVERHEAD + ROLE_TOKENS  # the common case
        if kind == "tool_call":
            renamed = 0 if name and is_function_name(name) else renamed_tokens(name, NAME_LENGTH)
            return renamed + (PER_CALL if entry.continues else MESSAGE_OVERHEAD + ROLE_TOKENS + PER_CALL)
        tokens = MESSAGE_OVERHEAD + ROLE_TOKENS
        if name and kind == "message":
            tokens += NAME_OVERHEAD + (0 if re.fullmatch(SPEAKER_NAME, name) else renamed_tokens(name, NAME_LENGTH))
        if type(entry.content) is not str:
            tokens += stand_in_overhead(entry, CHAT)
        return tokens

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the keyword arguments for `client.chat.completions.create`, without the model."""
        return {"messages": joined.messages, "tools": list(tools)} if tools else {"messages": joined.messages}

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return every rule of the API that the messages break, each with its source."""
        return broken_rules(messages)


class _Returning(OpenAIChat):
    """The format `openai` for models that want their thoughts back."""

    returns_thoughts = True


_RETURNING = _Returning()


# --- encoding one message


def _joins(first: Entry, entry: Entry) -> bool:
    """Whether an entry that continues a message, possibly of another format, belongs to one message here, too."""
    return first.role == "assistant" and entry.role == "assistant" and first.kind in ("message", "tool_call")


def _unless_empty(message: Message) -> list[Message]:
    """Return the message, or an empty list if it says nothing because all its content has no counterpart here."""
    if message.get("content") not in ([], "", None) or any(message.get(key) for key in SPEAKING):
        return [message]
    return []


def _message(run: Sequence[Shown], adapted: list[Adapted] | None = None, *, thoughts: bool = False) -> Message:
    """Return the provider's message for these entries: a message and the calls that continue it, or a single result.

    With `adapted` the message is for a context: content that the API does not take becomes text, and the model's
    `thoughts` are left out unless they are asked for. Without, the message is returned as it came in.
    """
    entry, text = run[0].entry, run[0].text
    if run[0].data:
        return _data(run[0], adapted)
    native = own_native(entry, CHAT)
    message: Message
    if entry.kind == "tool_result":
        call_id = entry.call_id if entry.call_id is not None else f"call_{entry.answers}"
        message = {"role": "tool", "tool_call_id": call_id}
        message["content"] = text if text is not None else _encode_content(entry, adapted)
    else:
        message = _spoken(run, adapted)
    if native is not None:
        for key in native.absent:
            message.pop(key, None)
        if native.keep and text is None:
            message.update(native.keep)
        elif native.keep and "role" in native.keep:
            message["role"] = native.keep["role"]
    if adapted is None or (native is None and "name" not in message and isinstance(message["content"], str | None)):
        return message  # nothing in it came from a provider, so it is valid already
    return accepted(message, entry, adapted, thoughts=thoughts)


def _data(shown: Shown, adapted: list[Adapted] | None) -> Message:
    """Return background data as a user message: text in a fence, then the media that belong to it."""
    own = is_own(shown.entry, CHAT)

    def encode(part: Part) -> Message | None:
        is_medium = not isinstance(part, Opaque) and has_counterpart(part, "user", own)
        return without_nulls(sent_part(part, own)) if is_medium else None

    text, media = background(shown, encode, adapted)
    return {"role": "user", "content": [{"type": "text", "text": text}, *media] if media else text}


def _spoken(run: Sequence[Shown], adapted: list[Adapted] | None) -> Message:
    entry = run[0].entry
    spoken = [shown for shown in run if shown.entry.kind != "tool_call"]
    calls = [_call(shown, adapted) for shown in run if shown.entry.kind == "tool_call"]
    message: Message = {"role": entry.role}
    if len(spoken) == 1:
        content = spoken[0].text if spoken[0].text is not None else _encode_content(spoken[0].entry, adapted)
        is_null = calls and content == [] and (adapted is not None or spoken[0].entry.content)
        message["content"] = None if is_null else content
    elif spoken:
        texts = (_all_text(shown, adapted) for shown in spoken)
        message["content"] = "\n".join(text for text in texts if text) or (None if calls else "")
    else:
        message["content"] = None
    if entry.kind == "message" and entry.name:
        message["name"] = entry.name
    if calls:
        message["tool_calls"] = calls
    return message


def _call(shown: Shown, adapted: list[Adapted] | None) -> Message:
    entry, text = shown.entry, shown.text
    if entry.native is not None and entry.native.call is not None and entry.native.format == CHAT and text is None:
        return dict(entry.native.call) if adapted is None else sent_call(entry.native.call)
    return {
        "id": entry.call_id or f"call_{entry.seq}",
        "type": "function",
        "function": {"name": entry.name or NAMELESS, "arguments": entry.content if text is None else text},
    }


def _encode_content(entry: Entry, adapted: list[Adapted] | None) -> Any:
    """Return the entry's content as the API takes it: parts without a counterpart become text."""
    if isinstance(entry.content, str):
        return entry.content
    own = is_own(entry, CHAT)
    encoded = []
    for part in entry.content:
        if says_nothing(part) and not (own and adapted is None):
            continue  # the API refuses empty texts, which other providers use to carry signatures or cache marks
        if adapted is not None and own and isinstance(part, Opaque) and lacking(part.item):
            # Such malformed parts are refused by `decode` now, but older logs may hold them.
            adapted.append(Adapted(entry.seq, f"{part.item['type']} left out"))
            continue
        if (own and (adapted is None or isinstance(part, Opaque | Reasoning))) or has_counterpart(
            part, entry.role, own
        ):
            encoded.append(encode_part(part, keep=own) if adapted is None else sent_part(part, own))
        elif text := replaced_by_text(entry, part, adapted):
            encoded.append({"type": "text", "text": text})
    return encoded


def _all_text(shown: Shown, adapted: list[Adapted] | None) -> str:
    """Return an entry's content as one text. Thoughts of this format are not fenced, as in `_encode_content`."""
    entry = shown.entry
    if shown.text is not None or isinstance(entry.content, str):
        return entry.text if shown.text is None else shown.text
    bare = (Text, Reasoning) if is_own(entry, CHAT) else Text
    texts = (part.text if isinstance(part, bare) else replaced_by_text(entry, part, adapted) for part in entry.content)
    return "\n".join(filter(None, texts))


def _with_valid_ids(tool_calls: list[Message], calls: Sequence[Entry], adapted: list[Adapted]) -> dict[int, str]:
    """Replace ids and tools' names in `tool_calls` that the API does not accept: empty, too long, invalid or shared.

    Returns the ids by the `seq` of the calls' entries.
    """
    ids, taken = dict[int, str](), set[str]()
    for call, entry in zip(tool_calls, calls, strict=True):
        id = call["id"]
        if not id or len(id) > ID_LENGTH or id in taken:
            id = unused(fitting(id, None, ID_LENGTH) or f"call_{entry.seq}", entry.seq, taken, ID_LENGTH)
            call["id"] = id
        ids[entry.seq] = id
        taken.add(id)
        kind = call.get("type", "function")
        own_name = call[kind]["name"]
        if not (own_name and is_function_name(own_name)):
            name = fitting(own_name or NAMELESS, _NOT_IN_NAME, NAME_LENGTH)
            if own_name and name != own_name:
                adapted.append(Adapted(entry.seq, f"tool name as {name}"))
            call[kind] = {**call[kind], "name": name}
    return ids

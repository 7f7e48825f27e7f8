"""Anthropic's Messages API: the format's class, joining and counting. Pure.

Decoding and encoding are in `anthropic_blocks`, one group as messages in `anthropic_render`, marks for the prompt
cache in `anthropic_cache`, the API's rules in `anthropic_rules`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palimpsest.formats import Adapted, Joined, Message, Problem, Shown
from palimpsest.formats.anthropic_blocks import NAME, Block, decode_message, encode_entries, is_hosted_call, unanswered
from palimpsest.formats.anthropic_cache import limited, with_breakpoints
from palimpsest.formats.anthropic_hosted import FAILED_TOKENS, paired
from palimpsest.formats.anthropic_render import is_object, render_group
from palimpsest.formats.anthropic_rules import NAME_LENGTH, TOOL_NAME, broken_rules
from palimpsest.formats.common import mappings, numbered, renamed_tokens, said_beside_overhead
from palimpsest.formats.wording import FENCE_TOKENS, NO_MESSAGE_TOKENS, OPENING, OPENING_TOKENS, said_by_system
from palimpsest.log.entry import Entry, File, Opaque, Part, Reasoning, Text

MESSAGE_TOKENS = 8
"""Around one message. Anthropic publishes no tokenizer and no figure: its counting endpoint was seen to report 10
tokens for a message of "Hello, world", which is 3 in o200k_base. One more for caution."""

CALL_TOKENS = 56
"""Around one tool call beside its name and input. Own figure: 20 for its id, 20 for a name that is not given, 16 for
the frame."""

RESULT_TOKENS = 32 + NO_MESSAGE_TOKENS
"""Around one tool result beside its text: id, frame, and what stands for a failure without a word. Own figure."""

BLOCK_TOKENS = 2
"""Between one block of text and the next. Own figure."""

TOOLS_PROMPT_TOKENS = 346
"""The system prompt that the provider adds to a request with tools: what its guide to tool use says of Claude 4."""

CACHE_SECONDS = 300.0
"""Its cache lives five minutes by default, an hour where a request asks for that, each anew with every call that it
serves (platform.claude.com/docs/en/build-with-claude/prompt-caching, 2026-11)."""
WRAP_TOKENS = 8
"""The object in which input that is none is wrapped, before the characters that JSON escapes."""

_SIMPLE = {"role", "content"}


class Anthropic:
    """The format `anthropic`: messages of the Messages API."""

    name = NAME
    prime = OPENING_TOKENS + MESSAGE_TOKENS
    tools_prime = TOOLS_PROMPT_TOKENS
    bills_kept = False
    signs_together = True
    cache_seconds = CACHE_SECONDS
    words = frozenset(
        {
            "base64",
            "cache_control",
            "ephemeral",
            "input",
            "is_error",
            "media_type",
            "redacted_thinking",
            "server_tool_use",
            "signature",
            "source",
            "thinking",
            "tool_result",
            "tool_use",
            "tool_use_id",
        }
    )

    # --- in

    def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
        """Return the messages as entries. Raises InvalidEntry naming the place of what is malformed."""
        entries: list[Entry] = []
        for i, message in enumerate(mappings(messages, where)):
            role, content = message.get("role"), message.get("content")
            if type(content) is str and message.keys() == _SIMPLE and (role == "user" or role == "assistant"):
                entries.append(Entry(role=role, content=content))
            else:
                entries.extend(decode_message(message, f"{where}[{i}]"))
        return entries

    # --- out

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return entries as messages, as they came in; nothing is repaired."""
        return encode_entries(entries)

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group as messages: what was said and called, then one message of results, then what is data."""
        return render_group(group, adapted)

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the messages with neighbours of one role merged; leading system messages go beside them.

        A later system message is said by the user, in a fence. Of more cache marks than the API takes in one
        request the first stay.
        """
        texts: list[Block] = [{"type": "text", "text": system}] if system and system.strip() else []
        place = 0
        while place < len(messages) and messages[place]["role"] == "system":
            texts.extend(_as_blocks(messages[place]["content"]))
            place += 1
        pieces = [_as_said(message) for message in messages[place:]]
        if pieces and pieces[0]["role"] == "assistant":
            pieces.insert(0, {"role": "user", "content": OPENING})
        _, texts, joined = limited([], texts, paired(_with_unique_ids(_merged(pieces))))
        one = texts[0]["text"] if len(texts) == 1 and texts[0].keys() == {"type", "text"} else None
        return Joined(joined, one or texts or None)

    def overhead(self, entry: Entry) -> int:
        """Tokens around this entry beside its texts; all of them cautious, for Anthropic publishes no tokenizer."""
        content, kind = entry.content, entry.kind
        if kind == "tool_call":
            return _call_overhead(entry)
        tokens = RESULT_TOKENS if kind == "tool_result" else MESSAGE_TOKENS
        if kind == "message" and entry.role == "system":
            tokens += FENCE_TOKENS
        tokens += said_beside_overhead(entry, NAME)
        if type(content) is not str:
            tokens += sum(_part_overhead(part) for part in content if not isinstance(part, str))
            tokens += FAILED_TOKENS * unanswered([part.item for part in content if isinstance(part, Opaque)])
        return tokens

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the keyword arguments for `client.messages.create`, without the model and `max_tokens`.

        With `cache_breakpoints` the last tool, the end of the system text and the last two user messages are
        marked for the prompt cache, as far as the marks that are there already leave room for it; those of older
        messages make way for the last two user messages.
        """
        texts = _as_blocks(joined.system) if joined.system is not None else []
        arranged = limited(list(tools), texts, joined.messages)
        if cache_breakpoints:
            arranged = with_breakpoints(*arranged)
        marked_tools, marked_texts, messages = arranged
        kwargs: dict[str, Any] = {"messages": messages}
        if texts:
            kwargs["system"] = joined.system if marked_texts == texts else marked_texts
        if marked_tools:
            kwargs["tools"] = marked_tools
        return kwargs

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return every rule of the API that the messages break, each with its source."""
        return broken_rules(messages)


# --- joining


def _as_blocks(content: Any) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _as_said(message: Message) -> Message:
    """The message; a system message that does not come first is the user's, in a fence."""
    if message["role"] != "system":
        return message
    text = "\n".join(block["text"] for block in _as_blocks(message["content"]))
    return {"role": "user", "content": said_by_system(text)}


def _merged(pieces: list[Message]) -> list[Message]:
    """The pieces with neighbours of one role as one message of all their blocks; one alone stays as it is."""
    merged: list[Message] = []
    alone = True
    for piece in pieces:
        if not merged or merged[-1]["role"] != piece["role"]:
            merged.append(piece)
            alone = True
            continue
        if alone:
            merged[-1] = {"role": piece["role"], "content": list(_as_blocks(merged[-1]["content"]))}
            alone = False
        merged[-1]["content"].extend(_as_blocks(piece["content"]))
    return merged


def _with_unique_ids(messages: list[Message]) -> list[Message]:
    """Name calls anew whose ids are taken by earlier ones: the API wants them unique in all of a request."""
    taken: set[str] = set()
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    return [{**message, "content": _renamed(message["content"], names, taken, counts)} for message in messages]


def _renamed(
    content: str | list[Block], names: dict[str, str], taken: set[str], counts: dict[str, int]
) -> str | list[Block]:
    """The blocks of calls and results with ids that only they have: a result's is that of the newest call of its id."""
    if isinstance(content, str):
        return content
    renamed = []
    for block in content:
        calls = block["type"] == "tool_use" or is_hosted_call(block["type"])
        key = "id" if calls else "tool_use_id"
        id = block.get(key)
        if not isinstance(id, str):
            renamed.append(block)
            continue
        if calls:
            names[id] = numbered(id, taken, counts) if id in taken else id
            taken.add(names[id])
        name = names.get(id, id)
        renamed.append(block if name == id else {**block, key: name})
    return renamed


# --- counting


def _call_overhead(entry: Entry) -> int:
    text, tokens = entry.text, CALL_TOKENS
    if entry.name and not TOOL_NAME.fullmatch(entry.name):
        tokens += renamed_tokens(entry.name, NAME_LENGTH)
    if is_object(text):
        return tokens
    return tokens + WRAP_TOKENS + 2 * (len(json.dumps(text, ensure_ascii=False)) - len(text))


def _part_overhead(part: Part) -> int:
    if isinstance(part, Text):
        return BLOCK_TOKENS
    if isinstance(part, Reasoning):
        return FENCE_TOKENS
    if isinstance(part, File):
        return FENCE_TOKENS + 4 * len(part.filename or part.file_id or "")
    return FENCE_TOKENS

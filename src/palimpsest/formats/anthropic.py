"""The format `anthropic`, for Anthropic's Messages API: its class, joining and counting. Pure.

Decoding and encoding are in `anthropic_blocks`, rendering of a group in `anthropic_render`, tools that Anthropic runs
itself in `anthropic_hosted`, marks for the prompt cache in `anthropic_cache`, the API's rules in `anthropic_rules`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from palimpsest.formats import ANTHROPIC, Adapted, Format, Joined, Message, Problem, Shown
from palimpsest.formats.anthropic_blocks import Block, decode_message, encode_entries
from palimpsest.formats.anthropic_cache import limited, with_breakpoints
from palimpsest.formats.anthropic_hosted import FAILED_TOKENS, paired
from palimpsest.formats.anthropic_kinds import begins_with_summary, is_hosted_call, is_signed_compaction, unanswered
from palimpsest.formats.anthropic_render import is_object, render_group, without_thinking
from palimpsest.formats.anthropic_rules import NAME_LENGTH, TOOL_NAME, binds_thinking, broken_rules
from palimpsest.formats.common import mappings, numbered, renamed_tokens, said_beside_overhead
from palimpsest.formats.fences import fenced
from palimpsest.formats.wording import (
    FENCE_TOKENS,
    NO_MESSAGE_TOKENS,
    OPENING,
    OPENING_TOKENS,
    said_by_system,
    stand_in,
)
from palimpsest.log.entry import Entry, File, Opaque, Part, Reasoning, Text

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

MESSAGE_TOKENS = 8
"""Tokens around a message. Anthropic publishes no tokenizer and no figure. Its counting endpoint was seen to report 10
tokens for the message "Hello, world", which is 3 in o200k_base: 7, and one more for caution."""

CALL_TOKENS = 56
"""Tokens around a tool call, beside its name and input. Own figure: 20 for its id, 20 for a missing name, 16 for the
frame."""

RESULT_TOKENS = 32 + NO_MESSAGE_TOKENS
"""Tokens around a tool result, beside its text: id, frame, and the text for a failure without a message. Own figure."""

BLOCK_TOKENS = 2
"""Tokens between two blocks of text. Own figure."""

TOOLS_PROMPT_TOKENS = 346
"""The system prompt that the provider adds to a request with tools: Claude 4's figure in the guide to tool use."""

CACHE_SECONDS = 300.0
"""The cache lives five minutes by default, an hour if a request asks for that. Each call that uses it renews the time
(platform.claude.com/docs/en/build-with-claude/prompt-caching, 2026-11)."""
WRAP_TOKENS = 8
"""Tokens of the object around input that is no JSON object, without the characters that JSON escapes in it."""

_SIMPLE = {"role", "content"}


class Anthropic(Format):
    """The format `anthropic`: messages of the Messages API."""

    name = ANTHROPIC
    prime = OPENING_TOKENS + MESSAGE_TOKENS
    tools_prime = TOOLS_PROMPT_TOKENS
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
        """Return one group as messages: texts and calls, then one message of results, then background data."""
        return render_group(group, adapted)

    def unbound(self, entry: Entry, model: Model | None) -> Entry:
        """Return the message without signed thinking, if the model takes that only where it was made."""
        return without_thinking(entry) if binds_thinking(model) else entry

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the messages with neighbours of one role merged; leading system messages become system text.

        Later system messages are said by the user, in a fence. If there are more cache marks than the API takes in one
        request, the first ones stay.
        """
        texts: list[Block] = [{"type": "text", "text": system}] if system and system.strip() else []
        leading = 0
        while leading < len(messages) and messages[leading]["role"] == "system":
            texts.extend(_as_blocks(messages[leading]["content"]))
            leading += 1
        pieces = [_said_by_user(message) for message in messages[leading:]]
        if pieces and pieces[0]["role"] == "assistant" and not begins_with_summary(pieces[0]):
            pieces.insert(0, {"role": "user", "content": OPENING})
        _, texts, joined = limited([], texts, paired(_with_unique_ids(_merged(_with_one_summary(pieces)))))
        plain_text = texts[0]["text"] if len(texts) == 1 and texts[0].keys() == {"type", "text"} else None
        return Joined(joined, plain_text or texts or None)

    def overhead(self, entry: Entry) -> int:
        """Return the tokens around this entry beside its texts: cautious figures, as no tokenizer is published."""
        content, kind = entry.content, entry.kind
        if kind == "tool_call":
            return _call_overhead(entry)
        tokens = RESULT_TOKENS if kind == "tool_result" else MESSAGE_TOKENS
        if kind == "message" and entry.role == "system":
            tokens += FENCE_TOKENS
        tokens += said_beside_overhead(entry, ANTHROPIC)
        if type(content) is not str:
            tokens += sum(_part_overhead(part) for part in content if not isinstance(part, str))
            tokens += FAILED_TOKENS * unanswered([part.item for part in content if isinstance(part, Opaque)])
        return tokens

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the keyword arguments for `client.messages.create`, without the model and `max_tokens`.

        With `cache_breakpoints` the last tool, the end of the system text and the last two user messages are marked
        for the prompt cache, as far as existing marks leave room. Marks of older messages make way for those of the
        last two user messages.
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


def _said_by_user(message: Message) -> Message:
    """Return the message; a system message becomes the user's, in a fence."""
    if message["role"] != "system":
        return message
    text = "\n".join(block["text"] for block in _as_blocks(message["content"]))
    return {"role": "user", "content": said_by_system(text)}


def _with_one_summary(pieces: Sequence[Message]) -> list[Message]:
    """Return the pieces with signed summaries of the API's own as text, except for one at the very beginning."""
    placed: list[Message] = []
    for piece in pieces:
        content, first = piece["content"], 0 if placed else 1
        if isinstance(content, list) and any(map(is_signed_compaction, content[first:])):
            content = [*content[:first], *(_summary_as_text(block) for block in content[first:])]
        placed.append({**piece, "content": content} if content is not piece["content"] else piece)
    return placed


def _summary_as_text(block: Block) -> Block:
    if not is_signed_compaction(block):
        return block
    return {"type": "text", "text": stand_in(Opaque(item=block)) or fenced("provider_item", "", type="compaction")}


def _merged(pieces: list[Message]) -> list[Message]:
    """Return the pieces with neighbours of one role merged into one message of all their blocks.

    A piece without such a neighbour stays unchanged.
    """
    merged: list[Message] = []
    is_single = True  # whether the last merged message is still one piece, which must not be changed in place
    for piece in pieces:
        if not merged or merged[-1]["role"] != piece["role"]:
            merged.append(piece)
            is_single = True
            continue
        if is_single:
            merged[-1] = {"role": piece["role"], "content": list(_as_blocks(merged[-1]["content"]))}
            is_single = False
        merged[-1]["content"].extend(_as_blocks(piece["content"]))
    return merged


def _with_unique_ids(messages: list[Message]) -> list[Message]:
    """Give new ids to calls whose ids are used by earlier ones: the API wants them unique in the whole request."""
    taken: set[str] = set()
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    return [{**message, "content": _renamed(message["content"], names, taken, counts)} for message in messages]


def _renamed(
    content: str | list[Block], names: dict[str, str], taken: set[str], counts: dict[str, int]
) -> str | list[Block]:
    """Return the blocks with unique ids of calls. A result gets the id of the newest call that had its id."""
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

"""The format `openai-responses`: input items of OpenAI's Responses API, which its Agents SDK stores, too. Pure.

Each item is one entry. The shapes are those of OpenAI's API reference, "Create a model response" (input), and of the
types that its Python library publishes. In a context, items hold only the keys that those types declare: the API
refuses unknown ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palimpsest.formats import RESPONSES, Adapted, Format, Joined, Message, Problem, Shown
from palimpsest.formats.common import (
    own_native,
    renamed_tokens,
    said_beside_overhead,
    stand_in_tokens,
)
from palimpsest.formats.openai_chat import PER_CALL
from palimpsest.formats.openai_responses_decode import decode_items
from palimpsest.formats.openai_responses_encode import beside, exact_item
from palimpsest.formats.openai_responses_items import NAME_LENGTH, is_name
from palimpsest.formats.openai_responses_join import without_repeats
from palimpsest.formats.openai_responses_render import render_group, result_item
from palimpsest.formats.openai_responses_rules import broken_rules
from palimpsest.formats.wording import BESIDE
from palimpsest.log.entry import Entry
from palimpsest.tokens.counter import MESSAGE_OVERHEAD, REPLY_OVERHEAD, ROLE_TOKENS

PER_ITEM = MESSAGE_OVERHEAD + ROLE_TOKENS
"""Tokens around an item. OpenAI publishes no figure for this API: this is that of chat completions, with the same
models."""

_UNREAD = frozenset(
    {"id", "type", "role", "status", "phase", "call_id", "async", "async_", "created_by", "execution", BESIDE}
)
"""Keys that identify an item or say how it came about: the model does not see them, and they are not billed."""


class OpenAIResponses(Format):
    """The format `openai-responses`: items of the Responses API's `input`."""

    name = RESPONSES
    prime = REPLY_OVERHEAD
    words = frozenset(
        {
            "annotations",
            "arguments",
            "b64_json",
            "call_id",
            "code",
            "completed",
            "custom_tool_call",
            "developer",
            "encrypted_content",
            "file_data",
            "file_id",
            "file_search_call",
            "filename",
            "function_call",
            "function_call_output",
            "image_url",
            "in_progress",
            "incomplete",
            "input",
            "input_file",
            "input_image",
            "input_text",
            "item_reference",
            "output",
            "output_text",
            "phase",
            "reasoning",
            "refusal",
            "result",
            "summary",
            "summary_text",
            "web_search_call",
        }
    )

    def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
        """Return the items as entries. Raises InvalidEntry naming the place of what is malformed."""
        return decode_items(messages, where)

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return entries as items, as they came in; nothing is repaired."""
        items: list[Message] = []
        for entry in entries:
            plain = entry.native is None and isinstance(entry.content, str) and entry.kind not in ("context", "summary")
            if plain or own_native(entry, RESPONSES) is not None:
                items.append(exact_item(entry))
            elif entry.kind == "tool_result":
                call_id = f"call_{entry.answers}" if entry.call_id is None else entry.call_id
                items.append(result_item(Shown(entry), "function_call", call_id, None))
            else:
                items.extend(render_group([Shown(entry, data=entry.kind in ("context", "summary"))], None))
        return items

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group as items that the API accepts: the model's texts and calls, then results, then data."""
        if len(group) == 1:
            shown, entry = group[0], group[0].entry
            if entry.kind == "message" and type(entry.content) is str and entry.native is None and not entry.name:
                text = entry.content if shown.text is None else shown.text
                return [{"role": entry.role, "content": text}] if text else []
        return render_group(group, adapted)

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the items without repeated ids, and the caller's text, which this API takes as `instructions`."""
        return Joined(without_repeats(messages), system or None)

    def overhead(self, entry: Entry) -> int:
        """Return the tokens that the provider, or rendering, adds to this entry beside its texts."""
        if entry.kind == "tool_call":
            name = entry.name or ""
            kept = own_native(entry, RESPONSES)
            tokens = PER_ITEM + PER_CALL + (0 if is_name(name) else renamed_tokens(name, NAME_LENGTH))
            return tokens + (_kept_tokens(entry, kept.keep) if kept is not None and kept.keep is not None else 0)
        native, tokens = entry.native, PER_ITEM
        if native is not None and native.keep is not None:
            own = native.format == RESPONSES
            tokens += _kept_tokens(entry, native.keep) if own else said_beside_overhead(entry, RESPONSES)
        if not isinstance(entry.content, str):
            tokens += sum(map(stand_in_tokens, entry.content))
        return tokens

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the keyword arguments for `client.responses.create`, without the model.

        Tools in the form of chat completions are converted to that of this API. Caching needs no marks here.
        """
        arguments: dict[str, Any] = {"input": joined.messages}
        if joined.system:
            arguments["instructions"] = joined.system
        if tools:
            arguments["tools"] = [_tool(tool) for tool in tools]
        return arguments

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return every rule of the API that the items break, each with its source."""
        return broken_rules(messages)


def _kept_tokens(entry: Entry, keep: Message) -> int:
    """Return the tokens of the kept keys that a model may read, at two characters of JSON a token."""
    if keep.keys() <= _UNREAD:
        return 0
    read = {key: value for key, value in keep.items() if value and key not in _UNREAD and key != "content"}
    notes = [more["annotations"] for more in beside(entry) if more.get("annotations")]
    return (len(json.dumps(read)) + len(json.dumps(notes))) // 2


def _tool(tool: Message) -> Message:
    """Return the tool as this API takes it. Here a function is strict unless it says otherwise, so that is set."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        return tool
    return {"type": "function", "parameters": {}, "strict": False, **function}

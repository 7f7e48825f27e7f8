"""Entries as items of the OpenAI Agents SDK: like `openai-responses`, but items that the SDK made go back as they came.

For an answer that came over another API, such as chat completions, the SDK makes items with a placeholder as their id.
It also knows what each API takes of them: its models remove the placeholder, or give thoughts back to those who want
them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from palimpsest.formats import Adapted, Joined, Message, Problem, Shown
from palimpsest.formats.openai_responses import OpenAIResponses
from palimpsest.formats.openai_responses_items import is_assistant_side
from palimpsest.log.entry import Entry

PLACEHOLDER = "__fake_id__"
"""The id of an item that the SDK made of an answer without ids."""

_OWN = "own"
"""The key that holds such an item while the items of a request are joined."""


class AgentsItems(OpenAIResponses):
    """The format `openai-agents`: items as the SDK gives them to its models."""

    name = "openai-agents"

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group as items: as they came, if the SDK made all that the model says in it and nothing of that
        has changed."""
        spoken = [shown for shown in group if not shown.data and shown.entry.kind in ("message", "tool_call")]
        if not spoken or not all(shown.text is None and _is_made_by_sdk(shown.entry) for shown in spoken):
            return super().render(group, adapted)
        changes = list[Adapted]()
        items, seqs = super().render(group, changes), {shown.entry.seq for shown in spoken}
        if adapted is not None:
            adapted += [change for change in changes if change.seq not in seqs]
        calls = (item for item in items if item.get("type") == "function_call")  # with ids that no two of them share
        return [
            *_made(self.encode([shown.entry for shown in spoken]), calls),
            *(item for item in items if not is_assistant_side(item)),
        ]

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the items of a request. No two calls share an id; placeholders stay what they are."""
        joined = super().join(system, list(map(_held, messages)))
        return Joined([_given_back(item) for item in joined.messages], joined.system)

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return the rules that the items break, but for those that the SDK makes valid by itself."""
        return super().validate([_plain(item) if _is_placed(item) else item for item in messages])


def _is_made_by_sdk(entry: Entry) -> bool:
    """Return whether the SDK made the item of the entry, and takes it back.

    Signed thoughts are none: a model takes them only unchanged, and behind what they were made behind.
    """
    (item,) = OpenAIResponses().encode([entry])
    if not _is_placed(item):
        return False
    if item.get("type") == "reasoning":
        about = item.get("provider_data")
        is_signed = "encrypted_content" in item or (isinstance(about, dict) and bool(about.get("thinking_blocks")))
        return not is_signed
    return item.get("type") == "function_call" or (item.get("type") == "message" and item.get("role") == "assistant")


def _is_placed(item: Any) -> bool:
    return isinstance(item, dict) and item.get("id") == PLACEHOLDER


def _made(items: Sequence[Message], calls: Iterator[Message]) -> Iterator[Message]:
    """Yield the items that say anything; the calls as they are sent."""
    for item in items:
        if item["type"] == "function_call":
            yield {**item, **next(calls)}
        elif item["type"] == "reasoning" or any(part.get("text") or part.get("refusal") for part in item["content"]):
            yield item


def _held(item: Message) -> Message:
    """Return a form of the item in which its id is not compared with others."""
    if not _is_placed(item):
        return item
    if item["type"] == "function_call":
        return {**{key: value for key, value in item.items() if key != "id"}, _OWN: True}
    return {"role": "assistant", "content": "", _OWN: item}


def _given_back(item: Message) -> Message:
    own = item.get(_OWN)
    if own is None:
        return item
    held = {key: value for key, value in item.items() if key != _OWN}
    return {**held, "id": PLACEHOLDER} if own is True else own


def _plain(item: Message) -> Message:
    """Return an item that stands for this one, as the API takes it."""
    if item["type"] == "function_call":
        return {key: item[key] for key in ("type", "call_id", "name", "arguments")}
    return {"role": "assistant", "content": item["type"]}

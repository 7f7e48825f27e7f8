"""Joining of rendered groups into one input of the Responses API: no two items and no two calls share an id. Pure.

Each group is valid by itself. Ids that repeat from group to group are changed here, depending on earlier items only,
so that added items do not change those before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.formats import Message
from palimpsest.formats.common import numbered
from palimpsest.formats.fences import fenced
from palimpsest.formats.openai_responses_items import (
    ID_LENGTH,
    SHAPES,
    answers,
    asks,
    is_assistant_side,
    own_id,
    pair_key,
)
from palimpsest.formats.wording import stand_in
from palimpsest.log.entry import Opaque


def without_repeats(messages: Sequence[Message]) -> list[Message]:
    """Return the items with unique ids of items and of calls: the first with an id keeps it."""
    names = _Names()
    items: list[Message] = []
    for i, item in enumerate(messages):
        if "type" not in item:
            names.linked = names.linked or item["role"] != "assistant"
            items.append(item)
        elif item["type"] == "reasoning":
            items.extend(names.reasoning(item, messages[i + 1 : i + 2]))
        else:
            items.extend(names.named(item))
    return items


class _Names:
    """The ids in the input so far."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.calls: dict[str, str] = {}
        """For each id that calls came with, the id that the newest of these calls was given."""
        self.taken: set[str] = set()
        self.counts: dict[str, int] = {}
        self.programs: set[str] = set()
        self.linked = True
        """Whether items may keep their ids: the last reasoning item was sent, or none was left out."""

    def reasoning(self, item: Message, after: Sequence[Message]) -> list[Message]:
        """Return the reasoning item; or its text if its id, or that of the item after it, is in the input already."""
        repeated = item["id"] in self.ids
        taken = {item["id"], *self.ids}
        if not repeated and not any(own_id(other) in taken for other in after if own_id(other) is not None):
            self.ids.add(item["id"])
            self.linked = True
            return [item]
        self.linked = self.linked and repeated
        texts = [piece["text"] for key in ("summary", "content") for piece in item.get(key, ()) if piece["text"]]
        return (
            [{"role": "assistant", "content": "\n".join(fenced("thinking", text) for text in texts)}] if texts else []
        )

    def named(self, item: Message) -> list[Message]:
        """Return the item with unique ids."""
        if not is_assistant_side(item):
            self.linked = True
        if asks(item):
            item = self._asking(item)
        elif answers(item):
            key = pair_key(item["type"])
            item = _changed(item, key, self.calls.get(item[key]) or item[key])
        elif item["type"] == "program":
            self.programs.add(item["call_id"])
        elif item["type"] == "program_output" and item["call_id"] not in self.programs:
            return _as_text(item)
        caller = item.get("caller")
        if isinstance(caller, dict) and caller.get("type") == "program" and not self._is_program(caller):
            item = {key: value for key, value in item.items() if key != "caller"}
        id = own_id(item)
        if not isinstance(id, str) or item["type"] == "mcp_approval_request":
            return [item]
        if id not in self.ids and (self.linked or item["type"] == "item_reference"):
            self.ids.add(id)
            return [item]
        return self._without_id(item, id)

    def _is_program(self, caller: Message) -> bool:
        id = caller.get("caller_id")
        return isinstance(id, str) and id in self.programs

    def _asking(self, item: Message) -> Message:
        key = pair_key(item["type"])
        given_id = item[key]
        unique_id = given_id if given_id not in self.taken else numbered(given_id, self.taken, self.counts, ID_LENGTH)
        self.taken.add(unique_id)
        self.calls[given_id] = unique_id
        return _changed(item, key, unique_id)

    def _without_id(self, item: Message, id: str) -> list[Message]:
        """Return the item without its id, which another item has, or with a new id if its type needs one."""
        kind = item["type"]
        if kind == "item_reference":
            return []
        if kind == "message":
            return _easy_message(item)
        if kind not in SHAPES or "id" not in SHAPES[kind].needed:
            return [{key: value for key, value in item.items() if key != "id"}]
        new_id = numbered(id, self.ids, self.counts, ID_LENGTH)
        self.ids.add(new_id)
        return [{**item, "id": new_id}]


def _changed(item: Message, key: str, value: str) -> Message:
    return item if item[key] == value else {**item, key: value}


def _easy_message(item: Message) -> list[Message]:
    """Return an answer in the API's "easy" form, which needs no id: with its text and its phase."""
    texts = [_text(part) for part in item["content"]]
    phase = {"phase": item["phase"]} if "phase" in item else {}
    text = "\n".join(filter(None, texts))
    return [{"role": item["role"], "content": text, **phase}] if text else []


def _text(part: Message) -> str:
    text: Any = part.get("refusal" if part["type"] == "refusal" else "text")
    return text if isinstance(text, str) else stand_in(Opaque(item=part))


def _as_text(item: Message) -> list[Message]:
    text = stand_in(Opaque(item=item))
    return [{"role": "assistant", "content": text}] if text else []

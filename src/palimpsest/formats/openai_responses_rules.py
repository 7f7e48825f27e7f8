"""The rules of OpenAI's Responses API for a list of input items, each with its source. Pure.

Sources: OpenAI's API reference, "Create a model response" (input), with the types of its Python library, and its
reasoning guide. The source "API error 400" means that a rule is only known from the API's error messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.formats import Message, Problem
from palimpsest.formats.openai_responses_items import (
    ID_LENGTH,
    SHAPES,
    answers,
    asks,
    is_assistant_side,
    is_id,
    is_name,
    own_id,
    pair_key,
)

_REFERENCE = "API reference, responses"
_ERROR = "API error 400"
_MESSAGE = frozenset({"type", "role", "content", "id", "status", "phase"})
_TAKEN = ("user", "system", "developer")
_SAID = frozenset({"output_text", "refusal"})
_GIVEN = frozenset({"input_text", "input_image", "input_file", "input_audio"})


def broken_rules(items: Sequence[Any]) -> list[Problem]:
    """Return every rule that the items break, in the order of the items."""
    check = _Check()
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            check.add(i, "an item must be a mapping", _REFERENCE)
            continue
        check.item(i, item)
        if item.get("type") == "reasoning":
            check.follower(i, items[i + 1] if i + 1 < len(items) else None)
    for call_id, i in check.open.values():
        check.add(i, f"the call {call_id!r} has no result", _ERROR)
    return sorted(check.problems, key=lambda problem: problem.message)


class _Check:
    """The state of a check: the problems so far, all ids, and the calls that wait for results."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.ids: set[str] = set()
        self.asked: set[str] = set()
        self.open: dict[tuple[str, str], tuple[str, int]] = {}

    def add(self, i: int, rule: str, source: str) -> None:
        self.problems.append(Problem(i, rule, source))

    def item(self, i: int, item: Message) -> None:
        """Check one item by itself and against those before it."""
        kind = item.get("type", "message" if "role" in item else "item_reference")
        id = own_id(item)
        if id is not None and not is_id(id, str(kind)):
            self.add(i, f"{id!r} is not a valid id of a {kind}", _ERROR)
        elif isinstance(id, str) and id in self.ids:
            self.add(i, f"two items share the id {id!r}", _ERROR)
        elif isinstance(id, str):
            self.ids.add(id)
        if kind == "message":
            self._message(i, item)
            return
        self._keys(i, item, str(kind))
        if asks(item):
            self._call(i, item, str(kind))
        elif answers(item):
            self._result(i, item, str(kind))

    def follower(self, i: int, after: Any) -> None:
        """Check that a reasoning item is followed by an item that was made with it."""
        followed = isinstance(after, dict) and is_assistant_side(after) and after.get("type") != "reasoning"
        if not followed:
            self.add(i, "a reasoning item must be followed by the output item that it was given with", _ERROR)

    def _keys(self, i: int, item: Message, kind: str) -> None:
        shape = SHAPES.get(kind)
        if shape is None:
            return
        for key in sorted(item.keys() - shape.known):
            self.add(i, f"a {kind} must not have the key {key!r}", _ERROR)
        for key in sorted(shape.needed - item.keys()):
            self.add(i, f"a {kind} needs the key {key!r}", _REFERENCE)

    def _call(self, i: int, item: Message, kind: str) -> None:
        call_id = item.get(pair_key(kind))
        if not isinstance(call_id, str) or not call_id or len(call_id) > ID_LENGTH:
            self.add(i, f"the id of a call must have 1 to {ID_LENGTH} characters", _ERROR)
            return
        if call_id in self.asked:
            self.add(i, f"two calls share the id {call_id!r}", _ERROR)
        self.asked.add(call_id)
        self.open[_family(kind), call_id] = (call_id, i)
        if "name" in SHAPES[kind].needed and kind != "mcp_approval_request" and not is_name(item.get("name")):
            self.add(
                i,
                f"{item.get('name')!r} is not a valid function name: it may have only letters, digits, _ and -",
                _ERROR,
            )

    def _result(self, i: int, item: Message, kind: str) -> None:
        call_id = item.get(pair_key(kind))
        if not isinstance(call_id, str) or self.open.pop((_family(kind), call_id), None) is None:
            self.add(i, f"a result for the call {call_id!r}, which is not waiting for one", _ERROR)

    def _message(self, i: int, item: Message) -> None:
        role, content = item.get("role"), item.get("content")
        if role != "assistant" and role not in _TAKEN:
            self.add(i, f"unknown role {role!r}", _REFERENCE)
        for key in sorted(item.keys() - _MESSAGE):
            self.add(i, f"a message must not have the key {key!r}", _ERROR)
        if not _says(content):
            self.add(i, f"a {role} message needs content that is not empty", _REFERENCE)
            return
        if isinstance(content, list):
            wrong = _GIVEN if role == "assistant" else _SAID
            types = [part.get("type") for part in content if isinstance(part, dict)]
            for kind in sorted({kind for kind in types if isinstance(kind, str)} & wrong):
                self.add(i, f"a {role} message must not have a part of type {kind}", _ERROR)


def _family(kind: str) -> str:
    """Return what the types of a call and its result have in common."""
    if kind.startswith("tool_search"):
        return "tool_search"
    return kind.removesuffix("_output").removesuffix("_request").removesuffix("_response")


def _says(content: Any) -> bool:
    if not content or isinstance(content, str):
        return bool(content)
    if not isinstance(content, list):
        return False
    return not all(isinstance(part, dict) and part.get("text", part.get("refusal")) == "" for part in content)

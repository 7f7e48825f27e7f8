"""Recognition of agent frameworks' own messages, which are refused with a hint at what to give instead. Pure.

A dump of such a message may look like a provider's empty message: one of Pydantic AI has `parts` like Google's. It
would be stored as something that no model can read.
"""

from __future__ import annotations

from collections.abc import Mapping

_LANGCHAIN = "a message of LangChain; give what langchain_core.messages.convert_to_openai_messages makes of it"
_PYDANTIC_AI = (
    "a message of Pydantic AI; give a run's `new_messages_json()`, as a binary stream, to "
    "memory.import_file(…, source='pydantic-ai', session_id=…)"
)
_BY_PACKAGE = {"langchain_core": _LANGCHAIN, "pydantic_ai": _PYDANTIC_AI}
_OF_LANGCHAIN = frozenset({"human", "ai", "system", "tool", "function", "chat", "remove", "constructor"})
"""The types of LangChain's messages, and of its serialised objects."""


def framework_of(given: object, item: object) -> str | None:
    """Return which framework the message is from, and what to give instead; None if it is none.

    `item` is the message as plain JSON.
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

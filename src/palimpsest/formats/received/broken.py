"""Responses of OpenAI's Responses API that were not streamed and that failed or were cancelled. Pure.

For streamed ones see `stream_responses`.
"""

from __future__ import annotations

from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.formats import RESPONSES, Message
from palimpsest.formats.received.shapes import shape_of

_BROKEN = ("failed", "cancelled")
_SAID = {"output_text": "text", "refusal": "refusal"}


def is_broken_off(item: Any) -> bool:
    """Whether this is such a response, as plain JSON. Its content may be incomplete."""
    return isinstance(item, dict) and item.get("status") in _BROKEN and shape_of(item) == ("response", RESPONSES)


def what_came(response: Message, place: str) -> Message:
    """Return a message with only the response's text, which any provider accepts. Raises InvalidEntry for no text."""
    items = [item for item in response["output"] if isinstance(item, dict) and item.get("type") == "message"]
    parts = [part for item in items for part in item.get("content") or () if isinstance(part, dict)]
    text = "".join(str(part.get(_SAID[part["type"]]) or "") for part in parts if part.get("type") in _SAID)
    if text.strip():
        return {"role": "assistant", "content": text}
    error = response.get("error")
    why = error.get("code") if isinstance(error, dict) else None
    reason = f"{response['status']}: {why}" if why else response["status"]
    raise InvalidEntry(f"{place}.output", f"holds no answer ({reason}), so there is nothing to add")

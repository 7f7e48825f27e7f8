"""Responses of OpenAI that come at once, and that their provider has broken off. Pure.

Of one that comes in pieces the events tell that (`stream_responses`).
"""

from __future__ import annotations

from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.formats import Message
from palimpsest.formats.received.shapes import RESPONSES, shape_of

_BROKEN = ("failed", "cancelled")
_SAID = {"output_text": "text", "refusal": "refusal"}


def is_broken_off(item: Any) -> bool:
    """Whether this is such a response, as plain JSON: what it holds may be half."""
    return isinstance(item, dict) and item.get("status") in _BROKEN and shape_of(item) == ("response", RESPONSES)


def what_came(response: Message, place: str) -> Message:
    """A message of its text alone, which any provider takes. Raises InvalidEntry where nothing was said."""
    items = [one for one in response["output"] if isinstance(one, dict) and one.get("type") == "message"]
    parts = [part for one in items for part in one.get("content") or () if isinstance(part, dict)]
    text = "".join(str(part.get(_SAID[part["type"]]) or "") for part in parts if part.get("type") in _SAID)
    if text.strip():
        return {"role": "assistant", "content": text}
    error = response.get("error")
    why = error.get("code") if isinstance(error, dict) else None
    told = f"{response['status']}: {why}" if why else response["status"]
    raise InvalidEntry(f"{place}.output", f"holds no answer ({told}), so there is nothing to add")

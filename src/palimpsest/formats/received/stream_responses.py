"""Gathering of streamed events of OpenAI's responses: finished items, or those of the response at the end. Pure."""

from __future__ import annotations

from palimpsest.formats import Message

_SAID = ("response.output_text.delta", "response.refusal.delta")
_ENDS = ("response.completed", "response.incomplete")


class ResponsesAnswer:
    """The response of one stream. A failed response does not count as complete."""

    def __init__(self) -> None:
        self.text, self.is_complete = "", False
        self._response: Message = {}
        self._items: dict[int, Message] = {}

    def take(self, event: Message) -> None:
        """Take one event."""
        kind, response, item = event["type"], event.get("response"), event.get("item")
        if kind in _SAID and isinstance(event.get("delta"), str):
            self.text += event["delta"]
        elif kind == "response.output_item.done" and isinstance(item, dict):
            place = event.get("output_index")
            self._items[place if isinstance(place, int) else len(self._items)] = item
        if isinstance(response, dict):
            self._response |= response
        self.is_complete = self.is_complete or kind in _ENDS

    def whole(self) -> Message:
        """Return the response as it would look without streaming."""
        done = [item for _, item in sorted(self._items.items())]
        output = self._response.get("output") or done
        return {**self._response, "object": "response", "output": output}

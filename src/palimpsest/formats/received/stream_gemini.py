"""Gathering of streamed chunks of Gemini's answers: each is a response, whose parts follow those before. Pure.

Consecutive texts of one kind are joined, unless one of them has a signature, which belongs to the part it came with.
"""

from __future__ import annotations

from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.formats import Message

_FUNCTION_CALL = ("function_call", "functionCall")
_PARTIAL = ("partial_args", "partialArgs", "will_continue", "willContinue")
_FINISH = ("finish_reason", "finishReason")
_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"


class GeminiAnswer:
    """The response of one stream."""

    def __init__(self) -> None:
        self.text, self.is_complete = "", False
        self._around: Message = {}
        self._candidate: Message = {}
        self._content: Message = {"role": "model"}
        self._parts: list[Message] = []

    def take(self, event: Message) -> None:
        """Take one chunk."""
        self._around |= {key: value for key, value in event.items() if key != "candidates" and value is not None}
        candidates = event.get("candidates") or []
        if len(candidates) > 1 or not all(isinstance(candidate, dict) for candidate in candidates):
            raise InvalidEntry(
                "event.candidates", "the stream has more than one answer; ask for one (candidate_count=1)"
            )
        for candidate in candidates:
            self._candidate |= {
                key: value for key, value in candidate.items() if key != "content" and value is not None
            }
            content = candidate.get("content") or {}
            self._content |= {key: value for key, value in content.items() if key != "parts" and value is not None}
            for part in content.get("parts") or ():
                self._take(part)
            reason = next((candidate[key] for key in _FINISH if candidate.get(key)), None)
            self.is_complete = self.is_complete or reason not in (None, _UNSPECIFIED)

    def _take(self, part: Any) -> None:
        present = {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
        for key in _FUNCTION_CALL:
            body = present.get(key)
            if isinstance(body, dict) and any(body.get(name) for name in _PARTIAL):
                reason = "arguments in pieces are not supported; leave stream_function_call_arguments off"
                raise InvalidEntry(f"event.candidates[0].content.parts.{key}", reason)
        text = present.get("text")
        if not isinstance(text, str):
            self._parts.append(present)
            return
        if present.get("thought") is not True:
            self.text += text
        last = self._parts[-1] if self._parts else {}
        keys = {"text"} | ({"thought"} if present.get("thought") is True else set())
        if last.keys() == keys == present.keys():
            last["text"] += text
        elif text or present.keys() - {"text", "thought"}:
            self._parts.append(present)

    def whole(self) -> Message:
        """Return the response as it would look without streaming."""
        return {**self._around, "candidates": [{**self._candidate, "content": {**self._content, "parts": self._parts}}]}

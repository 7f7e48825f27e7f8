"""One answer that comes in pieces: whose the events are, the text so far, and the whole response at the end. Pure.

Events are those of the clients' streams, raw or of their helpers, as objects or mappings, told by their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palimpsest.errors import Closed, InvalidEntry
from palimpsest.formats import Message
from palimpsest.formats.received.plain import plain
from palimpsest.formats.received.shapes import ANTHROPIC, CHAT, GEMINI, RESPONSES, shape_of
from palimpsest.formats.received.stream_anthropic import AnthropicAnswer
from palimpsest.formats.received.stream_chat import ChatAnswer
from palimpsest.formats.received.stream_gemini import GeminiAnswer
from palimpsest.formats.received.stream_responses import ResponsesAnswer
from palimpsest.formats.received.usage import reported
from palimpsest.formats.received.values import Reported

WHERE = "event"

_REPEATS = frozenset({"text", "thinking", "signature", "citation", "input_json", "compaction", "ping", "keepalive"})
_HELPED = ("content.", "refusal.", "tool_calls.", "logprobs.")
"""What the clients' helpers tell beside the events as they came, and what says nothing."""

_WANTED = "feed each event of a stream of the openai, anthropic or google-genai client, as it comes"


class Gathering(Protocol):
    """What gathers the events of one vendor's stream. `text` is what arrived of what the model says, `is_complete`
    whether the provider has said that the answer is over."""

    text: str
    is_complete: bool

    def take(self, event: Message) -> None:
        """Take one event, as plain JSON. Raises InvalidEntry for what is malformed."""
        ...

    def whole(self) -> Message:
        """The response, as it would have come at once, of what has arrived."""
        ...


_GATHERING: Mapping[str, Callable[[], Gathering]] = {
    CHAT: ChatAnswer,
    RESPONSES: ResponsesAnswer,
    ANTHROPIC: AnthropicAnswer,
    GEMINI: GeminiAnswer,
}


class AnswerStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self.format = ""
        """Whose it is; empty before the first event."""
        self._gathered: Gathering | None = None
        self._has_ended = False

    @property
    def text(self) -> str:
        """What the model has said so far."""
        return self._gathered.text if self._gathered is not None else ""

    @property
    def is_complete(self) -> bool:
        """Whether the provider has said that the answer is over."""
        return self._gathered is not None and self._gathered.is_complete

    def end(self) -> None:
        """Take nothing from now on."""
        self._has_ended = True

    def feed(self, event: object) -> str:
        """Take the next event and return what the model says in it.

        An event of a type that nobody here knows says nothing, once the stream has begun: clients get new ones. Raises
        InvalidEntry for what is no event, and Closed after the end.
        """
        if self._has_ended:
            raise Closed("the answer", "feed it inside the block; session.stream() begins another one")
        found = _told(event, begun=self._gathered is not None)
        if found is None:
            return ""
        format, item = found
        if self._gathered is None:
            self.format, self._gathered = format, _GATHERING[format]()
        elif format != self.format:
            raise InvalidEntry(WHERE, f"is of {format}, and those before it are of {self.format}; one stream an answer")
        before = len(self._gathered.text)
        try:
            self._gathered.take(item)
        except InvalidEntry:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as fault:
            raise InvalidEntry(WHERE, f"a field of it is not as {self.format} sends it ({fault}); {_WANTED}") from fault
        return self._gathered.text[before:]

    def whole(self) -> Message | None:
        """The response of what has arrived; None before the first event."""
        return self._gathered.whole() if self._gathered is not None else None

    def usage(self) -> Reported | None:
        """What the provider has told of the cost so far."""
        return reported(self._gathered.whole()) if self._gathered is not None else None

    def part(self) -> Message | None:
        """A message of the text alone, which any provider takes; None where nothing was said."""
        if not self.text.strip():
            return None
        if self.format == GEMINI:
            return {"role": "model", "parts": [{"text": self.text}]}
        return {"role": "assistant", "content": self.text}


def _told(event: Any, *, begun: bool) -> tuple[str, Message] | None:
    """Whose an event is, and the event as plain JSON; None for one that says nothing of its own."""
    kind = event.get("type") if isinstance(event, Mapping) else getattr(event, "type", None)
    if kind == "chunk":
        return _told(event["chunk"] if isinstance(event, Mapping) else event.chunk, begun=begun)
    if isinstance(kind, str) and (kind in _REPEATS or kind.startswith(_HELPED)):
        return None
    item = plain(event, WHERE)
    shape, format = shape_of(item) if isinstance(item, dict) else ("unknown", "")
    if shape == "event" or (shape == "response" and format in (CHAT, GEMINI)):
        return format, item
    if isinstance(kind, str) and (begun or kind == "error"):
        return None  # an error is raised by the client, and what has arrived is cut off
    if shape == "response" or (shape, format) == ("message", ANTHROPIC):
        raise InvalidEntry(WHERE, f"{type(event).__qualname__} is a whole response; add() it")
    raise InvalidEntry(WHERE, f"{type(event).__qualname__} is no event that is known here; {_WANTED}")

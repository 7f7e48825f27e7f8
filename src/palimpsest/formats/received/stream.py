"""A streamed answer: its events are recognised and gathered to the text so far, and to the whole response. Pure.

Events are those of the clients' streams, raw or from the clients' helpers, as objects or mappings, told by their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palimpsest.errors import Closed, InvalidEntry
from palimpsest.formats import ANTHROPIC, CHAT, GEMINI, RESPONSES, Message
from palimpsest.formats.received.plain import plain
from palimpsest.formats.received.shapes import shape_of
from palimpsest.formats.received.stream_anthropic import AnthropicAnswer
from palimpsest.formats.received.stream_chat import ChatAnswer
from palimpsest.formats.received.stream_gemini import GeminiAnswer
from palimpsest.formats.received.stream_responses import ResponsesAnswer
from palimpsest.formats.received.usage import reported
from palimpsest.formats.received.values import Reported

WHERE = "event"

_REPEATS = frozenset({"text", "thinking", "signature", "citation", "input_json", "compaction", "ping", "keepalive"})
_HELPED = ("content.", "refusal.", "tool_calls.", "logprobs.")
"""Types, and prefixes of types, of events that clients' helpers add to the raw ones, and of events without content."""

_WANTED = "feed each event of a stream of the openai, anthropic or google-genai client, as it comes"


class Gathering(Protocol):
    """A collector of the events of one vendor's stream.

    `text` is the text of the answer so far, `is_complete` whether the provider has said that the answer is over.
    """

    text: str
    is_complete: bool

    def take(self, event: Message) -> None:
        """Take one event, as plain JSON. Raises InvalidEntry if it is malformed."""
        ...

    def whole(self) -> Message:
        """Return what has arrived as the response would look without streaming."""
        ...


_GATHERING: Mapping[str, Callable[[], Gathering]] = {
    CHAT: ChatAnswer,
    RESPONSES: ResponsesAnswer,
    ANTHROPIC: AnthropicAnswer,
    GEMINI: GeminiAnswer,
}


class AnswerStream:
    """A collector of the events of one answer, of whichever vendor they are."""

    def __init__(self) -> None:
        self.format = ""
        """The format of the events; empty before the first one."""
        self._gathered: Gathering | None = None
        self._has_ended = False

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return self._gathered.text if self._gathered is not None else ""

    @property
    def is_complete(self) -> bool:
        """Whether the provider has said that the answer is over."""
        return self._gathered is not None and self._gathered.is_complete

    def end(self) -> None:
        """Refuse further events."""
        self._has_ended = True

    def feed(self, event: object) -> str:
        """Take the next event and return the text that it adds to the answer.

        After the first event, events of unknown types are ignored, as clients get new ones. Raises InvalidEntry for
        what is no event, and Closed after `end`.
        """
        if self._has_ended:
            raise Closed(
                "the answer", "feed it inside the `with` block; each answer needs a session.stream() of its own"
            )
        recognised = _recognised(event, begun=self._gathered is not None)
        if recognised is None:
            return ""
        format, item = recognised
        if self._gathered is None:
            self.format, self._gathered = format, _GATHERING[format]()
        elif format != self.format:
            raise InvalidEntry(
                WHERE, f"is of {format}, but the events before it are of {self.format}; use one stream for each answer"
            )
        before = len(self._gathered.text)
        try:
            self._gathered.take(item)
        except InvalidEntry:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as fault:
            raise InvalidEntry(
                WHERE, f"has a field that {self.format} does not send in this form ({fault}); {_WANTED}"
            ) from fault
        return self._gathered.text[before:]

    def whole(self) -> Message | None:
        """Return the response as far as it has arrived; None before the first event."""
        return self._gathered.whole() if self._gathered is not None else None

    def usage(self) -> Reported | None:
        """Return the usage that the provider has reported so far, or None."""
        return reported(self._gathered.whole()) if self._gathered is not None else None

    def part(self) -> Message | None:
        """Return a message with only the text so far, which any provider accepts; None if there is none."""
        if not self.text.strip():
            return None
        if self.format == GEMINI:
            return {"role": "model", "parts": [{"text": self.text}]}
        return {"role": "assistant", "content": self.text}


def _recognised(event: Any, *, begun: bool) -> tuple[str, Message] | None:
    """Return an event's format, and the event as plain JSON; None for an event without content of its own."""
    kind = event.get("type") if isinstance(event, Mapping) else getattr(event, "type", None)
    if kind == "chunk":
        return _recognised(event["chunk"] if isinstance(event, Mapping) else event.chunk, begun=begun)
    if isinstance(kind, str) and (kind in _REPEATS or kind.startswith(_HELPED)):
        return None
    item = plain(event, WHERE)
    shape, format = shape_of(item) if isinstance(item, dict) else ("unknown", "")
    if shape == "event" or (shape == "response" and format in (CHAT, GEMINI)):
        return format, item
    if isinstance(kind, str) and (begun or kind == "error"):
        return None  # after an error event the client raises, and the answer ends incomplete
    if shape == "response" or (shape, format) == ("message", ANTHROPIC):
        raise InvalidEntry(WHERE, f"{type(event).__qualname__} is a whole response; give it to add()")
    raise InvalidEntry(WHERE, f"{type(event).__qualname__} is not an event that is known here; {_WANTED}")

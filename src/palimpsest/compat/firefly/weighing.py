"""What turns cost in tokens: their two texts, or everything in their raw messages, if that is more."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from palimpsest import Audio, ConfigError, Entry, File, Image
from palimpsest.tokens.counter import (
    MESSAGE_OVERHEAD,
    ROLE_TOKENS,
    Encoding,
    FunctionCounter,
    TokenCounter,
    compact,
    encoding,
)
from palimpsest.tokens.media import media_tokens

ENCODING = "o200k_base"
"""The encoding that counts if no estimator is given."""

Medium = Image | Audio | File
Piece = str | Medium
"""A part of a message that costs tokens: a text, or a medium."""

QUIET = frozenset(
    {
        *("role", "type", "kind", "part_kind", "id", "tool_call_id", "tool_use_id", "call_id", "timestamp", "index"),
        *("finish_reason", "stop_reason", "stop_sequence", "model", "model_name", "model_id", "provider_name", "usage"),
        *("provider_url", "provider_details", "provider_response_id", "vendor_id", "vendor_details", "run_id", "state"),
        *(
            "conversation_id",
            "status",
            "outcome",
            "signature",
            "cache_control",
            "metadata",
            "object",
            "created",
            "refs",
        ),
        *("otel_metadata", "tool_kind", "media_type", "identifier", "_identifier", "workspace_ref", "history_digest"),
        *(
            "canonical_system",
            "failed_attempts",
            "content_file_digests",
            "dynamic_ref",
            "scope",
            "context_id",
            "logprobs",
        ),
    }
)
"""Keys whose values are for programs: they are not sent to a model, and cost nothing."""

WHOLE = frozenset({"arguments", "args", "input", "content", "output", "result"})
"""Keys whose values are sent to a model as JSON if they are mappings without one of the `KINDS` keys."""

KINDS = ("type", "kind", "part_kind", "role")
DEEPEST = 100


class Estimated:
    """A token counter around a program's estimator: an object with `estimate(text)`."""

    overhead = False

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self.name = f"estimator:{type(estimator).__module__}.{type(estimator).__qualname__}"[:200]

    def count(self, text: str, /) -> int:
        """Return what the estimator says. Raises ConfigError if that is not a whole number of at least 0."""
        tokens: object = self._estimator.estimate(text)
        if isinstance(tokens, float) and tokens.is_integer():
            tokens = int(tokens)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise ConfigError("estimator.estimate", tokens, "a whole number of tokens, 0 or more")
        return tokens


def counter_of(estimator: object) -> TokenCounter:
    """Return the token counter for an estimator, which may be any of the following. Raises ConfigError for others.

    An object with `estimate`, a token counter, a function of a text, or None: `ENCODING`.
    """
    if estimator is None:
        return encoding(ENCODING)
    if callable(getattr(estimator, "estimate", None)):
        return Estimated(estimator)
    if all(hasattr(estimator, name) for name in ("count", "name", "overhead")):
        return cast("TokenCounter", estimator)
    if callable(estimator) and not isinstance(estimator, type):
        return FunctionCounter(estimator)
    raise ConfigError("estimator", estimator, "an object with estimate(text), a function of a text, or None")


class Scale:
    """Counts the tokens of turns and messages by one counter."""

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self._around = MESSAGE_OVERHEAD + ROLE_TOKENS if counter.overhead else 0
        self._bound: Callable[[str], int] = counter.upper_bound if isinstance(counter, Encoding) else counter.count

    def cost(self, user: str, response: str, raw: Iterable[Any]) -> int:
        """Return the cost of a turn."""
        return self._larger(user, response, raw, _Once(self.counter.count))

    def bound(self, user: str, response: str, raw: Iterable[Any]) -> int:
        """Return an upper bound of `cost`: computed without tokenizing if the counter is an encoding."""
        return self._larger(user, response, raw, self._bound)

    def messages(self, messages: Iterable[Any]) -> int:
        """Return the cost of raw messages."""
        return self._messages(messages, self.counter.count)

    def text(self, text: str) -> int:
        """Return the cost of a message that consists of one text."""
        return self.counter.count(text) + self._around

    def _larger(self, user: str, response: str, raw: Iterable[Any], count: Callable[[str], int]) -> int:
        texts = count(user) + count(response) + 2 * self._around
        return max(texts, self._messages(raw, count))

    def _messages(self, messages: Iterable[Any], count: Callable[[str], int]) -> int:
        return sum(self._around + sum(_size(piece, count) for piece in pieces(message)) for message in messages)


class _Once:
    """Counts each distinct text once: most raw messages repeat the turn's two texts."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count, self._counted = count, dict[str, int]()

    def __call__(self, text: str) -> int:
        if (tokens := self._counted.get(text)) is None:
            tokens = self._counted[text] = self._count(text)
        return tokens


def _size(piece: Piece, count: Callable[[str], int]) -> int:
    return count(piece) if type(piece) is str else media_tokens(Entry(content=(cast("Medium", piece),)), None)


# --- what a message sends to a model


def pieces(message: Any) -> Iterator[Piece]:
    """Yield every text and medium that a message sends to a model."""
    if type(message) is dict and type(content := message.get("content")) is str and len(message) == 2:
        yield content  # the most frequent shape
        return
    yield from _pieces(message, "", 0, set())


def _pieces(value: Any, key: str, depth: int, above: set[int]) -> Iterator[Piece]:
    """Yield the pieces of a value that stands under `key`; `above` are the ids of the objects that contain it."""
    if value is None or isinstance(value, str | bool | int | float | bytes | bytearray):
        yield from _plain(value, key)
        return
    if depth > DEEPEST or id(value) in above:
        yield repr(value)
        return
    above = {*above, id(value)}
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _pieces(item, key, depth + 1, above)
        return
    fields = fields_of(value)
    if fields is None:
        yield str(value)
    elif (medium := _medium(fields)) is not None:
        yield medium
    elif key in WHOLE and not any(isinstance(fields.get(kind), str) for kind in KINDS):
        yield compact(fields)
    else:
        for name, field in fields.items():
            if name not in QUIET:
                yield from _pieces(field, name, depth + 1, above)


def _plain(value: str | bool | float | bytes | bytearray | None, key: str) -> Iterator[Piece]:
    if isinstance(value, str):
        if value:
            yield _medium_at(value) if value.startswith("data:") else value
    elif isinstance(value, bytes | bytearray):
        yield File(data=f"data:application/octet-stream;base64,{b64encode(value).decode()}")
    elif value is not None and key in WHOLE:
        yield str(value)


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return the named values of a mapping or an object; None if it has none."""
    if isinstance(value, Mapping):
        return {str(name): field for name, field in value.items()}
    if isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        return attributes
    names = getattr(type(value), "__slots__", ())
    slots = {
        name: getattr(value, name) for name in ([names] if isinstance(names, str) else names) if hasattr(value, name)
    }
    return slots or None


def _medium(fields: Mapping[str, Any]) -> Medium | None:
    """Return the image, sound or document that these fields describe, as providers or Pydantic AI do; else None."""
    kind = str(fields.get("type") or fields.get("kind") or "")
    data, media_type = fields.get("data"), str(fields.get("media_type") or "")
    if isinstance(data, bytes) and media_type:
        return _medium_at(f"data:{media_type};base64,{b64encode(data).decode()}")
    if isinstance(data, str) and media_type:
        return _medium_at(f"data:{media_type};base64,{data}")
    source = fields.get("image_url") or fields.get("source") or fields.get("url")
    if isinstance(source, Mapping):
        return _medium({"type": kind, **source}) if {"data", "url"} & source.keys() else None
    if kind in ("image_url", "image-url", "input_image", "image", "url") and isinstance(source, str):
        return Image(source=source)
    return None


def _medium_at(address: str) -> Medium:
    return Image(source=address) if address.startswith("data:image/") else File(data=address)

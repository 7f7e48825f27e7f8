"""Counting tokens: public encodings, user-defined counters, and what OpenAI adds around messages and tools.

Windows and prices of models are in `models`, images and sound in `media`.

How a text is counted
    short text                        one call of the tokenizer: exact
    long text without long stretches  the same, after a look at every few thousandth place: exact
    long text with long stretches     cut inside them by `slices`, counted slice by slice, added up: inexact
A stretch is a run of one character or of any whitespace (more than `STRETCH_LIMIT`), or of characters that are
neither whitespace nor digits (more than `UNBROKEN_LIMIT`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from palimpsest.errors import ConfigError, nearest
from palimpsest.runtime.once import ProcessLock

STRETCH_LIMIT = 10_000
"""In characters. tiktoken panics at about 1,000,000 of whitespace; at a hundredth of that it is fast and safe."""

UNBROKEN_LIMIT = 100_000
"""In characters. The time for one unbroken piece grows faster than its length (8 times for 4 times the length)."""

MESSAGE_OVERHEAD = 3
"""Tokens around every chat message. This and the next two: OpenAI cookbook, "How to count tokens with tiktoken", 6."""

NAME_OVERHEAD = 1
"""Tokens that a message's `name` costs on top of its own text."""

REPLY_OVERHEAD = 3
"""Tokens per request: the start of the answer is part of the input."""

ROLE_TOKENS = 1
"""Tokens of a role's name, counted as text: every role of chat completions is one token in both encodings."""


class TokenCounter(Protocol):
    """Counts the tokens of a text.

    `name` is the key under which counts are stored, so two counters that may disagree need two names. `overhead` says
    whether a provider's overhead for messages is added to the counts. `count` returns 0 for empty text, never less than
    0, and always the same for the same text.
    """

    @property
    def name(self) -> str: ...

    @property
    def overhead(self) -> bool: ...

    def count(self, text: str, /) -> int: ...


class Tokenizer(Protocol):
    """The one method of tiktoken's `Encoding` that is used here."""

    def encode_ordinary(self, text: str, /) -> list[int]: ...


class Count(msgspec.Struct, frozen=True):
    """A number of tokens, and whether it is the tokenizer's own answer for the whole text."""

    tokens: int
    exact: bool


class Encoding:
    """A public encoding of OpenAI. Special tokens count as ordinary text.

    The vocabulary is package data, read at the first count (about 0.2 to 0.4 s) and kept; nothing is downloaded.
    Thread-safe. `load` replaces the source of the tokenizer.
    """

    overhead = True

    def __init__(self, name: str, *, load: Callable[[], Tokenizer] | None = None) -> None:
        if load is None and name not in ENCODINGS:
            raise ConfigError("encoding", name, ", ".join(ENCODINGS), nearest=nearest(name, ENCODINGS))
        self.name = name
        self._load = load or (lambda: _load(name))
        self._loading = ProcessLock()
        self._tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        return f"Encoding({self.name!r})"

    @property
    def loaded(self) -> bool:
        """Whether the vocabulary is in memory."""
        return self._tokenizer is not None

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`: exact, unless `measure` says otherwise."""
        return len(self._encode(text)[0])

    def measure(self, text: str) -> Count:
        """Return the number of tokens of `text` and whether it is exact.

        A text with long stretches is counted in slices. The sum may be off, in either direction, by about 1 % of a
        stretch of whitespace, and by one or two tokens per cut elsewhere.
        """
        tokens, exact = self._encode(text)
        return Count(len(tokens), exact)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, in order; if `measure` is inexact, those of its slices."""
        return self._encode(text)[0]

    def upper_bound(self, text: str) -> int:
        """Return a number that `count` never exceeds, without counting: a token is at least one byte of UTF-8."""
        return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))

    def _encode(self, text: str) -> tuple[list[int], bool]:
        """Return the token ids of a text, and whether they are exact."""
        if not text:
            return [], True
        tokenizer = self._tokenizer or self._prepare()
        if len(text) <= STRETCH_LIMIT:
            return _encode_or_halve(tokenizer, text)
        pieces = list(slices(text))
        if len(pieces) == 1:
            return _encode_or_halve(tokenizer, text)
        return [token for piece in pieces for token in _encode_or_halve(tokenizer, piece)[0]], False

    def _prepare(self) -> Tokenizer:
        with self._loading.own():
            if self._tokenizer is None:
                self._tokenizer = self._load()
            return self._tokenizer


class FunctionCounter:
    """A counter made from a function that returns the number of tokens of a text.

    `name` is the key for stored counts, used as given. The default is `custom:` and the function's qualified name,
    which two lambdas in one function share: name those.
    """

    overhead = False

    def __init__(self, function: Callable[[str], int], *, name: str | None = None) -> None:
        self.name = name or f"custom:{getattr(function, '__qualname__', type(function).__qualname__)}"
        self._function = function

    def __repr__(self) -> str:
        return f"FunctionCounter({self.name!r})"

    def count(self, text: str) -> int:
        """Return the function's answer. Raises ConfigError if it is not a whole number of at least 0."""
        tokens: object = self._function(text)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise ConfigError(f"token counter {self.name!r}", tokens, "a whole number of tokens, 0 or more")
        return tokens


def failures_of(counter: TokenCounter) -> int:
    """Return how often a fallback had to count instead of this counter; 0 for a counter that cannot fail."""
    return getattr(counter, "failures", 0)


def encoding(name: str) -> Encoding:
    """Return the encoding of this name, one instance for the whole process.

    Raises ConfigError for a name that is not in `ENCODINGS`.
    """
    shared = _shared.get(name)
    # `setdefault` is atomic: if two threads build one at the same time, both get the first.
    return shared if shared is not None else _shared.setdefault(name, Encoding(name))


def slices(text: str) -> Iterator[str]:
    """Yield `text` in as few slices as possible without a stretch longer than its limit.

    Joined they are the text. Takes linear time, and much less for text without long stretches.
    """
    start = 0
    for end in _cuts(text):
        yield text[start:end]
        start = end
    yield text[start:]


def tool_schema_tokens(tools: Iterable[Mapping[str, Any]], counter: TokenCounter, *, gpt4o_family: bool) -> int:
    """Return the tokens that tool definitions add to a request.

    `tools` are as sent: functions of chat completions, or of the responses API. The figures are from the OpenAI
    cookbook, "How to count tokens with tiktoken", section 7, published for gpt-4o and gpt-4o-mini (`gpt4o_family`) and
    for gpt-3.5-turbo and gpt-4. It covers names, descriptions, types and enums of flat properties; top-level `required`
    is free in its example, whose total OpenAI's API confirmed.

    This library adds: what the cookbook does not cover (nested objects, items, references, bounds, `strict`, tools of
    another shape, parts of an unexpected type) costs the tokens of its compact JSON. So the result errs on the large
    side, and nothing that is sent goes uncounted.
    """
    start = 7 if gpt4o_family else 10
    return sum(start + _tool_tokens(tool, counter) + _TOOL_END for tool in tools)


_PROPERTIES_START = 3
_PROPERTY = 3
_ENUM_START = -3
_ENUM_ITEM = 3
_TOOL_END = 12


def _tool_tokens(tool: object, counter: TokenCounter) -> int:
    """Return the tokens of one tool definition."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return counter.count(compact(tool))
    nested = tool.get("function")
    function = nested if isinstance(nested, Mapping) else _without(tool, "type")
    beside_function = _without(tool, "type", "function") if function is nested else {}
    name, description = function.get("name"), function.get("description", "")
    if not isinstance(name, str) or not isinstance(description, str):
        return counter.count(compact(tool))
    uncounted = {**beside_function, **_without(function, "name", "description")}
    tokens = counter.count(f"{name}:{description.removesuffix('.')}")
    if isinstance(function.get("parameters"), Mapping):
        tokens += _parameters_tokens(uncounted.pop("parameters"), counter)
    return tokens + _json_tokens(uncounted, counter)


def _parameters_tokens(parameters: Mapping[str, Any], counter: TokenCounter) -> int:
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return _json_tokens(parameters, counter)
    uncounted = _without(parameters, "properties")
    if uncounted.get("type") == "object":
        del uncounted["type"]
    required = uncounted.get("required")
    if isinstance(required, list | tuple) and all(isinstance(key, str) and key in properties for key in required):
        del uncounted["required"]
    tokens = _PROPERTIES_START if properties else 0
    tokens += sum(_property_tokens(key, schema, counter) for key, schema in properties.items())
    return tokens + _json_tokens(uncounted, counter)


def _property_tokens(key: object, schema: object, counter: TokenCounter) -> int:
    if not isinstance(schema, Mapping):
        return _PROPERTY + counter.count(f"{key}:{compact(schema)}")
    uncounted = dict(schema)
    kind = uncounted.pop("type") if isinstance(uncounted.get("type"), str) else ""
    description = uncounted.pop("description") if isinstance(uncounted.get("description"), str) else ""
    tokens = _PROPERTY + counter.count(f"{key}:{kind}:{description.removesuffix('.')}")
    items = uncounted.get("enum")
    if items and isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
        del uncounted["enum"]
        tokens += _ENUM_START + sum(_ENUM_ITEM + counter.count(item) for item in items)
    return tokens + _json_tokens(uncounted, counter)


def _json_tokens(uncounted: Mapping[str, Any], counter: TokenCounter) -> int:
    return counter.count(compact(uncounted)) if uncounted else 0


def _without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}


def compact(value: object) -> str:
    """Return compact JSON, or Python's own notation for a value without JSON (it could not be sent either)."""
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return repr(value)


# Beside its vocabulary an encoding is defined by where pieces end, in tiktoken's pattern language.
_CAPITALS = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_SMALL = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

ENCODINGS: Mapping[str, str] = {
    "o200k_base": (
        rf"{_BEFORE_WORD}[{_CAPITALS}]*[{_SMALL}]+{_CONTRACTION}|"
        rf"{_BEFORE_WORD}[{_CAPITALS}]+[{_SMALL}]*{_CONTRACTION}|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|"
        r"\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}
"""The encodings that can be counted exactly, each with the pattern that splits text into pieces."""

_shared: dict[str, Encoding] = {}


def _load(name: str) -> Tokenizer:
    from palimpsest.tokens.vocabulary import tokenizer  # tiktoken takes 20 ms; upper bounds often make it unnecessary

    return tokenizer(name, ENCODINGS[name])


def _encode_or_halve(tokenizer: Tokenizer, text: str) -> tuple[list[int], bool]:
    """Encode `text`; if the tokenizer panics over it, encode its halves, which is inexact."""
    try:
        return tokenizer.encode_ordinary(text), True
    except BaseException as panic:
        # A panic in Rust is raised as the extension's own BaseException, which cannot be imported.
        if type(panic).__name__ != "PanicException" or len(text) == 1:
            raise
    middle = len(text) // 2
    return [id_ for half in (text[:middle], text[middle:]) for id_ in _encode_or_halve(tokenizer, half)[0]], False


_WINDOW = 16
_UNIFORM = r"(?s)\s{16,}+|(.)\1{15,}+"
_UNBROKEN = r"[^\s\d]{16,}+"


def _cuts(text: str) -> list[int]:
    """Return the places, in order, where stretches over their limit are to be cut."""
    cuts = {*_cuts_in(text, _UNIFORM, STRETCH_LIMIT, _is_uniform)}
    cuts.update(_cuts_in(text, _UNBROKEN, UNBROKEN_LIMIT, _is_unbroken))
    return sorted(cuts)


def _cuts_in(text: str, pattern: str, limit: int, fits: Callable[[str], bool]) -> Iterator[int]:
    # A stretch of `limit` covers the whole window at one of these places, so most texts need no scan.
    places = range(0, len(text) - _WINDOW, limit // 2) if len(text) > limit else ()
    if not any(fits(text[place : place + _WINDOW]) for place in places):
        return
    # Possessive, and at least a window long: each character of any text is read only a few times.
    for match in re.finditer(pattern, text):
        yield from range(match.start() + limit, match.end(), limit)


def _is_uniform(window: str) -> bool:
    return window.isspace() or window == window[0] * len(window)


def _is_unbroken(window: str) -> bool:
    return not any(character.isspace() or character.isdecimal() for character in window)

"""What a fact of a working memory says, and what of it may be kept. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from palimpsest.log.facts import Stored
from palimpsest.log.late import dumps, loads
from palimpsest.log.typed import bytes_in, from_json
from palimpsest.privacy.mentions import Mentions, texts_in

Clean = Callable[[str], str]
"""A text without what is private."""


def fact_mentions(key: str, stored: Stored, mentions: Mentions) -> bool:
    """Whether a fact, or a value that it had, holds a text."""
    return any(mentions(text) for text in _texts(key, stored))


def _texts(key: str, stored: Stored) -> Iterator[str]:
    yield key
    for text in (stored.value, *(before.value for before in stored.before)):
        yield from texts_in(loads(text))
        yield from (one.decode(errors="replace") for one in bytes_in(from_json(text)))


def cleaned_fact(key: str, stored: Stored, clean: Clean, value: Callable[[Any], Any]) -> Stored:
    """The fact without what is private in its values: texts by `clean`, then by `value` what a key's name says.

    Raises what these raise.
    """

    def cleaned(text: str) -> str:
        return cleaned_value(key, text, clean, value)

    before = tuple(msgspec.structs.replace(one, value=cleaned(one.value)) for one in stored.before)
    return msgspec.structs.replace(stored, value=cleaned(stored.value), before=before)


def cleaned_value(key: str, text: str, clean: Clean, value: Callable[[Any], Any]) -> str:
    """The JSON of a fact's value without what is private."""
    (cleaned,) = value({key: _changed(loads(text), clean)}).values()
    return dumps(cleaned, separators=(",", ":"))


def _changed(plain: Any, clean: Clean) -> Any:
    """JSON with each of its texts cleaned; of bytes that are text, too."""
    if isinstance(plain, str):
        return clean(plain)
    if isinstance(plain, list):
        return [_changed(one, clean) for one in plain]
    if not isinstance(plain, dict):
        return plain
    if list(plain) == ["$bytes"]:
        text = from_json(dumps(plain))
        said = text.decode(errors="replace") if isinstance(text, bytes) else text
        return plain if clean(said) == said else clean(said)
    return {key if key.startswith("$") else clean(key): _changed(one, clean) for key, one in plain.items()}

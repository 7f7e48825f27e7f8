"""What a fact of a working memory mentions, and what of it may be kept. Pure.

Values are decoded first and searched with their types, not as the JSON text that is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from palimpsest.log.facts import Stored
from palimpsest.log.lazy_imports import loads
from palimpsest.log.typed import from_json, to_json
from palimpsest.privacy.mentions import Mentions, texts_in

Clean = Callable[[Any], Any]
"""Returns a value without what is private; the same object if it has nothing private."""


def fact_mentions(key: str, stored: Stored, mentions: Mentions) -> bool:
    """Return whether a fact holds a text in its key, its value, or an earlier value."""
    return any(mentions(text) for text in _texts(key, stored))


def _texts(key: str, stored: Stored) -> Iterator[str]:
    yield key
    for text in (stored.value, *(before.value for before in stored.before)):
        yield from texts_in(_read(text))


def cleaned_fact(key: str, stored: Stored, clean: Clean) -> Stored:
    """Return the fact without what is private in its values.

    `clean` gets each value under its key; what it raises passes on.
    """
    before = tuple(
        msgspec.structs.replace(earlier, value=cleaned_value(key, earlier.value, clean)) for earlier in stored.before
    )
    return msgspec.structs.replace(stored, value=cleaned_value(key, stored.value, clean), before=before)


def cleaned_value(key: str, text: str, clean: Clean) -> str:
    """Return the JSON of a fact's value without what is private; unchanged if nothing is."""
    value = _read(text)
    (cleaned,) = clean({key: value}).values()
    return text if cleaned is value else to_json(cleaned, f"the value of {key!r}")


def _read(text: str) -> Any:
    """Return the value that the text encodes. Text that is not in the typed encoding is read as plain JSON."""
    try:
        return from_json(text)
    except ValueError:
        return loads(text)

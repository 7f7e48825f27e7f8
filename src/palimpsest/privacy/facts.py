"""What a fact of a working memory says, and what of it may be kept. Pure.

Values are looked at as what they are, with their types: nobody looks at how these are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from palimpsest.log.facts import Stored
from palimpsest.log.late import loads
from palimpsest.log.typed import from_json, to_json
from palimpsest.privacy.mentions import Mentions, texts_in

Clean = Callable[[Any], Any]
"""From a value to it without what is private; a value that has nothing private is the same object."""


def fact_mentions(key: str, stored: Stored, mentions: Mentions) -> bool:
    """Whether a fact, or a value that it had, holds a text."""
    return any(mentions(text) for text in _texts(key, stored))


def _texts(key: str, stored: Stored) -> Iterator[str]:
    yield key
    for text in (stored.value, *(before.value for before in stored.before)):
        yield from texts_in(_read(text))


def cleaned_fact(key: str, stored: Stored, clean: Clean) -> Stored:
    """The fact without what is private in its values, which `clean` is given under its key. Raises what that raises."""
    before = tuple(msgspec.structs.replace(one, value=cleaned_value(key, one.value, clean)) for one in stored.before)
    return msgspec.structs.replace(stored, value=cleaned_value(key, stored.value, clean), before=before)


def cleaned_value(key: str, text: str, clean: Clean) -> str:
    """The JSON of a fact's value without what is private: as it was, where nothing is."""
    value = _read(text)
    (cleaned,) = clean({key: value}).values()
    return text if cleaned is value else to_json(cleaned, f"the value of {key!r}")


def _read(text: str) -> Any:
    """The value that is written; what is not written as it should be is plain JSON."""
    try:
        return from_json(text)
    except ValueError:
        return loads(text)

"""Recognises withheld entries in a list of messages that a program gives back. Pure.

A message does not say that it was withheld. Formats also change what it looks like: they merge neighbours, write
content in parts, shorten it, and show what has no role of theirs between tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.formats.fences import guard
from palimpsest.log.entry import Entry, Text
from palimpsest.log.replacing import says_the_same


def repeated(entry: Entry, withheld: Iterable[Entry]) -> Entry | None:
    """Return the first of the withheld entries that the entry repeats, alone or among other things; None if none."""
    return next((own for own in withheld if _repeats(entry, own)), None)


def _repeats(entry: Entry, own: Entry) -> bool:
    if entry.kind == own.kind == "tool_call":
        return entry.name == own.name and _arguments(entry) == _arguments(own)
    if says_the_same(_bare(own), _bare(entry)):
        return True
    if "tool_call" in (entry.kind, own.kind):
        return False
    given_texts = [f"\n{text}\n" for text in _texts(entry)]
    return any(f"\n{text}\n" in given for text in _texts(own) if text for given in given_texts)


def _bare(entry: Entry) -> Entry:
    """Return the entry without what a format keeps of the message that it came as."""
    return msgspec.structs.replace(entry, native=None)


def _arguments(call: Entry) -> object:
    """Return the arguments of a call as data, since formats write the same JSON in different ways."""
    try:
        return json.loads(call.text)
    except ValueError:
        return call.text


def _texts(entry: Entry) -> Sequence[str]:
    """Return the texts of an entry as formats write them, so that they can be found between tags."""
    content = entry.content
    texts = [content] if isinstance(content, str) else [part.text for part in content if isinstance(part, Text)]
    return [guard(text) for text in texts]

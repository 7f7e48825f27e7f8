"""The parts that an entry is found by: pieces of its text of some 600 characters, with what else is known of it. Pure.

The same entry gives the same parts whenever it is asked, so that an index can take out what it put in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Any

import msgspec

from palimpsest.formats.fences import UNREADABLE
from palimpsest.log.entry import Entry, Opaque, moment
from palimpsest.recall.analysis import terms

LENGTH = 600
"""Characters of a part: long texts are scored by their best piece, so that their length does not drown it."""

MOST = 255
"""Parts of one entry; those of longer texts get longer."""

_WORDLESS = frozenset(
    (
        *("type", "id", "status", "role", "object", "detail", "place", "places", "cache_control", "caller", "logprobs"),
        *("media_type", "mime_type", "mimeType", "data", "file_data", "b64_json", "toolset_name", "created_by"),
    )
)
"""Keys of items that say nothing to a reader; nor do ids."""

_BLOB = re.compile(r"data:[^\s,]*,.*|[0-9A-Za-z+/=_-]{64,}", re.DOTALL)
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "compaction")

_LINE_END = re.compile(r"\n\s*")
_SENTENCE_END = re.compile(r"[.!?][\"')\]]?\s+|[\u3002\uff01\uff1f]|\n\s*|[;,]\s+")
_SAYS = re.compile(r"[0-9A-Za-z\x80-\U0010ffff]")  # all that a term may be made of
_LAST_SIGN = re.compile(r".*(?:[^0-9A-Za-z\x80-\U0010ffff\\]|(?<!\\)(?=\\))", re.DOTALL)
_ESCAPE = re.compile(r"(\\+)(?:u([0-9a-fA-F]{4})|([nrtbf])([0-9A-Za-z\x80-\U0010ffff]*))?")


class Part(msgspec.Struct, frozen=True, gc=False):
    """A piece of an entry: its `terms` in order, and which characters of what it has `said` it is of."""

    terms: list[str]
    start: int
    end: int


def said(entry: Entry) -> str:
    """Return what an entry says to a reader: its text, and behind it, a line each, the texts of items that are kept as
    their provider gave them, such as what a tool has found that the provider runs itself.

    Ids, types, thoughts, and what is encrypted or in base64 say nothing to a reader.

    Args:
        entry: Any entry.
    """
    text, content = entry.text, entry.content
    if isinstance(content, str):
        return text
    items = [part.item for part in content if isinstance(part, Opaque)]
    lines = [line for item in items if not _is_thought(item) for line in _readable("", item)]
    return "\n".join([text, *lines] if text else lines) if lines else text


def _is_thought(item: dict[str, Any]) -> bool:
    return item.get("type") in _THOUGHTS or item.get("thought") is True


def _readable(key: str, value: Any) -> Iterator[str]:
    """The texts of what stands under a key of an item, at any depth."""
    if key in _WORDLESS or key.endswith(("_id", "Id")) or key.startswith(UNREADABLE):
        return
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _readable(inner, one)
    elif isinstance(value, list):
        for one in value:
            yield from _readable("", one)
    elif isinstance(value, str) and value.strip() and _BLOB.fullmatch(value) is None:
        yield value


def parts_of(entry: Entry) -> list[Part]:
    """Return the parts of an entry, in order; none where nothing of it can be found.

    The first one also holds the terms of `name` (who speaks, or which tool), unless the text begins with it, and of the
    day and the month of `at` (`date_terms`).

    Args:
        entry: Any entry. One that is erased, or that holds reasoning alone, has no parts.
    """
    if entry.erased or entry.is_reasoning:
        return []
    text = said(entry)
    escaped = text.lstrip()[:1] in {"{", "["}
    found: list[Part] = []
    for start, end in _counted(entry):
        piece = text[start:end]
        found.append(Part(terms(_unescaped(piece) if escaped else piece), start, end))
    if not (entry.name or any(part.terms for part in found)):
        return []
    return [Part([*_beside(entry, part.terms), *part.terms], part.start, part.end) for part in found[:1]] + found[1:]


def date_terms(day: date) -> tuple[str, str]:
    """Return the terms of a month and of a day, which entries of these have.

    Args:
        day: The day, of UTC.
    """
    month = f"_{day.year:04}_{day.month:02}"
    return month, f"{month}_{day.day:02}"


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each piece of a text, cut behind a line, a sentence or a word, best first.

    Args:
        text: Any text. An empty one is one empty piece.
    """
    length = max(LENGTH, 2 * len(text) // (MOST - 1) + 1)
    start = 0
    while len(text) - start > length + length // 4:
        end = _cut(text, start + length // 2, start + length)
        yield start, end
        start = end
    yield start, len(text)


def span_of(entry: Entry, part: int) -> tuple[int, int]:
    """Return where the part of this number begins and ends in what its entry has `said`.

    Args:
        entry: The entry.
        part: Which of its parts, from 0. One that is not there is the last.
    """
    places = list(_counted(entry)) or [(0, len(said(entry)))]
    return places[min(part, len(places) - 1)]


def _counted(entry: Entry) -> Iterator[tuple[int, int]]:
    """The pieces of an entry's text that are parts of it: those that may say something, and of one with a name the
    first. What numbers parts and what finds one by its number go by this alone."""
    text, named = said(entry), bool(entry.name)
    for start, end in pieces(text):
        if named or _SAYS.search(text, start, end):
            yield start, end
        named = False


def _cut(text: str, low: int, high: int) -> int:
    """Where to cut between two places: behind the last line's end there, else a sentence's, a blank, or a sign that no
    word has, but before a backslash, which says what the next letter is. Where there is none it is one long word."""
    for end in (_LINE_END, _SENTENCE_END):
        last = 0
        for found in end.finditer(text, low, high):
            last = found.end()
        if last:
            return last
    blank = text.rfind(" ", low, high)
    if blank >= 0:
        return blank + 1
    sign = _LAST_SIGN.match(text, low, high)
    return sign.end() if sign is not None else high


def _beside(entry: Entry, own: list[str]) -> list[str]:
    """What a part begins with that is not in its text."""
    name = terms(entry.name) if entry.name else []
    if own[: len(name)] == name:
        name = []
    return [*(date_terms(moment(entry.at)) if entry.at else ()), *name]


def _unescaped(text: str) -> str:
    """A piece of JSON text without its escapes, which would hide the word behind them, or be taken for its beginning.
    Two of them may be one letter, in UTF-16."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_letter, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _letter(escape: re.Match[str]) -> str:
    """What an escape stands for. Two backslashes before an n are one in a path, or a line's end in JSON inside JSON: so
    what follows is found with that letter, and without."""
    code, letter, rest = escape[2], escape[3], escape[4]
    if code is not None:
        return chr(int(code, 16))
    if letter is None:
        return " "
    return f" {rest}" if escape[1] == "\\" else f" {letter}{rest} {rest}"

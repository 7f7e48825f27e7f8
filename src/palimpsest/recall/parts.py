"""The parts by which an entry is found: pieces of some 600 characters of its text, plus its speaker and date. Pure.

The same entry always gives the same parts, so that an index can remove what it put in.
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
"""Characters of a part. Long texts are scored by their best piece, so that a match is not diluted by their length."""

MOST = 255
"""How many parts an entry has at most; those of longer texts are longer."""

_WORDLESS = frozenset(
    (
        *("type", "id", "status", "role", "object", "detail", "place", "places", "cache_control", "caller", "logprobs"),
        *("media_type", "mime_type", "mimeType", "data", "file_data", "b64_json", "toolset_name", "created_by"),
    )
)
"""Keys of a provider's items whose values say nothing to a reader. Keys that end in `_id` or `Id` do not either."""

_BLOB = re.compile(r"data:[^\s,]*,.*|[0-9A-Za-z+/=_-]{64,}", re.DOTALL)
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "compaction")

_LINE_END = re.compile(r"\n\s*")
_SENTENCE_END = re.compile(r"[.!?][\"')\]]?\s+|[\u3002\uff01\uff1f]|\n\s*|[;,]\s+")
_SAYS = re.compile(r"[0-9A-Za-z\x80-\U0010ffff]")  # all that a term may be made of
_LAST_SIGN = re.compile(r".*(?:[^0-9A-Za-z\x80-\U0010ffff\\]|(?<!\\)(?=\\))", re.DOTALL)
_ESCAPE = re.compile(r"(\\+)(?:u([0-9a-fA-F]{4})|([nrtbf])([0-9A-Za-z\x80-\U0010ffff]*))?")


class Part(msgspec.Struct, frozen=True, gc=False):
    """A piece of an entry: its `terms` in order, and which characters of the entry's `searchable_text` it covers."""

    terms: list[str]
    start: int
    end: int


def searchable_text(entry: Entry) -> str:
    """Return the text of an entry as a reader sees it.

    That is its own text, followed by the texts in items that are kept in their provider's form, such as what a tool run
    by the provider found, one per line. Ids, types, thoughts, and encrypted or base64 content are left out.

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
    """Yield the texts under a key of an item, at any depth."""
    if key in _WORDLESS or key.endswith(("_id", "Id")) or key.startswith(UNREADABLE):
        return
    if isinstance(value, dict):
        for inner, member in value.items():
            yield from _readable(inner, member)
    elif isinstance(value, list):
        for member in value:
            yield from _readable("", member)
    elif isinstance(value, str) and value.strip() and _BLOB.fullmatch(value) is None:
        yield value


def parts_of(entry: Entry) -> list[Part]:
    """Return the parts of an entry, in order; none if nothing of it can be found.

    The first part also has the terms of `name` (who speaks, or which tool), unless the text begins with it, and those
    of the day and month of `at` (see `date_terms`).

    Args:
        entry: Any entry. One that is erased, or has nothing but reasoning, has no parts.
    """
    if entry.erased or entry.is_reasoning:
        return []
    text = searchable_text(entry)
    escaped = text.lstrip()[:1] in {"{", "["}
    parts: list[Part] = []
    for start, end in _pieces_of_parts(entry):
        piece = text[start:end]
        parts.append(Part(terms(_unescaped(piece) if escaped else piece), start, end))
    if not (entry.name or any(part.terms for part in parts)):
        return []
    return [
        Part([*_terms_of_date_and_name(entry, part.terms), *part.terms], part.start, part.end) for part in parts[:1]
    ] + parts[1:]


def date_terms(day: date) -> tuple[str, str]:
    """Return the terms of a month and of a day, as entries of that month and day have them.

    Args:
        day: The day, in UTC.
    """
    month = f"_{day.year:04}_{day.month:02}"
    return month, f"{month}_{day.day:02}"


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each piece of a text, cut behind the end of a line, else of a sentence, else of a word.

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
    """Return where a part begins and ends in the `searchable_text` of its entry.

    Args:
        entry: The entry.
        part: Which of its parts, from 0. A number beyond the last means the last one.
    """
    spans = list(_pieces_of_parts(entry)) or [(0, len(searchable_text(entry)))]
    return spans[min(part, len(spans) - 1)]


def _pieces_of_parts(entry: Entry) -> Iterator[tuple[int, int]]:
    """Yield the pieces of an entry's text that are parts: those with letters or digits, and the first if there is a
    name.

    Parts are numbered, and found by their number, in this order.
    """
    text, named = searchable_text(entry), bool(entry.name)
    for start, end in pieces(text):
        if named or _SAYS.search(text, start, end):
            yield start, end
        named = False


def _cut(text: str, low: int, high: int) -> int:
    """Return where to cut between two places.

    That is behind the last end of a line there, else of a sentence, else behind a blank, else behind a character that
    no word has (but before a backslash, which belongs to the letter after it). Without any of these it is one long
    word, cut at `high`.
    """
    for end in (_LINE_END, _SENTENCE_END):
        last = 0
        for match in end.finditer(text, low, high):
            last = match.end()
        if last:
            return last
    blank = text.rfind(" ", low, high)
    if blank >= 0:
        return blank + 1
    sign = _LAST_SIGN.match(text, low, high)
    return sign.end() if sign is not None else high


def _terms_of_date_and_name(entry: Entry, own: list[str]) -> list[str]:
    """Return the terms that a part begins with although they are not in its text."""
    name = terms(entry.name) if entry.name else []
    if own[: len(name)] == name:
        name = []
    return [*(date_terms(moment(entry.at)) if entry.at else ()), *name]


def _unescaped(text: str) -> str:
    """Return a piece of JSON text without its escapes, which would hide a word or be taken for its first letters.

    Two escapes may be one letter, in UTF-16.
    """
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_letter, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _letter(escape: re.Match[str]) -> str:
    """Return the text that an escape stands for.

    Two backslashes before an `n` may be one backslash in a path, or the end of a line in JSON inside JSON. So the word
    behind is indexed both with that letter and without it.
    """
    code, letter, rest = escape[2], escape[3], escape[4]
    if code is not None:
        return chr(int(code, 16))
    if letter is None:
        return " "
    return f" {rest}" if escape[1] == "\\" else f" {letter}{rest} {rest}"

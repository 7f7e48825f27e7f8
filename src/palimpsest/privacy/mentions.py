"""Find a text wherever an entry, a summary or a record can hold it, however it is written. Pure.

Case and Unicode's normal form make no difference, and JSON escapes, also nested ones, hide nothing. Media in base64 are
not searched, and neither are words of providers' formats ("type", "tool_use"), which say nothing about anybody.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from palimpsest.formats import words_of
from palimpsest.log.change import Record
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Part, Reasoning, Text
from palimpsest.log.head import About, Cut
from palimpsest.log.summary import REBUILD, Summary
from palimpsest.log.typed import text_of
from palimpsest.privacy.pieces import pieces, whole
from palimpsest.privacy.records import IDENTIFIERS
from palimpsest.privacy.surfaces import BASE64, is_data_address

Mentions = Callable[[str], bool]
"""Whether a text is, or holds, the text that is searched for."""

NESTED = 8
"""How often escaped text is unescaped: JSON in JSON in JSON."""

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_BLOBS = frozenset({"data", "file_data", "b64_json", "result", "signature", "encrypted_content", "thought_signature"})


def finder(text: str) -> Mentions:
    """Return a function that tells whether a given text holds this one."""
    plain, folded, is_ascii = _without_case(text), _folded(text), text.isascii()

    def mentions(given: str) -> bool:
        return any(
            plain in _without_case(each) or (not (is_ascii and each.isascii()) and folded in _folded(each))
            for each in _unescaped(given)
        )

    return mentions


def _folded(text: str) -> str:
    """Return the text without case, in one normal form."""
    return unicodedata.normalize("NFKC", _without_case(unicodedata.normalize("NFKD", text)))


def _without_case(text: str) -> str:
    """Return the text without case.

    Turkish writes the small letter of "I" without a dot and the capital of "i" with one, so the dot is ignored.
    """
    small = text.casefold()
    return small if small.isascii() else small.replace("\u0131", "i").replace("i\u0307", "i")


def _unescaped(text: str) -> Iterator[str]:
    """Yield the text, then the text after each round of resolving the JSON escapes in it."""
    yield text
    for _ in range(NESTED):
        if "\\" not in text:
            return
        plain = _ESCAPE.sub(_character, text)
        if plain == text:
            return
        # Two escapes may have been one character beyond 16 bits.
        text = plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        yield text


def _character(match: re.Match[str]) -> str:
    code, short = match.groups()
    return chr(int(code, 16)) if code else _SHORT.get(short, short)


# --- where texts are


def entry_mentions(entry: Entry, mentions: Mentions) -> bool:
    """Return whether an entry holds it: in content or parts, name, call id, arguments, metadata, or provider items."""
    return any(map(mentions, _texts_of(entry)))


def _texts_of(entry: Entry) -> Iterator[str]:
    """Yield every text of an entry."""
    native = entry.native
    words = words_of(native.format if native is not None else None)
    if isinstance(entry.content, str):
        yield entry.content
    else:
        for part in entry.content:
            yield from _texts_of_part(part, words)
        yield from map(whole, pieces(entry.content))
    yield from (text for text in (entry.name, entry.call_id) if text)
    yield from texts_in(entry.metadata)
    if native is not None:
        yield from _native(native.keep, words)
        yield from _native(native.call, words)
        yield from (key for key in native.absent if key not in words)


def _texts_of_part(part: Part, words: AbstractSet[str]) -> Iterator[str]:
    """Yield every text of a part; `words` are those of its provider's format."""
    if isinstance(part, Text | Reasoning):
        yield part.text
    elif isinstance(part, Image):
        yield from _outside_base64(part.source)
    elif isinstance(part, File):
        yield from (text for text in (part.file_id, part.filename) if text)
        if part.data and not BASE64.fullmatch(part.data):
            yield from _outside_base64(part.data)
    elif isinstance(part, Audio):
        yield part.format
    else:
        assert isinstance(part, Opaque), "the last kind of part, which is kept whole"
        yield from _native(part.item, words)
    yield from _native(part.extra, words)


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text of plain JSON, or of a fact's value: keys and values at any depth, numbers and dates as
    written."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_in(key)
            yield from texts_in(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from texts_in(inner)
    elif value is not None and not isinstance(value, bool):
        yield repr(value) if isinstance(value, int | float) else text_of(value)


def _native(value: Any, words: AbstractSet[str], under: str = "") -> Iterator[str]:
    """Yield the texts of a provider's item, without the words of its format, and without media."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in words:
                yield key
            yield from _native(inner, words, key)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _native(inner, words, under)
    elif not isinstance(value, str):
        yield from texts_in(value)
    elif not ((under in ("type", "role") and value in words) or (under in _BLOBS and BASE64.fullmatch(value))):
        yield from _outside_base64(value)


def _outside_base64(text: str) -> Iterator[str]:
    """Yield the text; of a `data:` URL in base64 only what is said of the data, such as a file's name."""
    if is_data_address(text):
        text = text.partition(",")[0].partition(";")[2].removesuffix("base64")
    if text:
        yield text


def summary_mentions(summary: Summary, mentions: Mentions) -> bool:
    """Return whether a summary holds it: in its text, its items, or why it is not of the configured summarizer."""
    items = (text for item in summary.items for text in (item.text, item.status or ""))
    return any(map(mentions, (summary.text, *items, summary.fallback or "")))


def record_mentions(record: Record, mentions: Mentions) -> bool:
    """Return whether a record holds it in a part that an erasure removes: summary, conditions, details, its own reason.

    Other reasons, keys and numbers in details, and all details of a summary that an erasure had made anew are the
    program's own words: if these counted as mentions, the text would be found again after every erasure.
    """
    summary = record.compaction.summary if record.compaction is not None else None
    if summary is not None and summary_mentions(summary, mentions):
        return True
    if record.cut is not None and cut_mentions(record.cut, mentions):
        return True
    if record.kind == "erase" and mentions(record.reason):
        return True
    return record.detail.get("strategy") != REBUILD and any(map(mentions, _words_in(record.detail)))


def _words_in(detail: Any) -> Iterator[str]:
    """Yield the texts in the details of a record, at any depth, except ids."""
    if isinstance(detail, str):
        yield detail
    elif isinstance(detail, dict):
        for key, inner in detail.items():
            yield from () if key in IDENTIFIERS else _words_in(inner)
    elif isinstance(detail, list | tuple):
        for inner in detail:
            yield from _words_in(inner)


def about_mentions(about: About | None, mentions: Mentions) -> tuple[str, ...]:
    """Return which of what is said of a session holds it: "title", "metadata". User ids are not searched."""
    if about is None:
        return ()
    held = {"title": (about.title or "",), "metadata": tuple(texts_in(about.metadata))}
    return tuple(name for name, texts in held.items() if any(map(mentions, texts)))


def cut_mentions(cut: Cut, mentions: Mentions) -> bool:
    """Return whether one of a cut's conditions holds it."""
    return any(map(mentions, cut.conditions))

"""Clean every place of an entry that can hold text: content, parts, arguments, names, metadata, provider items. Pure.

Left as they are: ids, names of tools, types and roles, and media in base64 (pictures, sound and documents are not
searched). What a provider has signed or encrypted cannot be changed: reasoning in which something is found is dropped
as a whole, and everything else loses its signature.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from palimpsest.log.entry import Audio, Entry, File, Image, Native, Opaque, Part, Reasoning, Text
from palimpsest.log.typed import text_of
from palimpsest.privacy.cleaning import Cleaner, Tally
from palimpsest.privacy.pieces import cleaned_across
from palimpsest.privacy.recognisers.labels import recognisers_of
from palimpsest.privacy.recognisers.secret_names import secret_word
from palimpsest.privacy.schemas import is_schema, says_no_value
from palimpsest.privacy.sealed import NO_REASONING, SIGNED, is_reasoning_item, is_sealed_reasoning, settled, unsealed

_replace = msgspec.structs.replace

_LISTED = (list, tuple, set, frozenset)
_PROTOCOL = frozenset({"type", "role"})
_IDENTIFIERS = frozenset({"id", "name", "call_id", "tool_call_id", "tool_use_id"})
_BLOBS = frozenset({"data", "file_data", "b64_json", "result"})
BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{64,}|[A-Za-z0-9+/_-]{512,})={0,2}")
"""A whole text that is media in base64. A shorter one with "_" or "-" in it is more likely somebody's key."""

_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|(/))")
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_IN_BASE64, _ENCODED = ";base64,", re.compile(r"[A-Za-z0-9+/]*={0,2}")


class Washer:
    """Cleans entries and values with one cleaner, and counts findings in one tally.

    With `strict`, also keys such as `token_count` name a secret.
    """

    def __init__(self, cleaner: Cleaner, tally: Tally, *, strict: bool = False) -> None:
        self._cleaner, self._tally, self._strict = cleaner, tally, strict
        self._kept: tuple[str | None, ...] = ()

    def entry(self, entry: Entry) -> Entry:
        """Return the entry without what is private; the same object if nothing was found."""
        tally, kind = self._tally, entry.kind
        before = tally.count
        tally.place = "arguments" if kind == "tool_call" else "content"
        of_tool = kind in ("tool_call", "tool_result")
        self._kept = (entry.call_id, entry.name if of_tool else None)
        changed: dict[str, Any] = {}
        if isinstance(entry.content, str):
            content = self.json_text(entry.content) if kind == "tool_call" else self.text(entry.content)
            if content is not entry.content:
                changed["content"] = content
        else:
            changed["content"] = self._parts(entry, entry.content)
        if entry.name and not of_tool:
            tally.place = "name"
            changed["name"] = self.text(entry.name)
        if entry.metadata:
            tally.place = "metadata"
            changed["metadata"] = self.value(entry.metadata, masks=True)
        if entry.native is not None:
            tally.place = "native"
            changed["native"] = self._native(entry.native)
        return settled(entry, _replace(entry, **changed)) if tally.count > before else entry

    # --- text and JSON

    def text(self, text: str) -> str:
        """Return a cleaned text. If it has JSON escapes that may hide something, it is checked again without them."""
        cleaned = self._cleaner.clean(text, self._tally)
        if "\\" not in cleaned or ("\\u" not in cleaned and "\\/" not in cleaned):
            return cleaned
        return self.json_text(cleaned) if cleaned.lstrip()[:1] in ("{", "[") else self._unescaped(cleaned)

    def _unescaped(self, text: str) -> str:
        """Return a text that is no JSON, cleaned with its escapes resolved; unchanged if nothing is found then."""
        plain = _ESCAPE.sub(lambda match: match[2] or chr(int(match[1], 16)), text)
        plain = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        cleaned = self._cleaner.clean(plain, self._tally)
        return text if cleaned == plain else cleaned

    def json_text(self, text: str) -> str:
        """Clean the leaves of JSON text, which stays valid JSON. Text that is no JSON is cleaned as plain text."""
        if not text or text.isspace():
            return text
        try:
            value = _decode(text)
            cleaned = self.value(value, masks=self._cleaner.names_secrets)
        except (ValueError, RecursionError):
            return self._unescaped(self._cleaner.clean(text, self._tally))
        if cleaned is value:
            return text
        compact = (",", ":") if ": " not in text else None
        return json.dumps(cleaned, ensure_ascii=False, separators=compact)

    def value(self, value: Any, *, masks: bool, native: bool = False) -> Any:
        """Clean the keys and leaves of plain JSON, or of a fact's value. What is clean comes back as the same object.

        With `masks`, the value of a key that names a secret is replaced, whatever it is. `native` says that the value
        is a provider's, with types, ids and media in it.
        """
        if isinstance(value, str):
            return self._leaf(value, native=native)
        if isinstance(value, dict):
            return self._mapping(value, masks=masks, native=native)
        if isinstance(value, _LISTED):
            return _listed(value, [self.value(item, masks=masks, native=native) for item in value])
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return self._number(value)
        shown = text_of(value)
        cleaned = self.text(shown)
        return value if cleaned == shown else cleaned

    def _leaf(self, text: str, *, native: bool) -> str:
        if native and text[:1] in ("{", "["):
            return self.json_text(text)
        if native and is_data_address(text):
            return self._blob(text)
        return self.text(text)

    def _under(self, key: str, value: Any) -> Any:
        """Return a text, a number, or a list of these, cleaned of what only its key gives away: `"phone": 5551234`."""
        if isinstance(value, _LISTED):
            return _listed(value, [self._under(key, item) for item in value]) if recognisers_of(key) else value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        text = value if isinstance(value, str) else _digits_of(value)[-1]
        cleaned = self._cleaner.clean_under(key, text, self._tally)
        return value if cleaned == text else cleaned

    def _number(self, number: float) -> Any:
        """Return a number, or a redacted text if its digits are private: a card number needs no quotes to be one."""
        for text in _digits_of(number):
            if self._cleaner.looks_at_numbers or (text.lstrip("-").isdecimal() and len(text) >= 7):
                cleaned = self._cleaner.clean(text, self._tally)
                if cleaned != text:
                    return cleaned
        return number

    def _key(self, key: Any) -> Any:
        return self._cleaner.clean_key(key, self._tally) if isinstance(key, str) else self._number(key)

    def _mapping(self, given: dict[Any, Any], *, masks: bool, native: bool) -> dict[Any, Any]:
        cleaned: dict[Any, Any] = {}
        unchanged = not isinstance(given, _Repeated)
        if not unchanged:
            self._tally.note("repeated_key")
        for key, value in given.items():
            name = self._key(key)
            if name is not key:
                name = _unused(name, cleaned, given)
            if masks and isinstance(key, str) and (word := secret_word(key, strict=self._strict)) is not None:
                is_test_result = word == "pass" and not isinstance(value, str)
                new = value if is_test_result else self._masked(value, numbers=word != "token")
                new = self.value(new, masks=masks, native=native) if new is value else new
            elif native and self._is_protocol(key, value):
                new = value
            else:
                new = self.value(value, masks=masks, native=native)
                new = self._under(key, value) if new is value and isinstance(key, str) else new
            cleaned[name] = new
            unchanged = unchanged and new is value and name is key
        return given if unchanged else cleaned

    def _masked(self, value: Any, *, numbers: bool) -> Any:
        """Replace every text below, and with `numbers` every number, by a redaction string.

        What a JSON schema says of a secret stays, as long as it is no value.
        """
        if isinstance(value, str):
            if not value or self._cleaner.is_stand_in(value, self._tally):
                return value
            return self._cleaner.mask(value, self._tally)
        if isinstance(value, dict):
            schema = is_schema(value)
            items = {
                key: inner if schema and says_no_value(key, inner, value) else self._masked(inner, numbers=numbers)
                for key, inner in value.items()
            }
            return items if any(items[key] is not inner for key, inner in value.items()) else value
        if isinstance(value, _LISTED):
            return _listed(value, [self._masked(inner, numbers=numbers) for inner in value])
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        if (numbers and is_number) or (isinstance(value, bytes | date | UUID) and value):
            return self._cleaner.mask(text_of(value), self._tally)
        return value

    def _is_protocol(self, key: str, value: Any) -> bool:
        """Return whether the provider's format, and not what was said, decides this value."""
        if not isinstance(value, str):
            return False
        if (key in _PROTOCOL and _NAME.fullmatch(value)) or (key in _IDENTIFIERS and value in self._kept):
            return True
        return key in _BLOBS and BASE64.fullmatch(value) is not None

    # --- parts and what was kept of the provider

    def _parts(self, entry: Entry, content: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return the entry's parts, cleaned."""
        sealed_hit = False
        parts: list[Part] = []
        is_item = is_reasoning_item(entry)
        for part in content:
            before = self._tally.count
            cleaned = self._part(part)
            if self._tally.count > before and (is_item or is_sealed_reasoning(part)):
                sealed_hit = True
            parts.append(cleaned)
        if sealed_hit:
            self._tally.note(SIGNED)
            pairs = zip(content, parts, strict=True)
            parts = [] if is_item else [new for old, new in pairs if not is_sealed_reasoning(old)]
        return cleaned_across(parts, self.text) or (NO_REASONING if sealed_hit else ())

    def _part(self, part: Part) -> Part:
        tally = self._tally
        before = tally.count
        changed: dict[str, Any] = {}
        if isinstance(part, Text | Reasoning):
            changed["text"] = self.text(part.text)
        elif isinstance(part, Opaque):
            changed["item"] = self.value(part.item, masks=self._cleaner.names_secrets, native=True)
        elif isinstance(part, Image):
            changed |= {"source": self._blob(part.source), "detail": part.detail and self.text(part.detail)}
        elif isinstance(part, File):
            is_address = part.file_id is not None and "://" in part.file_id  # Gemini's; other ids stay as they are
            changed |= {
                "file_id": self.text(part.file_id or "") if is_address else part.file_id,
                "filename": part.filename and self.text(part.filename),
                "data": part.data and self._blob(part.data),
            }
        else:
            assert isinstance(part, Audio), "the last kind of part"
            changed |= {"data": self._blob(part.data), "format": self.text(part.format)}
        if part.extra:
            changed["extra"] = self.value(part.extra, masks=self._cleaner.names_secrets, native=True)
        if tally.count == before:
            return part
        for key in ("extra", "item"):
            if isinstance(changed.get(key), dict):
                changed[key] = unsealed(changed[key]) or (None if key == "extra" else {})
        return _replace(part, **changed)

    def _blob(self, data: str) -> str:
        """Return media in base64 with only the beginning of their `data:` URL cleaned; clean anything else as text."""
        if BASE64.fullmatch(data):
            return data
        if not is_data_address(data):
            return self.text(data)
        about, sign, blob = data.partition(_IN_BASE64)
        return f"{self.text(about)}{sign}{blob}"

    def _native(self, native: Native) -> Native:
        before = self._tally.count
        absent = tuple(map(self.text, native.absent))
        format = self.text(native.format)
        keep = native.keep and self.value(native.keep, masks=self._cleaner.names_secrets, native=True)
        call = native.call and self.value(native.call, masks=self._cleaner.names_secrets, native=True)
        return (
            native
            if self._tally.count == before
            else _replace(native, format=format, keep=keep, absent=absent, call=call)
        )


def is_data_address(text: str) -> bool:
    """Return whether this is a `data:` URL in base64, which has no text to search but for its beginning."""
    about, _, blob = text.partition(_IN_BASE64)
    return about.startswith("data:") and _ENCODED.fullmatch(blob) is not None and len(about) < len(text)


def _digits_of(number: float) -> list[str]:
    """Return a number as it may be written. Tables turn a column of whole numbers with gaps into floats."""
    texts = [repr(number)]
    if isinstance(number, float) and number.is_integer():
        texts.append(str(int(number)))
    return texts


def _listed(given: Any, items: Sequence[Any]) -> Any:
    """Return the items in a list of the type of `given`; `given` itself if no item has changed."""
    kind = type(given) if type(given) in _LISTED else list
    return kind(items) if any(new is not old for new, old in zip(items, given, strict=True)) else given


def _unused(name: str, *taken: Mapping[str, Any]) -> str:
    """Return the name, with a number if another key already became that name."""
    candidate, number = name, 2
    while any(candidate in names for names in taken):
        candidate, number = f"{name} {number}", number + 1
    return candidate


class _Repeated(dict[str, Any]):
    """A JSON object with a repeated key: only the last value is cleaned, so the text may not stay as it was."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _Repeated(members)


def _no_json(name: str) -> None:
    raise ValueError(name)


_decode = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_no_json).decode

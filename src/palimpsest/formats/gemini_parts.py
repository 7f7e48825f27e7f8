"""Decoding and encoding of Gemini's parts, except calls and results, which are in `gemini_contents`. Pure.

Keys come in two spellings, snake_case from Python and camelCase from JSON, and with nulls if a model was dumped whole.
What the fields of a part cannot hold is kept in its `extra`, as the item without these fields. Encoding puts the fields
back, which gives the equal item.
"""

from __future__ import annotations

import binascii
import re
from typing import Any

import msgspec

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats import Message
from palimpsest.formats.common import data_address, split_address
from palimpsest.formats.media_types import GEMINI_FILES, GEMINI_IMAGES, is_read, renamed
from palimpsest.formats.wording import stand_in
from palimpsest.log.checks import check_json
from palimpsest.log.entry import Audio, File, Image, Opaque, Part, Reasoning, Text


def _spelled(*names: str) -> dict[str, str]:
    """Return a mapping from both spellings of each name to the one with underscores."""
    camel = {re.sub("_(.)", lambda found: found[1].upper(), name): name for name in names}
    return {**camel, **{name: name for name in names}}


DATA = _spelled(
    *("text", "inline_data", "file_data", "function_call", "function_response", "executable_code"),
    *("code_execution_result", "tool_call", "tool_response"),
)
"""The kinds of parts: a part has exactly one of these keys."""

PART_KEYS = DATA | _spelled(
    *("thought", "thought_signature", "video_metadata", "media_resolution", "part_metadata", "audio_transcription"),
    *("media_processing", "speech_metadata", "document_metadata", "spreadsheet_metadata", "audio_metadata"),
)
"""All keys of a part that the API knows: it refuses a request with any other."""

# Without a call's `partial_args` and `will_continue`, which occur only in streams.
_BODY_KEYS = {
    "inline_data": _spelled("data", "mime_type", "display_name"),
    "file_data": _spelled("file_uri", "mime_type", "display_name"),
    "function_call": _spelled("id", "name", "args"),
    "function_response": _spelled("id", "name", "response", "parts", "scheduling", "will_continue"),
    "executable_code": _spelled("code", "language", "id"),
    "code_execution_result": _spelled("outcome", "output", "id"),
    "tool_call": _spelled("id", "tool_type", "args"),
    "tool_response": _spelled("id", "tool_type", "response"),
}

_INSIDE = {
    **_BODY_KEYS,
    "video_metadata": _spelled("start_offset", "end_offset", "fps", "content_layers"),
    "media_resolution": _spelled("level", "num_tokens"),
}
_TYPES: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(
        ("text", "data", "mime_type", "display_name", "file_uri", "id", "name", "code", "language", "outcome", "output",
         "tool_type", "scheduling", "start_offset", "end_offset", "level", "media_processing"),
        ("not text", str),
    ),
    **dict.fromkeys(
        (*_INSIDE, "args", "response", "part_metadata", "audio_transcription", "speech_metadata", "document_metadata",
         "spreadsheet_metadata", "audio_metadata"),
        ("not a mapping", dict),
    ),
    "will_continue": ("neither true nor false", bool),
    "fps": ("not a number", (int, float)),
}  # fmt: skip
"""The type that the API takes under each key, with the words of the error: decoding refuses other types."""

_AUDIO = {"audio/mpeg": "mp3", "audio/x-wav": "wav"}
_IMAGES = {"gif": "gif", "heic": "heic", "heif": "heif", "jpeg": "jpeg", "jpg": "jpeg", "png": "png", "webp": "webp"}
_OWN_FILES = "https://generativelanguage.googleapis.com/"
"""Addresses of uploaded files begin so: they mean nothing to another provider."""

_URL_SAFE = "base64url"
"""Marks data in a kept part that came in the URL-safe alphabet, which the Python client writes."""


def find(part: Message, names: dict[str, str], name: str) -> str | None:
    """Return the key under which the part holds `name`, in either spelling, or None if it is absent or null."""
    return next((key for key, value in part.items() if value is not None and names.get(key) == name), None)


def data_key(part: Any, where: str) -> str | None:
    """Return the key that says what kind of part this is, or None for an unknown kind.

    Raises InvalidEntry for what is no mapping, and for a part of two kinds.
    """
    if not isinstance(part, dict):
        raise InvalidEntry(where, f"{shorten(part)} is not a part: a mapping such as {{'text': ...}} is needed")
    keys = [key for key, value in part.items() if value is not None and key in DATA]
    if len(keys) > 1:
        raise InvalidEntry(where, f"a part may have only one kind of data, not {' and '.join(keys)}")
    return keys[0] if keys else None


# --- parts of a message


def decode_part(part: Message, key: str | None, where: str, *, given: bool = True) -> Part:
    """Return the entry's part for a part that is neither call nor result; `key` says what kind it is.

    `given` is whether somebody other than the model gives it: then media need data. A part that would not be encoded
    as it came is kept as an opaque part.
    """
    check_part(part, where)
    kind = DATA[key] if key is not None else None
    body = part[key] if key is not None else None
    if kind == "text":
        if not isinstance(body, str):
            raise InvalidEntry(f"{where}.text", f"{shorten(body)} is not text")
        is_thought = part.get("thought") is True
        held = ("text", "thought") if is_thought else ("text",)
        extra = {name: value for name, value in part.items() if name not in held} or None
        return Reasoning(text=body, extra=extra) if is_thought else Text(text=body, extra=extra)
    if kind is not None and not isinstance(body, dict):
        raise InvalidEntry(f"{where}.{key}", f"{shorten(body)} is not a mapping")
    if key is not None and kind in ("inline_data", "file_data"):
        medium = _decode_inline(part, key, where, given) if kind == "inline_data" else _decode_file(part, key, where)
        return medium if medium is not None and encode_part(medium, own=True) == part else Opaque(item=part)
    return Opaque(item=part)


def check_part(part: Message, where: str) -> None:
    """Raise InvalidEntry if the part is no plain JSON, or a value in it has a wrong type."""
    try:
        check_json(part, where)
    except InvalidEntry as refusal:
        place = _bytes_in(part, where)
        if place is None:
            raise
        reason = "bytes, which plain JSON cannot hold; dump it with model_dump(mode='json'), which writes base64"
        raise InvalidEntry(place, reason) from refusal
    thought, key = part.get("thought"), find(part, PART_KEYS, "thought_signature")
    if thought is not None and not isinstance(thought, bool):
        raise InvalidEntry(f"{where}.thought", f"{shorten(thought)} is neither true nor false")
    if key is not None and not is_base64(part[key]):
        raise InvalidEntry(f"{where}.{key}", f"{shorten(part[key])} is not base64")
    _check_types(part, PART_KEYS, where)


def _check_types(value: Message, names: dict[str, str], where: str) -> None:
    for key, inner in value.items():
        name = names.get(key, "")
        mismatch, types = _TYPES.get(name, ("", object))
        if inner is None:
            continue
        if not isinstance(inner, types) or (name == "fps" and isinstance(inner, bool)):
            raise InvalidEntry(f"{where}.{key}", f"{shorten(inner)} is {mismatch}")
        if name in _INSIDE:
            _check_types(inner, _INSIDE[name], f"{where}.{key}")


def _bytes_in(value: Any, where: str, depth: int = 0) -> str | None:
    """Return the place of the first bytes inside the value, or None if it holds none."""
    if isinstance(value, bytes | bytearray):
        return where
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items if depth <= 100 else ():
        place = _bytes_in(inner, f"{where}[{key}]" if isinstance(value, list) else f"{where}.{key}", depth + 1)
        if place is not None:
            return place
    return None


def is_base64(text: Any) -> bool:
    """Whether this is base64 as Google's Python client reads it: in one of the two alphabets, padded or not."""
    if not isinstance(text, str) or not text.isascii():
        return False
    plain = text if "+" in text or "/" in text else text.replace("-", "+").replace("_", "/")
    body = plain.rstrip("=")
    if len(plain) - len(body) > -len(body) % 4:
        return False
    try:
        binascii.a2b_base64(body + "=" * (-len(body) % 4), strict_mode=True)
    except binascii.Error:
        return False
    end = body[len(body) // 4 * 4 :]  # the client refuses a last character with bits beyond the last byte
    return not end or _reencoded(end).startswith(end)


def _reencoded(text: str) -> str:
    return binascii.b2a_base64(binascii.a2b_base64(text + "=" * (-len(text) % 4)), newline=False).decode()


def _decode_inline(part: Message, key: str, where: str, given: bool) -> Part | None:
    blob = part[key]
    mime_key = find(blob, _BODY_KEYS["inline_data"], "mime_type")
    mime, data = blob[mime_key] if mime_key is not None else None, blob.get("data")
    if not isinstance(mime, str):
        raise InvalidEntry(f"{where}.{key}.mime_type", f"{shorten(mime)} is not a media type, such as image/png")
    if not is_base64(data) or (given and not data):
        raise InvalidEntry(f"{where}.{key}.data", f"{shorten(data)} is not the content of a file in base64")
    url_safe = "-" in data or "_" in data
    plain = data.replace("-", "+").replace("_", "/") if url_safe else data
    kept = {**blob, "data": _URL_SAFE if url_safe else None}
    if mime.startswith("audio/"):
        medium: Part = Audio(data=plain, format=_AUDIO.get(mime, mime[6:]))
    elif split_address(data_address(mime, plain)) is None:
        return None
    elif mime.startswith("image/"):
        medium = Image(source=data_address(mime, plain))
    else:
        medium = File(data=data_address(mime, plain), filename=_take_name(kept, f"{where}.{key}"))
    return _with_extra(medium, part, {**part, key: kept})


def _decode_file(part: Message, key: str, where: str) -> Part:
    body = part[key]
    uri_key, mime_key = (find(body, _BODY_KEYS["file_data"], name) for name in ("file_uri", "mime_type"))
    uri, mime = (body[body_key] if body_key is not None else None for body_key in (uri_key, mime_key))
    if uri_key is None or not isinstance(uri, str) or not uri:
        raise InvalidEntry(f"{where}.{key}.file_uri", f"{shorten(uri)} is not an address")
    kept = {**body, uri_key: None}
    public = uri.startswith(("https://", "http://")) and not uri.startswith(_OWN_FILES)
    if public and isinstance(mime, str) and mime.startswith("image/"):
        medium: Part = Image(source=uri)
    else:
        medium = File(file_id=uri, filename=_take_name(kept, f"{where}.{key}"))
    return _with_extra(medium, part, {**part, key: kept})


def _take_name(kept: Message, where: str) -> str | None:
    """Take a document's name out of the kept item, leaving its key with null, and return it."""
    key = find(kept, _BODY_KEYS["file_data"], "display_name")
    name = kept[key] if key is not None else None
    if name is not None and not isinstance(name, str):
        raise InvalidEntry(f"{where}.{key}", f"{shorten(name)} is not text")
    if key is not None:
        kept[key] = None
    return name


def _with_extra(medium: Part, part: Message, kept: Message) -> Part:
    """Return the medium with the kept item as `extra`, unless its fields alone encode to the equal part."""
    return medium if _encode_media(medium) == part else msgspec.structs.replace(medium, extra=kept)


def encode_part(part: Part, *, own: bool) -> Message | None:
    """Return a part as Gemini writes it; None if it is another provider's item without a readable text.

    `own` is whether the entry came in this format, so that `extra` and opaque items belong to it.
    """
    kept = part.extra if own and part.extra else {}
    if isinstance(part, Text):
        return {"text": part.text, **kept}
    if isinstance(part, Reasoning):
        return {"text": part.text, "thought": True, **kept}
    if isinstance(part, Opaque):
        if own:
            return part.item
        text = stand_in(part)
        return {"text": text} if text else None
    encoded = _encode_media(part)
    key = next((key for key in kept if DATA.get(key) in encoded and isinstance(kept[key], dict)), None)
    if key is None:
        return encoded
    kind = DATA[key]
    names, fields, body = _BODY_KEYS[kind], encoded[kind], dict(kept[key])
    for name, value in body.items():
        if names.get(name) == "data":
            url_safe = value == _URL_SAFE
            body[name] = fields["data"].replace("+", "-").replace("/", "_") if url_safe else fields["data"]
        elif names.get(name) == "file_uri" or (names.get(name) == "display_name" and isinstance(part, File)):
            body[name] = fields.get(names[name], value)
    return {**kept, key: body}


def _encode_media(part: Part) -> dict[str, dict[str, str]]:
    """Return a media part as Gemini writes it, from its fields alone."""
    address = part.source if isinstance(part, Image) else part.data if isinstance(part, File) else None
    inline = split_address(address) if address is not None else None
    if isinstance(part, Audio):
        return {"inline_data": {"mime_type": f"audio/{part.format}", "data": part.data}}
    named = {"display_name": part.filename} if isinstance(part, File) and part.filename is not None else {}
    if inline is not None:
        return {"inline_data": {"mime_type": inline[0], "data": inline[1], **named}}
    if isinstance(part, Image):
        kind = _IMAGES.get(part.source.partition("?")[0].rpartition(".")[2].lower())
        return {"file_data": {"file_uri": part.source, **({"mime_type": f"image/{kind}"} if kind else {})}}
    return {"file_data": {"file_uri": (part.file_id if isinstance(part, File) else None) or address or "", **named}}


def shown_part(part: Part) -> Message | None:
    """Return another provider's part as the API takes it from a user; None if it takes no such part."""
    if isinstance(part, Text):
        return {"text": part.text} if part.text else None
    part = renamed(part)
    if isinstance(part, Image | Audio | File) and is_read(part, GEMINI_IMAGES, GEMINI_FILES):
        encoded = _encode_media(part)
        for body in encoded.values():
            body.pop("display_name", None)
        if "inline_data" in encoded:
            return encoded if encoded["inline_data"]["data"] and is_base64(encoded["inline_data"]["data"]) else None
        if isinstance(part, Image) and part.source.startswith(("https://", "http://", "gs://")):
            return encoded if encoded["file_data"].get("mime_type", "image/png") in GEMINI_IMAGES else None
    return None


def sendable(item: Message) -> Message | None:
    """Return the part reduced to keys that the API knows, without nulls; None if it is empty and has no signature."""
    sent = {key: _body(key, value) for key, value in item.items() if value is not None and key in PART_KEYS}
    key = next((key for key in sent if key in DATA), None)
    if key is None:
        return None
    if DATA[key] == "inline_data" and isinstance(sent[key], dict) and not sent[key].get("data"):
        return None  # a picture that an answer left empty
    return sent if sent[key] != "" or is_signed(sent) else None


def is_signed(part: Message) -> bool:
    """Whether the part has a signature, which encodes the thoughts before it. It may stand on an empty text."""
    key = find(part, PART_KEYS, "thought_signature")
    return key is not None and bool(part[key])


def _body(key: str, value: Any) -> Any:
    names = _INSIDE.get(PART_KEYS[key])
    if names is None or not isinstance(value, dict):
        return value
    body = {name: inner for name, inner in value.items() if inner is not None and name in names}
    if isinstance(body.get("parts"), list):
        body["parts"] = [part for part in map(sendable, body["parts"]) if part]
        if not body["parts"]:
            del body["parts"]
    return body

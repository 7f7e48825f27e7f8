"""Input parts of OpenAI's Responses API: text, images, sound and documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.formats import CHAT, RESPONSES, Adapted, Message
from palimpsest.formats.common import NO_NAME, is_own, replaced_by_text
from palimpsest.formats.media_types import IMAGES, OPENAI_FILES, has_address, is_read, renamed
from palimpsest.formats.openai_responses_items import PICTURES
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Part

_DETAILS = ("auto", "low", "high", "original")
_PART_TYPES = PICTURES | {"input_text", "output_text", "refusal", "input_file", "input_audio", "summary_text"}
"""Known types of parts. An opaque part of one of them was malformed; one of another type is newer than this code."""


def is_newer(part: Opaque) -> bool:
    """Whether the part is of a type that is not known here."""
    kind = part.item.get("type")
    return isinstance(kind, str) and kind not in _PART_TYPES


def input_parts(entry: Entry, adapted: list[Adapted] | None, *, in_result: bool = False) -> list[Message]:
    """Return the entry's parts as input for the model; `in_result` is whether they are a tool's result.

    Parts without a counterpart become text, and empty ones are left out.
    """
    parts: list[Message] = []
    own = is_own(entry, RESPONSES)
    for part in entry.content:
        assert not isinstance(part, str), "content of parts"
        shown = input_part(part, entry, own=own, in_result=in_result)
        if shown is None and (text := replaced_by_text(entry, part, adapted)):
            shown = {"type": "input_text", "text": text}
        if shown is not None:
            mark = part.extra.get("prompt_cache_breakpoint") if own and part.extra else None
            parts.append({**shown, "prompt_cache_breakpoint": mark} if isinstance(mark, dict) else shown)
    return parts


def input_part(part: Part, entry: Entry, *, own: bool, in_result: bool = False) -> Message | None:
    """Return the part as the API takes it, or None if it has to become text.

    In a function's result an image does not need a `detail`, so there an image of this format stays as it came.
    """
    extra = part.extra if own and part.extra else {}
    if isinstance(part, Opaque):
        return part.item if own and is_newer(part) else None
    if isinstance(part, Audio) and own and entry.kind == "message":
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}
    if not own:
        part = renamed(part)
        if entry.role == "system" or not is_read(part, IMAGES, OPENAI_FILES):
            return None
    if isinstance(part, Image) and has_address(part) and (own or part.source.startswith(_SHOWN)):
        return {"type": "input_image", "image_url": part.source, **_detail(part.detail, optional=own and in_result)}
    return _file(part, extra, entry, in_result=in_result) if isinstance(part, File) else None


_SHOWN = ("https://", "http://", "data:")
"""Beginnings of the addresses that the API reads."""


def _detail(detail: object, *, optional: bool) -> Message:
    is_known = detail in _DETAILS
    return {} if optional and not is_known else {"detail": detail if is_known else "auto"}


def _file(part: File, extra: Mapping[str, Any], entry: Entry, *, in_result: bool) -> Message | None:
    if extra.get("type") in PICTURES:
        return {"type": "input_image", "file_id": part.file_id, **_detail(extra.get("detail"), optional=in_result)}
    fields = {key: extra[key] for key in ("file_url", "detail") if isinstance(extra.get(key), str)}
    if part.file_id is not None and (is_own(entry, RESPONSES) or is_own(entry, CHAT)):
        fields["file_id"] = part.file_id
    if part.data is not None:
        fields |= {"file_data": part.data, "filename": part.filename or NO_NAME}
    elif part.filename is not None and is_own(entry, RESPONSES):
        fields["filename"] = part.filename
    if not fields.keys() & {"file_url", "file_id", "file_data"}:
        return None
    if fields.get("detail", "auto") not in _DETAILS[:3]:
        del fields["detail"]
    return {"type": "input_file", **fields}

"""OpenAI's chat completions: parts of a message, and which of another provider's they take. Pure."""

from __future__ import annotations

from palimpsest.formats import Message
from palimpsest.formats.common import NO_NAME
from palimpsest.formats.media_types import IMAGES, OPENAI_FILES, has_address, is_read, renamed
from palimpsest.log.entry import Audio, File, Image, Opaque, Part, Reasoning, Text


def says_nothing(part: Part) -> bool:
    """Whether the part is an empty text."""
    if isinstance(part, Opaque):  # which may have come by an import
        return part.item.get("type") == "text" and not (isinstance(part.item.get("text"), str) and part.item["text"])
    return isinstance(part, Text | Reasoning) and not part.text


def has_counterpart(part: Part, role: str, own: bool) -> bool:
    """Whether chat completions take a part from this role. What has an id at another provider has none here."""
    if isinstance(part, Text):
        return True
    if role != "user":
        return False  # the results of tools, and what system and model say, are text here
    if isinstance(part, Audio):
        return own or part.format in ("wav", "mp3")
    if not own and not is_read(renamed(part), IMAGES, OPENAI_FILES):
        return False
    if isinstance(part, Image):
        return has_address(part)
    return isinstance(part, File) and (own or part.data is not None)


def sent_part(part: Part, own: bool) -> Message:
    """The part as a request has it: an image of another's by the name that is known, a document by any."""
    made = encode_part(part if own else renamed(part), keep=own)
    if isinstance(part, File) and part.data is not None and part.filename is None:
        made["file"] = {"filename": NO_NAME, **made["file"]}
    return made


def encode_part(part: Part, *, keep: bool) -> Message:
    """The part as it came in, with keys of its own where they are to be kept."""
    extra = part.extra if keep and part.extra else {}
    if isinstance(part, Opaque):
        return part.item
    if isinstance(part, Text | Reasoning):
        return {"type": "text", "text": part.text, **extra}
    if isinstance(part, Image):
        body = {"url": part.source} if part.detail is None else {"url": part.source, "detail": part.detail}
        return {"type": "image_url", "image_url": body, **extra}
    if isinstance(part, Audio):
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}, **extra}
    given = {"file_id": part.file_id, "file_data": part.data, "filename": part.filename}
    return {"type": "file", "file": {k: v for k, v in given.items() if v is not None}, **extra}

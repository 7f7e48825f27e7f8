"""Parts of messages of OpenAI's chat completions, and which parts of other providers these accept. Pure."""

from __future__ import annotations

from palimpsest.formats import Message
from palimpsest.formats.common import NO_NAME
from palimpsest.formats.media_types import IMAGES, OPENAI_FILES, has_address, is_read, renamed
from palimpsest.log.entry import Audio, File, Image, Opaque, Part, Reasoning, Text


def says_nothing(part: Part) -> bool:
    """Whether the part is an empty text."""
    if isinstance(part, Opaque):  # a text part without a text is opaque: an import may bring one
        return part.item.get("type") == "text" and not (isinstance(part.item.get("text"), str) and part.item["text"])
    return isinstance(part, Text | Reasoning) and not part.text


def has_counterpart(part: Part, role: str, own: bool) -> bool:
    """Whether chat completions take a part from this role.

    `own` is whether it came in this format: a file that has only an id is taken only then.
    """
    if isinstance(part, Text):
        return True
    if role != "user":
        return False  # tools' results and messages of the system and the model hold only text here
    if isinstance(part, Audio):
        return own or part.format in ("wav", "mp3")
    if not own and not is_read(renamed(part), IMAGES, OPENAI_FILES):
        return False
    if isinstance(part, Image):
        return has_address(part)
    return isinstance(part, File) and (own or part.data is not None)


def sent_part(part: Part, own: bool) -> Message:
    """Return the part as a request has it: with a registered media type of another provider's image, and with a name of
    a document that has none."""
    encoded = encode_part(part if own else renamed(part), keep=own)
    if isinstance(part, File) and part.data is not None and part.filename is None:
        encoded["file"] = {"filename": NO_NAME, **encoded["file"]}
    return encoded


def encode_part(part: Part, *, keep: bool) -> Message:
    """Return the part as it came in; its `extra` keys are included with `keep`."""
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
    values = {"file_id": part.file_id, "file_data": part.data, "filename": part.filename}
    return {"type": "file", "file": {k: v for k, v in values.items() if v is not None}, **extra}

"""The media types that the providers' models read, and checks of media parts. Pure.

The types matter for parts that came from another provider: a part of a format's own is sent back as it came. Sources:
OpenAI's guides "Images and vision" and "File inputs"; Anthropic's guide "Vision"; Google's guides "Image
understanding", "Document understanding" and "File input methods". As of 2026-11.
"""

from __future__ import annotations

import re

import msgspec

from palimpsest.log.entry import Audio, File, Image, Part

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""Image types that OpenAI's and Anthropic's models read."""

GEMINI_IMAGES = frozenset({"image/jpeg", "image/png", "image/webp", "image/heic", "image/heif"})

_OFFICE = "application/vnd.openxmlformats-officedocument."
OPENAI_FILES = (
    *("application/pdf", "text/", "application/json", "application/xml", "application/csv", "application/rtf"),
    *("application/msword", "application/vnd.ms-excel", "application/vnd.ms-powerpoint"),
    *(f"{_OFFICE}wordprocessingml.", f"{_OFFICE}spreadsheetml.", f"{_OFFICE}presentationml."),
    *("application/vnd.oasis.opendocument.text", "application/javascript", "application/x-javascript"),
    *("application/typescript", "application/yaml", "application/x-yaml", "application/toml", "application/sql"),
    *("application/x-sql", "application/x-sh", "application/x-python", "application/iif", "application/x-iif"),
)
"""Prefixes of the document types that OpenAI takes."""

GEMINI_FILES = (
    *("application/pdf", "text/", "video/", "audio/", "application/json"),
    *("application/x-javascript", "application/x-python"),
)
"""The same for Google, whose models read video and audio files, too."""


def media_type(address: str) -> str | None:
    """Return the media type of a `data:` address, without parameters; None for any other address."""
    if not address.startswith("data:"):
        return None
    return address[5:].partition(",")[0].partition(";")[0].strip().lower()


def has_address(image: Image) -> bool:
    """Whether an image's source is an address with a scheme: not empty, the path of a file, or bare data."""
    return has_scheme(image.source) and not is_hollow(image.source)


def is_hollow(address: str) -> bool:
    """Whether this is a `data:` address without data, as it is made from an empty file."""
    if not address.startswith("data:"):
        return False
    data = address.find(",") + 1
    return data == 0 or (address.startswith(";base64,", data - 8) and not address[data : data + _LOOKED_AT].strip())


def has_scheme(text: str) -> bool:
    """Whether a text begins with the scheme of an address."""
    return re.match(_ADDRESS, text) is not None


def lacks(part: Part) -> tuple[str, str] | None:
    """Return the field of a media part that no provider could read, and why; None if the part is complete."""
    if isinstance(part, Image) and isinstance(part.source, str) and not has_address(part):
        return "source", "is not an address: give https://…, or the content of a file as data:image/png;base64,…"
    if isinstance(part, Audio) and isinstance(part.data, str) and not _holds_data(part.data):
        return "data", "is not a sound: give the content of the file in base64"
    if isinstance(part, Audio) and part.format == "":
        return "format", "is not a format of sound: give wav or mp3"
    if isinstance(part, File) and not part.file_id and (part.data is None or isinstance(part.data, str)):
        reason = "is not a document: give a file_id, or the content of the file as data:application/pdf;base64,…"
        is_complete = part.data and (has_scheme(part.data) or _holds_data(part.data)) and not is_hollow(part.data)
        return None if is_complete else ("data", reason)
    return None


def _holds_data(text: str) -> bool:
    """Whether a text begins like base64, of either alphabet. The path of a file with a dot in it does not."""
    return re.fullmatch(_BASE64, text[:_LOOKED_AT]) is not None


def renamed(part: Part) -> Part:
    """Return the part, with the unregistered media type image/jpg of an image replaced by image/jpeg."""
    if isinstance(part, Image) and media_type(part.source) == "image/jpg":
        return msgspec.structs.replace(part, source=f"data:image/jpeg{part.source[len('data:image/jpg') :]}")
    return part


def is_read(part: Part, images: frozenset[str], files: tuple[str, ...]) -> bool:
    """Whether a provider that reads these types reads this part; True for an address that does not tell its type."""
    address = part.source if isinstance(part, Image) else part.data if isinstance(part, File) else None
    kind = media_type(address) if address is not None else None
    if kind is None:
        return True
    return kind in images if isinstance(part, Image) else kind.startswith(files)


_ADDRESS = r"[A-Za-z][A-Za-z0-9+.-]+:"
"""The scheme of an address, of two characters at least: a single letter is the drive of a path."""
_BASE64 = r"[A-Za-z0-9+/=_\-\s]+"
_LOOKED_AT = 256
"""How many characters of data are examined: paths of files are mostly shorter."""

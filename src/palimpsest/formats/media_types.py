"""Which media types the providers' models read, and by which name. Pure.

They are for what another provider's log holds: a part that a format has read itself goes back as it came. Sources:
OpenAI's guides "Images and vision" and "File inputs"; Anthropic's guide "Vision"; Google's guides "Image
understanding", "Document understanding" and "File input methods". As of 2026-11.
"""

from __future__ import annotations

import re

import msgspec

from palimpsest.log.entry import Audio, File, Image, Part

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""Images that OpenAI's and Anthropic's models see."""

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
"""How the types of documents begin that OpenAI takes."""

GEMINI_FILES = (
    *("application/pdf", "text/", "video/", "audio/", "application/json"),
    *("application/x-javascript", "application/x-python"),
)
"""The same of Google's, whose models see films, too."""


def media_type(address: str) -> str | None:
    """The media type of a `data:` address, without parameters; None for any other address."""
    if not address.startswith("data:"):
        return None
    return address[5:].partition(",")[0].partition(";")[0].strip().lower()


def has_address(image: Image) -> bool:
    """Whether an image has an address of any kind: not nothing, the path of a file, or data alone."""
    return has_scheme(image.source) and not is_hollow(image.source)


def is_hollow(address: str) -> bool:
    """Whether this is a `data:` address without base64 where it should be, as a file that is empty makes one."""
    if not address.startswith("data:"):
        return False
    data = address.find(",") + 1
    return data == 0 or (address.startswith(";base64,", data - 8) and not address[data : data + _LOOKED_AT].strip())


def has_scheme(text: str) -> bool:
    """Whether a text begins as an address does."""
    return _ADDRESS.match(text) is not None


def lacks(part: Part) -> tuple[str, str] | None:
    """The field of a part that says too little for a provider to read it, and what belongs there; None: none does."""
    if isinstance(part, Image) and isinstance(part.source, str) and not has_address(part):
        return "source", "no address: give https://…, or what a file holds as data:image/png;base64,…"
    if isinstance(part, Audio) and isinstance(part.data, str) and not _holds_data(part.data):
        return "data", "no sound: give what the file holds in base64"
    if isinstance(part, Audio) and part.format == "":
        return "format", "no format of sound: give wav or mp3"
    if isinstance(part, File) and not part.file_id and (part.data is None or isinstance(part.data, str)):
        told = "no document: give a file_id, or what the file holds as data:application/pdf;base64,…"
        held = part.data and (has_scheme(part.data) or _holds_data(part.data)) and not is_hollow(part.data)
        return None if held else ("data", told)
    return None


def _holds_data(text: str) -> bool:
    """Whether a text begins as base64 does, of either alphabet: the path of a file with a dot in it does not."""
    return _BASE64.fullmatch(text[:_LOOKED_AT]) is not None


def renamed(part: Part) -> Part:
    """The part; an image whose type has a name that nobody registered by the one that providers take."""
    if isinstance(part, Image) and media_type(part.source) == "image/jpg":
        return msgspec.structs.replace(part, source=f"data:image/jpeg{part.source[len('data:image/jpg') :]}")
    return part


def is_read(part: Part, images: frozenset[str], files: tuple[str, ...]) -> bool:
    """Whether a provider that takes these types takes this part; what only an address is known of is taken to be."""
    address = part.source if isinstance(part, Image) else part.data if isinstance(part, File) else None
    kind = media_type(address) if address is not None else None
    if kind is None:
        return True
    return kind in images if isinstance(part, Image) else kind.startswith(files)


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""How an address begins; a letter alone is a drive."""
_BASE64 = re.compile(r"[A-Za-z0-9+/=_\-\s]+")
_LOOKED_AT = 256
"""Characters of data that are looked at: the path of a file has mostly fewer."""

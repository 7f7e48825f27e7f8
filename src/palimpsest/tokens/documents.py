"""What documents cost in tokens, and the little that has to be read from their bytes for that.

As in `media`: the bytes come from users, only a bounded part is read, and nothing raises.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from io import BytesIO
from math import ceil
from typing import Final

PAGE_TEXT_TOKENS: Final = 3_000
"""Tokens of the text of a PDF page: the upper figure for dense text in Anthropic's guide "PDF support"."""

PAGE_PICTURE_TOKENS: Final = 1_600
"""Least tokens of the picture of a page, which providers send beside the text (OpenAI: 1,105 on gpt-4o)."""

PAGE_SIZE: Final = (1240, 1754)
"""Pixels of such a picture: A4 at 150 per inch. No provider publishes the size."""

FILE_BYTES_PER_TOKEN: Final = 2
"""Chosen here for files without pages: prose has 3 to 5 bytes per token, JSON and code 2.5 to 4, digits 2.5."""

_MOST_UNPACKED: Final = 1 << 26
"""Most bytes that are unpacked from one document."""

_MOST_STREAMS: Final = 10_000


def document_tokens(data: bytes, picture: int = 0) -> int:
    """Return an estimate of the tokens of a document; `picture` is what the picture of a page costs with the model."""
    return file_tokens(max(len(data), packed_text(data)), pdf_pages(data), picture)


def file_tokens(bytes_length: int, pages: int | None = None, picture: int = 0) -> int:
    """Return an estimate of the tokens of a file in the input, meant to be too large rather than too small.

    With `pages`, as of a PDF, it is that many dense pages with their pictures; without, one token for every two bytes.
    No provider publishes a formula for files.
    """
    if pages is None:
        return ceil(bytes_length / FILE_BYTES_PER_TOKEN)
    return pages * (PAGE_TEXT_TOKENS + max(PAGE_PICTURE_TOKENS, picture))


def pdf_pages(data: bytes) -> int | None:
    """Return about how many pages a PDF has, or None if that cannot be determined.

    Counts the page objects, also in compressed streams. If none can be read, the number in the file's own header is
    used, if it has one.
    """
    if b"%PDF-" not in data[:1024]:
        return None
    if pages := sum(1 for piece in (data, *_object_streams(data)) for _ in _PDF_PAGE.finditer(piece)):
        return pages
    head = _PDF_LINEAR.search(data[:2048])
    return int(head[1]) if head and int(head[1]) > 0 else None


_PDF_PAGE: Final = re.compile(rb"/Type\s{0,16}/Page(?![A-Za-z])")
_PDF_LINEAR: Final = re.compile(rb"/Linearized[^>]{0,400}?/N\s{1,16}(\d{1,7})")
_PDF_STREAM: Final = re.compile(rb"/ObjStm\b[^\x80-\xff]{0,400}?stream(?:\r\n|\n)")


def _object_streams(data: bytes) -> Iterator[bytes]:
    """Yield the unpacked contents of the streams in which a PDF packs its objects."""
    remaining, place = _MOST_UNPACKED, 0
    for _ in range(_MOST_STREAMS):
        start = _PDF_STREAM.search(data, place)
        if start is None or remaining <= 0:
            return
        place = data.find(b"endstream", start.end())
        place = place if place >= 0 else len(data)
        try:
            unpacked = zlib.decompressobj().decompress(memoryview(data)[start.end() : place], remaining)
        except zlib.error:
            continue
        remaining -= len(unpacked)
        yield unpacked


def packed_text(data: bytes) -> int:
    """Return how many bytes of text an office document (an archive of XML) holds; 0 for any other file."""
    if not data.startswith(b"PK\x03\x04"):
        return 0
    from zipfile import BadZipFile, ZipFile  # takes 5 ms, so only for such documents

    total, remaining = 0, _MOST_UNPACKED
    try:
        with ZipFile(BytesIO(data)) as archive:
            for member in archive.infolist()[:_MOST_STREAMS]:
                if _TEXT_MEMBERS.search(member.filename) and remaining > 0:
                    with archive.open(member) as opened:
                        text = opened.read(remaining)
                    remaining -= len(text)
                    total += len(_XML_TAG.sub(b"", text))
    except (BadZipFile, zlib.error, ValueError, OSError, EOFError, RuntimeError, NotImplementedError):
        return total
    return total


_TEXT_MEMBERS: Final = re.compile(
    r"^(?:word/[^/]+|xl/(?:worksheets/)?[^/]+|ppt/(?:slides|notesSlides)/[^/]+|content)\.xml$"
)
"""The members of Word, Excel, PowerPoint and OpenDocument files that hold text."""
_XML_TAG: Final = re.compile(rb"<[^<>]*>")

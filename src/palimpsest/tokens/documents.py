"""What documents cost in tokens, and the little that must be read from their bytes for that.

As in `media`: bytes come as users have them, what is looked at is bounded, and nothing raises.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from io import BytesIO
from math import ceil
from typing import Final

PAGE_TEXT_TOKENS: Final = 3_000
"""Tokens of the text of a page of a PDF: the upper figure in Anthropic's guide "PDF support" for dense text."""

PAGE_PICTURE_TOKENS: Final = 1_600
"""Tokens of its picture at least, which providers send beside the text (OpenAI: 1,105 on gpt-4o)."""

PAGE_SIZE: Final = (1240, 1754)
"""Pixels of such a picture: A4 at 150 to the inch. No provider publishes the size."""

FILE_BYTES_PER_TOKEN: Final = 2
"""Own figure for files without pages: prose has 3 to 5 bytes a token, JSON and code 2.5 to 4, digits 2.5."""

_MOST_UNPACKED: Final = 1 << 26
"""Bytes that are unpacked of one document."""

_MOST_STREAMS: Final = 10_000


def document_tokens(data: bytes, picture: int = 0) -> int:
    """Return an estimate of the tokens of a document; `picture` is what the picture of a page costs on the model."""
    return file_tokens(max(len(data), packed_text(data)), pdf_pages(data), picture)


def file_tokens(bytes_length: int, pages: int | None = None, picture: int = 0) -> int:
    """Return an estimate of the tokens of a file in the input, meant to be too large rather than too small.

    With `pages`, as of a PDF, so many dense pages with their pictures; without, one token for every two bytes.
    No provider publishes a formula for files.
    """
    if pages is None:
        return ceil(bytes_length / FILE_BYTES_PER_TOKEN)
    return pages * (PAGE_TEXT_TOKENS + max(PAGE_PICTURE_TOKENS, picture))


def pdf_pages(data: bytes) -> int | None:
    """Return about how many pages a PDF has, or None where that cannot be seen.

    Counts the page objects, those in compressed streams too; where there are none to be read, takes the figure of
    the file's own head, if it has one.
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
    """What the streams of a PDF hold in which it packs its objects."""
    left, place = _MOST_UNPACKED, 0
    for _ in range(_MOST_STREAMS):
        found = _PDF_STREAM.search(data, place)
        if found is None or left <= 0:
            return
        place = data.find(b"endstream", found.end())
        place = place if place >= 0 else len(data)
        try:
            unpacked = zlib.decompressobj().decompress(memoryview(data)[found.end() : place], left)
        except zlib.error:
            continue
        left -= len(unpacked)
        yield unpacked


def packed_text(data: bytes) -> int:
    """Return how many bytes of text an office document holds, which is an archive of XML; 0 for any other file."""
    if not data.startswith(b"PK\x03\x04"):
        return 0
    from zipfile import BadZipFile, ZipFile  # five milliseconds, for who has such a document

    total, left = 0, _MOST_UNPACKED
    try:
        with ZipFile(BytesIO(data)) as archive:
            for member in archive.infolist()[:_MOST_STREAMS]:
                if _SAID.search(member.filename) and left > 0:
                    with archive.open(member) as opened:
                        text = opened.read(left)
                    left -= len(text)
                    total += len(_MARK.sub(b"", text))
    except (BadZipFile, zlib.error, ValueError, OSError, EOFError, RuntimeError, NotImplementedError):
        return total
    return total


_SAID: Final = re.compile(r"^(?:word/[^/]+|xl/(?:worksheets/)?[^/]+|ppt/(?:slides|notesSlides)/[^/]+|content)\.xml$")
"""The parts of Word, Excel, PowerPoint and OpenDocument that hold what is said."""
_MARK: Final = re.compile(rb"<[^<>]*>")

"""What images, sound and files cost in tokens, and the little that has to be read from their bytes for that.

The bytes come from users, and may be truncated, mislabelled or hostile. Readers look at a bounded number of places,
return None if they cannot tell, and never raise.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from math import ceil, floor, sqrt
from typing import Final

from palimpsest.log.entry import Audio, Entry, File, Image, Opaque
from palimpsest.tokens.documents import PAGE_SIZE, document_tokens
from palimpsest.tokens.models import Area, Crops, ImageRule, Levels, Model, Patches, Tiles

GPT_4O_IMAGE: Final = Tiles(base=85, tile=170)
"""The rule for images of models without one in the table: OpenAI's for gpt-4o."""

AUDIO_TOKENS_PER_SECOND: Final = 10
"""OpenAI: one token for each 100 ms of sound in the input."""

MOST_AUDIO_TOKENS_PER_SECOND: Final = 32
"""Google, guide "Understand and count tokens"; the largest published figure of all providers."""

LEAST_AUDIO_BYTES_PER_SECOND: Final = 1_000
"""8 kbit/s, the lowest bit rate of an MP3 frame: it bounds the length of sound whose length is unknown."""


def image_tokens(model: Model | None, width: int | None, height: int | None, detail: str | None = None) -> int:
    """Return the tokens of one image in the input of `model`. Sides are in pixels; without both, the most it can cost.

    `detail` is OpenAI's `low`, `high`, `original` or `auto`, or a resolution of Google's in lower case. None, and what
    the model does not know, count as `auto`. An unknown model, or one without a rule, counts as gpt-4o. Source: OpenAI,
    guide "Images and vision", "Calculating costs"; Anthropic, guide "Vision"; Google, guides "Understand and count
    tokens" and "Media resolution".
    """
    rule: ImageRule = model.image if model is not None and model.image is not None else GPT_4O_IMAGE
    size = (width, height) if width is not None and height is not None and min(width, height) > 0 else None
    match rule:
        case Tiles():
            return _tile_tokens(rule, size, detail)
        case Patches():
            side, most = rule.limits.get(detail or "auto") or rule.limits["auto"]
            patches = image_patches(*size, most=most, side=side) if size else min(most, ceil(side / _PATCH) ** 2)
            # Rounded first, then up: in binary fractions 1,000 times 1.2 is slightly more than 1,200.
            return ceil(round(patches * rule.multiplier, 6))
        case Area():
            return rule.cap if size is None else min(rule.cap, ceil(size[0] * size[1] / rule.pixels))
        case Levels():
            return rule.tokens.get(detail or "auto") or rule.tokens["auto"]
        case Crops():
            return rule.crop * (min(rule.most, _crops(*size, rule.whole)) if size else rule.most)


def image_patches(width: int, height: int, *, most: int, side: int | None = None) -> int:
    """Return how many squares of 32 pixels cover an image, scaled down to `side` and to `most` squares.

    `side` is the longest side allowed, in pixels. Sides are at least 1. Source: OpenAI, guide "Images and vision",
    "Patch-based image tokenization", which gives 1,452 for 1800 x 2400 pixels and at most 1,536.
    """
    if side is not None:
        width, height = _fit(width, height, side)
    patches = _squares(width, height, _PATCH)
    if patches <= most:
        return patches
    shrink = sqrt(_PATCH**2 * most / (width * height))
    across, down = width * shrink / _PATCH, height * shrink / _PATCH
    shrink *= min(max(1, floor(across)) / across, max(1, floor(down)) / down)
    # The small addition keeps a whole side from being rounded down because of binary fractions.
    return min(most, _squares(max(1, floor(width * shrink + 1e-6)), max(1, floor(height * shrink + 1e-6)), _PATCH))


def audio_tokens(seconds: float | None, bytes_length: int, per_second: int = AUDIO_TOKENS_PER_SECOND) -> int:
    """Return the tokens of sound in the input: by its length in seconds, else (None) an upper bound by its bytes.

    The bound assumes MP3 of the lowest bit rate; sound of ordinary bit rates is 8 to 30 times shorter.
    """
    if seconds is None:
        seconds = bytes_length / LEAST_AUDIO_BYTES_PER_SECOND
    return ceil(round(seconds * per_second, 6))


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels from the header of a PNG, JPEG, GIF or WebP, or None."""
    size: tuple[int, int] | None = None
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
        size = _big(data, 16, 4), _big(data, 20, 4)
    elif data[:6] in {b"GIF87a", b"GIF89a"}:
        size = _little(data, 6, 2), _little(data, 8, 2)
    elif data[:2] == b"\xff\xd8":
        size = _jpeg_size(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        size = _webp_size(data)
    return size if size is not None and min(size) > 0 else None


def audio_seconds(data: bytes, format: str) -> float | None:
    """Return the length of sound in seconds, or None. `format` is `wav` or `mp3`.

    WAV: the size of the samples divided by the byte rate. MP3: the number of frames if the file states it, else its
    size divided by the bit rate of the first frame, which is an estimate if the bit rate varies.
    """
    match format.lower():
        case "wav":
            return _wav_seconds(data)
        case "mp3":
            return _mp3_seconds(data)
        case _:
            return None


_CROP_SIDES: Final = (256, 768)
_PATCH: Final = 32
_TILE: Final = 512
_TILE_FIT: Final = 2048
_TILE_SHORT_SIDE: Final = 768


def _crops(width: int, height: int, whole: int) -> int:
    least, most = _CROP_SIDES
    return (
        1
        if max(width, height) <= whole
        else _squares(width, height, max(least, min(most, min(width, height) * 2 // 3)))
    )


def _tile_tokens(rule: Tiles, size: tuple[int, int] | None, detail: str | None) -> int:
    if detail == "low":
        return rule.base
    width, height = _fit(*size, _TILE_FIT) if size else (_TILE_FIT, _TILE_SHORT_SIDE)
    shorter = min(width, height)
    if shorter > _TILE_SHORT_SIDE:
        width, height = width * _TILE_SHORT_SIDE // shorter, height * _TILE_SHORT_SIDE // shorter
    return rule.base + rule.tile * _squares(width, height, _TILE)


def _fit(width: int, height: int, side: int) -> tuple[int, int]:
    longer = max(width, height)
    if longer <= side:
        return width, height
    return max(1, (width * side + longer // 2) // longer), max(1, (height * side + longer // 2) // longer)


def _squares(width: int, height: int, side: int) -> int:
    return -(-width // side) * -(-height // side)


def _big(data: bytes, place: int, length: int) -> int:
    """Return an unsigned big-endian number; 0 if it reaches beyond the end."""
    return int.from_bytes(data[place : place + length], "big") if place + length <= len(data) else 0


def _little(data: bytes, place: int, length: int) -> int:
    return int.from_bytes(data[place : place + length], "little") if place + length <= len(data) else 0


_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_ENDS: Final = frozenset({0xD9, 0xDA})
_MOST_STEPS: Final = 2_000


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk the segments (marker, length, content) up to the frame header."""
    place = 2
    for _ in range(_MOST_STEPS):
        if place + 2 > len(data) or data[place] != 0xFF:
            return None
        marker = data[place + 1]
        if marker in _JPEG_FRAMES:
            return _big(data, place + 7, 2), _big(data, place + 5, 2)
        if marker in _JPEG_ENDS:
            return None
        if marker == 0xFF:
            place += 1
        elif marker in _JPEG_BARE:
            place += 2
        else:
            place += 2 + max(2, _big(data, place + 2, 2))
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            if len(data) < 30:
                return None
            return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
        case b"VP8L" if data[20:21] == b"\x2f" and len(data) >= 25:
            bits = _little(data, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
        case _:
            return None


def _wav_seconds(data: bytes) -> float | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    place, byte_rate = 12, 0
    for _ in range(_MOST_STEPS):
        if place + 8 > len(data):
            return None
        name, length = data[place : place + 4], _little(data, place + 4, 4)
        if name == b"fmt ":
            byte_rate = _little(data, place + 16, 4)
        elif name == b"data":
            # A file that was streamed or truncated states a length that it does not have.
            return min(length, len(data) - place - 8) / byte_rate if byte_rate else None
        place += 8 + length + length % 2
    return None


# kbit/s by index in the frame header: MPEG 1 (layer 1, 2, 3), then MPEG 2 and 2.5 (layer 1, 2 and 3).
_MP3_RATES: Final = {
    (1, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MP3_SAMPLE_RATES: Final = {0: (11025, 12000, 8000), 2: (22050, 24000, 16000), 3: (44100, 48000, 32000)}
_MP3_SYNC: Final = re.compile(rb"\xff[\xe2-\xe7\xea-\xff][\x10-\xef]", re.DOTALL)
_MP3_SEARCH: Final = 1 << 16


def _mp3_seconds(data: bytes) -> float | None:
    start = 0
    if data[:3] == b"ID3" and len(data) >= 10:
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
    for match in _MP3_SYNC.finditer(data, start, start + _MP3_SEARCH):
        if (seconds := _mp3_frame_seconds(data, match.start())) is not None:
            return seconds
    return None


def _mp3_frame_seconds(data: bytes, place: int) -> float | None:
    version, layer = data[place + 1] >> 3 & 3, 4 - (data[place + 1] >> 1 & 3)
    rates, samplings = _MP3_RATES.get((1 if version == 3 else 2, layer)), _MP3_SAMPLE_RATES.get(version)
    rate_index, sampling_index = data[place + 2] >> 4, data[place + 2] >> 2 & 3
    if rates is None or samplings is None or rate_index == 15 or sampling_index == 3 or not rates[rate_index]:
        return None
    mark = max(data.find(b"Xing", place, place + 64), data.find(b"Info", place, place + 64))
    if layer == 3 and mark >= 0 and _big(data, mark + 4, 4) & 1 and (frames := _big(data, mark + 8, 4)):
        return frames * (1152 if version == 3 else 576) / samplings[sampling_index]
    return (len(data) - place) * 8 / (rates[rate_index] * 1000)


def media_tokens(entry: Entry, model: Model | None) -> int:
    """Return what the entry's images, sound and documents cost, by the providers' published formulas."""
    total = 0
    for part in entry.content:
        if isinstance(part, Image):
            total += _image_tokens(model, part, *_size(part.source))
        elif isinstance(part, Audio):
            sound = _decoded(part.data)
            is_openai = model is not None and model.provider in _OPENAI
            rate = AUDIO_TOKENS_PER_SECOND if is_openai else MOST_AUDIO_TOKENS_PER_SECOND
            total += audio_tokens(audio_seconds(sound, part.format), len(sound), rate)
        elif isinstance(part, File | Opaque) and _is_image_by_id(part):
            total += _image_tokens(model, part, None, None)
        elif isinstance(part, File):
            total += document_tokens(_decoded(part.data or ""), image_tokens(model, *PAGE_SIZE))
    return total


_OPENAI: Final = frozenset({"openai", "azure"})


def _image_tokens(model: Model | None, part: Image | File | Opaque, width: int | None, height: int | None) -> int:
    """Return what an image costs at the detail, or Google's resolution, that its part asks for."""
    detail = part.detail if isinstance(part, Image) else None
    if model is not None and isinstance(model.image, Levels):
        extra = None if isinstance(part, Opaque) else part.extra
        resolution = (extra or {}).get("media_resolution") or (extra or {}).get("mediaResolution")
        if not isinstance(resolution, dict):
            return image_tokens(model, width, height)
        tokens = resolution.get("num_tokens", resolution.get("numTokens"))
        if type(tokens) is int and tokens > 0:
            return tokens
        detail = str(resolution.get("level")).removeprefix("MEDIA_RESOLUTION_").lower()
    return image_tokens(model, width, height, detail)


def is_unsized(entry: Entry) -> bool:
    """Whether the entry holds a file of unknown size, given only by address or id. Such files are not counted."""
    return not isinstance(entry.content, str) and any(
        isinstance(part, File | Opaque) and _is_by_reference(part) for part in entry.content
    )


def _is_by_reference(part: File | Opaque) -> bool:
    if isinstance(part, File):
        return not part.data and not _is_image_by_id(part)
    source = part.item.get("source")
    return part.item.get("type") == "document" and isinstance(source, dict) and source.get("type") in ("url", "file")


def _is_image_by_id(part: File | Opaque) -> bool:
    """Whether this is an image given by a file id, in the form of Anthropic, Responses or Gemini."""
    if isinstance(part, Opaque):
        source = part.item.get("source")
        return part.item.get("type") == "image" and isinstance(source, dict) and source.get("type") == "file"
    if part.data or not part.extra:
        return False
    bodies = [body for body in part.extra.values() if isinstance(body, dict)]
    types = [body.get("mime_type") or body.get("mimeType") for body in bodies]
    return part.extra.get("type") in _PICTURES or any(
        isinstance(mime_type, str) and mime_type[:6] == "image/" for mime_type in types
    )


_PICTURES: Final = frozenset({"input_image", "computer_screenshot"})


def _size(source: str) -> tuple[int | None, int | None]:
    return (image_size(_decoded(source)) if source.startswith("data:") else None) or (None, None)


def _decoded(data: str) -> bytes:
    """Return the bytes of a `data:` address or of plain base64; empty for anything else."""
    try:
        return b64decode(data[data.find(",") + 1 :] if data.startswith("data:") else data)
    except (Error, ValueError):
        return b""

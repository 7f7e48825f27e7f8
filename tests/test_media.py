"""Tokens of images, sound and files, and the headers from which sizes and lengths are read."""

from __future__ import annotations

import base64
import io
import struct
import wave
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import Audio, Entry, File, Image, Memory
from palimpsest.log.entry import Part
from palimpsest.tokens import encoding
from palimpsest.tokens.documents import file_tokens, packed_text, pdf_pages
from palimpsest.tokens.media import (
    audio_seconds,
    audio_tokens,
    image_patches,
    image_size,
    image_tokens,
    media_tokens,
)
from palimpsest.tokens.models import find_model, model_names


def png(width: int, height: int) -> bytes:
    """Return the header of a PNG of this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def gif(width: int, height: int) -> bytes:
    """Return the header of a GIF of this size."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0"


def jpeg(width: int, height: int, marker: int = 0xC0) -> bytes:
    """Return the segments of a JPEG of this size, up to its frame header with this marker."""

    def segment(marker: int, content: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content

    tables = segment(0xE0, b"JFIF\0" + bytes(9)) + segment(0xC4, bytes(20)) + b"\xff" + segment(0xDB, bytes(65))
    return b"\xff\xd8" + tables + segment(marker, struct.pack(">BHH", 8, height, width) + bytes(10)) + b"\xff\xd9"


def webp(kind: bytes, content: bytes) -> bytes:
    """Return a WebP file with one chunk."""
    chunk = kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def webp_lossy(width: int, height: int) -> bytes:
    """Return a lossy WebP of this size."""
    return webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width | 0x4000, height) + bytes(8))


def webp_lossless(width: int, height: int) -> bytes:
    """Return a lossless WebP of this size."""
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(8))


def webp_extended(width: int, height: int) -> bytes:
    """Return an extended WebP of this size."""
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes(4) + sides)


def wav(seconds: float, rate: int = 8000) -> bytes:
    """Return a WAV of silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(bytes(int(seconds * rate) * 2))
    return file.getvalue()


def mp3(seconds: int, *, kilobits: int = 128, tag: bytes = b"") -> bytes:
    """Return an MP3 of a constant bit rate: the first frame's header, and as many bytes as the rate needs."""
    return tag + (b"\xff\xfb\x90\x00" + bytes(413)).ljust(seconds * kilobits * 125, b"\0")


Maker = Callable[[int, int], bytes]
MAKERS: list[Maker] = [png, gif, jpeg, webp_lossy, webp_lossless, webp_extended]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (1, 16_383), (1800, 2400)])
def test_an_images_size_is_read_from_its_header(make: Maker, size: tuple[int, int]) -> None:
    """Width and height of an image are read from its header, in pixels."""
    assert image_size(make(*size)) == size


@pytest.mark.parametrize("marker", [0xC1, 0xC2, 0xC9, 0xCF])
def test_jpegs_of_every_process_have_a_size(marker: int) -> None:
    """Progressive and other JPEGs have their size at the same place."""
    assert image_size(jpeg(30, 20, marker)) == (30, 20)


@pytest.mark.parametrize("make", MAKERS)
def test_a_cut_off_image_has_no_size(make: Maker) -> None:
    """A header that is cut off at any place gives no size rather than a wrong one."""
    data = make(640, 480)

    assert all(image_size(data[:length]) in {None, (640, 480)} for length in range(len(data)))
    assert image_size(png(0, 480)) is None


@pytest.mark.parametrize(
    "data", [b"", b"text", b"\xff\xd8" + b"\xff" * 1_000_000, b"\xff\xd8" + b"\xff\xe0\0\2" * 1_000_000]
)
def test_bytes_that_are_no_image_have_no_size(data: bytes) -> None:
    """Other bytes, and endless chains of JPEG segments, give no size."""
    assert image_size(data) is None


HEADS = st.sampled_from(
    [maker(64, 64) for maker in MAKERS] + [wav(0.1), mp3(1), b"ID3\4\0\0\0\0\0\1", b"%PDF-1.7\n", b""]
)


@settings(max_examples=examples(300), deadline=None)
@given(head=HEADS, length=st.integers(0, 64), rest=st.binary(max_size=200))
def test_hostile_bytes_give_positive_figures_or_none(head: bytes, length: int, rest: bytes) -> None:
    """Whatever bytes follow a valid beginning, readers return positive figures or None."""
    data = head[:length] + rest

    assert image_size(data) is None or min(image_size(data) or (0,)) > 0
    assert all((audio_seconds(data, kind) or 0) >= 0 for kind in ("wav", "mp3", "flac"))
    assert pdf_pages(data) is None or (pdf_pages(data) or 0) > 0


@pytest.mark.parametrize(
    ("model", "width", "height", "detail", "tokens"),
    [
        ("gpt-4o", 1024, 1024, "high", 765),
        ("gpt-4o", 2048, 4096, "high", 1105),
        ("gpt-4o", 4096, 8192, "low", 85),
        ("gpt-5.4", 1024, 1024, "high", 1229),
        ("gpt-5.4", 2048, 2048, "high", 3000),
        ("gpt-4.1-mini", 1024, 1024, None, 1659),
    ],
)
def test_documented_images_cost_their_documented_tokens(
    model: str, width: int, height: int, detail: str | None, tokens: int
) -> None:
    """The examples of OpenAI's guide to images cost the tokens that it states."""
    assert image_tokens(find_model(model), width, height, detail) == tokens


@pytest.mark.parametrize(("width", "height", "patches"), [(1024, 1024, 1024), (1800, 2400, 1452)])
def test_documented_patches_are_counted(width: int, height: int, patches: int) -> None:
    """The guide's examples of a budget of 1,536 patches give its figures."""
    assert image_patches(width, height, most=1536) == patches


def test_small_images_are_not_enlarged() -> None:
    """A small image is not enlarged: it costs one tile, or one patch of 32 pixels."""
    assert image_tokens(find_model("gpt-4o"), 10, 10, "high") == 85 + 170
    assert image_patches(10, 10, most=1536) == 1


def test_an_unknown_model_counts_images_as_gpt_4o() -> None:
    """A model that is unknown, or has no rule for images, counts them as gpt-4o does."""
    assert image_tokens(None, 1024, 1024, "high") == 765
    assert image_tokens(find_model("gpt-3.5-turbo"), 1024, 1024, "high") == 765


SIDES = st.integers(1, 200_000)


@settings(deadline=None, max_examples=examples(200))
@given(width=SIDES, height=SIDES, detail=st.sampled_from(["low", "high", "auto", "original", "odd", None]))
def test_an_image_of_unknown_size_costs_the_most(width: int, height: int, detail: str | None) -> None:
    """No image of known size costs more than one of unknown size, and none is free."""
    names = ("gpt-4o-mini", "gpt-4.1-nano", "gpt-5.4", "gpt-5.6-sol", "claude-opus-4-5")
    for model in (None, *map(find_model, names)):
        assert 0 < image_tokens(model, width, height, detail) <= image_tokens(model, None, height, detail)


@given(width=SIDES, height=SIDES, most=st.integers(1, 30_000), side=st.none() | st.integers(1, 70_000))
def test_patches_stay_within_the_budget(width: int, height: int, most: int, side: int | None) -> None:
    """An image is scaled into the budget of patches whatever its shape."""
    assert 1 <= image_patches(width, height, most=most, side=side) <= most


@pytest.mark.parametrize("name", model_names())
def test_every_model_counts_images(name: str) -> None:
    """Every model of the table has a positive cost for an image."""
    assert image_tokens(find_model(name), 800, 600) > 0


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_the_length_of_a_wav(seconds: float) -> None:
    """A WAV lasts as long as its samples."""
    assert audio_seconds(wav(seconds), "wav") == pytest.approx(seconds)


def test_the_length_of_a_streamed_wav() -> None:
    """A WAV whose header claims more samples than it has lasts as long as those it has."""
    data = wav(2.0)
    place = data.index(b"data") + 4

    assert audio_seconds(data[:place] + b"\xff\xff\xff\xff" + data[place + 4 :], "WAV") == pytest.approx(2.0)


def test_the_length_of_an_mp3() -> None:
    """An MP3 lasts as long as its bytes at the bit rate of its first frame, without leading tags."""
    tag = b"ID3\4\0\0\0\0\1\x00" + bytes(128)

    assert audio_seconds(mp3(10), "mp3") == pytest.approx(10)
    assert audio_seconds(mp3(10, tag=tag), "mp3") == pytest.approx(10)


def test_the_length_of_an_mp3_with_frame_count() -> None:
    """An MP3 that states its number of frames lasts as long as they do, whatever its size."""
    data = bytearray(mp3(10))
    data[36:48] = b"Xing" + struct.pack(">II", 1, 1000)

    assert audio_seconds(bytes(data), "mp3") == pytest.approx(1000 * 1152 / 44_100)


def test_other_sound_has_no_length() -> None:
    """Formats that are not read, and bytes of another format than claimed, give no length."""
    assert audio_seconds(wav(1.0), "flac") is None
    assert audio_seconds(wav(1.0), "mp3") is None
    assert audio_seconds(b"RIFF", "wav") is None


def test_sound_costs_by_its_length() -> None:
    """Sound costs a token per 100 ms; of unknown length it costs at least what it would at any bit rate."""
    assert audio_tokens(1.0, 0) == 10
    assert audio_tokens(0.01, 0) == 1
    assert audio_tokens(None, 16_000) == 160
    assert audio_tokens(None, len(mp3(10))) >= audio_tokens(10, 0)


GOOGLE = [name for name in model_names() if (found := find_model(name)) is not None and found.provider == "google"]


def cost(model: str | None, *parts: Part) -> int:
    """Return the tokens of a message of these parts for a model."""
    return media_tokens(Entry(content=parts), None if model is None else find_model(model))


def sound(seconds: float) -> Audio:
    """Return a part of silence."""
    return Audio(data=base64.b64encode(wav(seconds)).decode(), format="wav")


def picture(width: int, height: int, resolution: Any = None) -> Image:
    """Return an image part of this size, at a resolution that Gemini is asked for."""
    source = "data:image/png;base64," + base64.b64encode(png(width, height)).decode()
    return Image(source=source, extra=None if resolution is None else {"media_resolution": resolution})


@pytest.mark.parametrize("model", [*GOOGLE, "claude-sonnet-5", "nobody", None])
def test_sound_is_never_counted_too_low(model: str | None) -> None:
    """Sound costs 32 tokens per second, Google's figure, unless the model is known to take fewer, as OpenAI's do."""
    assert cost(model, sound(60.0)) >= 60 * 32
    assert cost("gpt-audio", sound(60.0)) == 600


@pytest.mark.parametrize("side", [1, 100, 384, 385, 512, 768, 1024, 4000])
@pytest.mark.parametrize("model", GOOGLE)
def test_images_for_google_are_never_counted_too_low(model: str, side: int) -> None:
    """For Google an image costs at least 258 tokens, since Gemini 3 at least 1,120, and at most one of unknown size."""
    images = [name for name in GOOGLE if (found := find_model(name)) is not None and found.image is not None]
    least = 258 if model.startswith(("gemini-2", "gemini-exp", "gemini-robotics-er-1", "learnlm")) else 1120
    if model in images:
        assert cost(model, picture(side, side)) >= least
        assert cost(model, picture(side, side)) <= cost(model, Image(source="https://a/b.png"))


def test_large_images_for_google_cost_by_their_crops() -> None:
    """Older Gemini models cost 258 tokens per crop, as in Google's example of 960 x 540 pixels in six crops."""
    assert cost("gemini-2.5-flash", picture(384, 384)) == 258
    assert cost("gemini-2.5-flash", picture(960, 540)) == 6 * 258
    assert cost("gemini-2.5-flash", picture(9000, 9000)) == 9 * 258


@pytest.mark.parametrize(
    ("resolution", "tokens"),
    [
        ({"level": "MEDIA_RESOLUTION_LOW"}, 280),
        ({"level": "MEDIA_RESOLUTION_MEDIUM"}, 560),
        ({"level": "MEDIA_RESOLUTION_ULTRA_HIGH"}, 2240),
        ({"level": "MEDIA_RESOLUTION_UNSPECIFIED"}, 1120),
        ({"level": "a newer one"}, 1120),
        ({"num_tokens": 4000}, 4000),
        ({"numTokens": 64}, 64),
        ({"num_tokens": None, "level": None}, 1120),
        ({"num_tokens": -1}, 1120),
        ({"num_tokens": True}, 1120),
        ("MEDIA_RESOLUTION_LOW", 1120),
    ],
)
def test_an_image_costs_the_resolution_asked_for(resolution: Any, tokens: int) -> None:
    """A resolution that a Gemini part asks for decides the image's cost; other models ignore it."""
    assert cost("gemini-3.8-flash", picture(512, 512, resolution)) == tokens
    assert cost("gpt-4o", picture(512, 512, resolution)) == cost("gpt-4o", picture(512, 512))


def packed_pdf(pages: int, *, plain: int = 0) -> bytes:
    """Return a PDF whose page objects lie in compressed streams, as in most files, and some beside them."""
    body = b"%PDF-1.7\n" + b"9 0 obj<</Type/Page>>endobj\n" * plain
    for start in range(0, pages, 50):
        objects = zlib.compress(b"".join(b"<</Type /Page /Parent 1 0 R>> " for _ in range(min(50, pages - start))))
        head = b"1 0 obj\n<</Filter/FlateDecode/Type/ObjStm/N 50/Length %d>>\nstream\r\n" % len(objects)
        body += head + objects + b"\nendstream\nendobj\n"
    return body + b"%%EOF"


def test_pages_in_compressed_streams_are_counted() -> None:
    """Page objects in compressed streams count like others."""
    assert pdf_pages(packed_pdf(120)) == 120
    assert pdf_pages(packed_pdf(120, plain=3)) == 123


@pytest.mark.sampled
@pytest.mark.parametrize("end", [b"", b"endstream", b"\nendstream", b" x" * 100])
def test_invalid_compressed_streams_count_as_nothing(end: bytes) -> None:
    """Bytes that only resemble compressed page objects, or are cut off, raise nothing and take no time."""
    whole = packed_pdf(120)
    assert pdf_pages(b"%PDF-1.7\n<</Type/ObjStm>>stream\r\nnot packed" + end) is None
    assert pdf_pages(whole[: len(whole) // 2]) in range(1, 121)
    assert pdf_pages(b"%PDF-1.7\n" + b"/ObjStm" * 100_000 + end) is None
    bomb = zlib.compress(bytes(200_000_000), 9)
    assert pdf_pages(b"%PDF-1.7\n<</Type/ObjStm>>stream\n" + bomb + b"endstream" + end) is None


def test_a_page_costs_its_text_and_its_picture() -> None:
    """A PDF page costs its text and its picture, since providers send both, at each model's price of pictures."""
    page = File(data="data:application/pdf;base64," + base64.b64encode(packed_pdf(1)).decode())

    for name in model_names():
        found = find_model(name)
        if found is not None and found.image is not None:
            assert cost(name, page) >= 3000 + image_tokens(found, 1240, 1754)
    assert cost(None, page) == cost("gpt-4o", page) == file_tokens(0, 1)


def office(name: str, xml: str) -> bytes:
    """Return an office file (a zip archive) with this XML member and an image."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, xml)
        archive.writestr("media/image1.png", bytes(100_000))
    return data.getvalue()


@pytest.mark.parametrize("name", ["word/document.xml", "xl/sharedStrings.xml", "ppt/slides/slide1.xml", "content.xml"])
def test_an_office_document_costs_its_text(name: str) -> None:
    """An office document costs the tokens of its unpacked text, without markup."""
    text = "It is raining in Castle Mere, as it was yesterday. " * 5_000
    data = office(name, "<w:document><w:p><w:r><w:t>" + text + "</w:t></w:r></w:p></w:document>")
    document = File(data="data:application/vnd.ms-office;base64," + base64.b64encode(data).decode())

    assert packed_text(data) == len(text)
    assert cost("gpt-5.6", document) >= encoding("o200k_base").count(text)


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04", b"PK\x03\x04" + bytes(100), office("a.xml", "<a>b</a>")[:-30], b"", b"x"]
)
def test_invalid_archives_count_as_nothing(data: bytes) -> None:
    """Bytes that only begin as an archive raise nothing and have no text."""
    assert packed_text(data) == 0


def test_an_archive_is_unpacked_within_bounds() -> None:
    """An archive that unpacks to gigabytes is read to a bounded size."""
    data = office("word/document.xml", "<a>" + "b" * 100_000_000)

    assert 10_000_000 < packed_text(data) < 100_000_000


def test_pdf_pages_are_counted() -> None:
    """The pages of a PDF are its page objects, or the number that a linearized file states."""
    body = b"<</Type/Pages/Count 2>> <</Type /Page>> <</Type/Page/Parent 1 0 R>>"

    assert pdf_pages(b"%PDF-1.4\n" + body) == 2
    assert pdf_pages(b"%PDF-1.5\n<</Linearized 1/L 5000/N 17>>") == 17
    assert pdf_pages(b"%PDF-1.5\nnothing to see") is None
    assert pdf_pages(body) is None


def test_a_file_costs_by_its_pages_or_bytes() -> None:
    """A file costs by its pages, or a token per two bytes."""
    assert file_tokens(10**6, pages=3) == 3 * file_tokens(0, pages=1)
    assert file_tokens(1001) == 501


@pytest.mark.parametrize("format", ["anthropic", "openai-responses"])
def test_old_images_in_results_become_notes(format: str) -> None:
    """A cut keeps the newest image of a tool and replaces older ones by a note naming the entry; the log keeps them."""
    shot = "data:image/png;base64," + base64.b64encode(png(1600, 1200)).decode()
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=6_000, format=format)
        for number in range(20):
            session.add_user_message(f"look {number}")
            call = session.add_tool_call("screen", {})
            session.add_entries(
                [Entry(kind="tool_result", role="tool", call_id=call.call_id, content=(Image(source=shot),))]
            )
            context = session.context()
            assert context.tokens <= 6_000
            if context.report.new_cut:
                break
            session.add_assistant_message("seen")

        assert context.report.masked
        assert str(context.messages).count("base64") == 1
        assert session.entry(context.report.masked[0]).content == (Image(source=shot),)


UPLOADED = "https://generativelanguage.googleapis.com/v1beta/files/x"


@pytest.mark.parametrize(
    ("format", "message"),
    [
        (
            "anthropic",
            {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "file_1"}}]},
        ),
        ("gemini", {"role": "user", "parts": [{"file_data": {"file_uri": UPLOADED, "mime_type": "image/png"}}]}),
        ("openai-responses", {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}),
    ],
)
def test_an_uploaded_image_costs_the_most(format: str, message: dict[str, Any]) -> None:
    """An image known only by the id of an uploaded file is counted as large as possible, without a warning."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=100_000, format=format, model="gpt-4o")
        session.add(message)
        context = session.context()

    assert context.tokens >= image_tokens(find_model("gpt-4o"), None, None)
    assert context.report.warnings == ()


DOCUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("openai", {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}),
    "responses": (
        "openai-responses",
        {"role": "user", "content": [{"type": "input_file", "file_url": "https://a/b.pdf"}]},
    ),
    "anthropic, by address": (
        "anthropic",
        {"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}}]},
    ),
    "anthropic, by id": (
        "anthropic",
        {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]},
    ),
    "gemini": ("gemini", {"role": "user", "parts": [{"file_data": {"file_uri": UPLOADED, "mime_type": "video/mp4"}}]}),
}


@pytest.mark.parametrize(("format", "message"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_an_uploaded_document_is_named_in_a_warning(format: str, message: dict[str, Any]) -> None:
    """A document known only by id or address cannot be counted: the report warns and names its entry."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=100_000, format=format)
        session.add_user_message("what is in it?")
        session.add([message, message])
        elsewhere = "anthropic" if format != "anthropic" else "openai"

        (warning,) = session.context().report.warnings

        assert warning.startswith("entries 2 to 3 hold documents")
        assert session.context(format=elsewhere).report.warnings == ()  # there it is a line of text


def test_a_document_with_its_bytes_is_counted() -> None:
    """A document whose bytes are in the message is counted, without a warning."""
    pdf = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.4 <</Type/Page>>").decode()
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=100_000)
        session.add_user_message([File(data=pdf)])

        assert session.context().tokens >= file_tokens(0, pages=1)
        assert session.context().report.warnings == ()

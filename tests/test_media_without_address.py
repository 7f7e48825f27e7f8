"""A medium that no provider could read is refused when it is added, and never sent."""

from __future__ import annotations

import pytest

from palimpsest import Audio, Entry, File, Image, InvalidEntry, Memory, Session, Text
from palimpsest.formats import Message, find_format

FORMATS = ["openai", "openai-responses", "anthropic", "gemini"]
LACKING = [
    (Image(source=""), "source", "https://"),
    (Image(source="photo.png"), "source", "data:image/png;base64,"),
    (Image(source="/home/ann/photo.png"), "source", "data:image/png;base64,"),
    (Image(source="iVBORw0KGgo="), "source", "data:image/png;base64,"),
    (Image(source="data:image/png;base64,"), "source", "data:image/png;base64,"),
    (Image(source="data:image/png"), "source", "data:image/png;base64,"),
    (File(data="data:application/pdf;base64,", filename="a.pdf"), "data", "data:application/pdf;base64,"),
    (Audio(data="", format="wav"), "data", "base64"),
    (Audio(data="/home/ann/a.wav", format="wav"), "data", "base64"),
    (Audio(data="aGk=", format=""), "format", "wav"),
    (File(), "data", "file_id"),
    (File(filename="a.pdf"), "data", "file_id"),
    (File(data=""), "data", "file_id"),
    (File(data="/home/ann/a.pdf", filename="a.pdf"), "data", "data:application/pdf;base64,"),
]
TAKEN = [
    Image(source="https://example.com/a.png"),
    Image(source="gs://bucket/a.png"),
    Image(source="data:image/png;base64,aGk="),
    Audio(data="aGk=", format="wav"),
    File(file_id="file-1"),
    File(data="data:application/pdf;base64,aGk=", filename="a.pdf"),
    File(data="JVBERi0=", filename="a.pdf"),
    Audio(data="aGk\n-_+/", format="mp3"),
]


@pytest.fixture
def session(memory: Memory) -> Session:
    """Return a session in an empty memory."""
    return memory.session("s")


@pytest.mark.parametrize("verb", ["add_user_message", "add_assistant_message", "add_system_message"])
@pytest.mark.parametrize(("part", "field", "hint"), LACKING, ids=repr)
def test_a_medium_that_nobody_can_read_is_refused(
    session: Session, verb: str, part: Image | Audio | File, field: str, hint: str
) -> None:
    """A file path, bare base64 or nothing in place of a medium is refused, naming the place and what to give."""
    with pytest.raises(InvalidEntry) as caught:
        getattr(session, verb)([Text(text="Look."), part])

    assert caught.value.where == f"message.content[1].{field}"
    assert hint in str(caught.value)
    assert session.entries() == []


@pytest.mark.parametrize("part", TAKEN, ids=repr)
def test_a_medium_that_a_provider_reads_is_accepted(session: Session, part: Image | Audio | File) -> None:
    """An address of any kind, data, or the id of a file is accepted."""
    entry = session.add_user_message([part])

    assert entry.content == (part,)


@pytest.mark.parametrize("format", FORMATS)
def test_an_image_without_address_in_a_log_becomes_text(session: Session, format: str) -> None:
    """In a log added as entries an image may have no address: a context shows a line of text instead."""
    session.add_entries([Entry(content=(Text(text="Look."), Image(source="photo.png")))])

    context = session.context(format=format)

    assert "photo.png" not in str(context.messages)
    assert "[an image is not shown here]" in str(context.messages)
    assert context.report.adapted
    assert session.entries()[0].content[1] == Image(source="photo.png")


EMPTY = {
    "openai": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,", "filename": "a.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ],
    "openai-responses": [
        {"type": "input_image", "image_url": "data:image/png;base64,"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,", "filename": "a.pdf"},
    ],
    "anthropic": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
    ],
    "gemini": [
        {"inline_data": {"mime_type": "image/png", "data": ""}},
        {"inlineData": {"mimeType": "application/pdf", "data": ""}},
        {"inline_data": {"mime_type": "audio/wav", "data": ""}},
    ],
}
EACH = [(format, part) for format, parts in EMPTY.items() for part in parts]


@pytest.mark.parametrize(("format", "part"), EACH, ids=repr)
def test_a_medium_without_data_is_refused_in_every_format(session: Session, format: str, part: Message) -> None:
    """A medium without data is refused in every format: the provider would refuse every later request."""
    key = "parts" if format == "gemini" else "content"

    with pytest.raises(InvalidEntry):
        session.add({"role": "user", key: [part]}, format=format)
    assert session.entries() == []


def test_an_answer_with_an_empty_image_is_kept_and_not_sent(session: Session) -> None:
    """A model's answer with an empty image is kept, since it was paid for, but the image is not sent."""
    answer = {"role": "model", "parts": [{"text": "Here."}, {"inline_data": {"mime_type": "image/png", "data": ""}}]}
    session.add_user_message("Draw.")
    session.add(answer, format="gemini")

    assert find_format("gemini").encode(session.entries())[1] == answer
    assert session.context(format="gemini").messages[1] == {"role": "model", "parts": [{"text": "Here."}]}


@pytest.mark.parametrize("format", FORMATS)
def test_an_image_without_data_in_a_log_becomes_text(session: Session, format: str) -> None:
    """In a log added as entries an image may have no data: a context shows a line of text instead."""
    session.add_entries([Entry(content=(Text(text="Look."), Image(source="data:image/png;base64,")))])

    assert "data:" not in str(session.context(format=format).messages)
    assert "[an image is not shown here]" in str(session.context(format=format).messages)

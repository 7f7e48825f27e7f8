"""A private value that begins in one text part of a message and ends in the next is found."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from palimpsest import Entry, Memory, Opaque, Query, Text
from palimpsest.log.entry import Native, Reasoning
from palimpsest.privacy.redaction import Redactor
from privacy_corpus import corpus

RED = "[REDACTED]"


def cleaned(*parts: Any, native: Native | None = None) -> tuple[Any, ...]:
    """Return what is kept of these parts."""
    entry = Redactor("default").entry(Entry(content=parts, native=native)).entry
    assert entry is not None
    assert isinstance(entry.content, tuple)
    return entry.content


def test_parts_that_share_a_private_value_are_joined() -> None:
    """Parts that share a private value are joined, with their extra fields; other parts stay."""
    kept = cleaned(
        Text(text="My mail is jane@exam", extra={"cache_control": {"type": "ephemeral"}}),
        Text(text="ple.com, "),
        Text(text="and the password is: "),
        Text(text="sesame9x", extra={"thought_signature": "c2ln", "citations": []}),
        Opaque(item={"type": "strange"}),
        Text(text="One."),
        Text(text="Two."),
    )

    assert kept == (
        Text(
            text=f"My mail is {RED}, and the password is: {RED}",
            extra={"cache_control": {"type": "ephemeral"}, "citations": []},
        ),
        Opaque(item={"type": "strange"}),
        Text(text="One."),
        Text(text="Two."),
    )


def test_texts_with_another_part_between_them_are_not_joined() -> None:
    """Texts with a thought or an item between them are not joined."""
    parts = (Text(text="jane@exam"), Reasoning(text="Hm."), Text(text="ple.com"))

    assert cleaned(*parts) == parts


SHAPES: dict[str, Any] = {
    "openai": lambda texts: {"role": "user", "content": [{"type": "text", "text": text} for text in texts]},
    "openai-responses": lambda texts: {
        "role": "user",
        "content": [{"type": "input_text", "text": text} for text in texts],
    },
    "anthropic": lambda texts: {"role": "user", "content": [{"type": "text", "text": text} for text in texts]},
    "gemini": lambda texts: {"role": "user", "parts": [{"text": text} for text in texts]},
}


@pytest.mark.parametrize("format", SHAPES)
def test_a_value_is_found_wherever_a_message_is_cut_into_parts(format: str) -> None:
    """A value is found in a message cut anywhere, and a second look finds nothing more."""
    redactor, chance = Redactor("default"), random.Random(format)
    with Memory.open("memory://", privacy=redactor) as memory:
        session = memory.session("s", format=format, max_tokens=8_000)
        for sample in corpus(seed=7, each=8):
            if sample.hard or not sample.spans or "\\" in sample.text:
                continue
            start, end, kind = sample.spans[0]
            cuts = sorted({chance.randrange(start, end), *(chance.randrange(len(sample.text)) for _ in range(2))})
            places = [0, *cuts, len(sample.text)]
            texts = [sample.text[one:two] for one, two in pairwise(places) if one < two]

            (entry,) = session.add(SHAPES[format](texts), format=format)

            parts = entry.content if isinstance(entry.content, tuple) else (Text(text=entry.content),)
            whole = "".join(part.text for part in parts if isinstance(part, Text))
            assert sample.text[start:end] not in whole, (kind, texts)
            assert redactor.text(whole) == whole, (kind, texts)
            assert redactor.entry(entry).findings == (), (kind, texts)
        sent = json.dumps(session.context(format=format).messages)

    assert RED in sent


def test_an_erasure_finds_a_text_across_parts() -> None:
    """A query finds a text across several parts."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(SHAPES["openai"](["12 Quay ", "Str", "eet"]))
        session.add(SHAPES["openai"](["12 Quay ", "and no street"]))

        assert session.erase(Query(text="quay street")).entries == 1
        assert [entry.erased for entry in session.entries()] == [True, False]


@pytest.mark.parametrize("format", SHAPES)
def test_a_scan_redacts_a_value_split_over_stored_parts(format: str) -> None:
    """A scan finds and redacts a value split over stored parts; the message can still be sent."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format, max_tokens=8_000)
        session.add(SHAPES[format](["The password", " is: ", "sesame9x", "."]), format=format)

        assert memory.scan("default").findings == {("credential", "content"): 1}
        assert memory.scan("default", apply=True).redacted == 1
        assert memory.scan("default").findings == {}
        sent = json.dumps(session.context(format=format).messages)

    assert ("sesame9x" in sent, RED in sent) == (False, True)

"""A large object is read message by message: the result equals reading it whole, whatever is wrong with it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commands import CHAT
from palimpsest import Memory
from palimpsest.transfer.sources import SOURCES, documents
from palimpsest.transfer.sources.files import SourceFile
from palimpsest.transfer.sources.limits import Limits
from strategies import json_values
from test_import_damage import LANGCHAIN, PYDANTIC

OBJECTS: dict[str, dict[str, Any]] = {
    "messages": {"system": ["Be", "brief."], "messages": CHAT, "title": "Talk", "model": "m", "tools": [{"a": [1]}]},
    "langchain": {"id": "talk", "messages": LANGCHAIN},
    "pydantic-ai": {"messages": PYDANTIC, "settings": {"temperature": 0.5, "stop": ["}", "]"]}},
    "palimpsest": {},
}


class Trickle(io.BytesIO):
    """A file that returns at most a few bytes per read."""

    def __init__(self, body: bytes, most: int) -> None:
        super().__init__(body)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._most if size is None or size < 0 else min(size, self._most))


def taken(body: bytes, source: str, *, at_least: int, most: int = 1 << 16, limits: Limits | None = None) -> list[Any]:
    """Return the pieces of a file, read as a whole if it is smaller than `at_least` bytes.

    How far each piece was read is left out, since that differs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "SAMPLE_BYTES", at_least)
        file = SourceFile(Trickle(body, most), limits=limits or Limits())
        options = {"format": "openai"} if source == "messages" else {}
        reader = SOURCES.find(source)(file, **options)
        pieces = []
        for piece in reader.pieces():
            conversation = piece.conversation
            identity = (conversation.id, conversation.title, conversation.number) if conversation is not None else None
            export = json.dumps(piece.export, sort_keys=True) if piece.export is not None else None
            pieces.append(
                (piece.place, identity, piece.entries, piece.fault, piece.left_out, piece.counts, piece.key, export)
            )
        return pieces


def same(body: bytes, source: str, most: int = 1 << 16) -> list[Any]:
    """Return the pieces of a file read message by message, which must equal those of reading it whole."""
    streamed = taken(body, source, at_least=1, most=most)
    assert streamed == taken(body, source, at_least=1 << 20)
    return streamed


@pytest.fixture(scope="module")
def exported() -> dict[str, Any]:
    """Return the export of a session."""
    with Memory.open("memory://") as memory:
        session = memory.session("talk")
        session.add(CHAT)
        return session.export()


def body_of(source: str, exported: dict[str, Any], indent: int | None = None) -> bytes:
    """Return the object of a source as JSON."""
    return json.dumps(OBJECTS[source] or exported, indent=indent).encode()


@pytest.mark.parametrize("source", OBJECTS)
@settings(deadline=None)
@given(indent=st.sampled_from([None, 1]), most=st.integers(1, 9))
def test_an_object_read_in_parts_gives_the_same_as_read_whole(
    source: str, exported: dict[str, Any], indent: int | None, most: int
) -> None:
    """An object gives the same pieces as read whole, however it is laid out and however little is read at a time."""
    found = same(body_of(source, exported, indent), source, most)

    assert len(found) > 1 or source == "palimpsest"
    assert not any(fault for _, _, _, fault, *_ in found)


@pytest.mark.parametrize("source", OBJECTS)
@settings(deadline=None)
@given(cut=st.floats(0, 1))
def test_an_object_cut_off_anywhere_imports_nothing(source: str, exported: dict[str, Any], cut: float) -> None:
    """An object that is cut off is reported with line and column, and nothing of it is imported."""
    body = body_of(source, exported)

    found = same(body[: int(cut * (len(body) - 1))], source)

    assert all(entries == () for _, _, entries, *_ in found)


PUT = st.sampled_from([*b'{}[],:"\\ 0\n', 0, 0xFF]).map(lambda byte: bytes([byte])) | st.sampled_from(
    [b"null", b'"a"', b',"messages":[]', b',"messages":7', b'"messages":', b"\xef\xbb\xbf", b".5", b"[[", b"}]", b"//"]
)


@pytest.mark.parametrize("source", ["messages", "langchain"])
@settings(deadline=None)
@given(place=st.floats(0, 1), put=PUT, gone=st.integers(0, 2))
@example(0.0, b"\xef\xbb\xbf", 0)
@example(1.0, b"}", 0)
@example(1.0, b" \n", 0)
@example(1.0, b"x", 0)
def test_insertions_anywhere_are_reported_as_when_read_whole(source: str, place: float, put: bytes, gone: int) -> None:
    """Wrong brackets, commas, keys or bytes anywhere are reported as when the file is read whole."""
    body = body_of(source, {})
    at = int(place * len(body))

    same(body[:at] + put + body[at + gone :], source)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["messages", "input", "contents", "id", "system", "title", "x"]), json_values)),
    st.lists(json_values | st.sampled_from(CHAT), max_size=4),
)
def test_wrong_values_are_reported_as_when_read_whole(pairs: list[tuple[str, Any]], messages: list[Any]) -> None:
    """Values of wrong types and repeated keys give the same as when the file is read whole."""
    texts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in [*pairs, ("messages", messages), *pairs]]

    same(("{" + ", ".join(texts) + "}").encode(), "messages")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_other_encodings_are_read(encoding: str) -> None:
    """JSON in UTF-16 or UTF-32 is read message by message as it is whole."""
    found = same(json.dumps(OBJECTS["messages"]).encode(encoding), "messages")

    assert sum(len(entries) for _, _, entries, *_ in found) > 2


@pytest.mark.parametrize(
    ("wrong", "limits", "reason"),
    [
        ("x" * 5_000, Limits(value=2_000), "bytes in one value (the limit 'value'"),
        ("x" * 5_000, Limits(string=2_000), "characters in one string (the limit 'string'"),
        ([[]] * 900, Limits(values=500), "items in one value (the limit 'values'"),
        (json.loads("[" * 400 + "]" * 400), Limits(), "nested too deeply: more than 300 levels"),
    ],
    ids=["value", "string", "values", "deep"],
)
def test_a_message_beyond_a_limit_costs_no_other(wrong: Any, limits: Limits, reason: str) -> None:
    """A message beyond a limit is reported and costs no other, since each message is a value of its own."""
    given = [{"role": "user", "content": text} for text in ["one", wrong, "two"]]

    found = taken(json.dumps({"messages": given}).encode(), "messages", at_least=1, limits=limits)

    faults = [(place, fault) for place, _, _, fault, *_ in found if fault]
    assert [place for place, _ in faults] == ["messages[1]"]
    assert reason in faults[0][1]
    assert [entry.text for _, _, entries, *_ in found for entry in entries] == ["one", "two"]


def test_values_beside_the_messages_are_limited() -> None:
    """What an object holds beside its messages may not exceed the limit of a value."""
    body = json.dumps({"messages": CHAT, "other": "x" * 5_000}).encode()

    ((_, _, entries, fault, *_),) = taken(body, "messages", at_least=1, limits=Limits(value=2_000))

    assert entries == ()
    assert "(the limit 'value'" in str(fault)

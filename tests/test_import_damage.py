"""Law: importing a damaged file reports or refuses it, never fails otherwise, and loses nothing else."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import CHAT
from exports_chatgpt import archive, branched
from exports_chatgpt import with_tools as chatgpt_tools
from exports_claude import with_tools as claude_tools
from json_places import damaged, places
from palimpsest import ImportFailed, Memory
from strategies import json_values

CALL = {"name": "look", "args": {"at": 1}, "id": "c1", "type": "tool_call"}
LANGCHAIN = [
    {"type": "human", "data": {"content": [{"type": "image_url", "image_url": {"url": "u"}}, "text"], "name": None}},
    {
        "type": "ai",
        "data": {"content": "", "tool_calls": [CALL], "invalid_tool_calls": [CALL], "additional_kwargs": {}},
    },
    {"type": "tool", "data": {"content": "found", "tool_call_id": "c1", "status": "success", "artifact": None}},
    {"lc": 1, "type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": {"content": [{"type": "reasoning"}]}},
]
PYDANTIC = [
    {
        "kind": "request",
        "parts": [
            {
                "part_kind": "user-prompt",
                "content": ["a", {"kind": "binary", "data": "aGk=", "media_type": "image/png"}],
            },
            {"part_kind": "speech", "speaker": "user", "transcript": "hi", "audio": {"kind": "binary", "data": "aGk="}},
        ],
        "timestamp": "2025-01-01T00:00:00Z",
    },
    {
        "kind": "response",
        "parts": [
            {"part_kind": "thinking", "content": "hm"},
            {"part_kind": "tool-call", "tool_name": "look", "args": {}, "tool_call_id": "c1"},
            {"part_kind": "file", "content": {"kind": "binary", "data": "aGk=", "media_type": "image/png"}},
        ],
    },
    {
        "kind": "request",
        "parts": [{"part_kind": "tool-return", "tool_name": "look", "content": [1], "tool_call_id": "c1"}],
    },
]
MESSAGES = [{"id": "talk", "system": "Be brief.", "messages": CHAT}, CHAT]
FILES: dict[str, list[Any]] = {
    "chatgpt": [chatgpt_tools().done(), branched().done()],
    "claude": [claude_tools().done()],
    "langchain": LANGCHAIN,
    "pydantic-ai": PYDANTIC,
    "messages": MESSAGES,
}

OPTIONS: dict[str, Any] = {"messages": {"format": "openai"}}
"""Options of an import for sources whose files mix formats."""


@pytest.mark.sampled
@pytest.mark.parametrize("source", FILES)
@settings(deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_imported_or_reported(source: str, data: st.DataObject) -> None:
    """With any JSON value in the place of any other, the rest is imported and contexts stay valid.

    Importing again adds nothing.
    """
    value = FILES[source]
    other = data.draw(json_values | st.sampled_from([float("nan"), 2**80, "\ud800", [[]], {"type": "text"}, ""]))
    body = json.dumps(damaged(value, data.draw(st.sampled_from(list(places(value)))), other)).encode()
    with Memory.open("memory://") as memory:
        try:
            options = {"branches": True, **OPTIONS.get(source, {})}
            first = memory.import_file(io.BytesIO(body), source=source, session_id="all", **options)
            again = memory.import_file(io.BytesIO(body), source=source, session_id="all", **options)
        except ImportFailed:
            return  # two formats in one file

        assert sum(one.added for one in again.sessions.values()) == 0
        assert again.refused == first.refused
        memory.session("all", max_tokens=20_000).context()


@pytest.mark.parametrize("source", FILES)
@settings(deadline=None)
@given(cut=st.floats(0, 1), name=st.sampled_from(["auto", None]))
def test_a_file_cut_off_anywhere_gives_its_beginning(source: str, cut: float, name: str | None) -> None:
    """A file cut off at any byte is refused, or its beginning is imported and the end reported."""
    body = json.dumps(FILES[source]).encode()
    length = int(cut * (len(body) - 1))
    with Memory.open("memory://") as memory:
        try:
            report = memory.import_file(io.BytesIO(body[:length]), source=name or source, session_id="all")
        except ImportFailed:
            return
        assert report.refused or length == 0


@pytest.mark.sampled
@pytest.mark.parametrize("source", FILES)
def test_too_deeply_nested_values_are_reported(source: str) -> None:
    """A value of any depth is imported or reported; no depth ends the import."""
    value_places = [
        place for place in places(FILES[source]) if place[-1] in ("metadata", "content", "input", "args", "image_url")
    ]
    with Memory.open("memory://") as memory:
        for place in value_places[:3]:
            for depth in (90, 300, *range(880, 1000, 7), 5000):
                body = json.dumps(damaged(FILES[source], place, "DEEP"))
                body = body.replace('"DEEP"', '{"a":' * depth + "1" + "}" * depth)
                try:
                    memory.import_file(
                        io.BytesIO(body.encode()), source=source, session_id="all", **OPTIONS.get(source, {})
                    )
                except ImportFailed:
                    continue
        memory.session("all", max_tokens=50_000).context()


@settings(deadline=None)
@given(st.binary(max_size=80), st.sampled_from([b"", b"PK\x03\x04", b"SQLite format 3\x00", b"[{", b'{"mapping":']))
def test_any_bytes_are_refused_or_reported(body: bytes, start: bytes) -> None:
    """Arbitrary bytes end in a report or in ImportFailed."""
    with Memory.open("memory://") as memory:
        try:
            report = memory.import_file(io.BytesIO(start + body), session_id="all")
        except ImportFailed:
            return
        assert report.sessions == {}


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("where", ["memory://", "sqlite:///{}/log.db", "file://{}/log"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda given: given["head"].update(revision=2**80),
        lambda given: given["records"][-1].update(revision=2**80),
        lambda given: given["entries"][0].update(links={"revision": 2**80}),
        lambda given: given["entries"][0].update(created_at="0001-01-01T00:00:00+14:00"),
        lambda given: given["records"][-1].update(detail=_nested(900)),
        lambda given: given["entries"][0].update(native={"format": "openai", "keep": _nested(900)}),
    ],
)
def test_numbers_times_and_depths_beyond_bounds_are_refused(damage: Any, where: str, tmp_path: Any) -> None:
    """An export with numbers, times or depths beyond all bounds is refused.

    A session with a wide gap between revisions can be read without delay.
    """
    with Memory.open(where.format(tmp_path)) as memory:
        session = memory.session("s")
        session.add_user_message("x")
        session.pin(1)
        given = session.export()
        memory.import_session({**given, "head": {**given["head"], "revision": 2**50}}, session_id="gap")
        assert memory.session("gap").export()["records"] == given["records"]
        damage(given)
        with pytest.raises(ImportFailed):
            memory.import_session(given, session_id="other")


@pytest.mark.parametrize("byte", [0, 255])
def test_a_damaged_archive_directory_is_refused_or_reported(byte: int) -> None:
    """A damaged byte anywhere in an archive's directory ends in a report or in ImportFailed."""
    whole = archive(json.dumps(FILES["claude"]).encode())
    for place in range(whole.index(b"PK\x01\x02"), len(whole)):
        body = bytearray(whole)
        body[place] = byte
        with Memory.open("memory://") as memory, suppress(ImportFailed):
            memory.import_file(io.BytesIO(body))

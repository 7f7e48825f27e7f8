"""How an imported message is recognized again: never by anything that reveals its text."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exports_chatgpt
import exports_claude
from laws import examples
from palimpsest import Memory
from palimpsest.privacy.redaction import Redactor
from sealed import FIRST, address
from test_import import lines, messages

ERASED = "messages in the places of erased ones (if they are other messages, import them with a key)"


def agents(texts: list[str], at: str = "2026-01-01 00:00:00") -> bytes:
    """Return a database of the OpenAI Agents SDK with one session of these texts."""
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id, message_data, created_at)")
        rows = [("talk", json.dumps({"role": "user", "content": text}), at) for text in texts]
        db.executemany("INSERT INTO agent_messages (session_id, message_data, created_at) VALUES (?, ?, ?)", rows)
        db.commit()
        body = db.serialize()
    db.close()
    return body


def chatgpt(texts: list[str]) -> bytes:
    """Return a ChatGPT export of one conversation of these texts."""
    talk = exports_chatgpt.Talk("talk")
    for text in texts:
        talk.said("user", text)
    return exports_chatgpt.written([talk])


def claude(texts: list[str]) -> bytes:
    """Return a Claude export of one conversation of these texts."""
    talk = exports_claude.Talk("talk")
    for text in texts:
        talk.said("human", text)
    return exports_claude.written([talk])


def said(texts: list[str]) -> list[dict[str, Any]]:
    """Return user messages of these texts."""
    return [{"role": "user", "content": text} for text in texts]


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


SOURCES: dict[str, Callable[[list[str]], bytes]] = {
    "lines": lambda texts: lines(said(texts)),
    "list": lambda texts: dumped(said(texts)),
    "object": lambda texts: dumped({"system": texts[0], "messages": said(texts[1:])}),
    "objects": lambda texts: lines([{"system": text, "messages": said([text])} for text in texts]),
    "chatgpt": chatgpt,
    "claude": claude,
    "openai-agents": agents,
    "langchain": lambda texts: dumped([{"type": "human", "data": {"content": text}} for text in texts]),
    "pydantic-ai": lambda texts: dumped(
        [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": text}]} for text in texts]
    ),
}


STORES = ["memory", "sqlite", "file", "memory sealed", "sqlite sealed", "file sealed"]
NUMBERED = Redactor({"recognisers": {"default": True, "email": "pseudonym"}}, key=bytes(32))


def opened(store: str, folder: Path, **options: Any) -> Memory:
    """Open a store of this kind."""
    kind, _, sealed = store.partition(" ")
    return Memory.open(address(kind, folder), encryption=FIRST if sealed else None, **options)


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    """Yield an empty memory on each kind of store, plain and encrypted."""
    with opened(request.param, tmp_path) as memory:
        yield memory


def taken(memory: Memory, body: bytes, **options: Any) -> tuple[int, int]:
    """Import into the session `talk`; return how many entries were added and how many existed."""
    report = memory.import_file(io.BytesIO(body), **{"session_id": "talk", **options})
    one = next(iter(report.sessions.values()), None)
    return (one.added, one.already_there) if one is not None else (0, 0)


def texts(memory: Memory) -> list[str]:
    """Return the texts of `talk` that are not erased."""
    return [entry.text for entry in memory.session("talk").entries() if not entry.erased]


@pytest.mark.parametrize("source", SOURCES)
def test_an_id_reveals_nothing_of_the_text(source: str) -> None:
    """Files that differ only in their texts get the same ids, so an id cannot be used to guess a text."""
    imports = []
    for words in (["my pin is 4711", "and 4712"], ["something", "quite different"]):
        with Memory.open("memory://") as memory:
            taken(memory, SOURCES[source](words))
            imports.append([(entry.id, entry.text) for entry in memory.session("talk").entries()])

    assert [id for id, _ in imports[0]] == [id for id, _ in imports[1]]
    assert all(one != other for (_, one), (_, other) in zip(*imports, strict=True))


@pytest.mark.sampled
@pytest.mark.parametrize("store", STORES)
def test_a_redacted_file_that_grows_adds_only_its_end(store: str, tmp_path: Path) -> None:
    """A growing file whose texts are redacted on import, by marks or by pseudonyms, is recognized in every source."""
    words = [f"write to ann{number}@example.org" for number in range(6)]
    for privacy in ("default", NUMBERED):
        with opened(store, tmp_path / str(privacy == "default"), privacy=privacy) as memory:
            for name, source in SOURCES.items():
                figures = [taken(memory, source(words[:length]), session_id=name) for length in (2, 2, 6, 6)]
                stored = memory.session(name).entries()

                assert [added for added, _ in figures][1::2] == [0, 0], name
                assert sum(added for added, _ in figures) == len(stored) >= 6, name
                assert not any("example.org" in entry.text for entry in stored)


@pytest.mark.parametrize("store", [store for store in STORES if "memory" not in store])
def test_a_later_policy_recognizes_earlier_imports(store: str, tmp_path: Path) -> None:
    """What was imported without a policy is recognized under one, whether it was redacted since or not."""
    bodies = {name: source(["ann@example.org", "bob@example.org"]) for name, source in SOURCES.items()}
    with opened(store, tmp_path) as memory:
        for name, body in bodies.items():
            taken(memory, body, session_id=name)

    with opened(store, tmp_path, privacy="default") as memory:
        for redacted in (False, True):
            if redacted:
                memory.scan(apply=True)
            for name, body in bodies.items():
                assert taken(memory, body, session_id=name)[0] == 0, name


# --- erased


def test_erased_messages_do_not_come_back(memory: Memory) -> None:
    """Erased messages are recognized beside those that remain: none comes back, and new ones are added."""
    for name, source in SOURCES.items():
        taken(memory, source(["one", "two", "three"]), session_id=name)
        session = memory.session(name)
        session.erase([entry.seq for entry in session.entries() if entry.text == "two"])

        repeated, grown = (
            memory.import_file(io.BytesIO(source(words)), session_id=name)
            for words in (["one", "two", "three"], ["one", "two", "three", "four"])
        )

        assert repeated.sessions[name].added == 0, name
        assert {entry.text for entry in session.entries() if not entry.erased} == {"one", "three", "four"}, name
        assert ERASED not in repeated.left_out or name in ("objects", "openai-agents")
        assert grown.sessions[name].added in (1, 2)


def test_messages_in_places_of_erased_ones_are_left_out(memory: Memory) -> None:
    """If all was erased, another file cannot be told from the same: it is left out and counted.

    A key imports it.
    """
    taken(memory, lines(said(["one", "two"])))
    memory.session("talk").erase([1, 2])
    other = lines(said(["three", "four"]))

    report = memory.import_file(io.BytesIO(other), session_id="talk")

    assert report.left_out == {ERASED: 2}
    assert texts(memory) == []
    assert taken(memory, other, key="other") == (2, 0)
    assert texts(memory) == ["three", "four"]


def test_times_and_roles_distinguish_messages_from_erased_ones(memory: Memory) -> None:
    """An erased entry keeps kind, role and time; a message that differs in them is new and is imported."""
    taken(memory, agents(["one", "two"]), session_id="agents")
    taken(memory, lines(said(["one", "two"])), session_id="lines")
    for name in ("agents", "lines"):
        memory.session(name).erase([1, 2])

    later = taken(memory, agents(["three"], at="2026-02-02 00:00:00"), session_id="agents")
    answer = taken(memory, lines([{"role": "assistant", "content": "three"}]), session_id="lines")

    assert (later, answer) == ((1, 0), (1, 0))


def test_a_file_is_recognized_beside_an_erased_one(memory: Memory) -> None:
    """A file is recognized as the one that holds most of it, even if another with a common beginning was erased."""
    one, other = lines(said(["a", "b"])), lines(said(["a", "c"]))
    taken(memory, one)
    taken(memory, other)
    memory.session("talk").erase([2])

    figures = [taken(memory, body) for body in (other, one, lines(said(["a", "c", "d"])), one)]

    assert figures == [(0, 2), (0, 2), (1, 2), (0, 2)]
    assert texts(memory) == ["a", "a", "c", "d"]


# --- one after the other


def test_files_that_part_late_are_both_imported(memory: Memory) -> None:
    """Where two long files part, the second is imported from that batch on, once."""
    one = messages(300)
    other = [*one[:280], *said([f"other {number}" for number in range(20)])]

    figures = [taken(memory, lines(file)) for file in (one, other, one, other)]

    assert figures == [(300, 0), (44, 256), (0, 300), (0, 300)]
    assert texts(memory)[300:] == [message["content"] for message in other[256:]]


def test_a_repaired_line_is_imported_alone(memory: Memory) -> None:
    """A line that could not be read keeps its place: once repaired, it alone is new."""
    whole = lines(messages(5)).splitlines(keepends=True)

    broken = taken(memory, b"".join([*whole[:2], b"{broken\n", *whole[3:]]))
    mended = taken(memory, b"".join(whole))

    assert (broken, mended) == ((4, 0), (1, 4))


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), max_size=12),
    st.sampled_from(["lines", "openai-agents", "object"]),
)
def test_any_files_in_any_order_are_imported_once(files: list[list[str]], order: list[int], source: str) -> None:
    """After any imports in any order each file's messages are stored in their order, and none comes twice."""
    came = set[int]()
    with Memory.open("memory://") as memory:
        for number in [*order, *order]:
            words = files[number % len(files)]
            added, there = taken(memory, SOURCES[source](words))

            assert added + there == len(words)
            assert number % len(files) not in came or added == 0
            rest = iter(texts(memory))
            if source == "lines":  # each line is recognised by itself
                assert all(word in rest for word in words)
            came.add(number % len(files))

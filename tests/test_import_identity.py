"""By what an imported message is known again: never by anything that tells what it says."""

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

ERASED = "messages in places where something was erased (others than those? import them with a key)"


def agents(texts: list[str], at: str = "2026-01-01 00:00:00") -> bytes:
    """A database of the OpenAI Agents SDK with one session, as its tables are."""
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id, message_data, created_at)")
        rows = [("talk", json.dumps({"role": "user", "content": text}), at) for text in texts]
        db.executemany("INSERT INTO agent_messages (session_id, message_data, created_at) VALUES (?, ?, ?)", rows)
        db.commit()
        body = db.serialize()
    db.close()
    return body


def chatgpt(texts: list[str]) -> bytes:
    talk = exports_chatgpt.Talk("talk")
    for text in texts:
        talk.said("user", text)
    return exports_chatgpt.written([talk])


def claude(texts: list[str]) -> bytes:
    talk = exports_claude.Talk("talk")
    for text in texts:
        talk.said("human", text)
    return exports_claude.written([talk])


def said(texts: list[str]) -> list[dict[str, Any]]:
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
    """An empty store of each kind, also encrypted."""
    with opened(request.param, tmp_path) as memory:
        yield memory


def taken(memory: Memory, body: bytes, **options: Any) -> tuple[int, int]:
    """Import into the session `talk` and return how many entries are new, and how many were there."""
    report = memory.import_file(io.BytesIO(body), **{"session_id": "talk", **options})
    one = next(iter(report.sessions.values()), None)
    return (one.added, one.already_there) if one is not None else (0, 0)


def texts(memory: Memory) -> list[str]:
    return [entry.text for entry in memory.session("talk").entries() if not entry.erased]


@pytest.mark.parametrize("source", SOURCES)
def test_an_id_tells_nothing_of_what_is_said(source: str) -> None:
    """Files that differ in their texts alone get the same ids: whoever has an id can try out no text with it."""
    made = []
    for words in (["my pin is 4711", "and 4712"], ["something", "quite different"]):
        with Memory.open("memory://") as memory:
            taken(memory, SOURCES[source](words))
            made.append([(entry.id, entry.text) for entry in memory.session("talk").entries()])

    assert [id for id, _ in made[0]] == [id for id, _ in made[1]]
    assert all(one != other for (_, one), (_, other) in zip(*made, strict=True))


@pytest.mark.sampled
@pytest.mark.parametrize("store", STORES)
def test_a_file_that_grows_under_a_policy_adds_its_end(store: str, tmp_path: Path) -> None:
    """What was redacted on the way in, numbered or not, is known again in every source."""
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
def test_a_policy_that_came_later_knows_what_came_before(store: str, tmp_path: Path) -> None:
    """What was imported without a policy, and redacted since or not, is not taken a second time under one."""
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


def test_what_was_erased_does_not_come_back(memory: Memory) -> None:
    """Beside what is still there it is known what was erased: nothing comes back, and the file goes on."""
    for name, source in SOURCES.items():
        taken(memory, source(["one", "two", "three"]), session_id=name)
        session = memory.session(name)
        session.erase([entry.seq for entry in session.entries() if entry.text == "two"])

        again, grown = (
            memory.import_file(io.BytesIO(source(words)), session_id=name)
            for words in (["one", "two", "three"], ["one", "two", "three", "four"])
        )

        assert again.sessions[name].added == 0, name
        assert {entry.text for entry in session.entries() if not entry.erased} == {"one", "three", "four"}, name
        assert ERASED not in again.left_out or name in ("objects", "openai-agents")
        assert grown.sessions[name].added in (1, 2)


def test_others_in_places_of_what_was_erased_are_told(memory: Memory) -> None:
    """Where all was erased nobody can tell another file from the same: it is left out and counted, a key takes it."""
    taken(memory, lines(said(["one", "two"])))
    memory.session("talk").erase([1, 2])
    other = lines(said(["three", "four"]))

    report = memory.import_file(io.BytesIO(other), session_id="talk")

    assert report.left_out == {ERASED: 2}
    assert texts(memory) == []
    assert taken(memory, other, key="other") == (2, 0)
    assert texts(memory) == ["three", "four"]


def test_times_and_roles_tell_another_file_from_what_was_erased(memory: Memory) -> None:
    """What stays of an erased entry is its kind, role and time: what has others is another message, and is taken."""
    taken(memory, agents(["one", "two"]), session_id="agents")
    taken(memory, lines(said(["one", "two"])), session_id="lines")
    for name in ("agents", "lines"):
        memory.session(name).erase([1, 2])

    later = taken(memory, agents(["three"], at="2026-02-02 00:00:00"), session_id="agents")
    answer = taken(memory, lines([{"role": "assistant", "content": "three"}]), session_id="lines")

    assert (later, answer) == ((1, 0), (1, 0))


def test_the_file_that_is_there_is_found_beside_one_that_was_erased(memory: Memory) -> None:
    """A file is taken for the one that holds most of it, so what was erased of another does not draw it over."""
    one, other = lines(said(["a", "b"])), lines(said(["a", "c"]))
    taken(memory, one)
    taken(memory, other)
    memory.session("talk").erase([2])

    figures = [taken(memory, body) for body in (other, one, lines(said(["a", "c", "d"])), one)]

    assert figures == [(0, 2), (0, 2), (1, 2), (0, 2)]
    assert texts(memory) == ["a", "a", "c", "d"]


# --- one after the other


def test_files_that_part_late_are_both_taken(memory: Memory) -> None:
    """Where two long files part, in whichever batch, the second is taken from there on, once."""
    one = messages(300)
    other = [*one[:280], *said([f"other {number}" for number in range(20)])]

    figures = [taken(memory, lines(file)) for file in (one, other, one, other)]

    assert figures == [(300, 0), (44, 256), (0, 300), (0, 300)]
    assert texts(memory)[300:] == [message["content"] for message in other[256:]]


def test_a_message_that_was_broken_comes_when_it_is_mended(memory: Memory) -> None:
    """A line that could not be read keeps its place: mended, it alone is new."""
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
def test_whatever_files_come_in_whatever_order(files: list[list[str]], order: list[int], source: str) -> None:
    """All files' messages are there in their order after an import, and a file that came before adds nothing."""
    came = set[int]()
    with Memory.open("memory://") as memory:
        for number in [*order, *order]:
            words = files[number % len(files)]
            added, there = taken(memory, SOURCES[source](words))

            assert added + there == len(words)
            assert number % len(files) not in came or added == 0
            rest = iter(texts(memory))
            if source == "lines":  # what else there is, each message is known for itself
                assert all(word in rest for word in words)
            came.add(number % len(files))

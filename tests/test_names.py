"""A name that some store could not keep is refused by every store before anything is stored."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import (
    AsyncMemory,
    ConfigError,
    Entry,
    EntryNotFound,
    InvalidEntry,
    Memory,
    PalimpsestError,
    Query,
    Session,
)
from worlds import STORES

LONE = "n\ud800"
"""As `json.loads` gives it: text that has no UTF-8."""

GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "privacy": {"privacy": "default"},
    "encryption": {"encryption": {"k": "11" * 32}},
}


class Counter:
    """A counter whose name no store can keep."""

    name = LONE
    overhead = False

    def count(self, text: str) -> int:
        """Return the length."""
        return len(text)


def where(kind: str, folder: Path) -> str:
    return {"memory": "memory://", "sqlite": f"sqlite:///{folder}/log.db", "file": f"file://{folder}/logs"}[kind]


@pytest.fixture(params=GUARDS)
def guard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a memory: a privacy policy, encryption, or neither."""
    return GUARDS[request.param]


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest, guard: dict[str, Any], tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(where(request.param, tmp_path), **guard) as memory:
        memory.session("s").add_user_message("first", metadata={"lone": "\udfff"})
        yield memory


CASES: dict[str, tuple[Callable[[Memory, Session], object], type[PalimpsestError], str]] = {
    "name": (lambda m, s: s.add_user_message("a", name=LONE), InvalidEntry, "message.name"),
    "tool": (lambda m, s: s.add_tool_call(LONE, {}), InvalidEntry, "tool_call.name"),
    "call id": (lambda m, s: s.add_tool_call("t", {}, call_id=LONE), InvalidEntry, "tool_call.call_id"),
    "result": (lambda m, s: s.add_tool_result(LONE, "x"), InvalidEntry, "tool_result.name"),
    "context": (lambda m, s: s.add_context("x", name=LONE), InvalidEntry, "context.name"),
    "metadata": (lambda m, s: s.add_user_message("a", metadata={LONE: 1}), InvalidEntry, "message.metadata"),
    "deep": (
        lambda m, s: s.add_user_message("a", metadata={"k": [{LONE: 1}]}),
        InvalidEntry,
        "message.metadata.k[0]",
    ),
    "key": (lambda m, s: s.add({"role": "user", "content": "k"}, key=LONE), InvalidEntry, "key"),
    "message": (lambda m, s: s.add({"role": "user", "content": "k", "name": LONE}), InvalidEntry, "messages.name"),
    "id": (lambda m, s: s.add_entries([Entry(id=LONE)]), InvalidEntry, "entries.id"),
    "reason": (lambda m, s: s.erase([1], reason=LONE), ConfigError, "reason"),
    "forget": (lambda m, s: m.forget(session="s", reason=LONE), ConfigError, "reason"),
    "fork": (lambda m, s: s.fork(LONE), ConfigError, "session"),
    "session": (lambda m, s: m.session(LONE), ConfigError, "session"),
    "view": (lambda m, s: m.session("s", view=LONE), ConfigError, "view"),
    "a call's view": (lambda m, s: s.context(view=LONE), ConfigError, "view"),
    "model": (lambda m, s: m.session("s", model=LONE), ConfigError, "model"),
    "counter": (lambda m, s: m.session("s", counter=Counter()), ConfigError, "counter.name"),
    "listing": (lambda m, s: m.sessions(after=LONE), ConfigError, "after"),
    "entry": (lambda m, s: s.entry(LONE), EntryNotFound, "no entry"),
    "pin": (lambda m, s: s.pin(LONE), EntryNotFound, "no entry"),
    "rewind": (lambda m, s: s.rewind(LONE), EntryNotFound, "no entry"),
    "erase": (lambda m, s: s.erase(LONE), EntryNotFound, "no entry"),
}


def test_a_name_that_no_store_can_keep_is_refused_by_every_store(memory: Memory) -> None:
    """The error names the field and quotes the value; nothing is stored, and the session goes on."""
    session = memory.session("s")
    before = session.stats().revision, session.entries()  # the first look counts tokens

    for call, error, place in CASES.values():
        with pytest.raises(error) as caught:
            call(memory, session)

        assert place in str(caught.value)
        assert "ud800" in str(caught.value)
    assert (session.stats().revision, session.entries()) == before
    assert session.add_user_message("next").seq == 2


def test_texts_may_hold_what_names_may_not(memory: Memory) -> None:
    """Content, values of metadata and a text that is looked for are texts: they are kept as they came, and found."""
    session = memory.session("s")

    session.add_user_message(f"before {LONE} after", metadata={"k": LONE})
    session.add_tool_call("t", {LONE: 1}, call_id="c")
    session.add_tool_result("t", LONE, call_id="c")

    assert session.entries()[0].metadata == {"lone": "\udfff"}
    assert session.entry(2).text == f"before {LONE} after"
    assert json.loads(session.entry(3).text) == {LONE: 1}
    assert session.erase(Query(text=LONE)).entries >= 1


def test_an_import_tells_of_the_messages_with_such_names(memory: Memory) -> None:
    """An import reports messages with such names by place and takes the others, the same on every store."""
    call = {"id": LONE, "type": "function", "function": {"name": LONE, "arguments": "{}"}}
    lines = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": LONE, "content": "x"},
        {"role": "user", "content": "last"},
    ]
    file = io.BytesIO("\n".join(map(json.dumps, lines)).encode())

    report = memory.import_file(file, source="messages", session_id="imported")

    assert [entry.text for entry in memory.session("imported").entries()] == ["first", "last"]
    assert len(report.refused) == 2
    assert all("surrogate" in refused.reason for refused in report.refused)


@pytest.mark.parametrize("kind", STORES)
def test_an_invalid_name_fails_only_its_own_task(kind: str, tmp_path: Path, guard: dict[str, Any]) -> None:
    """Tasks that write at once: what one may not store takes nothing of the others along."""

    async def at_once() -> list[Any]:
        async with AsyncMemory.open(where(kind, tmp_path), **guard) as memory:
            writes: list[Any] = [memory.session(f"user-{i}").add_user_message("hello") for i in range(40)]
            writes.insert(20, memory.session("attacker").add_tool_call(LONE, {}))
            return await asyncio.gather(*writes, return_exceptions=True)

    done = asyncio.run(at_once())

    assert [type(one) for one in done if not isinstance(one, Entry)] == [InvalidEntry]
    with Memory.open(where(kind, tmp_path), **guard) as memory:
        assert len(memory.sessions()) == (0 if kind == "memory" else 40)


@pytest.mark.parametrize("id", ["\U0010ffff", "\U0010ffff" * 2, "\U0010ffff" * 256, "\U0010ffffa"], ids=ascii)
def test_every_session_is_on_one_page_whatever_its_id(memory: Memory, id: str) -> None:
    """Paging through sessions lists each once, even one whose id sorts behind all others."""
    memory = memory.for_tenant("apart")
    for name in ("a", id):
        memory.session(name, user="ann").add_user_message(f"the heron of {len(name)} {name == id} stands")

    assert [one.session for one in memory.sessions()] == ["a", id]
    assert memory.sessions(after=id) == []
    assert [one.session for one in memory.sessions(after="a", limit=1)] == [id]
    assert {one.session for one in memory.recall("heron").passages} == {"a", id}
    memory.rebuild_index()
    assert memory.forget(user="ann").sessions == ("a", id)

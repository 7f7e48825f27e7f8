"""Fixtures that more than one file of tests asks for. A file that needs another `memory` makes its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import CHAT, run, write_lines
from palimpsest import Memory, Session
from palimpsest.testing import FakeClock
from writer import quarters


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until it is told to go on."""
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store of each embedded kind, whose clock stands still."""
    where: str | Path = "memory://" if request.param == "memory" else tmp_path / "log.db"
    with Memory.open(where, clock=clock) as memory:
        yield memory


@pytest.fixture
def session(memory: Memory) -> Session:
    """An empty session of that store."""
    return memory.session("one", counter=quarters)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a store of its own named by the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PALIMPSEST_STORE", "sqlite:///chats.db")
    return tmp_path


@pytest.fixture
def chat(here: Path) -> str:
    """A session of one interaction, imported from JSON lines; returns its id."""
    write_lines(here / "chat.jsonl", CHAT)
    assert run("import", "chat.jsonl", "--session", "chat").exit_code == 0
    return "chat"

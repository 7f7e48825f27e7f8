"""Paths and addresses that `open` takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from palimpsest import AsyncMemory, Memory

PATHS = ("agent.db", "agent", "./agent.db", "a b.db", "odd?name=1.db", "./co:lon.db")


@pytest.mark.parametrize("name", PATHS)
def test_a_text_without_a_kind_is_the_path_of_an_sqlite_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text without a scheme is the path of an SQLite file, in both classes."""
    monkeypatch.chdir(tmp_path)

    with Memory.open(name) as memory:
        memory.session("s").add_user_message("Hello.")

    async def read() -> list[str]:
        async with AsyncMemory.open(Path(name)) as memory:
            return [entry.text for entry in await memory.session("s").entries()]

    assert asyncio.run(read()) == ["Hello."]
    assert (tmp_path / name).read_bytes().startswith(b"SQLite format 3")


def test_a_tilde_in_a_path_is_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~/agent.db` is a file in the user's own folder, as a text and as a `pathlib.Path`."""
    monkeypatch.setenv("HOME", str(tmp_path))

    with Memory.open("~/agent.db") as memory:
        memory.session("s").add_user_message("Hello.")

    assert (tmp_path / "agent.db").exists()
    with Memory.open(Path("~/agent.db")) as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["Hello."]


@pytest.mark.parametrize(("address", "made"), [("sqlite:///~/agent.db", "agent.db"), ("file:~/logs", "logs")])
def test_a_tilde_in_an_address_is_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, made: str
) -> None:
    """A tilde in an address means the user's home folder, since no shell expands it there."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "work")

    with Memory.open(address) as memory:
        memory.session("s").add_user_message("Hello.")

    assert (tmp_path / made).exists()
    assert list((tmp_path / "work").iterdir()) == []


def test_the_memory_path_of_sqlite_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store at `:memory:` creates no file."""
    monkeypatch.chdir(tmp_path)

    with Memory.open(":memory:") as memory:
        memory.session("s").add_user_message("Hello.")

    assert list(tmp_path.iterdir()) == []

"""Addresses of stores: their options, what is refused, and that no error shows a password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from commands import run
from palimpsest import ConfigError, Entry, InvalidEntry, Memory, StoreUnavailable
from palimpsest.log.ids import new_ids
from palimpsest.stores.opening import has_our_options


@pytest.mark.parametrize("scheme", ["sqlite:///{}/a.db", "file://{}/logs"])
def test_store_options_are_taken_from_the_address(scheme: str, tmp_path: Path) -> None:
    """The documented options of a store are taken from its address; the file is named as it is without them."""
    where = scheme.format(tmp_path)
    with Memory.open(f"{where}?synchronous=normal&busy_seconds=2.5&large_bytes=100") as memory:
        memory.session("s").add_user_message("x")
        assert memory.store.url == where

    with Memory.open(f"{where}?readonly=true") as memory, pytest.raises(StoreUnavailable):
        memory.session("s").add_user_message("x")
    with Memory.open(f"{where}?readonly=true", readonly=False) as memory:
        memory.session("s").add_user_message("y")
    assert not [path for path in tmp_path.rglob("*") if "?" in path.name]
    shown = run("show", "s", "--store", f"{where}?busy_seconds=1")
    assert (shown.exit_code, "y" in shown.output) == (0, True)


@pytest.mark.parametrize("scheme", ["sqlite:///{}/a.db", "file://{}/logs"])
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sync=NORMAL", "'sync'.*synchronous"),
        ("readonly", "readonly"),
        ("readonly=maybe", "readonly.*true or false"),
        ("busy_seconds=soon", "busy_seconds"),
        ("busy_seconds=-1", "busy_seconds"),
        ("busy_seconds=nan", "busy_seconds"),
        ("large_bytes=1.5", "large_bytes"),
        ("synchronous=OFF", "synchronous.*FULL or NORMAL"),
        ("readonly=1&readonly=0", "readonly.*once"),
        ("clock=1", "clock"),
        ("", "synchronous"),
    ],
)
def test_unknown_options_in_an_address_are_refused_by_name(scheme: str, query: str, says: str, tmp_path: Path) -> None:
    """An unknown or invalid option in an address is refused by name, and no file is made."""
    with pytest.raises(ConfigError, match=says):
        Memory.open(f"{scheme.format(tmp_path)}?{query}")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["sqlite:///{}/new.db", "file://{}/new"])
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("synchronus=NORMAL", "'synchronus'.*synchronous.*did you mean 'synchronous'"),
        ("synchronous=OFF", "synchronous.*FULL or NORMAL"),
        ("readonly=maybe", "readonly.*true or false"),
    ],
)
@pytest.mark.parametrize("command", [("stats", "s"), ("repair", "s", "--yes"), ("sessions",)])
def test_the_command_line_checks_an_address_before_it_opens_the_file(
    command: tuple[str, ...], scheme: str, query: str, says: str, tmp_path: Path
) -> None:
    """A wrong option is named with the nearest one, also where there is no store yet, and nothing comes into being."""
    told = run(*command, "--store", f"{scheme.format(tmp_path)}?{query}")

    assert (told.exit_code, "there is no store" in told.output) == (2, False)
    assert re.search(says, told.output, re.DOTALL)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_names_the_form_of_an_address(here: Path) -> None:
    """For an address that names no file, the command line shows how addresses are written."""
    told = run("sessions", "--store", "sqlite://new.db")

    assert (told.exit_code, "three or four slashes" in told.output) == (2, True)


@pytest.mark.parametrize("name", ["a?mode=rw.db", "a#b.db", "a%41.db", "%.db", "a&b = ä.db"])
def test_a_file_of_any_name_opens_to_read(tmp_path: Path, name: str) -> None:
    """Characters with a meaning in SQLite's addresses are plain parts of a file's name, also read-only."""
    with Memory.open(tmp_path / name) as memory:
        memory.session("one").add_user_message("hello")

    with Memory.open(tmp_path / name, readonly=True) as memory:
        found = [entry.text for entry in memory.session("one").entries()]

    assert found == ["hello"]
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize("query", ["synchronous=NORMAL&busy_seconds=5", "readonly=true", "large_bytes=100"])
def test_a_missing_store_is_named_with_its_options(query: str, here: Path) -> None:
    """A store that is not there is named as it was given, options and all."""
    told = run("sessions", "--store", f"sqlite:///new.db?{query}")

    assert (told.exit_code, f"'sqlite:///new.db?{query}'" in told.output) == (5, True)


def test_a_question_mark_in_a_path_object_is_part_of_the_file_name(tmp_path: Path) -> None:
    """A question mark in a pathlib.Path is a character of the file's name."""
    path = tmp_path / "what?readonly=true"

    with Memory.open(path) as memory:
        memory.session("s").add_user_message("x")

    assert path.exists()


@pytest.mark.parametrize("query", ["synchronous=NORMAL", "mode=ro", "cache=shared&mode=memory"])
def test_options_behind_a_path_are_refused(here: Path, query: str) -> None:
    """Options behind a plain path are refused, since they would become part of the file's name; other question marks
    stay."""
    with pytest.raises(ConfigError, match=r"sqlite:///agent\.db\?synchronous=NORMAL, or as arguments"):
        Memory.open(f"a.db?{query}")
    assert not list(here.glob("a.db*"))

    Memory.open("what?.db").close()

    assert list(here.glob("what[?].db"))


@pytest.mark.parametrize(
    "address",
    [
        "oracle://user:sesame@host/db",
        "postgres://user:se/s@me:sesame@host/db",
        "postgres:user:sesame@host",
        "nothing://host/db?password=sesame",
        "sqlite://user:sesame@host/a.db",
        "sqlite:user:sesame@host",
        "file://user:sesame@host/logs",
        "memory://user:sesame@host",
        "memory://?password=sesame",
        "sqlite:///a.db?password=sesame",
        "sqlite:///a.db?read_key=sesame&large_key=sesame",
        "sqlite:///a.db?sesame@b",
        "mongodb+srv://user:sesame@host/" + "x" * 5000,
        "redis://:sesame@host\0",
        "sesame@host",
        "postgres://user:se?sesame@host/db",
    ],
)
def test_no_error_shows_a_password_of_an_address(address: str, here: Path) -> None:
    """No message or attribute of an error shows a password or the value of an option."""
    with pytest.raises(ConfigError) as raised:
        Memory.open(address)

    told = f"{raised.value} {raised.value.found}"
    assert "sesame" not in told
    shown = run("sessions", "--store", address)
    assert shown.exit_code != 0
    assert "user:sesame" not in shown.output
    assert not re.search("(password|key)=sesame", shown.output)


@pytest.mark.parametrize(
    "options",
    [
        {"short_term": 1.5},
        {"short_term": 0.0},
        {"short_term": [1.5]},
        {"format": []},
        {"format": {}},
        {"format": 0},
    ],
)
def test_session_options_of_a_wrong_type_are_refused_by_name(options: dict[str, Any]) -> None:
    """An option of a session with a value of another type is a ConfigError that names it."""
    with Memory.open("memory://") as memory:
        with pytest.raises(ConfigError, match=next(iter(options))):
            memory.session("s", **options)
        for format in ([], {}, 0, ""):
            with pytest.raises(ConfigError, match="format"):
                memory.session("s").context(format=format)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="format"):
                memory.session("s").add([], format=format)  # type: ignore[arg-type]


@pytest.mark.parametrize("id", ["a\0b", "a\nb", "\x7f", "a" * 257, "a" * 1_000_000])
def test_an_invalid_entry_id_is_refused_by_place(id: str, memory: Memory) -> None:
    """An id that is given has 1 to 256 characters and no control characters; another one is refused by its place."""
    session = memory.session("s")

    with pytest.raises(InvalidEntry, match=r"entries\.id"):
        session.add_entries([Entry(id=id, content="x")])

    assert session.entries() == []
    assert session.add_entries([Entry(id="a" * 256, content="x"), Entry(id=new_ids(1, 0)[0], content="y")])


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic"])
def test_role_aliases_are_read_and_written_per_provider(format: str, memory: Memory) -> None:
    """`human` comes in as user, `ai` as assistant, alone or among others, and goes out as the provider knows them."""
    session = memory.session("s", format=format)

    session.add([{"role": "human", "content": "a"}, {"role": "ai", "content": "b"}])
    session.add({"role": "user", "content": "c"})
    session.add({"role": "ai", "content": "d"})

    assert [entry.role for entry in session.entries()] == ["user", "assistant"] * 2
    assert [message["role"] for message in session.context().messages] == ["user", "assistant"] * 2
    with pytest.raises(InvalidEntry, match="robot"):
        session.add({"role": "robot", "content": "x"})


MISTYPED = {
    "postgres//x": "postgres://x",
    "PostgreSQL//db.internal/x": "postgresql://db.internal/x",
    "redis//host:6379/0": "redis://host:6379/0",
    "rediss///host": "rediss://host",
    "mongodb//host/x": "mongodb://host/x",
    "mongodb+srv//host/x": "mongodb+srv://host/x",
    "sqlite//a.db": "sqlite:///a.db",
    "sqlite///a.db?readonly=true": "sqlite:///a.db?readonly=true",
    "file//logs": "file:logs",
    "memory//": "memory://",
    "postgres;//x": "postgres://x",
    "postgre//x": "postgres://x",
    "sqllite//a.db": "sqlite:///a.db",
}
"""Addresses that lost their colon, and what was meant."""


@pytest.mark.parametrize(("where", "meant"), MISTYPED.items())
def test_a_mistyped_address_is_refused_with_the_nearest_form(where: str, meant: str, here: Path) -> None:
    """The nearest right form is named, by the library and on the command line, and nothing comes into being."""
    with pytest.raises(ConfigError, match="store: ") as caught:
        Memory.open(where)
    told = run("import", "-", "--store", where, given="[]")

    assert caught.value.nearest == meant
    assert (told.exit_code, f"did you mean {meant!r}?" in told.output.replace("\n", " ")) == (2, True)
    assert list(here.iterdir()) == []


def test_a_suggested_address_shows_neither_password_nor_options(here: Path) -> None:
    """The suggestion for a mistyped address shows neither its password nor its options."""
    with pytest.raises(ConfigError, match=r"did you mean 'postgres://…@host/x\?token=…'") as caught:
        Memory.open("postgres//me:sesame@host/x?token=sesame")

    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "where", ["data/agent.db", "./sqlite//a.db", "sqlite/a.db", "redis/a.db", "data//agent.db", "my//a.db"]
)
def test_a_relative_path_may_resemble_an_address(where: str, here: Path) -> None:
    """Folders may have any names, those of stores, too."""
    with Memory.open(where) as memory:
        memory.session("s").add_user_message("x")

    assert (here / where).is_file()
    assert run("show", "s", "--store", where).exit_code == 0


def test_a_path_object_always_names_a_file(here: Path) -> None:
    """A path object always names a file."""
    with Memory.open(Path("sqlite//a.db")) as memory:
        memory.session("s").add_user_message("x")

    assert (here / "sqlite/a.db").is_file()


@pytest.mark.parametrize("where", ["a:b", "C:\\agent.db", "x+y.z-1://host", "a1:", "Some-Store://somewhere"])
def test_a_letter_and_letters_digits_and_signs_before_a_colon_are_a_kind(where: str) -> None:
    """The kind of an address is as RFC 3986 has it: a letter, then letters, digits, plus, minus and full stop."""
    with pytest.raises(ConfigError, match="store"):
        Memory.open(where)

    assert not has_our_options(where), "a store of another package would have options of its own"


@pytest.mark.parametrize("name", ["1:b", ":b", "-a:b", "é:b", "a_b:c", "a b:c", "a/b:c", "٣a:b", "a", "a.db"])
def test_any_other_text_is_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not begin with a kind and a colon names a file of SQLite."""
    monkeypatch.chdir(tmp_path)

    with Memory.open(name) as memory:
        memory.session("s").add_user_message("hello")

    assert (tmp_path / name).is_file()
    assert has_our_options(name)

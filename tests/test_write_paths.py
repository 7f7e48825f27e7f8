"""Nothing private gets past the privacy step, on any way in or out, checked byte by byte."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

import palimpsest
from palimpsest import (
    AsyncMemory,
    AsyncSession,
    AsyncWorkingMemory,
    Memory,
    Session,
    WorkingMemory,
    errors,
    strategies,
    types,
)
from palimpsest.cli.app import COMMANDS as ALL_COMMANDS
from sealed import bytes_of
from watched_memory import CASES, KEYS, PATTERN, Unstored, Watched, found_in
from write_commands import COMMANDS, Shell
from write_commands import driven as driven_commands
from write_doors import DOORS
from write_paths import FACES, KNOWLEDGE, MEMORY, SESSION, VALUES, WORKING, driven

DRIVERS = {
    f"{kind}.{name}": one
    for kind, lists in {"memory": MEMORY, "session": SESSION, "working": WORKING, "knowledge": KNOWLEDGE}.items()
    for name, one in driven(lists).items()
}
WORLDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sqlite": ("sqlite:///{}/log.db", "sync", {"large_bytes": 200}),
    "file": ("file://{}/logs", "sync", {"large_bytes": 200}),
    "memory": ("memory://", "sync", {}),
    "sqlite async": ("sqlite:///{}/log.db", "async", {}),
    "sealed": ("sqlite:///{}/log.db", "sync", {"encryption": KEYS}),
}
RUNS = [(world, "pattern") for world in WORLDS] + [("sqlite", "recogniser"), ("sqlite", "pseudonym")]
LONG = {"memory.import_file", "memory.import_session", "session.compact"}
"""Drivers that do very much."""
AGAIN = {("memory", "pattern"), ("sealed", "pattern"), ("sqlite", "pseudonym")}
"""Runs in which these are among the slow tests: privacy takes the same steps in another."""
WIDE = {*((world, "pattern") for world in ("memory", "sqlite async", "file", "sealed")), ("sqlite", "recogniser")}
"""Runs that differ from others in one thing alone, which tests of its own look at, too."""

DOOR_RUNS = [("sqlite", "pattern"), ("sqlite", "pseudonym"), pytest.param("file", "recogniser", marks=pytest.mark.wide)]
"""Runs of every other entrance, which does not know where its memory is."""


def driven_runs() -> list[Any]:
    """Yield every driver in every kind of run."""
    return [
        pytest.param(
            path,
            *run,
            marks=pytest.mark.slow if path in LONG and run in AGAIN else pytest.mark.wide if run in WIDE else (),
            id=f"{path}-{' '.join(run)}",
        )
        for path in DRIVERS
        for run in RUNS
    ]


@pytest.mark.parametrize(
    ("lists", "classes"),
    [
        (MEMORY, (Memory, AsyncMemory)),
        (SESSION, (Session, AsyncSession)),
        (WORKING, (WorkingMemory, AsyncWorkingMemory)),
        (KNOWLEDGE, (types.Knowledge, types.AsyncKnowledge)),
    ],
)
def test_every_public_verb_is_in_the_list(lists: dict[str, object], classes: tuple[type, ...]) -> None:
    """The lists name exactly the public verbs."""
    verbs = {name for one in classes for name in dir(one) if not name.startswith("_")}

    assert verbs - set(lists) == set()
    assert set(lists) - verbs == set()


def test_every_public_name_is_in_the_list() -> None:
    """A public name is a record, an error, a type, one of the eight faces, or says why it writes nothing."""
    values = {name: getattr(home, name) for home in (palimpsest, errors, strategies, types) for name in home.__all__}
    records = {
        name
        for name, value in values.items()
        if not inspect.isclass(value) or issubclass(value, msgspec.Struct | BaseException | tuple | dict)
    }

    assert set(values) - records == FACES | set(VALUES)


@pytest.mark.parametrize(("path", "world", "case"), driven_runs())
def test_no_public_verb_leaks_private_text(tmp_path: Path, path: str, world: str, case: str) -> None:
    """Private text is in no file, of an open or closed store, and in no log, event, error or prompt."""
    where, face, options = WORLDS[world]
    folder = tmp_path / "store"
    folder.mkdir()

    with Watched(CASES[case], where.format(folder), folder, face=face, **options) as watched:
        proof = DRIVERS[path](watched)

        stored = watched.stored()
        if isinstance(proof, Unstored):
            assert CASES[case].stand_in not in stored or watched.errors, proof.why
        else:
            assert CASES[case].stand_in in stored
        assert watched.leaks() == []
    assert watched.leaks() == []


@pytest.mark.parametrize(("world", "case"), DOOR_RUNS)
@pytest.mark.parametrize("door", DOORS)
def test_no_other_entrance_leaks_private_text(tmp_path: Path, door: str, world: str, case: str) -> None:
    """No other entrance stores, hands out, tells or sends private text, either."""
    where, face, options = WORLDS[world]
    folder = tmp_path / "store"
    folder.mkdir()

    with Watched(CASES[case], where.format(folder), folder, face=face, **options) as watched:
        DOORS[door](watched)

        assert CASES[case].stand_in in watched.stored()
        assert watched.leaks() == []
    assert watched.leaks() == []


# --- the command line


def test_every_command_is_in_the_list() -> None:
    """The list names exactly the commands."""
    assert set(ALL_COMMANDS) - set(COMMANDS) == set()
    assert set(COMMANDS) - set(ALL_COMMANDS) == set()


@pytest.mark.parametrize("command", driven_commands())
def test_no_command_leaks_private_text(tmp_path: Path, command: str) -> None:
    """No command stores, writes, prints or sends private text."""
    folder = tmp_path / "store"
    folder.mkdir()
    shell = Shell(PATTERN, folder)

    driven_commands()[command](shell)

    with Memory.open(f"sqlite:///{folder}/chats.db") as memory:
        stored = repr([memory.session(one.session).export() for one in memory.sessions()])
        assert PATTERN.stand_in in stored
        assert found_in(bytes_of(folder), PATTERN.marker) == []
    assert found_in(bytes_of(folder), PATTERN.marker) == []
    assert [text for text in shell.printed if found_in(text.encode("utf-8", "replace"), PATTERN.marker)] == []

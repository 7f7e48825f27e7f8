"""Processes that fork with an open memory: neither side loses acknowledged entries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from processes import Process
from sealed import address

SCRIPT = Path(__file__).with_name("forker_process.py")
STRUCK = Path(__file__).with_name("interrupted_forker_process.py")
FORKS = 300
MOMENTS = Path(__file__).with_name("fork_moments_process.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture(
    params=[
        *("sqlite", "file encrypted"),
        *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("file", "sqlite encrypted")),
    ]
)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The address of a store, and whether it is encrypted."""
    scheme, _, encrypted = request.param.partition(" ")
    return [
        f"{scheme}://{tmp_path}/store" if scheme == "file" else f"sqlite:///{tmp_path}/store.db",
        encrypted or "plain",
    ]


def ran(mode: str, *arguments: object) -> list[Any]:
    """Run a process to its end and return what it printed."""
    return Process(mode, *arguments, script=SCRIPT).end()


def test_entries_added_by_a_forked_child_are_kept(where: list[str]) -> None:
    """What a forked child adds with its own memory is kept, before and after its parent closes the other."""
    code, texts = ran("outlives", *where)

    assert code == 0
    assert texts == ["parent", "child before", "child after"]


def test_a_child_can_import_what_a_thread_was_importing(where: list[str], tmp_path: Path) -> None:
    """A child can import a module that a thread of its parent was importing, and so use every verb."""
    code, texts = ran("imports", *where, tmp_path)

    assert code == 0
    assert texts == ["parent", "child"]


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_entries_added_by_multiprocessing_children_are_kept(where: list[str], method: str) -> None:
    """A process of multiprocessing keeps all it adds with its own memory, however it was started."""
    code, texts = ran("started", *where, method)

    assert code == 0
    assert texts == ["parent", *(f"child {number}" for number in range(20))]


def test_children_forked_during_a_write_can_write(where: list[str]) -> None:
    """While a thread of the parent adds without a pause every child can add, and nothing is lost or doubled."""
    codes, complete = ran("beside", *where)

    assert codes == [0] * 20
    assert complete


def test_children_of_children_write_with_their_own_memories(where: list[str]) -> None:
    """Parent, children and their children take turns, each with a memory of its own."""
    codes, texts = ran("again", *where)

    expected = []
    for number in range(5):
        names = [f"{number}", f"{number}.1", f"{number}.1.1"]
        expected += [f"parent {number}", *(f"{name} before" for name in names)]
        expected += [f"{name} after" for name in reversed(names)]
    assert codes == [0] * 5
    assert texts == [*expected, "parent at the end"]


@pytest.mark.sampled
def test_a_child_works_wherever_a_thread_stood_at_the_fork(where: list[str]) -> None:
    """A child can use its own memory wherever in the library another thread stood at the fork."""
    failed, forks = Process(*where, 7, 199, script=MOMENTS).end()[0]

    assert forks > 10
    assert failed == []


@pytest.mark.slow
@pytest.mark.parametrize("rest", range(20))
def test_a_child_works_after_a_fork_at_any_line(where: list[str], rest: int) -> None:
    """A child can use its own memory after a fork at any line of the library."""
    failed, _ = Process(*where, rest, 20, script=MOMENTS).end()[0]

    assert failed == []


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("file", marks=pytest.mark.wide)])
def test_a_signal_handler_that_raises_during_a_fork_leaves_no_lock_held(kind: str, tmp_path: Path) -> None:
    """A signal handler that raises during a fork leaves no lock held."""
    (told, *sessions) = Process("run", address(kind, tmp_path), FORKS, script=STRUCK).end()

    assert told["struck"] > 0
    assert told["children"] > FORKS / 2
    assert sessions == [[1 + FORKS // 5, True], [told["adding"], True]]


def test_a_child_forked_during_an_unending_transaction_is_refused(tmp_path: Path) -> None:
    """If a fork cannot wait for a running transaction, the child may not open the file, and the error says what to
    do."""
    address = f"sqlite:///{tmp_path}/store.db"

    refused, others, code, texts = ran("stuck", address, "plain")

    path, parent, own, message = refused
    assert (path, parent, own) == (f"{tmp_path}/store.db", True, True)
    assert "spawn" in message
    assert others == 0
    assert code == 0
    assert texts == ["before", "held", "after"]

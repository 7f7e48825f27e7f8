"""The store knows who derives data from entries, so that erasures by any process reach it, for one tenant each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from commands import read, run, start
from deriver_process import SESSION, FileIndex
from palimpsest import Memory, Query
from palimpsest.errors import ErasureFailed
from palimpsest.runtime.runner import drive
from palimpsest.sessions.erased import Erased
from palimpsest.testing import FakeClock
from processes import Process
from sealed import FIRST
from test_erasing import Index, talk

SCRIPT = Path(__file__).with_name("deriver_process.py")
KINDS = ("memory", "sqlite", "file", "sealed sqlite", "sealed file")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Address and options of a store of each kind."""
    *sealed, kind = request.param.split()
    where = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/logs"}[kind]
    return where, {"encryption": FIRST} if sealed else {}


def other(memory: Memory, **options: Any) -> Memory:
    """Open another memory over the same store, like another program."""
    core = memory._core
    opened = Memory.open("memory://", clock=core._scope.clock, **options)
    opened._core._scope.opened = core.store
    return opened


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("file", marks=pytest.mark.wide)])
def test_derived_data_learns_of_others_erasures_at_the_next_opening(kind: str, tmp_path: Path) -> None:
    """When a program opens next, its index is told what other processes have erased."""
    where = {"sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/logs"}[kind]
    index = FileIndex(tmp_path / "index.json")
    with Memory.open(where) as memory:
        talk(memory.session(SESSION), "to zanzibar", "to quito", "to lima")
        talk(memory.session("other"), "to oslo")
    assert Process("index", where, tmp_path / "index.json", script=SCRIPT).end() == [0]

    with Memory.open(where) as memory:
        done = memory.session(SESSION).erase([3, 4])
        memory.delete_session("other")
    told = start("forget", "--store", where, "--matches", "zanzibar", "--yes")

    assert "index" in " ".join(done.remains)
    assert told.returncode == 0
    assert "index" in told.stderr
    assert "zanzibar" in json.dumps(index.texts())
    assert Process("open", where, tmp_path / "index.json", script=SCRIPT).end() == [6]
    assert sorted(index.texts().values()) == ["about that: to lima", "to lima"]
    assert Process("open", where, tmp_path / "index.json", script=SCRIPT).end() == [0]


def test_a_running_program_learns_of_others_erasures_at_a_sweep(tmp_path: Path) -> None:
    """A running program's index is told what others have erased when it sweeps."""
    where, index = f"sqlite:///{tmp_path}/a.db", FileIndex(tmp_path / "index.json")
    with Memory.open(where) as memory:
        talk(memory.session(SESSION), "to zanzibar")
        Process("index", where, tmp_path / "index.json", script=SCRIPT).end()
        with Process("stay", where, tmp_path / "index.json", script=SCRIPT) as staying:
            assert staying.hear() == "ready"

            memory.session(SESSION).clear()
            staying.tell()

            assert staying.end() == [2]
    assert index.texts() == {}


def test_a_dry_run_of_forget_tells_no_derived_data(place: tuple[str, dict[str, Any]]) -> None:
    """A dry run of `forget` tells no derived data and leaves no note."""
    where, options = place
    with Memory.open(where, **options) as memory:
        here, away = Index(), Index()
        away.name = "away"
        memory.derive(away)()
        memory.derive(here)
        talk(memory.session("one"), "one", "two")
        memory.session("one").fork("branch")

        for subject in ({"matches": "one"}, {"session": "one"}, {"tenant": "default"}):
            would = memory.forget(dry_run=True, **subject)
            assert (bool(would), would.derived, would.remains) == (True, {}, ())

        memory.derive(away)
        assert away.told == here.told == []


def test_an_erasure_leaves_a_note_for_each_absent_deriver(
    place: tuple[str, dict[str, Any]],
) -> None:
    """An erasure tells derived data of its own memory at once, and leaves a note for the others."""
    where, options = place
    with Memory.open(where, **options) as memory:
        here, away = Index(), Index()
        away.name = "away"
        memory.derive(away)()
        assert memory.derivers() == ("away",)
        memory.derive(here)
        session = memory.session("one")
        talk(session, "one", "two")
        branch = session.fork("branch")
        ids = {entry.seq: entry.id for entry in session.entries()}

        done = session.erase([1])
        branch.clear()

        assert memory.derivers() == ("away", "index")
        assert (done.derived, len(done.remains)) == ({"index": 2}, 1)
        assert "'away'" in done.remains[0]
        assert away.told == []
        memory.derive(away)
        assert away.told == here.told == [("one", {1: ids[1]}), ("branch", {1: ids[1]}), ("branch", None)]
        assert session.erase([2]).remains == ()


def test_a_delivered_note_is_never_delivered_again(place: tuple[str, dict[str, Any]]) -> None:
    """A note that derived data has caught up with is never delivered again."""
    where, options = place
    with Memory.open(where, **options) as memory, other(memory) as elsewhere:
        index, again = Index(), Index()
        memory.derive(index)()
        session = memory.session("one")
        talk(session, "one", "two")
        session.erase([1])
        leave = memory.derive(index)
        elsewhere.session("one").erase([2])
        memory.sweep()
        assert [[*seqs] for _, seqs in index.told] == [[1], [2]]

        memory.sweep()
        leave()
        memory.derive(again)

        assert len(index.told) == 2
        assert again.told == []


def test_a_deriver_that_fails_to_catch_up_keeps_its_note(memory: Memory) -> None:
    """If derived data fails to catch up, it is not registered and the note stays."""
    index = Index()
    memory.derive(index)()
    session = memory.session("one")
    talk(session, "one")
    session.erase([1])
    index.broken = True

    with pytest.raises(ErasureFailed, match="the note of what remains is kept"):
        memory.derive(index)

    index.broken = False
    memory.derive(index)
    assert [name for name, _ in index.told] == ["one"]


STRATEGY = {"type": "simple_fifo", "max_entries": 2}


class Gate(Index):
    """Derived data that, when it is told of an erasure, lets another memory's index register."""

    name = "gate"

    def __init__(self, elsewhere: Memory) -> None:
        super().__init__()
        self.elsewhere, self.late = elsewhere, Index()

    def opened(self) -> None:
        if self.elsewhere.derivers() == ("gate",):
            self.elsewhere.derive(self.late)
            assert self.late.told == []

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        self.opened()
        return await super().erased(tenant, session, entries)

    async def gone(self, tenant: str, session: str) -> int:
        self.opened()
        return await super().gone(tenant, session)


def expire(memory: Memory, clock: FakeClock) -> object:
    clock.advance(7200)
    return memory.sweep()


def flush(memory: Memory) -> None:
    session = memory.session("one", persistence="flush", archive=False, long_term=STRATEGY)
    with session.turn():
        talk(session, "to lima")


DESTROYS: dict[str, tuple[Callable[[Memory, FakeClock], object], object]] = {
    "erase": (lambda memory, _: memory.session("one").erase([1]), {1}),
    "erase what matches": (lambda memory, _: memory.session("one").erase(Query(text="zanzibar")), {1, 2}),
    "clear": (lambda memory, _: memory.session("one").clear(), None),
    "delete": (lambda memory, _: memory.delete_session("one"), None),
    "forget a session": (lambda memory, _: memory.forget(session="one"), None),
    "forget a text": (lambda memory, _: memory.forget(matches="zanzibar"), {1, 2}),
    "replace": (
        lambda memory, _: memory.import_session(memory.session("one").export(), on_conflict="replace"),
        None,
    ),
    "sweep": (expire, {5}),
    "scan": (lambda memory, _: memory.scan("default", apply=True), {6}),
    "compact": (lambda memory, _: memory.session("one").compact("neuralyzer"), {1, 2}),
    "flush": (lambda memory, _: flush(memory), {1, 2}),
}


@pytest.mark.parametrize("how", DESTROYS)
def test_a_deriver_registered_elsewhere_during_an_erasure_gets_a_note(
    how: str, tmp_path: Path, clock: FakeClock
) -> None:
    """An index that another memory registers during an erasure has a note of it."""
    where = f"sqlite:///{tmp_path}/a.db"
    destroy, gone = DESTROYS[how]
    with Memory.open(where, clock=clock) as memory, Memory.open(where, clock=clock) as elsewhere:
        session, gate = memory.session("one"), Gate(elsewhere)
        talk(session, "to zanzibar", "to quito")
        soon = session.entries()[-1].created_at + timedelta(minutes=1)
        session.add_user_message("expires", expires_at=soon)
        session.add_user_message("write to jane.doe@example.com")
        memory.derive(gate)

        done = destroy(memory, clock)

        late = gate.late
        assert late.told == []
        if isinstance(done, Erased):
            assert ["'index'" in remains for remains in done.remains] == [True]
        elsewhere.sweep()
        told = [seqs for name, seqs in late.told if name == "one"]
        assert told
        assert (None in told) if gone is None else gone <= {seq for seqs in told for seq in seqs or ()}
        elsewhere.sweep()
        assert [seqs for name, seqs in late.told if name == "one"] == told


def test_a_deriver_registered_here_during_an_erasure_is_told(memory: Memory) -> None:
    """An index that the same memory registers during an erasure is told before it returns, or its note stays."""
    session, gate = memory.session("one"), Gate(memory)
    talk(session, "one")
    ids = {entry.seq: entry.id for entry in session.entries()}
    memory.derive(gate)

    done = session.erase([1])

    assert gate.late.told == [("one", {1: ids[1]})]
    assert done.remains == ()
    memory.sweep()
    assert len(gate.late.told) == 1


def test_underive_removes_the_name_and_its_notes(memory: Memory) -> None:
    """`underive` takes the name out of the store, with its notes; from then on nothing is noted for it."""
    index = Index()
    memory.derive(index)()
    session = memory.session("one")
    talk(session, "one", "two")
    session.erase([1])

    assert memory.underive("index")

    assert memory.derivers() == ()
    assert not memory.underive("index")
    assert session.erase([2]).remains == ()
    memory.derive(index)
    assert index.told == []


def test_forgetting_a_tenant_keeps_its_derivers(memory: Memory) -> None:
    """Forgetting a tenant keeps the list of who derives data, and does not count it."""
    index = Index()
    memory.derive(index)()
    talk(memory.session("one"), "one")

    done = memory.forget(tenant="default")

    assert done.items == {}
    memory.derive(index)
    assert index.told == [("one", None)]


def test_a_sweep_is_of_its_tenant_alone(place: tuple[str, dict[str, Any]], clock: FakeClock) -> None:
    """A sweep erases expired entries, branches and items of its own tenant only, and tells no other's index."""
    where, options = place
    with Memory.open(where, clock=clock, tenant="one", **options) as one, other(one, tenant="two") as two:
        index = Index()
        one.derive(index)
        for memory in (one, two):
            session = memory.session("s")
            soon = session.add_user_message("stays").created_at + timedelta(minutes=1)
            session.add_user_message("expires", expires_at=soon)
            session.fork("branch")
            expiry = clock.now + 60_000_000
            drive(memory.store.put_item(memory.tenant, "n", "k", b"v", expires=expiry))
        clock.advance(3600)

        swept = one.sweep()

        assert swept >= 2
        assert sorted((name, [*seqs]) for name, seqs in index.told) == [("branch", [2]), ("s", [2])]
        assert [entry.erased for entry in one.session("s").entries()] == [False, True]
        assert [entry.erased for entry in two.session("s").entries()] == [False, False]
        assert [entry.erased for entry in two.session("branch").entries()] == [False, False]
        assert two.sweep() == swept
        assert [entry.erased for entry in two.session("branch").entries()] == [False, True]
        assert len(index.told) == 2
        assert one.sweep() == two.sweep() == 0


def test_the_derived_command_lists_and_removes_names(
    place: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`derived` lists the names of a tenant and takes one out, which nothing is noted for from then on."""
    where, options = place
    if where == "memory://":
        where = f"sqlite:///{tmp_path}/plain.db"
    if options:
        monkeypatch.setenv("PALIMPSEST_KEY", "old:" + bytes(range(32)).hex())
    at = ("--store", where)
    with Memory.open(where, **options) as memory:
        memory.derive(Index())()
        talk(memory.session("one"), "one", "two")

    with Memory.open(where, **options) as memory:
        assert "`palimpsest derived forget`" in memory.session("one").erase([1]).remains[0]
    assert run("derived", *at).stdout == run("derived", "list", *at).stdout == "index\n"
    assert read("derived", *at, "--tenant", "other") == {"derived": []}
    unknown = run("derived", "forget", "indx", *at)
    assert (unknown.exit_code, "did you mean 'index'?" in unknown.stderr) == (3, True)
    for wrong in (
        ("forget",),
        ("list", "index"),
        ("drop", "index"),
        ("forget", "index"),
        ("forget", "index", "--json"),
    ):
        assert run("derived", *wrong, *at).exit_code == 2
    assert read("derived", *at) == {"derived": ["index"]}

    assert read("derived", "forget", "index", "--yes", *at) == {"forgotten": "index"}

    assert run("derived", *at).output == "The store knows of no index that is derived from entries.\n"
    with Memory.open(where, **options) as memory:
        assert memory.session("one").erase([2]).remains == ()
        later = Index()
        memory.derive(later)
        assert later.told == []


def test_the_derived_command_asks_before_it_removes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a no leaves the name, a yes takes it out."""
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream=None: stream is not None)
    at = ("--store", f"sqlite:///{tmp_path}/a.db")
    with Memory.open(at[1]) as memory:
        memory.derive(Index())()

    assert run("derived", "forget", "index", *at, given="n\n").exit_code == 1
    assert read("derived", *at) == {"derived": ["index"]}
    assert run("derived", "forget", "index", *at, given="y\n").exit_code == 0
    assert read("derived", *at) == {"derived": []}

"""Chaos: whatever happens to processes that share a store, acknowledged entries are there and erased ones are gone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos import chaos
from chaos_journal import Journal, mark, private
from chaos_judge import Judge
from palimpsest import Memory

WORLDS = ["sqlite", "file", "sealed sqlite", "sealed file"]


def address(world: str, folder: Path) -> str:
    """Return the address of a world's store."""
    return f"sqlite:///{folder}/log.db" if world.endswith("sqlite") else f"file://{folder}/logs"


@pytest.mark.parametrize("world", ["sqlite", pytest.param("sealed file", marks=pytest.mark.wide)])
def test_one_chaos_round_finds_no_fault(world: str, tmp_path: Path, dice: random.Random) -> None:
    """Eight processes do everything to one store while they are killed, stopped, interrupted and forked."""
    sealed = world.startswith("sealed")

    faults = chaos(address(world, tmp_path), seconds=2, seed=dice.randrange(2**32), sealed=sealed)

    assert not faults, "\n".join(map(str, faults))


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_ten_minutes_of_chaos_rounds_find_no_fault(world: str, tmp_path: Path, dice: random.Random) -> None:
    """Chaos rounds over one store for ten minutes, over all kinds of stores, find no fault."""
    sealed = world.startswith("sealed")

    faults = chaos(address(world, tmp_path), seconds=150, seed=dice.randrange(2**32), sealed=sealed)

    assert not faults, "\n".join(map(str, faults))


# --- the judge


class Run:
    """A store, the journal of one writer, and what the judge finds."""

    def __init__(self, folder: Path) -> None:
        (folder / "journals").mkdir()
        self._folder, self._url = folder / "journals", f"sqlite:///{folder}/log.db"
        self._journal = Journal(self._folder, "w")
        self.memory = Memory.open(self._url, synchronous="NORMAL")
        self.mark = mark("one")

    def note(self, verb: str, outcome: str = "done", result: dict[str, Any] | None = None, **facts: Any) -> None:
        """Record an operation and its outcome in the journal."""
        number = self._journal.begin(verb, **facts)
        if outcome:
            self._journal.end(number, outcome, **(result or {}))

    def add(self, session: str = "s0", text: str = "") -> str:
        """Store a message with the mark and return its id."""
        return self.memory.session(session).add_user_message(text or f"this is {self.mark}").id

    def faults(self) -> str:
        """Return the faults that the judge finds."""
        judge = Judge(self._folder)
        judge.journals()
        judge.store(self.memory)
        return "\n".join(fault.rule for fault in judge.faults)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run without any operation."""
    made = Run(tmp_path)
    yield made
    made.memory.close()


def test_the_judge_finds_no_fault_in_a_sound_store(run: Run) -> None:
    """The judge finds no fault in a store that agrees with its journal."""
    id = run.add()
    run.note("append", session="s0", marks=[run.mark], result={"ids": [id]})
    assert run.faults() == ""

    run.memory.session("s0").erase([id])
    run.note("erase", session="s0", marks=[run.mark])

    assert run.faults() == ""


def lost(run: Run) -> None:
    run.add(text="something else")
    run.note("append", session="s0", marks=[run.mark], result={"ids": ["0"]})


def twice(run: Run) -> None:
    run.note("append", "cut", session="s0", marks=[run.mark])
    run.add()
    run.add()


def in_part(run: Run) -> None:
    run.note("append", "", session="s0", marks=[run.mark, mark("two")])
    run.add()


def out_of_order(run: Run) -> None:
    later = mark("two")
    ids = [run.add(text=f"this is {later}"), run.add()]
    run.note("append", session="s0", marks=[run.mark], result={"ids": ids[1:]})
    run.note("append", session="s0", marks=[later], result={"ids": ids[:1]})


def still_there(run: Run) -> None:
    run.note("append", session="s0", marks=[run.mark], result={"ids": [run.add()]})
    run.note("erase", session="s0", marks=[run.mark])


def still_private(run: Run) -> None:
    told = f"this is {run.mark} {private(run.mark)}"
    facts = {"marks": [run.mark], "private": [private(run.mark)]}
    run.note("append", session="s0", **facts, result={"ids": [run.add(text=told)]})
    run.note("scan", session=None)


def of_nobody(run: Run) -> None:
    run.add()


def not_whole(run: Run) -> None:
    run.note("append", session="s0", marks=[run.mark], result={"ids": [run.add()]})
    run.memory.session("s0").fork("b-1")
    run.note("fork", session="s0", into="b-2")


def not_cleared(run: Run) -> None:
    run.add("o-1")
    run.note("own append", session="o-1", marks=[run.mark])
    run.note("own clear", session="o-1")


def not_rewound(run: Run) -> None:
    run.add("o-1")
    run.add("o-1", f"this is {mark('two')}")
    run.note("own append", session="o-1", marks=[run.mark, mark("two")])
    run.note("own rewind", session="o-1", keeps=1)


def not_pinned(run: Run) -> None:
    run.add("o-1")
    run.note("own append", session="o-1", marks=[run.mark])
    run.note("own pin", session="o-1", marks=[run.mark])


def a_summary_lost(run: Run) -> None:
    run.note("append", session="s0", marks=[run.mark], result={"ids": [run.add()]})
    run.note("compact", session="s0", result={"summary": "1"})


def an_error(run: Run) -> None:
    run.note("read", "raised", session="s0", result={"error": "StoreCorrupt", "said": "large content missing"})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lost, "was acknowledged and is not in s0"),
        (twice, "is in s0 more than once"),
        (in_part, "is in s0 in part"),
        (out_of_order, "before what its writer has added before"),
        (still_there, "was erased and is in s0"),
        (still_private, "was redacted and can be read in s0"),
        (of_nobody, "is nobody's"),
        (not_whole, "a branch is not there"),
        (not_cleared, "may be one of"),
        (not_rewound, "may be one of"),
        (not_pinned, "has lost pins"),
        (a_summary_lost, "is not in the history"),
        (an_error, "read raised StoreCorrupt: large content missing"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_judge_names_each_broken_rule(run: Run, wrong: Callable[[Run], None], told: str) -> None:
    """The judge names each rule that a store breaks."""
    wrong(run)

    assert told in run.faults()


def test_the_judge_finds_erased_text_in_files(run: Run) -> None:
    """The judge finds erased text in files, and any text in those of an encrypted store."""
    run.note("append", session="s0", marks=[run.mark], result={"ids": [run.add()]})
    judge = Judge(run._folder)
    judge.bytes_of(f"some {run.mark} bytes".encode(), sealed=False)
    assert judge.faults == []

    judge.bytes_of(f"some {run.mark} bytes".encode(), sealed=True)
    run.note("erase", session="s0", marks=[run.mark])
    after = Judge(run._folder)
    after.bytes_of(f"some {run.mark} bytes".encode(), sealed=False)

    assert ["stands in the store's files" in fault.rule for fault in (*judge.faults, *after.faults)] == [True, True]

"""Compactions whose process is killed, and two processes that compact one session."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from compactor_process import STRATEGY
from palimpsest import Memory, Session
from processes import Process, integrity, together
from writer import SESSION, quarters, turn

pytestmark = [pytest.mark.wide, pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")]
KILLS = [3, pytest.param(100, marks=pytest.mark.slow)]
SCRIPT = Path(__file__).with_name("compactor_process.py")


@pytest.fixture(params=["sqlite", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """The store of a test: an SQLite file, or the address of a folder of files."""
    return tmp_path / "log.db" if request.param == "sqlite" else f"file://{tmp_path}/logs"


def killed_at(step: str, mode: str, path: Path | str, start: int, dice: random.Random) -> list[list[object]]:
    """Start a compacting process, kill it some time after a step, and return its steps."""
    process = Process(mode, path, start, script=SCRIPT)
    said: list[list[object]] = []
    wanted = (
        dice.randrange(5, 8) if step == "compacted" else dice.randrange(1, 6)
    )  # after the fifth turn there is enough to compact
    while wanted and (one := process.hear()) is not None:
        said.append(one)
        wanted -= one[0] == step
    time.sleep(
        dice.random() * 0.004
    )  # let the kill fall at a random moment of what follows; no test depends on the length
    return said + process.kill()


def flushed_whole(session: Session, said: list[list[object]]) -> None:
    """Check that a session verifies and still has the newest turn that the killed process had flushed."""
    proof = session.verify()
    assert proof.ok, proof.problems
    newest = max(int(str(value)) for name, value in said if name == "flushed")
    active = {int(entry.text.split()[-1]) for entry in session.active_entries() if entry.is_human}
    assert newest in active or (active and max(active) > newest)


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_no_kill_separates_a_summary_from_its_coverage(path: Path | str, dice: random.Random, rounds: int) -> None:
    """After a kill at any step of a compaction, the session verifies and has every turn."""
    added: set[int] = set()
    versions = 0
    for i, step in enumerate(dice.sample(["added", "asked", "compacted"] * rounds, 3 * rounds)):
        for name, value in killed_at(step, "compact", path, 10_000 * i, dice):
            if name == "added":
                added.add(int(str(value)))
            if name == "compacted":
                versions = max(versions, int(str(value)))

        with Memory.open(path) as memory:
            session = memory.session(SESSION, counter=quarters)
            proof = session.verify()
            assert proof.ok, proof.problems
            there = {int(entry.text.split()[-1]) for entry in session.entries() if entry.is_human}
            current = session.summaries()
            if current:
                assert current[0].version >= versions
                assert len(session.expand()) == proof.covered
            session.context()
        assert added <= there
        assert integrity(path) == "ok"
    assert versions


@pytest.mark.parametrize("kills", KILLS)
def test_no_kill_leaves_an_erasure_half_done(path: Path | str, dice: random.Random, kills: int) -> None:
    """After a kill during a neuralyzer's run, each interaction is erased completely or not at all."""
    start = 0
    for _ in range(kills):
        said = killed_at(dice.choice(["added", "erased"]), "neuralyze", path, start, dice)
        start += 1000
        with Memory.open(path) as memory:
            session = memory.session(SESSION, counter=quarters)
            proof = session.verify()
            assert proof.ok, proof.problems
            turns = [entry.turn for entry in session.entries() if not entry.erased]
            assert all(turns.count(one) == 6 for one in set(turns))
            erased = [value for name, value in said if name == "erased"]
            assert not erased or len(set(turns)) <= 2
        assert integrity(path) == "ok"


@pytest.mark.parametrize("kills", KILLS)
def test_a_flush_is_all_or_nothing(path: Path | str, dice: random.Random, kills: int) -> None:
    """After a kill at any step of a flush, the session is in its old or its new state and has the newest turn."""
    start = 0
    for _ in range(kills):
        said = killed_at("flushed", "flush", path, start, dice)
        start += 1000
        with Memory.open(path) as memory:
            flushed_whole(memory.session(SESSION, counter=quarters), said)
        assert integrity(path) == "ok"


def filled(path: Path | str) -> None:
    with Memory.open(path) as memory:
        session = memory.session(SESSION)
        for number in range(8):
            session.add(turn(str(number)))


def test_two_processes_pay_for_one_summary(path: Path | str) -> None:
    """Of two processes that compact a session at once, only one asks a model; the other returns pending or nothing to
    do."""
    filled(path)

    first, second = (
        said[-1] for said in together(Process("once", path, name, 0.3, script=SCRIPT) for name in ("one", "two"))
    )

    assert first["asked"] + second["asked"] == 1
    winner, other = (first, second) if first["asked"] else (second, first)
    assert winner["reason"] is None
    assert other["reason"] in ("pending", "nothing_to_compact")
    with Memory.open(path) as memory:
        session = memory.session(SESSION, counter=quarters)
        assert session.verify().ok
        assert [made.text for made in session.summaries()] == [winner["text"]]


def test_without_leases_the_slower_compaction_plans_again(path: Path | str) -> None:
    """Even without a lease two compactions are correct: compare-and-set makes the slower one plan again."""
    filled(path)
    with Memory.open(path) as memory, Memory.open(path) as other:

        def overtaken(prompt: str) -> str:
            if not rival.summaries():  # the rival holds no lease and asks for none: it has no summarizer to pay for
                rival.compact(STRATEGY)
            return "by the slower one"

        rival = other.session(SESSION, counter=quarters)
        slower = memory.session(SESSION, counter=quarters, summarizer=overtaken)

        done = slower.compact(STRATEGY)

        assert done.reason == "nothing_to_compact"
        assert [made.method for made in slower.summaries()] == ["heuristic"]
        assert slower.verify().ok

"""What survives when a writer is killed at any moment."""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path

import pytest

from palimpsest import Memory
from processes import Process, integrity, remains, whole_turns
from writer import BUDGET, ENTRIES_A_TURN, SESSION, budgeted, turn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
KILLS = [3, pytest.param(200, marks=pytest.mark.slow)]


@pytest.fixture(params=["sqlite", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """The store of a test: an SQLite file, or the address of a folder of files."""
    return tmp_path / "log.db" if request.param == "sqlite" else f"file://{tmp_path}/logs"


def killed(mode: str, path: Path | str, dice: random.Random, *, late: bool = False) -> list:
    """Start a writer, kill it at a random moment, later if `late`, and return what it had acknowledged."""
    writer = Process(mode, path)
    acknowledged = []
    if late or dice.random() < 0.9:
        wanted = dice.randrange(16 if late else 1, 25)
        while len(acknowledged) < wanted and (said := writer.hear()) is not None:
            acknowledged.append(said)
        time.sleep(dice.random() * 0.004)  # the kill is to fall anywhere in a write; nothing waits for this
    else:
        time.sleep(dice.random() * 0.4)  # anywhere in starting and opening
    return acknowledged + writer.kill()


@pytest.mark.parametrize("kills", KILLS)
def test_acknowledged_entries_survive_kills(path: Path | str, dice: random.Random, kills: int) -> None:
    """After any number of kills every acknowledged turn is there, and no turn is there half or twice."""
    acknowledged = set()
    for kill in range(kills):
        acknowledged |= set(map(str, killed("append", path, dice, late=kill == 0)))

        with Memory.open(path) as memory:
            session = memory.session(SESSION)
            found = whole_turns(session.entries(), ENTRIES_A_TURN)
            session.context()
        assert acknowledged <= set(found)
        assert set(found.values()) <= {1}
        assert integrity(path) == "ok"
    assert acknowledged


@pytest.mark.sampled
@pytest.mark.parametrize("kills", KILLS)
def test_cuts_survive_kills(path: Path | str, dice: random.Random, kills: int) -> None:
    """After a kill during `context`, each epoch has one record, and acknowledged contexts can be rebuilt."""
    last, epochs = None, 0
    for kill in range(kills):
        for said in killed("context", path, dice, late=kill == 0):
            last = said

        with Memory.open(path) as memory:
            session = budgeted(memory)
            cuts = [record.cut for record in session.history() if record.kind == "cut"]
            assert [cut.epoch for cut in cuts] == list(range(1, len(cuts) + 1))
            assert session.stats().epoch == len(cuts)
            whole_turns(session.entries(), ENTRIES_A_TURN)
            if last is not None:
                assert session.context(at=last["revision"]).prefix.hash == last["hash"]
                assert last["epoch"] <= len(cuts)
            assert session.context().tokens <= BUDGET
            epochs = len(cuts)
        assert integrity(path) == "ok"
    assert epochs > 0


@pytest.mark.sampled
@pytest.mark.parametrize("kills", KILLS)
def test_erasures_survive_kills(path: Path | str, dice: random.Random, kills: int) -> None:
    """A kill during `erase` or `clear` leaves an entry whole or a tombstone, a log there or gone, nothing between."""
    erased, cleared = set(), 0
    for kill in range(kills):
        said = killed("erase", path, dice, late=kill == 0)
        erased |= {number for step, number in said if step == "erased"}
        cleared = max([cleared, *(number for step, number in said if step == "cleared")])
        added = {number for step, number in said if step == "added"}

        with Memory.open(path) as memory:
            session = memory.session(SESSION)
            entries = session.entries()
            present = {int(name) for name in whole_turns(entries, ENTRIES_A_TURN)}
            session.context()
        assert {int(entry.text.split()[-1]) for entry in entries if entry.is_human and not entry.erased}.isdisjoint(
            erased
        )
        assert not present or min(present) > cleared
        due = {number for number in added if number > cleared}
        # The clear after the last turn may have been committed and not yet acknowledged.
        assert due <= present or (not present and max(due) % 8 == 0)
        assert integrity(path) == "ok"
    assert erased


@pytest.mark.sampled
@pytest.mark.parametrize("kills", KILLS)
def test_branches_and_rewinds_survive_kills(path: Path | str, dice: random.Random, kills: int) -> None:
    """A kill during `fork` or `rewind` leaves a branch whole or none, and turns taken back or there."""
    said: dict[str, set[int]] = {"added": set(), "forked": set(), "grown": set(), "rewound": set()}
    for kill in range(kills):
        for step, number in killed("branch", path, dice, late=kill == 0):
            said[step].add(number)

        with Memory.open(path) as memory:
            session = memory.session(SESSION)
            everything = {int(name) for name in whole_turns(session.entries(rewound=True), ENTRIES_A_TURN)}
            shown = {int(entry.text.split()[-1]) for entry in session.entries() if entry.is_human}
            session.context()
            branches = {info.session for info in memory.sessions()} - {SESSION}
            assert {f"branch {number}" for number in said["forked"]} <= branches
            for name in dice.sample(sorted(branches), min(len(branches), 5)):
                number = int(name.split()[-1])
                branch = memory.session(name)
                turns = set(whole_turns(branch.entries(rewound=True), ENTRIES_A_TURN))
                assert str(number) in turns
                assert (f"{number}.b" in turns) >= (number in said["grown"])
                branch.context()
        assert said["added"] <= everything
        assert not shown & said["rewound"]
        assert {number for number in said["added"] - shown if number % 3} == set()
        assert integrity(path) == "ok"
    assert said["rewound"]


def test_erased_text_is_gone_after_a_kill(path: Path | str, dice: random.Random) -> None:
    """Once an erasure is acknowledged, no byte of its text is in any of the store's files, whatever happens next."""
    with Memory.open(path) as memory:
        memory.session("another").add(turn("kept"))
    writer = Process("erase", path)
    said = [writer.hear() for _ in range(dice.randrange(4, 40))]
    said += writer.kill()

    left = remains(path)

    assert b'question kept"' in left
    erased = [number for step, number in said if step == "erased"]
    assert erased
    assert not [number for number in erased if f'question {number}"'.encode() in left]


@pytest.mark.sampled
@pytest.mark.parametrize("kills", KILLS)
def test_large_contents_survive_kills(path: Path | str, dice: random.Random, kills: int) -> None:
    """A kill leaves no entry without its content; of a content without an entry a sweep leaves nothing."""
    added, erased = set(), set()
    for kill in range(kills):
        said = killed("large", path, dice, late=kill == 0)
        added |= {number for step, number in said if step == "added"}
        erased |= {number for step, number in said if step == "erased"}

        with Memory.open(path) as memory:
            memory.sweep()
            entries = memory.session(SESSION).entries()
        present = {int(entry.text.split()[1]): entry.text for entry in entries if not entry.erased}
        assert present.keys().isdisjoint(erased)
        assert {number for number in added if number % 2 == 0} <= present.keys()
        assert all(text == f"large {number} " * 6_000 for number, text in present.items())
        left = {int(number) for number in re.findall(rb"large (\d+) large", remains(path))}
        assert left.isdisjoint(erased)
        if isinstance(path, str):
            assert {int(number) for number in re.findall(rb"large (\d+) large", remains(path))} <= present.keys()
    assert erased

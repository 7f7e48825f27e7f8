"""What survives when a writer is killed at any moment."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from pathlib import Path

import pytest

from palimpsest import Memory
from processes import Process, integrity, remains, whole_turns
from writer import BUDGET, ENTRIES_A_TURN, SESSION, budgeted, turn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
KILLS = [10, pytest.param(200, marks=pytest.mark.slow)]


@pytest.fixture
def dice() -> random.Random:
    """Randomness whose seed a failure shows; PALIMPSEST_SEED repeats it (the moments of a kill never quite repeat)."""
    seed = int(os.environ.get("PALIMPSEST_SEED") or random.SystemRandom().randrange(2**32))
    logging.getLogger("tests").warning("PALIMPSEST_SEED=%d", seed)
    return random.Random(seed)


def killed(mode: str, path: Path, dice: random.Random) -> list:
    """Start a writer, kill it at a random moment, and return what it had acknowledged."""
    writer = Process(mode, path)
    acknowledged = []
    if dice.random() < 0.9:
        wanted = dice.randrange(1, 25)
        while len(acknowledged) < wanted and (said := writer.hear()) is not None:
            acknowledged.append(said)
        time.sleep(dice.random() * 0.004)  # the kill is to fall anywhere in a write; nothing waits for this
    else:
        time.sleep(dice.random() * 0.4)  # anywhere in starting and opening
    return acknowledged + writer.kill()


@pytest.mark.parametrize("kills", KILLS)
def test_what_was_acknowledged_survives_kills(tmp_path: Path, dice: random.Random, kills: int) -> None:
    """However often a writer is killed: every acknowledged turn is there, and no turn is there half or twice."""
    path, acknowledged = tmp_path / "log.db", set()
    for _ in range(kills):
        acknowledged |= set(map(str, killed("append", path, dice)))

        with Memory.open(path) as memory:
            session = memory.session(SESSION)
            found = whole_turns(session.entries(), ENTRIES_A_TURN)
            session.context()
        assert acknowledged <= set(found)
        assert set(found.values()) <= {1}
        assert integrity(path) == "ok"
    assert acknowledged


@pytest.mark.parametrize("kills", KILLS)
def test_cuts_survive_kills(tmp_path: Path, dice: random.Random, kills: int) -> None:
    """A kill during `context` leaves cuts whole: one record an epoch, and what was acknowledged can be rebuilt."""
    path, last, epochs = tmp_path / "log.db", None, 0
    for _ in range(kills):
        for said in killed("context", path, dice):
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


@pytest.mark.parametrize("kills", KILLS)
def test_erasures_survive_kills(tmp_path: Path, dice: random.Random, kills: int) -> None:
    """A kill during `erase` or `clear` leaves an entry whole or a tombstone, a log there or gone, nothing between."""
    path, erased, cleared = tmp_path / "log.db", set(), 0
    for _ in range(kills):
        said = killed("erase", path, dice)
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


def test_erased_text_is_gone_after_a_kill(tmp_path: Path, dice: random.Random) -> None:
    """Once an erasure is acknowledged, no byte of its text is in the file or its journal, whatever happens next."""
    path = tmp_path / "log.db"
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

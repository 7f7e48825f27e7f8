"""A declared memory whose process is killed while it replaces what is stored."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from compactor_process import DECLARED, later
from palimpsest.resources import Resources
from processes import integrity
from test_compaction_faults import flushed_whole, killed_at
from writer import quarters

KILLS = [2, pytest.param(100, marks=pytest.mark.slow)]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
@pytest.mark.parametrize("kills", KILLS)
def test_at17_a_flush_that_is_killed_is_done_or_not(tmp_path: Path, dice: random.Random, kills: int) -> None:
    """At any step of a file's FLUSH: the session verifies, the newest turn that was acknowledged is there, and of what
    was replaced `archive: false` leaves nothing when the next inference has ended."""
    block = {"long_term_memory_id": "summarizer", "interaction_threshold_qty": 2, "interaction_keep": 1}
    place = tmp_path / "a.db"
    source = {
        "long_term_memory_strategy": {**block, "cod_max_loops": 0},
        "persistence_strategy": "FLUSH",
        "archive": False,
        "store": f"sqlite:///{place}",
    }
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(source), "utf-8")
    for number in range(kills):
        said = killed_at("flushed", "flush_declared", path, 1_000 * number, dice)
        with Resources.load(path) as resources:
            flushed_whole(resources.session(DECLARED, counter=quarters), said)
        assert integrity(place) == "ok"
    with Resources.load(path, clock=later(str(1_000 * kills))) as resources:  # when no dead one's turn holds it up
        session = resources.session(DECLARED, counter=quarters)
        with session.turn():
            session.add_user_message("one more 9000000")
            session.add_assistant_message("yes")
        assert session.stats().archived_entries == 0

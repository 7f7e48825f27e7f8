"""A declared memory whose process is killed while a FLUSH replaces what is stored."""

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
def test_at17_a_killed_flush_is_done_or_not(tmp_path: Path, dice: random.Random, kills: int) -> None:
    """A process killed during a FLUSH leaves a session that verifies, with the newest acknowledged interaction.

    With `archive: false` nothing of the replaced entries is left when the next turn has ended.
    """
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
        acknowledged = killed_at("flushed", "flush_declared", path, 1_000 * number, dice)
        with Resources.load(path) as resources:
            flushed_whole(resources.session(DECLARED, counter=quarters), acknowledged)
        assert integrity(place) == "ok"
    with Resources.load(path, clock=later(str(1_000 * kills))) as resources:  # when no dead one's turn holds it up
        session = resources.session(DECLARED, counter=quarters)
        with session.turn():
            session.add_user_message("one more 9000000")
            session.add_assistant_message("yes")
        assert session.stats().archived_entries == 0

"""A past context costs its window and what changed since, not the whole log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend_reads import watched
from palimpsest import Memory, Session
from palimpsest.errors import PastUnknown
from palimpsest.sessions.history import PROBES
from worlds import STORES
from writer import quarters

LENGTHS = [2_000, 20_000]
BATCH = 40
LEVELS = 3 * 2 * PROBES
"""Rows by which the search for a revision, which looks at `PROBES` of ever shorter stretches, may differ."""


def filled(kind: str, folder: Path, entries: int, *, given: bool) -> tuple[Memory, Session, int]:
    """Return a session of so many entries and the revision of its middle, of which a context was made if `given`."""
    addresses: dict[str, Any] = {"memory": "memory://", "file": f"file://{folder}/{entries}"}
    where = addresses.get(kind, folder / f"{entries}.db")
    memory = Memory.open(where, **({} if kind == "memory" else {"synchronous": "NORMAL"}))
    session = memory.session("s", max_tokens=4_000 if given else 1_000, counter=quarters)
    session.add([{"role": "system", "content": "be kind"}])
    middle = 0
    for number in range(0, entries, BATCH):
        session.add([{"role": ("user", "assistant")[i % 2], "content": f"{number + i} of them"} for i in range(BATCH)])
        if number == entries // 2:
            middle = session.context().revision if given else session.stats().revision
    return memory, session, middle


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
def test_a_past_context_reads_the_same_rows_in_a_log_of_any_length(kind: str, tmp_path: Path) -> None:
    """A stored cut, another budget and a dry run read as many entry rows of 20,000 entries as of 2,000."""
    rows: dict[str, list[int]] = {}
    for entries in LENGTHS:
        memory, session, middle = filled(kind, tmp_path, entries, given=True)
        with memory:
            session.pin(3)
            session.erase([entries - 5])
            calls: dict[str, Any] = {"given": {}, "another": {"max_tokens": 1_000}, "dry": {"dry_run": True}}
            for name, call in calls.items():
                with watched(memory) as reads:
                    assert session.context(at=middle, **call).messages
                rows.setdefault(name, []).append(reads.rows)

    for name, (short, long) in rows.items():
        assert long <= short + LEVELS < LENGTHS[0], f"{name}: {short} and {long} rows"


def test_an_unknown_past_context_is_refused_without_reading_the_log(tmp_path: Path) -> None:
    """A revision whose context was never made, and would not fit, is refused as soon as that is certain."""
    rows = []
    for entries in LENGTHS:
        memory, session, middle = filled("memory", tmp_path, entries, given=False)
        with memory, watched(memory) as reads:
            with pytest.raises(PastUnknown, match="does not fit into this budget"):
                session.context(at=middle)
            rows.append(reads.rows)

    assert rows[1] <= rows[0] + LEVELS < LENGTHS[0]

"""Entries destroyed while a summarizer runs are in no summary: the compaction is planned again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest import Memory

MARKER = "QX-4711-PRIVATE"
MARKS = {"redact_patterns": [r"QX-\d{4}-[A-Z]+"]}


def redact(memory: Memory) -> None:
    memory.scan(MARKS, apply=True)


def forget(memory: Memory) -> None:
    memory.forget(matches=MARKER)


def replace(memory: Memory) -> None:
    with Memory.open("memory://", privacy=MARKS) as clean:
        clean.import_session(memory.session("s").export())
        memory.import_session(clean.session("s").export(), on_conflict="replace")


@pytest.mark.parametrize("go", [redact, forget, replace])
@pytest.mark.parametrize("where", ["sqlite:///{}/log.db", "file://{}/logs"], ids=["sqlite", "file"])
def test_entries_destroyed_during_a_compaction_are_in_no_summary(
    where: str, go: Callable[[Memory], None], tmp_path: Path
) -> None:
    """A summary of entries that were destroyed meanwhile is dropped, and the summarizer is asked again."""
    url = where.format(tmp_path)
    told: list[bool] = []

    def summarize(prompt: str) -> str:
        told.append(MARKER in prompt)
        if len(told) == 1:
            go(other)
        return f"They said {MARKER}." if MARKER in prompt else "They said something."

    with Memory.open(url) as memory, Memory.open(url) as other:
        session = memory.session("s", summarizer=summarize)
        for i in range(5):
            session.add_user_message(f"{MARKER} {i} " + "and so on " * 60)
            session.add_assistant_message("yes " * 60)

        done = session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0})

        assert told[0]
        assert not told[-1]
        assert done.summary is not None
        assert MARKER not in repr(session.export()) + done.summary.text
        assert session.verify().ok
        assert session.context().messages
    left = [path for path in tmp_path.rglob("*") if path.is_file() and MARKER.encode() in path.read_bytes()]
    assert left == []

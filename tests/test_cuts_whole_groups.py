"""A cut evicts whole groups, even if a condition shows only a part of one."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest import Memory, Session
from palimpsest.types import Oversize


def words(text: str) -> int:
    """Count one token a word."""
    return len(text.split())


def turn(session: Session, size: int) -> None:
    """Add an answer with a text and a tool call."""
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "find", "arguments": "{}"}} for i in range(2)]
    results: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": f"c{i}", "content": "found"} for i in range(2)]
    session.add([{"role": "assistant", "content": "w " * size, "tool_calls": calls}, *results])


def states(session: Session) -> dict[int, set[bool]]:
    """Return, by group, whether its entries are active."""
    active = {entry.seq for entry in session.active_entries()}
    found: dict[int, set[bool]] = {}
    for entry in session.entries():
        found.setdefault(entry.group, set()).add(entry.seq in active)
    return found


@pytest.mark.parametrize("oversize", ["clamp", "drop"])
@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("then", [0, 1])
def test_no_group_leaves_in_part(oversize: Oversize, turns: int, then: int) -> None:
    """Entries that a condition hides are evicted with their group, and a summary covers the whole group."""
    with Memory.open("memory://") as memory:
        hides = ["message.role != 'tool'"]
        session = memory.session("s", counter=words, max_tokens=60, conditions=hides, oversize=oversize, mask=False)
        session.add_user_message("q " * 50)
        for _ in range(turns):
            turn(session, 40)
        for _ in range(then):
            session.add_assistant_message("a " * 10)

        session.context()

        assert all(len(found) == 1 for found in states(session).values())
        session.compact({"strategy": "summarizer", "interaction_keep": 0})
        assert session.verify().problems == ()
        assert all(len(found) == 1 for found in states(session).values())

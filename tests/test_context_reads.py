"""What a context reads of its log: rows and calls of the backend, which no machine makes more or fewer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from palimpsest import Memory, Session
from palimpsest.stores.backend import Ask, Seen
from writer import quarters

BUDGETS = [8_000, 64_000]
CHUNK = 256
"""Entries that are read at once."""


class Reads:
    """What was read while this watched."""

    def __init__(self) -> None:
        self.looks = self.rows = 0


@contextmanager
def watched(memory: Memory) -> Iterator[Reads]:
    """Count the looks at the memory's backend, and the rows of entries in their answers."""
    backend: Any = memory.store.backend
    reads, look = Reads(), backend.look

    async def looking(asks: list[Ask]) -> list[Seen]:
        seen: list[Seen] = await look(asks)
        reads.looks += 1
        for ask, one in zip(asks, seen, strict=True):
            named = [rows for wanted, rows in zip(ask.rows, one.rows, strict=True) if wanted.table == "entry"]
            reads.rows += sum(map(len, named))
        return seen

    backend.look = looking
    try:
        yield reads
    finally:
        del backend.look


def turn(number: int, size: int = 400) -> list[dict[str, Any]]:
    """A question, a call, a result that is worth a note when it is old, and an answer."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"what of {number}? " + "so " * (size // 8)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"found {number} " + "and " * (3 * size)},
        {"role": "assistant", "content": f"{number} it is. " + "so " * (size // 8)},
    ]


def grown(memory: Memory, budget: int) -> Session:
    """A session that has been cut, and whose window is about to be full again."""
    session = memory.session("s", max_tokens=budget, counter=quarters)
    number, step, tokens = 0, budget // 4_000, 0
    while session.context().epoch == 0 or tokens < 0.8 * budget:
        session.add([message for n in range(number, number + step) for message in turn(n)])
        number += step
        tokens = session.context().tokens
    return session


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_window_is_read_once(memory: Memory, budget: int) -> None:
    """However large it is, and though old results in it would be too much if they were whole."""
    session = grown(memory, budget)

    with watched(memory) as reads:
        report = session.context().report

    there = report.last_seq - report.first_seq + 1
    assert report.masked
    assert there > budget / 200
    assert reads.rows == there
    assert reads.looks == max(-(-there // CHUNK), 1)


def test_a_new_cut_reads_nothing_twice(memory: Memory) -> None:
    """Of a window that holds no more, what is not shown any longer is read once, too."""
    session = grown(memory, 64_000)
    before = session.context().report
    session.add(turn(10_000, 20_000))

    with watched(memory) as reads:
        report = session.context().report

    assert report.new_cut
    counted = 4  # of these entries it is seen that they are there, as their counts are stored
    assert reads.rows <= report.last_seq - before.first_seq + 1 + counted

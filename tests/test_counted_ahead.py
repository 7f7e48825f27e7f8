"""On an event loop, added entries are counted while the store is awaited, if a context is likely to follow."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory
from palimpsest.sessions import remembered
from palimpsest.tokens.counter import Encoding


class Counting:
    """Records what is counted, and whether on the event loop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.here: list[str] = []
        self.elsewhere: list[str] = []
        own, loop = Encoding.count, threading.get_ident()

        def count(encoding: Encoding, text: str) -> int:
            (self.here if threading.get_ident() == loop else self.elsewhere).append(text)
            return own(encoding, text)

        patch.setattr(Encoding, "count", count)

    def clear(self) -> None:
        self.here.clear()
        self.elsewhere.clear()


def turn_of(number: int, times: int = 40) -> list[dict[str, Any]]:
    """Return a question, a call with its result, and an answer."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "weigh", "arguments": '{"lot": 7}'}}
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number}: " + "a pound of barley, " * times},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def test_added_entries_are_counted_while_the_store_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session that has given a context, additions are counted while the store is awaited.

    The counts equal those of a memory without a cache, through cuts as well.
    """
    counting = Counting(monkeypatch)

    async def run() -> None:
        where = tmp_path / "log.db"
        async with AsyncMemory.open(where) as memory, AsyncMemory.open(where, view_bytes=0) as plain:
            session, other = memory.session("s", max_tokens=2_000), plain.session("s", max_tokens=2_000)
            await session.add(turn_of(0))
            await session.count()  # from now on the encoding is loaded
            counting.clear()
            await session.add(turn_of(1))
            assert (counting.here, counting.elsewhere) == ([], [])  # without a context, nothing is counted
            await session.context()
            epochs = set[int | None]()
            for number in range(2, 30):
                counting.clear()
                await session.add(turn_of(number))
                assert len(counting.here) >= 4, number
                assert counting.elsewhere == [], number
                shown = await session.context()
                assert counting.elsewhere == [], number
                again = await other.context()
                assert (shown.messages, shown.counted) == (again.messages, again.counted)
                epochs.add(shown.epoch)
            assert len(epochs) > 2

    asyncio.run(run())


def test_only_a_little_is_counted_between_two_loop_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two turns of the loop only a little is counted; contexts count the rest in threads."""
    counting = Counting(monkeypatch)

    async def run() -> None:
        async with AsyncMemory.open(tmp_path / "log.db") as memory:
            sessions = [memory.session(f"s{number}", max_tokens=8_000) for number in range(60)]
            await asyncio.gather(*[session.add(turn_of(0)) for session in sessions])
            await sessions[0].count()  # from now on the encoding is loaded
            await asyncio.gather(*[session.context() for session in sessions])
            counting.clear()

            await asyncio.gather(*[session.add(turn_of(1)) for session in sessions])
            at_once = sum(map(len, counting.here))
            counting.clear()
            await sessions[0].add(turn_of(2, times=2_000))
            much = len(counting.here)
            await sessions[0].add(turn_of(3))

            assert 0 < at_once <= remembered.QUICK
            assert (much, len(counting.here) >= 4) == (0, True)

    asyncio.run(run())

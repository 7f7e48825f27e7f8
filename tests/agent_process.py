"""A process in which an agent runs. Its model takes a minute for each answer, by a clock that all processes share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from palimpsest import Memory
from sealed import FIRST
from writer import say

CALLS = 3
"""The number of tool calls that an agent makes, one after the other, before it answers."""


class SharedClock:
    """A clock whose time in microseconds is in a file that all processes share."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        if not os.pread(self._file, 8, 0):
            self.set(1_700_000_000_000_000)

    def __call__(self) -> int:
        """Return the time."""
        return int.from_bytes(os.pread(self._file, 8, 0))

    def set(self, now: int) -> None:
        """Set the time for every process."""
        os.pwrite(self._file, now.to_bytes(8), 0)


def minute(memory: Memory, clock: SharedClock) -> None:
    """Advance the clock by a minute, the model's answering time, and renew leases as often as the memory would."""
    for _ in range(6):
        clock.set(clock() + 10_000_000)
        memory._core._scope.renewals.renew()


def run(memory: Memory, name: str, clock: SharedClock, begun: Callable[[], object] = bool) -> None:
    """Run an agent once; call `begun` when its turn has begun."""
    session = memory.session("s", max_tokens=8_000)
    with session.turn():
        session.add_user_message(f"{name} asks")
        begun()
        for number in range(CALLS):
            minute(memory, clock)
            session.context()
            session.add_tool_call("look", {"at": number}, call_id=f"{name}-{number}")
            session.add_tool_result("look", "found", call_id=f"{name}-{number}")
        minute(memory, clock)
        session.add_assistant_message(f"{name} is done")


def main(where: str, sealed: str, path: str, name: str) -> None:
    """Open the memory and run as soon as no other agent holds the turn."""
    clock = SharedClock(path)
    with Memory.open(where, clock=clock, encryption=FIRST if int(sealed) else None) as memory:
        say("waits")
        run(memory, name, clock)
        say("done")


if __name__ == "__main__":
    main(*sys.argv[2:])

"""A process that writes, or works, for tests that kill it: `python worker_process.py MODE STORE [ARGUMENT ...]`.

Each call of the summarizer is a line of a file: the session that it was about, and whose call it was.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from compactor_process import later
from palimpsest.resources import AsyncResources, Resources, Worker
from palimpsest.strategies import CallableSummarizer
from writer import meet, quarters, say

STRATEGY = {
    "strategy": "summarizer",
    "interaction_keep": 1,
    "cod_max_loops": 0,
    "summary_floor": 10,
    "triggers": {"interaction_threshold_qty": 4},
}
TURNS = 5
"""Interactions of a session: more than it may keep."""


def declared(where: str, lease: str = "2s", **more: Any) -> dict[str, Any]:
    """A memory whose sessions are compacted by workers alone."""
    return {
        "resource": "memory",
        "id": "chat",
        "store": where,
        "auto_compact": "off",
        "long_term_memory_strategy": [STRATEGY],
        "locking": {"flush_ttl": lease},
        **more,
    }


def said(key: str, number: int) -> list[dict[str, Any]]:
    """One interaction, which names its session."""
    return [
        {"role": "user", "content": f"<{key}> question {number}, " + "with many words, " * 8},
        {"role": "assistant", "content": f"answer {number}, " + "with many words, " * 8},
    ]


def write(where: str, first: str, last: str) -> None:
    """Write to each of these sessions, an interaction at a time, in turns."""
    with Resources.load(declared(where)) as resources:
        for number in range(TURNS):
            for i in range(int(first), int(last)):
                session = resources.session({"id": "chat", "key": f"k{i}"}, counter=quarters)
                session.add(said(f"k{i}", number), key=str(number))
        say("written")


class Counted:
    """A summarizer that takes its time, and writes down each call before it answers."""

    def __init__(self, calls: str, seconds: float) -> None:
        self._calls, self._seconds = Path(calls), seconds

    def __call__(self, prompt: str) -> str:
        (key,) = set(re.findall(r"<(k\d+)>", prompt))
        with self._calls.open("ab", buffering=0) as file:
            file.write(f"{key} {os.getpid()} {time.time():.3f}\n".encode())
        time.sleep(self._seconds)  # a model takes its time; nothing waits for it to pass
        return f"they spoke about <{key}>"


def worker_of(resources: AsyncResources, calls: str, seconds: str, lease: str) -> Worker:
    """A worker whose summarizer is counted."""
    summarizer = CallableSummarizer(Counted(calls, float(seconds)), checked=False)
    return resources.worker(lease=lease, summarizer=summarizer, counter=quarters)


def work(where: str, calls: str, seconds: str, lease: str, ahead: str = "0") -> None:
    """Work until killed, from when it is told, with a clock that is so many seconds ahead."""

    async def forever() -> None:
        async with AsyncResources.load(declared(where, lease), clock=later(ahead)) as resources:
            worker = worker_of(resources, calls, seconds, lease)
            meet()
            await worker.run(every=0.05)

    asyncio.run(forever())


MODES = {mode.__name__: mode for mode in (write, work)}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])

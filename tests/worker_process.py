"""A process that writes or runs a worker, for tests that kill it: `python worker_process.py MODE STORE [ARGUMENT ...]`.

Each call of the summarizer is a line in a file: the key of the session, the process id, and the time.
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
"""The number of interactions in a session: enough for a compaction."""


def declared(where: str, lease: str = "2s", **more: Any) -> dict[str, Any]:
    """Return the declaration of a memory whose sessions only workers compact."""
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
    """Return the messages of one interaction, which name their session."""
    return [
        {"role": "user", "content": f"<{key}> question {number}, " + "with many words, " * 8},
        {"role": "assistant", "content": f"answer {number}, " + "with many words, " * 8},
    ]


def write(where: str, first: str, last: str) -> None:
    """Write an interaction to each of the sessions, then the next one to each, and so on."""
    with Resources.load(declared(where)) as resources:
        for number in range(TURNS):
            for i in range(int(first), int(last)):
                session = resources.session({"id": "chat", "key": f"k{i}"}, counter=quarters)
                session.add(said(f"k{i}", number), key=str(number))
        say("written")


class Counted:
    """A slow summarizer, which notes each call in a file before it answers."""

    def __init__(self, calls: str, seconds: float) -> None:
        self._calls, self._seconds = Path(calls), seconds

    def __call__(self, prompt: str) -> str:
        (key,) = set(re.findall(r"<(k\d+)>", prompt))
        with self._calls.open("ab", buffering=0) as file:
            file.write(f"{key} {os.getpid()} {time.time():.3f}\n".encode())
        time.sleep(self._seconds)  # simulates a slow model; no test relies on it to be long enough
        return f"they spoke about <{key}>"


def worker_of(resources: AsyncResources, calls: str, seconds: str, lease: str) -> Worker:
    """Return a worker whose summarizer calls are noted in the file `calls`."""
    summarizer = CallableSummarizer(Counted(calls, float(seconds)), checked=False)
    return resources.worker(lease=lease, summarizer=summarizer, counter=quarters)


def work(where: str, calls: str, seconds: str, lease: str, ahead: str = "0") -> None:
    """Run a worker after a line has come in, until killed, with a clock that is `ahead` seconds ahead."""

    async def forever() -> None:
        async with AsyncResources.load(declared(where, lease), clock=later(ahead)) as resources:
            worker = worker_of(resources, calls, seconds, lease)
            meet()
            await worker.run(every=0.05)

    asyncio.run(forever())


MODES = {mode.__name__: mode for mode in (write, work)}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])

"""A process that closes a memory while something in it hangs: `python closing_process.py WHAT FACE WAY URL`.

WHAT hangs in the background or in another thread or task: a summarizer ("function", "coroutine", or "endpoint", whose
address is in OPENAI_BASE_URL), an event handler ("observer"), a derived index ("derived"), or a "compaction" or a
"write" that waits for a store which another process has locked. FACE is "sync" or "async". WAY is how the memory is
closed: by "close", by "with", or at the "exit" of the process. The process prints "added" when entries are
acknowledged, "ready" when it waits for a line on its input, and "closed" at its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from palimpsest import AsyncMemory, Memory
from palimpsest.strategies import ModelSummarizer
from writer import quarters

PATIENCE = 0.3
"""The runner's patience: seconds that closing waits for background work."""

COMPACTS = {
    "strategy": "summarizer",
    "interaction_keep": 1,
    "cod_max_loops": 0,
    "summary_floor": 5,
    "triggers": {"interaction_threshold_qty": 4},
}


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Hanging:
    """Summarizers, an event handler and a derived index that never return. `begun` is set when one is called."""

    name = "hanging"

    def __init__(self) -> None:
        self.begun = threading.Event()

    def function(self, prompt: str) -> str:
        """A summarizer that blocks its thread."""
        self.begun.set()
        threading.Event().wait()
        return ""

    async def coroutine(self, prompt: str) -> str:
        """A summarizer that awaits a future without a result."""
        self.begun.set()
        await asyncio.get_running_loop().create_future()
        return ""

    def on_line(self, prompt: str) -> str:
        """A summarizer that returns when a line comes in."""
        self.begun.set()
        sys.stdin.readline()
        return "a summary."

    async def observer(self, session: str, facts: dict[str, Any]) -> None:
        """A handler of an event."""
        await self.coroutine(session)

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """The method of a derived index for erased entries."""
        await self.coroutine(session)
        return 0

    async def gone(self, tenant: str, session: str) -> int:
        """The method of a derived index for a deleted session."""
        await self.coroutine(session)
        return 0


def options(what: str, hanging: Hanging) -> dict[str, Any]:
    """Return the options of the session, which compacts in the background unless something else is to hang."""
    summarizers: dict[str, Any] = {
        "function": hanging.function,
        "coroutine": hanging.coroutine,
        "compaction": hanging.on_line,
        "observer": lambda prompt: "a summary.",
    }
    if what in ("derived", "write"):
        return {"counter": quarters}
    if what == "endpoint":
        summarizer: Any = ModelSummarizer("openai:gpt-4o-mini", api_key="none", timeout=3600)
    else:
        summarizer = summarizers[what]
    return {
        "counter": quarters, "long_term": COMPACTS, "auto_compact": "background", "summarizer": summarizer,
    }  # fmt: skip


def talk(number: int) -> list[dict[str, Any]]:
    """Return the messages of one interaction."""
    text = f"{number} and so on, a good while, until it is worth a summary " * 8
    return [{"role": "user", "content": f"question {text}"}, {"role": "assistant", "content": f"answer {text}"}]


def sync(what: str, way: str, url: str) -> None:
    """Run with a synchronous memory; a "derived" index or a "write" hangs in a thread."""
    hanging = Hanging()
    memory = Memory.open(url, synchronous="NORMAL", busy_seconds=3600)
    memory._core.runner.patience = PATIENCE
    if what == "observer":
        memory.on("compressed", hanging.observer)
    elif what == "derived":
        memory.derive(hanging)
    session = memory.session("s", **options(what, hanging))
    for number in range(4):
        session.add(talk(number))
    say("added")
    if what == "derived":
        threading.Thread(target=session.erase, args=([1],), daemon=True).start()
    elif what == "write":
        say("ready")
        sys.stdin.readline()
        threading.Thread(target=session.add, args=(talk(9),), daemon=True).start()
    wait_for(what, hanging)
    if way == "with":
        with memory:
            pass
    elif way == "close":
        memory.close()
    say("closed")
    if way == "exit":
        keep.append(memory)


keep: list[Any] = []
"""Memories that are not closed, kept alive until the process exits."""


async def asynchronous(what: str, way: str, url: str) -> None:
    """Run with an asynchronous memory; a "derived" index or a "write" hangs in a task."""
    hanging = Hanging()
    memory = AsyncMemory.open(url, synchronous="NORMAL", busy_seconds=3600)
    memory.runner.patience = PATIENCE
    await memory.connect()
    if what == "observer":
        memory.on("compressed", hanging.observer)
    elif what == "derived":
        await memory.derive(hanging)
    session = memory.session("s", **options(what, hanging))
    for number in range(4):
        await session.add(talk(number))
    say("added")
    beside: asyncio.Task[Any] | None = None
    if what == "derived":
        beside = asyncio.create_task(session.erase([1]))
    elif what == "write":
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        beside = asyncio.create_task(session.add(talk(9)))
    await asyncio.to_thread(wait_for, what, hanging)
    if way == "with":
        async with memory:
            pass
    elif way == "close":
        await memory.close()
    say("closed")
    keep.append(memory)
    if beside is not None:
        beside.cancel()


def wait_for(what: str, hanging: Hanging) -> None:
    """Wait until the call hangs; for a "compaction" or an "endpoint" print "ready"."""
    if what == "compaction":
        hanging.begun.wait()
        say("ready")
    elif what == "endpoint":
        say("ready")
        sys.stdin.readline()
    elif what != "write":
        hanging.begun.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    os.environ.setdefault("OPENAI_API_KEY", "none")
    what, face, way, url = sys.argv[1:]
    if face == "sync":
        sync(what, way, url)
    else:
        asyncio.run(asynchronous(what, way, url))

"""A process that closes a memory while something in it hangs: `python closer.py WHAT FACE WAY URL`.

WHAT hangs in the background or beside: a summarizer ("function", "coroutine", "endpoint", whose address is in
OPENAI_BASE_URL), an "observer", what is "derived", a "compaction" or a "write" that waits for a store which somebody
else has locked. FACE is "sync" or "async"; WAY is "close", "with" or "exit". It says "added" when an entry is
acknowledged, "ready" before it goes on at a line of its input, and "closed" at its end.
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
COMPACTS = {
    "strategy": "summarizer",
    "interaction_keep": 1,
    "cod_max_loops": 0,
    "summary_floor": 5,
    "triggers": {"interaction_threshold_qty": 4},
}


def say(line: str) -> None:
    """Write a line and let it out at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Hanging:
    """What never returns. `begun` is set when it is called."""

    name = "hanging"

    def __init__(self) -> None:
        self.begun = threading.Event()

    def function(self, prompt: str) -> str:
        """A summarizer that blocks its thread."""
        self.begun.set()
        threading.Event().wait()
        return ""

    async def coroutine(self, prompt: str) -> str:
        """One that waits for its event loop."""
        self.begun.set()
        await asyncio.get_running_loop().create_future()
        return ""

    def told(self, prompt: str) -> str:
        """One that returns when it is told to."""
        self.begun.set()
        sys.stdin.readline()
        return "a summary."

    async def observer(self, session: str, facts: dict[str, Any]) -> None:
        """A handler of an event."""
        await self.coroutine(session)

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """What is derived from entries."""
        await self.coroutine(session)
        return 0

    async def gone(self, tenant: str, session: str) -> int:
        """The same, of a whole session."""
        await self.coroutine(session)
        return 0


def options(what: str, hanging: Hanging) -> dict[str, Any]:
    """The options of the session, which compacts in the background."""
    summarizers: dict[str, Any] = {
        "function": hanging.function,
        "coroutine": hanging.coroutine,
        "compaction": hanging.told,
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
    """One interaction."""
    text = f"{number} and so on, a good while, until it is worth a summary " * 8
    return [{"role": "user", "content": f"question {text}"}, {"role": "assistant", "content": f"answer {text}"}]


def sync(what: str, way: str, url: str) -> None:
    """With a synchronous memory; what waits beside is in a thread."""
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
"""What is not closed is there until the end."""


async def asynchronous(what: str, way: str, url: str) -> None:
    """With an asynchronous memory; what waits beside is a task."""
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
    """Return when that hangs which is to."""
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

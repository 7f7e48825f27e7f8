"""Measures how long verbs of an asynchronous memory block the event loop.

`python loop_blocking.py STORE` measures the first call of each verb in a process and prints the seconds as JSON. It
imports nothing in advance that a verb would have to import, except the driver of an address that begins with
`suspending:`.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT = 0.01
"""The longest allowed slice (time between two waits of the loop), in seconds of processor time."""

TRIES = 3
"""How often to measure before a verb counts as blocking."""


class Watched(selectors.DefaultSelector):
    """A selector that records the processor time between its waits."""

    def __init__(self) -> None:
        super().__init__()
        self.longest, self._since = 0.0, time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        self.longest = max(self.longest, time.thread_time() - self._since)
        try:
            return super().select(timeout)
        finally:
            self._since = time.thread_time()


class Slices:
    """The longest slice of each verb: the least of all tries. Verbs run on the loop of `selector`."""

    def __init__(self) -> None:
        self.selector = Watched()
        self.longest: dict[str, float] = {}

    async def note(self, name: str, verb: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(0)
        self.selector.longest = 0.0
        result = await verb()  # kept until the end, so that freeing it is not measured
        await asyncio.sleep(0)
        self.add(name, self.selector.longest)
        del result

    async def call(self, name: str, verb: Callable[[], T]) -> T:
        """Measure a plain call, which is not awaited, and return its result."""
        results: list[T] = []

        async def call_it() -> None:
            results.append(verb())

        await self.note(name, call_it)
        return results[0]

    def add(self, name: str, took: float) -> None:
        """Record what a verb took in one more try."""
        self.longest[name] = min(took, self.longest.get(name, 1.0))

    def once(self, main: Callable[[Slices], Awaitable[None]]) -> None:
        """Run verbs on a new loop."""
        self.selector = Watched()
        loop = asyncio.SelectorEventLoop(self.selector)
        try:
            loop.run_until_complete(main(self))
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def run(self, main: Callable[[Slices], Awaitable[None]]) -> list[str]:
        """Measure up to `TRIES` times; return the verbs that blocked the loop too long each time."""
        for _ in range(TRIES):
            self.once(main)
            if not self.held():
                break
        return self.held()

    def held(self) -> list[str]:
        """Return the verbs that blocked the loop longer than `LIMIT`, with their times."""
        return [f"{name}: {1e3 * took:.1f} ms" for name, took in self.longest.items() if took > LIMIT]


async def first_verbs(slices: Slices, path: str) -> None:
    """Run each verb for the first time in the process, so that it imports the modules it needs."""
    from palimpsest import AsyncMemory

    note = slices.note
    async with AsyncMemory.open(path) as memory:
        session = memory.session("s", max_tokens=8_000, tail_share=0.2, facts="user/ann")
        messages = [{"role": ("user", "assistant")[i % 2], "content": f"lot {i} is damp"} for i in range(6)]
        await note("add", lambda: session.add(messages))
        await note("context", session.context)
        await note("context(at=)", lambda: session.context(at=1))
        await note("context(recall=)", lambda: session.context(recall="lot 2"))
        await note("messages", session.messages)
        await note("describe", lambda: session.describe(title="lots"))
        await note("record_usage", lambda: session.record_usage(input_tokens=100))
        await note("pin", lambda: session.pin(1))
        await note("hide", lambda: session.hide(2))
        await note("rewind", lambda: session.rewind(4))
        await note("fork", lambda: session.fork("t"))
        await note("replace", lambda: session.replace(messages[:2]))
        await note("recall", lambda: memory.recall("lot 3"))
        await note("passages", lambda: session.passages([1]))
        await note("index_status", memory.index_status)
        base = await slices.call("knowledge", lambda: memory.knowledge("handbook"))
        await note("knowledge.add", lambda: base.add("lots", "Lots are dried slowly."))
        await note("knowledge.search", lambda: base.search("how are lots dried?"))
        facts = memory.working("user/ann")
        await note("working.set", lambda: facts.set("city", "Oslo"))
        await note("context with facts", session.context)
        await note("stats", session.stats)
        await note("summaries", session.summaries)
        await note("compact", session.compact)
        await note("verify", session.verify)
        await note("export", session.export)
        await note("scan", lambda: memory.scan("default", session="s"))
        await note("erase", lambda: session.erase([1]))
        await note("forget", lambda: memory.forget(matches="lot 4"))
        await note("sweep", memory.sweep)
        await note("delete_session", lambda: memory.delete_session("t"))


if __name__ == "__main__":
    if sys.argv[1].startswith("suspending:"):
        import suspending  # noqa: F401 (importing it registers the scheme)
    measured = Slices()
    measured.once(lambda slices: first_verbs(slices, sys.argv[1]))
    sys.stdout.write(json.dumps(measured.longest))

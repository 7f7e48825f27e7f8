"""Measure how long a method of an asynchronous memory holds the event loop: processor time between two waits.

    python bench/loop.py [--entries 5000] [--megabytes 10] [--runs 3] [--json] [--gate]

Measured is the processor time of the loop's own thread (`time.thread_time`) from one wait of the selector to the next,
so that neither other threads nor other processes count. The figure of a method is its longest such slice, and the least
of several runs: the machine can only add to a slice. What methods load counts, too: each run is a process of its own.
Python's garbage collector visits what a method makes, but not what the program held before it (`gc.freeze`): those are
hundreds of thousands of objects of this benchmark.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import selectors
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from measure import Figure, arguments, report, scratch

if TYPE_CHECKING:
    from palimpsest import AsyncMemory

T = TypeVar("T")
Note = Callable[[str, Callable[[], Awaitable[object]]], Awaitable[None]]

LIMIT = 10.0
"""The longest slice, in milliseconds."""

BUDGET = 128_000
KINDS = "first", "plain", "default"


class Watched(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """A selector that notes the longest processor time between its waits, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0.0
        self._since = time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        """Wait like the base class."""
        self.longest = max(self.longest, time.thread_time() - self._since)
        try:
            return super().select(timeout)
        finally:
            self._since = time.thread_time()


def watched(main: Callable[[Watched], Awaitable[T]]) -> T:
    """Run a coroutine on a loop with such a selector."""
    selector = Watched()
    loop = asyncio.SelectorEventLoop(selector)
    try:
        return loop.run_until_complete(main(selector))  # type: ignore[arg-type]
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def slice_of(selector: Watched, verb: Callable[[], Awaitable[object]]) -> float:
    """Return the milliseconds of the longest slice while a method runs."""
    await asyncio.sleep(0.01)
    gc.collect()
    gc.freeze()
    await asyncio.sleep(0)  # the time of the collection is in the slice that ends here
    selector.longest = 0.0
    result = await verb()  # keep the result: freeing it is at its caller's expense
    await asyncio.sleep(0.01)
    longest = selector.longest * 1e3
    del result
    return longest


def rows(megabytes: float) -> str:
    """Return JSON of so many megabytes as a tool returns it: rows of numbers and words."""
    rng = random.Random(7)
    size, table = 0, []
    while size < megabytes * 1e6:
        row = {"lot": rng.randrange(10**7), "rate": rng.random(), "place": rng.choice("abcdef") * 9, "on": "2026-05-07"}
        table.append(row)
        size += 75
    return json.dumps({"rows": table})


async def verbs(
    selector: Watched, folder: Path, entries: int, megabytes: float, policy: str | None
) -> dict[str, float]:
    """Return the longest slices of the methods of a session of so many entries on SQLite, with a policy or without."""
    from workload import history

    from palimpsest import AsyncMemory
    from palimpsest.strategies import Summarize

    turns, found, large = history(entries), {}, rows(megabytes)

    async def note(name: str, verb: Callable[[], Awaitable[object]]) -> None:
        found[name] = await slice_of(selector, verb)

    # a policy changes only what is added and what leaves
    async with AsyncMemory.open(folder / "loop.db", privacy=policy) as memory:
        session = memory.session("s", max_tokens=BUDGET)
        for start in range(0, len(turns), 300):
            batch = [message for turn in turns[start : start + 300] for message in turn]
            await note(f"add {len(turns[:300])} turns", lambda batch=batch: session.add(batch))  # type: ignore[misc]
        await session.add_tool_call("rows", {}, call_id="c1")
        await note(f"add {megabytes:g} MB of JSON", lambda: session.add_tool_result("rows", large, call_id="c1"))
        parsed = json.loads(large)
        await session.add_tool_call("rows", {}, call_id="c2")
        await note(f"add {megabytes:g} MB as objects", lambda: session.add_tool_result("rows", parsed, call_id="c2"))
        await note("count", session.count)
        await note(f"context of {BUDGET:,} tokens", session.context)
        await note("context again", session.context)
        await note("stats", session.stats)
        await note("entries()", session.entries)
        await note("interactions()", session.interactions)
        await note("active_entries()", session.active_entries)
        await note("history", session.history)
        await note("verify", session.verify)
        await note("context(at=)", lambda: session.context(at=len(turns) // 300, dry_run=True))
        exported: dict[str, Any] = {}

        async def export() -> None:
            exported.update(await session.export())

        await note("export", export)
        await note("export_to", lambda: session.export_to(folder / "out.json"))
        await note("import_session", lambda: memory.import_session(exported, session_id="t"))
        await note("import_file", lambda: memory.import_file(folder / "out.json", session_id="u"))
        await note(f"compact {entries:,} entries", lambda: session.compact(Summarize(interaction_keep=1)))
        await note("fork", lambda: session.fork("v"))
        await note("scan", lambda: memory.scan("default", session="v"))
        await searches(memory, note, "\n\n".join(message["content"] for turn in turns for message in turn))
        ids = [entry.id for entry in await session.entries(limit=200)]
        await note("erase 200", lambda: session.erase(ids))
        await note("sweep", memory.sweep)
        await note("forget", lambda: memory.forget(matches="lot 47"))
        await note("delete_session", lambda: memory.delete_session("t"))
    return found


async def searches(memory: AsyncMemory, note: Note, document: str) -> None:
    """Note the slices of searches of the session and of a document. The first search makes the index."""
    from palimpsest.integrations.tools import AsyncMemoryTools

    session, base = memory.session("s", max_tokens=BUDGET, tail_share=0.1), memory.knowledge("handbook")
    query, everything = "Which lot of barley is damp, and who wants it weighed?", {"limit": 200, "max_tokens": None}
    await note("recall, the first", lambda: session.recall(query, **everything))
    await note("recall of 200 hits", lambda: session.recall(query, **everything))
    await note("recall in 20,000 tokens", lambda: memory.recall(query, limit=200, max_tokens=20_000))
    await note("passages of 1,000 entries", lambda: session.passages(range(1, 1_000), max_tokens=20_000))
    await note("context(recall=)", lambda: session.context(recall=query))
    await note("index_status", memory.index_status)
    await note("rebuild_index", memory.rebuild_index)
    tools = AsyncMemoryTools(memory, session="s", max_tokens=20_000)
    await note("MemoryTools.call", lambda: tools.call("search_memory", {"query": query}))
    await note("knowledge.add", lambda: base.add("all of it", document))
    await note("knowledge.search", lambda: base.search(query, top_k=50))
    await note("knowledge.remove", lambda: base.remove("all of it"))


async def first(selector: Watched, folder: Path) -> dict[str, float]:
    """Return the longest slices of the first calls of a process, with the tokenizer of a model, with a policy and
    without."""
    from palimpsest import AsyncMemory

    spans: dict[str, float] = {}
    for policy in (None, "default"):
        async with AsyncMemory.open(folder / f"first-{policy}.db", privacy=policy) as memory:
            session = memory.session("s", model="gpt-4o", max_tokens=8_000)
            hello = partial(session.add_user_message, "What is new?")
            for name, verb in (("add", hello), ("context", session.context), ("count", session.count)):
                spans[f"first {name}, {policy or 'no'} policy"] = await slice_of(selector, verb)
    return spans


def slices(kind: str, entries: int, megabytes: float) -> dict[str, float]:
    """Return the longest slices in this process. `kind` is "first", "plain", or the name of a policy."""
    with scratch() as folder:
        if kind == "first":
            return watched(lambda selector: first(selector, folder))
        policy = None if kind == "plain" else kind
        spans = watched(lambda selector: verbs(selector, folder, entries, megabytes, policy))
        return {f"{name}, {policy} policy" if policy else name: value for name, value in spans.items()}


def apart(kind: str, entries: int, megabytes: float) -> dict[str, float]:
    """Return the same, measured in a process of its own."""
    sizes = f"--entries={entries}", f"--megabytes={megabytes}"
    command = [sys.executable, "-W", "ignore", __file__, f"--kind={kind}", *sizes]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    spans: dict[str, float] = json.loads(done.stdout)
    return spans


def main() -> int:
    """Measure in processes of their own, and print."""
    given = arguments(__doc__ or "", entries=5_000, megabytes=10.0, kind="")
    if given.kind:
        print(json.dumps(slices(given.kind, given.entries, given.megabytes)))
        return 0
    least: dict[str, float] = {}
    for kind in KINDS:
        apart(kind, entries=500, megabytes=0.1)  # makes the byte code
    for _ in range(given.runs):
        for kind in KINDS:
            for name, value in apart(kind, given.entries, given.megabytes).items():
                least[name] = min(value, least.get(name, value))
    figures = [Figure(name, value, LIMIT, "ms") for name, value in least.items()]
    return report("Event loop", figures, given, "Longest CPU slice of the loop's thread, in milliseconds.")


if __name__ == "__main__":
    sys.exit(main())

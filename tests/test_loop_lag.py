"""No verb of an asynchronous memory holds the event loop: what takes long is done in threads, or between turns of it.

What is compared is no time that passes: it is the processor time of the loop's own thread between two of its turns, of
which the machine's other work is no part, and the least of a few tries.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory
from palimpsest.strategies import Summarize

LIMIT = 0.01
"""Seconds of processor time."""

TRIES = 3


class Watched(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """A selector that notes the processor time between its waits."""

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
    """The longest slice of each verb, the least of all tries; verbs run on the loop of `selector`."""

    def __init__(self) -> None:
        self.selector = Watched()
        self.longest: dict[str, float] = {}

    async def note(self, name: str, verb: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(0)
        self.selector.longest = 0.0
        await verb()
        await asyncio.sleep(0)
        self.longest[name] = min(self.selector.longest, self.longest.get(name, 1.0))

    def run(self, main: Callable[[Slices], Awaitable[None]]) -> list[str]:
        """Run verbs until none holds the loop, and return those that always have."""
        for _ in range(TRIES):
            self.selector = Watched()
            loop = asyncio.SelectorEventLoop(self.selector)
            try:
                loop.run_until_complete(main(self))  # type: ignore[arg-type]
            finally:
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()
            if not self.held():
                break
        return self.held()

    def held(self) -> list[str]:
        return [f"{name}: {1e3 * took:.1f} ms" for name, took in self.longest.items() if took > LIMIT]


def talk(turns: int) -> list[dict[str, Any]]:
    rng = random.Random(3)
    words = [
        "Lot",
        "of",
        "barley",
        "from",
        "the",
        "north",
        "vault",
        "came",
        "back",
        "damp",
        "and",
        "Oduya",
        "wants",
        "it",
        "weighed",
        "again",
        "on",
        "Thursday",
    ]
    said = [" ".join(rng.choices(words, k=120)) + f". Lot {rng.randrange(9999)}." for _ in range(2 * turns)]
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


def rows(number: int) -> list[dict[str, Any]]:
    rng = random.Random(7)
    return [
        {"lot": rng.randrange(10**7), "rate": rng.random(), "on": "2026-05-07", "by": "ab" * 9} for _ in range(number)
    ]


async def verbs(slices: Slices, folder: Path, turns: int, size: int, **options: Any) -> None:
    """Every verb that could take long, in a session of so many turns, with results of so many rows."""
    note, given = slices.note, rows(size)
    text = json.dumps(given)
    async with AsyncMemory.open(folder / f"{time.monotonic_ns()}.db", **options) as memory:
        session = memory.session("s", max_tokens=128_000)
        await note("add", lambda: session.add(talk(turns)))
        await session.add_tool_call("rows", {}, call_id="c1")
        await note("add JSON", lambda: session.add_tool_result("rows", text, call_id="c1"))
        await note("add objects", lambda: session.add_tool_call("rows", {"rows": given}, call_id="c2"))
        call = {"id": "c3", "type": "function", "function": {"name": "rows", "arguments": text}}
        await note("add messages", lambda: session.add({"role": "assistant", "content": None, "tool_calls": [call]}))
        await note("count", session.count)
        await note("context", session.context)
        await note("stats", session.stats)
        await note("entries", session.entries)
        await note("interactions", session.interactions)
        await note("active_entries", session.active_entries)
        await note("history", session.history)
        await note("verify", session.verify)
        exported: dict[str, Any] = {}

        async def export() -> None:
            exported.update(await session.export())

        await note("export", export)
        await note("export_to", lambda: session.export_to(folder / "out.json"))
        await note("import_session", lambda: memory.import_session(exported, session_id="t"))
        await note("import_file", lambda: memory.import_file(folder / "out.json", session_id="u"))
        await note("compact", lambda: session.compact(Summarize(interaction_keep=1)))
        await note("scan", lambda: memory.scan("default", session="t"))
        ids = [entry.id for entry in await session.entries(limit=20)]
        await note("erase", lambda: session.erase(ids))
        await note("forget", lambda: memory.forget(matches="weighed again on Thursday"))
        await note("sweep", memory.sweep)


@pytest.mark.parametrize("options", [{}, {"privacy": "default"}], ids=["plain", "policy"])
def test_no_verb_holds_the_loop(tmp_path: Path, options: dict[str, Any]) -> None:
    """Between two turns of the loop no verb computes for more than ten milliseconds, however much it has to do."""
    held = Slices().run(lambda slices: verbs(slices, tmp_path, 100, 1_500, **options))

    assert held == []


def test_a_tokenizer_is_loaded_beside_the_loop(tmp_path: Path) -> None:
    """The first count of a process reads a vocabulary of some 200 ms, and the loop does other things meanwhile."""

    async def first(slices: Slices) -> None:
        from palimpsest.tokens import counter

        counter._shared.clear()
        async with AsyncMemory.open(tmp_path / f"{time.monotonic_ns()}.db") as memory:
            session = memory.session("s", model="gpt-4o", max_tokens=8_000)
            await session.add(talk(3))
            await slices.note("count", session.count)
            counter._shared.clear()
            other = memory.session("t", model="gpt-4o", max_tokens=8_000, long_term="ladder")
            await slices.note("add, watched", lambda: other.add(talk(3)))
            await slices.note("context", other.context)

    assert Slices().run(first) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"privacy": "default"}], ids=["plain", "policy"])
def test_no_verb_holds_the_loop_at_length(tmp_path: Path, options: dict[str, Any]) -> None:
    """The same with 5,000 entries and results of 10 MB."""
    held = Slices().run(lambda slices: verbs(slices, tmp_path, 2_500, 120_000, **options))

    assert held == []


@pytest.mark.wide
def test_vectors_are_compared_beside_the_loop() -> None:
    """A hundred thousand vectors of 256 numbers: neither reading them nor comparing them holds the loop."""
    np = pytest.importorskip("numpy", reason="the extra vectors is not installed")
    from palimpsest.recall.embedders import embedder
    from palimpsest.recall.sqlite_vectors import FileVectors, SqliteVectors
    from palimpsest.recall.vectors import Row, State, Vectors, packed
    from palimpsest.runtime.threaded import Threaded

    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    made = np.random.default_rng(1).standard_normal((100_000, 256)).astype(np.float32)
    rows = SqliteVectors(db)
    rows.claim("given", 256)
    rows.put([Row(key, b"", packed(row)) for key, row in enumerate(made)], State("given", 256, 0))

    async def compared(slices: Slices) -> None:
        runner = Threaded()

        async def do(body: Callable[[SqliteVectors], Any], *, writes: bool) -> Any:
            return await runner.read(body, rows)

        vectors = Vectors(FileVectors(do), embedder(lambda texts: [[1.0] * 256 for _ in texts], runner, name="given"))
        await slices.note("read", lambda: vectors.search("what"))
        await slices.note("compare", lambda: vectors.search("what"))
        await slices.note("compare some", lambda: vectors.search("what", [0]))
        await runner.close()

    assert Slices().run(compared) == []

"""No verb of an asynchronous memory blocks the event loop: long work runs in threads or is spread over its turns.

Not elapsed time is compared but the processor time of the loop's own thread between two turns, which other work on the
machine does not change, and the least of a few tries.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from loop_blocking import TRIES, Slices
from palimpsest import AsyncMemory
from palimpsest.integrations.tools import AsyncMemoryTools
from palimpsest.resources import AsyncResources
from palimpsest.strategies import Summarize
from talks import Scripted
from worker_process import declared


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
    """Run every verb that could take long in a session of so many turns with results of so many rows."""
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


QUERY = "Who wants lot 4711 of barley from the north vault weighed again on Thursday?"


async def searches(slices: Slices, folder: Path, turns: int, **options: Any) -> None:
    """Run every verb that searches or updates an index or knowledge base over so many turns."""
    note, words = slices.note, talk(turns)
    document = "\n\n".join(message["content"] for message in words)
    async with AsyncMemory.open(folder / f"{time.monotonic_ns()}.db", **options) as memory:
        session, base = memory.session("s", max_tokens=128_000, tail_share=0.2), memory.knowledge("handbook")
        await session.add(words)
        everything: dict[str, Any] = {"limit": 200, "max_tokens": None}
        await note("index_status", memory.index_status)
        await note("first recall", lambda: session.recall(QUERY, **everything))
        await note("recall", lambda: session.recall(QUERY, **everything))
        await note("recall within a budget", lambda: session.recall(QUERY, limit=200, max_tokens=20_000))
        await note("recall everywhere", lambda: memory.recall(QUERY, **everything))
        await note("passages", lambda: session.passages(range(1, 1_000), max_tokens=None))
        await note("passages within a budget", lambda: session.passages(range(1, 1_000), max_tokens=20_000))
        await note("context with what is recalled", lambda: session.context(recall=QUERY))
        await note("rebuild_index", memory.rebuild_index)
        tools = AsyncMemoryTools(memory, session="s", facts="user/ann", max_tokens=20_000)
        await note("search_memory", lambda: tools.call("search_memory", {"query": QUERY}))
        await note("read_entries", lambda: tools.call("read_entries", {"entries": list(range(1, 200))}))
        await note("remember_fact", lambda: tools.call("remember_fact", {"key": "lot", "value": document[:1_000]}))
        await note("knowledge.add", lambda: base.add("damp lots", document))
        await note("first knowledge.search", lambda: base.search(QUERY, top_k=50))
        await note("knowledge.search", lambda: base.search(QUERY, top_k=50))
        await note("knowledge.documents", base.documents)
        await note("knowledge.add, another version", lambda: base.add("damp lots", document[: len(document) // 2]))
        await note("knowledge.remove", lambda: base.remove("damp lots"))
        ids = [entry.id for entry in await session.entries(limit=200)]
        await note("erase of what is indexed", lambda: session.erase(ids))
        await note("forget of what is indexed", lambda: memory.forget(matches="weighed again on Thursday"))
        await note("delete_session of what is indexed", lambda: memory.delete_session("s"))
        await memory.session("t").add(words)
        await memory.recall(QUERY)
        await note("close", memory.close)


async def works(slices: Slices, folder: Path, turns: int) -> None:
    """Run a worker that summarizes and indexes a declared memory."""
    words, where = talk(turns), f"sqlite:///{folder}/{time.monotonic_ns()}.db"
    async with AsyncResources.load(declared(where)) as resources:
        for key in ("one", "other"):
            await resources.session({"id": "chat", "key": key}).add(words)
        worker = resources.worker(summarizer=Scripted(*["a summary"] * 20), duties=("compact", "sweep", "index"))
        await slices.note("worker.once", worker.once)
        await slices.note("worker.once with nothing to do", worker.once)


@pytest.mark.wide
@pytest.mark.parametrize("options", [{}, {"privacy": "default"}], ids=["plain", "policy"])
def test_no_search_holds_the_loop(tmp_path: Path, options: dict[str, Any]) -> None:
    """No search blocks the loop, however much is found, not even the first, which builds the index."""
    assert Slices().run(lambda slices: searches(slices, tmp_path, 250, **options)) == []


def test_no_worker_holds_the_loop(tmp_path: Path) -> None:
    """A round of a worker that has two long sessions to compact and to index."""
    assert Slices().run(lambda slices: works(slices, tmp_path, 250)) == []


@pytest.mark.parametrize("options", [{}, {"privacy": "default"}], ids=["plain", "policy"])
def test_no_verb_holds_the_loop(tmp_path: Path, options: dict[str, Any]) -> None:
    """Between two turns of the loop no verb computes for more than ten milliseconds, however much it has to do."""
    held = Slices().run(lambda slices: verbs(slices, tmp_path, 100, 1_500, **options))

    assert held == []


@pytest.mark.parametrize("where", ["{}/{}.db", "suspending://"], ids=["SQLite", "a driver"])
def test_no_first_verb_of_a_process_holds_the_loop(tmp_path: Path, where: str) -> None:
    """What a verb imports on first use is imported in a thread."""
    slices = Slices()
    for number in range(TRIES):
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("loop_blocking.py"))]
        done = subprocess.run([*command, where.format(tmp_path, number)], stdout=subprocess.PIPE, check=True)
        for name, took in json.loads(done.stdout).items():
            slices.add(name, took)
        if not slices.held():
            break

    assert slices.held() == []


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
    """No verb blocks the loop with 5,000 entries and results of 10 MB."""
    held = Slices().run(lambda slices: verbs(slices, tmp_path, 2_500, 120_000, **options))

    assert held == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"privacy": "default"}], ids=["plain", "policy"])
def test_no_search_holds_the_loop_at_length(tmp_path: Path, options: dict[str, Any]) -> None:
    """No search blocks the loop with 5,000 entries and a document of 4 MB."""
    assert Slices().run(lambda slices: searches(slices, tmp_path, 2_500, **options)) == []


@pytest.mark.slow
def test_no_worker_holds_the_loop_at_length(tmp_path: Path) -> None:
    """No worker blocks the loop with two sessions of 5,000 entries."""
    assert Slices().run(lambda slices: works(slices, tmp_path, 2_500)) == []


@pytest.mark.wide
def test_vectors_are_compared_beside_the_loop() -> None:
    """A hundred thousand vectors of 256 numbers: neither reading them nor comparing them holds the loop."""
    np = pytest.importorskip("numpy", reason="the extra vectors is not installed")
    from palimpsest.recall.embedders import embedder
    from palimpsest.recall.sqlite.vectors import FileVectors, SqliteVectors
    from palimpsest.recall.vectors import Row, Vectors, packed
    from palimpsest.runtime.threaded import Threaded

    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    made = np.random.default_rng(1).standard_normal((100_000, 256)).astype(np.float32)
    rows = SqliteVectors(db)
    rows.put([Row(key, b"", packed(row)) for key, row in enumerate(made)], rows.claim("given", 256))

    async def compared(slices: Slices) -> None:
        runner = Threaded()

        async def do(body: Callable[[SqliteVectors], Any], *, writes: bool) -> Any:
            return await runner.read(body, rows)

        vectors = Vectors(FileVectors(do), embedder(lambda texts: [[1.0] * 256 for _ in texts], runner, name="given"))
        await slices.note("read", lambda: vectors.search("what"))
        await slices.note("compare", lambda: vectors.search("what"))
        await slices.note("compare some", lambda: vectors.search("what", [0]))
        await runner.close()

    with closing(db):
        assert Slices().run(compared) == []

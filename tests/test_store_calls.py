"""How often each verb of a session or a memory calls its backend; on a server each call is a round trip."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from drivers import DrivenBackend, driven
from palimpsest import AsyncMemory, AsyncSession
from palimpsest.stores import STORES
from talks import as_it_is
from writer import quarters

PAGE = Path(__file__).parents[1] / "docs" / "stores.md"

SUMMARIZER = as_it_is(lambda _: "They asked and were answered [1].")
COMPACT = {"strategy": "summarizer", "interaction_keep": 2, "cod_max_loops": 0}
LONG = " and so on" * 12

Played = Callable[[AsyncMemory, AsyncSession], Awaitable[object]]


async def in_a_turn(_: AsyncMemory, session: AsyncSession) -> None:
    async with session.turn():
        await session.add_user_message("a")
        await session.add_assistant_message("b")


async def behind_a_summary(_: AsyncMemory, session: AsyncSession) -> None:
    await session.compact(COMPACT)
    await session.context()
    counted[0].calls.clear()
    await session.context()


async def restored(_: AsyncMemory, session: AsyncSession) -> None:
    await session.compact(COMPACT)
    (made,) = await session.summaries()
    counted[0].calls.clear()
    await session.restore(made)


async def hidden(_: AsyncMemory, session: AsyncSession) -> None:
    await session.hide(3)
    counted[0].calls.clear()
    await session.show(3)


async def out_of_an_export(memory: AsyncMemory, session: AsyncSession) -> None:
    exported = await session.export()
    counted[0].calls.clear()
    await memory.import_session(exported, session_id="three")


counted: list[DrivenBackend] = []
"""The backend that was opened last."""


async def fact_deleted(memory: AsyncMemory, _: AsyncSession) -> object:
    """Delete a fact of a scope."""
    await memory.working().set("k", 1)
    counted[0].calls.clear()
    return await memory.working().delete("k")


async def recalled_again(_: AsyncMemory, session: AsyncSession) -> object:
    """Recall entries that are already indexed."""
    await session.recall("question")
    counted[0].calls.clear()
    return await session.recall("answer")


VERBS: dict[str, Played] = {
    "`add`, and each `add_…`": lambda _, session: session.add({"role": "user", "content": "more"}),
    "`add` with a `key`": lambda _, session: session.add({"role": "user", "content": "more"}, key="k"),
    "`context`": lambda _, session: session.context(),
    "`context` with a summary": behind_a_summary,
    "`turn` with two adds": in_a_turn,
    "`entries`": lambda _, session: session.entries(),
    "`messages`": lambda _, session: session.messages(),
    "`entry`": lambda _, session: session.entry(3),
    "`recall`": lambda _, session: session.recall("question"),
    "`recall` again": recalled_again,
    "`recall` of a memory": lambda memory, _: memory.recall("question"),
    "`active_entries`": lambda _, session: session.active_entries(),
    "`interactions`": lambda _, session: session.interactions(),
    "`stats`": lambda _, session: session.stats(),
    "`count`": lambda _, session: session.count(),
    "`record_usage`": lambda _, session: session.record_usage(input_tokens=9),
    "`describe`": lambda _, session: session.describe(title="Rome"),
    "`pin`": lambda _, session: session.pin(3),
    "`unpin`": lambda _, session: session.unpin(3),
    "`hide`": lambda _, session: session.hide(3),
    "`show`": hidden,
    "`compact`": lambda _, session: session.compact(COMPACT),
    "`summaries`": lambda _, session: session.summaries(),
    "`restore`": restored,
    "`verify`": lambda _, session: session.verify(),
    "`erase([3])`": lambda _, session: session.erase([3]),
    "`clear`": lambda _, session: session.clear(),
    "`history`": lambda _, session: session.history(),
    "`fork`": lambda _, session: session.fork("two"),
    "`rewind`": lambda _, session: session.rewind(9),
    "`export`": lambda _, session: session.export(),
    "`import_session`": out_of_an_export,
    "`passages`": lambda _, session: session.passages([3, 4]),
    "`index_status`": lambda memory, _: memory.index_status(),
    "`rebuild_index`": lambda memory, _: memory.rebuild_index(),
    "`sessions`": lambda memory, _: memory.sessions(),
    "`delete_session`": lambda memory, _: memory.delete_session("one"),
    "`vacuum`": lambda memory, _: memory.vacuum(),
    "`sweep`": lambda memory, _: memory.sweep(),
    "`scopes`": lambda memory, _: memory.scopes(),
    "`definitions`": lambda memory, _: memory.definitions(),
    "`working().set`": lambda memory, _: memory.working().set("k", 1),
    "`working().get`": lambda memory, _: memory.working().get("k"),
    "`working().delete`": fact_deleted,
    "`working().to_context_string`": lambda memory, _: memory.working().to_context_string(),
}


async def called(verb: Played) -> int:
    """Return how often a verb calls the backend, in a process with a cached session of twelve entries."""
    counted[:] = [driven()]
    STORES.register("counted", lambda _, __: counted[0])
    async with AsyncMemory.open("counted://") as memory:
        session = memory.session("one", max_tokens=2_000, counter=quarters, summarizer=SUMMARIZER)
        for number in range(6):
            await session.add_user_message(f"question {number}{LONG}")
            await session.add_assistant_message(f"answer {number}{LONG}")
        await session.context()
        counted[0].calls.clear()
        await verb(memory, session)
        return len(counted[0].calls)


def table() -> dict[str, int]:
    """Return the table on the documentation page."""
    rows = re.findall(r"^\| (`[a-z].*?) \| (\d+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {verb: int(calls) for verb, calls in rows}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_makes_the_documented_number_of_store_calls(verb: str) -> None:
    """The page's table has the number of calls of each verb."""
    assert asyncio.run(called(VERBS[verb])) == table()[verb]


def test_appends_and_contexts_are_one_call_each() -> None:
    """An append and a context are one call each, a turn with two appends four, an erasure fewer than ten."""
    calls = table()

    assert (calls["`add`, and each `add_…`"], calls["`context`"], calls["`turn` with two adds"]) == (1, 1, 4)
    assert calls["`erase([3])`"] < 10


def test_a_context_behind_a_new_summary_costs_at_most_two_more() -> None:
    """The first context after a compaction, whose cut it stores, is at most three calls; the next is one."""

    async def work() -> list[int]:
        backend = driven()
        STORES.register("counted", lambda _, __: backend)
        async with AsyncMemory.open("counted://") as memory:
            session = memory.session("one", max_tokens=2_000, counter=quarters, summarizer=SUMMARIZER)
            for number in range(6):
                await session.add_user_message(f"question {number}{LONG}")
                await session.add_assistant_message(f"answer {number}{LONG}")
            await session.compact(COMPACT)
            found = []
            for _ in range(2):
                backend.calls.clear()
                assert (await session.context()).summaries
                found.append(len(backend.calls))
            return found

    first, second = asyncio.run(work())
    assert first <= 3
    assert second == 1


def test_a_context_has_what_other_processes_have_added() -> None:
    """A context shows what other processes have added or erased, whatever this process has cached."""

    async def work() -> list[list[Any]]:
        backend = driven()
        STORES.register("counted", lambda _, __: backend)
        async with AsyncMemory.open("counted://") as one, AsyncMemory.open("counted://") as other:
            mine, theirs = one.session("one", counter=quarters), other.session("one", counter=quarters)
            await mine.add_user_message("mine")
            await mine.context()
            await theirs.add_assistant_message("theirs")
            found = [(await mine.context()).messages]
            await theirs.erase([1])
            found.append((await mine.context()).messages)
            await theirs.clear()
            found.append((await mine.context()).messages)
            return found

    first, second, third = asyncio.run(work())
    assert [message["content"] for message in first] == ["mine", "theirs"]
    assert [message["content"] for message in second] == ["theirs"]
    assert third == []


NOT_COUNTED = {
    "the same as others": {"add_entries", "resolve", "replace", "expand", "repair", "export_to", "end_turn"},
    "made of several": {"import_file", "forget", "derive", "derivers", "underive", "scan", "info", "connect", "close"},
    "asking for settings": {"durability"},
}


def test_every_public_verb_is_in_the_table() -> None:
    """Every public verb is in the table, unless it only calls another."""
    names = {name for verb in VERBS for name in re.findall(r"[a-z_]+", verb)} | {"add_context"}
    verbs = {
        name
        for kind in (AsyncMemory, AsyncSession)
        for name, member in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith(("_", "add_"))
    }

    assert verbs - set().union(*NOT_COUNTED.values()) <= names

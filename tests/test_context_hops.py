"""How often a context over a driver leaves the event loop for a thread: never, if there is little to compute.

A change of threads costs as much as a good part of a context, so a context of the usual size is computed where its
driver is awaited. Work that may take long (a large window, a user's counter, exact figures) goes to a thread at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loop_blocking import Slices
from palimpsest import AsyncMemory
from palimpsest.context.result import Context
from palimpsest.strategies import MaxTokens
from suspending import SuspendingBackend

WORDS = "The lot of barley from the north vault came back damp, and somebody wants it weighed again. "
TOOLS = [{"type": "function", "function": {"name": f"tool{i}", "parameters": {"type": "object"}}} for i in range(5)]


def talk(turns: int, times: int = 8) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": f"{i}: {WORDS * times}"} for i in range(2 * turns)]


class Hops:
    """Counts the functions that a memory's store hands to threads."""

    def __init__(self, memory: AsyncMemory, patch: pytest.MonkeyPatch) -> None:
        self.memory, self.backend = memory, memory.store.backend
        assert isinstance(self.backend, SuspendingBackend)
        self.count = 0
        own = self.backend.apart

        async def apart(function: Callable[..., Any], *arguments: Any) -> Any:
            self.count += 1
            return await own(function, *arguments)

        patch.setattr(self.backend, "apart", apart)

    async def of(self, make: Callable[[], Awaitable[Context]]) -> tuple[int, list[str], Context]:
        """Make a context; return how often it changed threads, what it asked of the driver, and the context."""
        self.count, begun = 0, len(self.backend.calls)
        made = await make()
        return self.count, self.backend.calls[begun:], made


def counted(
    patch: pytest.MonkeyPatch, turns: int, play: Callable[[Any, Hops], Awaitable[None]], **options: Any
) -> None:
    """Run `play` on a session of so many turns, every entry of which has been counted."""

    async def run() -> None:
        own = {"view_bytes": options.pop("view_bytes")} if "view_bytes" in options else {}
        async with AsyncMemory.open("suspending://", **own) as memory:
            session = memory.session("s", **{"max_tokens": 8_000, **options})
            await session.add(talk(turns))
            await session.count()
            await session.context()
            await play(session, Hops(memory, patch))

    asyncio.run(run())


@pytest.mark.parametrize("view_bytes", [0, 1 << 26], ids=["nothing remembered", "remembered"])
@pytest.mark.parametrize("call", [{}, {"system": "Be brief.", "tools": TOOLS}], ids=["bare", "system and tools"])
def test_a_usual_context_stays_on_the_loop(monkeypatch: pytest.MonkeyPatch, view_bytes: int, call: Any) -> None:
    """A context of usual size makes one read and changes no threads, whether there is an uncounted new turn or not."""

    async def play(session: Any, hops: Hops) -> None:
        await session.context(**call)
        for _ in range(3):
            hopped, asked, made = await hops.of(lambda: session.context(**call))
            assert (hopped, len(asked), bool(made.messages)) == (0, 1, True)
            await session.add(talk(1, times=1))
            hopped, asked, made = await hops.of(lambda: session.context(**call))
            assert (hopped, len(asked), made.entries[-1].text.startswith("1: ")) == (0, 1, True)

    counted(monkeypatch, 40, play, view_bytes=view_bytes)


def test_a_first_context_stays_on_the_loop_but_for_its_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are counted, and a cut is planned, in one change of threads; showing a stored cut takes another."""

    async def play(session: Any, hops: Hops) -> None:
        for _ in range(8):
            await session.add(talk(5))
            hopped, asked, made = await hops.of(session.context)
            assert hopped <= (len(asked) if "commit" in asked else 1)
            assert made.counted <= 8_000

    counted(monkeypatch, 40, play)


@pytest.mark.parametrize("view_bytes", [0, 1 << 26], ids=["nothing remembered", "remembered"])
def test_a_large_window_is_computed_beside_the_loop(monkeypatch: pytest.MonkeyPatch, view_bytes: int) -> None:
    """A large window is computed in a thread, with at most one change of threads for each read."""

    async def play(session: Any, hops: Hops) -> None:
        hopped, asked, made = await hops.of(session.context)
        assert 0 < hopped <= max(len(asked), 1)
        assert made.counted > 64_000

    counted(monkeypatch, 400, play, max_tokens=128_000, view_bytes=view_bytes)


STORED: tuple[list[str], ...] = ([], ["read", "write"])
"""The calls of the driver, behind a context's own read, that store new counts."""

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a tail": ({"tail_share": 0.1}, {"tail": "It is Thursday."}),
    "shares of tags": ({"tag_shares": {"lots": 0.5}}, {}),
    "conditions": ({"short_term": MaxTokens(conditions=("message.content != ''",))}, {}),
    "many tools": ({}, {"tools": TOOLS * 20}),
}


@pytest.mark.parametrize("view_bytes", [0, 1 << 26], ids=["nothing remembered", "remembered"])
@pytest.mark.parametrize("how", OPTIONS)
def test_long_work_changes_threads_once(monkeypatch: pytest.MonkeyPatch, how: str, view_bytes: int) -> None:
    """A context that may take long needs one read and one change of threads."""
    options, call = OPTIONS[how]

    async def play(session: Any, hops: Hops) -> None:
        await session.context(**call)
        for _ in range(2):
            hopped, asked, _ = await hops.of(lambda: session.context(**call))
            # Conditions cut at each call, and the context is built once it is known that the cut is not stored.
            walked = how == "conditions"
            assert (hopped, asked[0] in ("look", "read"), asked[1:] in STORED) == (1 + walked, True, True)
            await session.add(talk(1, times=1))

    counted(monkeypatch, 40, play, view_bytes=view_bytes, **options)


@pytest.mark.parametrize("view_bytes", [0, 1 << 26], ids=["nothing remembered", "remembered"])
def test_a_counter_of_the_users_is_never_called_on_the_loop(monkeypatch: pytest.MonkeyPatch, view_bytes: int) -> None:
    """A user's counter, which may take long, is never called on the event loop, whatever it counts."""
    callers: set[int] = set()

    def count(text: str) -> int:
        callers.add(threading.get_ident())
        return len(text) // 4

    async def play(session: Any, hops: Hops) -> None:
        for _ in range(2):
            hopped, asked, made = await hops.of(lambda: session.context(system="Be brief."))
            assert (hopped, asked[0] in ("look", "read"), asked[1:] in STORED) == (1, True, True)
            await session.add(talk(1, times=1))
        await hops.memory.session("empty", counter=count, max_tokens=8_000).context(system="Be brief.")
        await session.context(at=made.revision, system="Be brief.")
        assert callers
        assert threading.get_ident() not in callers

    counted(monkeypatch, 40, play, view_bytes=view_bytes, counter=count)


def test_exact_figures_are_counted_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """If bounds on uncounted entries leave the fit open, they are counted in one change of threads.

    That applies to more entries than are counted while the store is awaited.
    """

    async def play(session: Any, hops: Hops) -> None:
        await session.add(talk(9, times=11))
        hopped, asked, made = await hops.of(session.context)
        assert (hopped, "commit" in asked, made.counted <= 8_000) == (1, False, True)

    counted(monkeypatch, 10, play, max_tokens=8_000)


async def contexts(slices: Slices, turns: int, max_tokens: int, view_bytes: int) -> None:
    """Make every kind of context over a driver."""
    note = slices.note
    async with AsyncMemory.open("suspending://", view_bytes=view_bytes) as memory:
        session = memory.session("s", max_tokens=max_tokens, tail_share=0.1)
        await session.add(talk(turns, times=3))
        await note("first context", session.context)
        await note("context", session.context)
        await session.add(talk(20, times=3))
        await note("context after turns", session.context)
        await note("context with a tail", lambda: session.context(tail=WORDS * 20))
        then = (await session.context()).revision
        await note("context of then", lambda: session.context(at=then))
        await note("dry run", lambda: session.context(dry_run=True, max_tokens=max_tokens // 2))


@pytest.mark.parametrize("max_tokens", [8_000, 128_000])
@pytest.mark.parametrize("view_bytes", [0, 1 << 26], ids=["nothing remembered", "remembered"])
def test_no_context_over_a_driver_holds_the_loop(max_tokens: int, view_bytes: int) -> None:
    """No context over a driver blocks the event loop for long, however large its window."""
    assert Slices().run(lambda slices: contexts(slices, 600, max_tokens, view_bytes)) == []


def test_counts_of_turns_are_stored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of new turns are stored together, so that a context after a turn is one read without a thread."""

    async def play(session: Any, hops: Hops) -> None:
        written = gone_on = 0
        for _ in range(40):
            await session.add(talk(1, times=4))
            hopped, asked, _ = await hops.of(session.context)
            if "commit" not in asked:
                gone_on, written = gone_on + 1, written + ("write" in asked)
                assert (hopped, asked[1:] in STORED) == (0, True)
        assert gone_on >= 10
        assert written <= 3

    counted(monkeypatch, 60, play)

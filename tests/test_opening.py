"""`AsyncMemory.open` names a store, and the first awaited verb opens it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory, AsyncSession, ConfigError, Memory, StoreUnavailable, WrongKey
from palimpsest.errors import Closed
from palimpsest.sessions.opening_options import OPENING
from sealed import FIRST, NEW, address


def is_open(path: Path) -> bool:
    """Whether somebody has the SQLite store open: the last one to close removes the journal."""
    return Path(f"{path}-wal").exists()


async def in_turn(session: AsyncSession) -> None:
    async with session.turn():
        await session.add_user_message("hello")


async def streamed(session: AsyncSession) -> None:
    async with session.stream() as answer:
        answer.feed({"type": "response.output_text.delta", "delta": "hello"})


async def forked(memory: AsyncMemory, session: AsyncSession) -> None:
    await memory.session("root").add_user_message("hello")
    await memory.session("root").fork("branch")


FIRSTS: dict[str, Callable[[AsyncMemory, AsyncSession], Coroutine[Any, Any, Any]]] = {
    "add": lambda _, session: session.add_user_message("hello"),
    "context": lambda _, session: session.context(max_tokens=100),
    "entries": lambda _, session: session.entries(),
    "turn": lambda _, session: in_turn(session),
    "stream": lambda _, session: streamed(session),
    "fork": forked,
    "list": lambda memory, _: memory.sessions(),
    "sweep": lambda memory, _: memory.sweep(),
    "forget": lambda memory, _: memory.forget(matches="hello"),
    "another tenant's": lambda memory, _: memory.for_tenant("other").session("one").add_user_message("hello"),
    "a user's": lambda memory, _: memory.session("ann's", user="ann").add_user_message("hello"),
}


@pytest.mark.parametrize("name", FIRSTS)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "file", "sqlite sealed"])
def test_the_first_verb_opens_the_store(kind: str, name: str, tmp_path: Path) -> None:
    """Memory and sessions are made before any event loop runs, and nothing is opened until something is awaited."""
    kind, _, sealed = kind.partition(" ")
    options: dict[str, Any] = {"encryption": FIRST} if sealed else {}
    memory = AsyncMemory.open(address(kind, tmp_path), **options)
    session = memory.session("one")
    assert not any(tmp_path.iterdir())

    async def run() -> None:
        await FIRSTS[name](memory, session)
        await session.add_user_message("and then")
        assert (await session.entries())[-1].text == "and then"
        await memory.close()

    asyncio.run(run())


@pytest.mark.parametrize("ephemeral", [False, True])
def test_concurrent_first_verbs_open_one_store(ephemeral: bool) -> None:
    """Ten first verbs at a time open one store: what each adds is found by the others."""
    memory = AsyncMemory.open("memory://")
    sessions = [memory.session("one", persistence="ephemeral" if ephemeral else "incremental") for _ in range(10)]

    async def run() -> list[int]:
        await asyncio.gather(*(session.add_user_message("hello") for session in sessions))
        found = [len(await session.entries()) for session in sessions]
        await memory.close()
        return found

    assert asyncio.run(run()) == [1 if ephemeral else 10] * 10


def test_each_verb_reports_why_the_store_cannot_be_opened(tmp_path: Path) -> None:
    """Each verb reports why the store cannot be opened, and tries again."""
    path = tmp_path / "log.db"
    memory = AsyncMemory.open(path, readonly=True)
    session = memory.session("one")

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await session.entries()
        async with AsyncMemory.open(path) as other:
            await other.session("one").add_user_message("hello")
        assert [entry.text for entry in await session.entries()] == ["hello"]
        await memory.close()

    asyncio.run(run())


def test_the_first_verb_reports_wrong_keys(tmp_path: Path) -> None:
    """An encrypted store is unlocked as it is opened."""
    path = tmp_path / "log.db"

    async def run() -> None:
        async with AsyncMemory.open(path, encryption=FIRST) as memory:
            await memory.session("one").add_user_message("hello")
        with pytest.raises(WrongKey):
            await AsyncMemory.open(path, encryption={"new": NEW}).session("one").entries()

    asyncio.run(run())


def test_a_verb_that_is_not_awaited_needs_an_open_store() -> None:
    """`store` before opening raises an error that says how to open; `close` needs no open store."""
    memory = AsyncMemory.open("memory://")

    with pytest.raises(ConfigError, match="not open yet"):
        memory.store  # noqa: B018 (it raises)
    asyncio.run(memory.close())


def test_a_closed_memory_is_not_opened_again() -> None:
    """A closed memory stays closed, even if it was never opened."""

    async def run() -> None:
        memory = AsyncMemory.open("memory://")
        await memory.connect()
        await memory.close()
        with pytest.raises(Exception, match="closed"):
            await memory.session("one").entries()

    asyncio.run(run())


def test_closing_a_memory_while_it_opens_leaves_nothing_open(tmp_path: Path) -> None:
    """Closing a memory at any moment of its opening leaves nothing open."""
    path = tmp_path / "log.db"

    async def run(steps: int) -> None:
        memory = AsyncMemory.open(path, sweep_every="1h")
        opening = asyncio.ensure_future(memory.connect())
        for _ in range(steps):
            await asyncio.sleep(0)
        await memory.close()
        with contextlib.suppress(Closed):
            await opening
        assert not is_open(path)
        with pytest.raises(Closed):
            await memory.session("one").entries()
        await memory.close()

    for steps in (*range(8), 10, 13, 17, 23, 31, 50, 100):
        asyncio.run(run(steps))


@pytest.mark.parametrize("opened", [Memory.open, AsyncMemory.open], ids=["Memory", "AsyncMemory"])
@pytest.mark.parametrize("where", ["memory://", "agent.db", "postgresql://db.internal/agents"])
def test_an_unknown_option_is_refused_with_the_nearest_name(opened: Any, where: str) -> None:
    """An unknown option is refused before the store is opened, with the nearest name or the verb that takes it."""
    for wrong, meant in {"privcay": "privacy", "sweep_evry": "sweep_every", "readonyl": "readonly"}.items():
        with pytest.raises(ConfigError) as caught:
            opened(where, **{wrong: "x"})
        assert (caught.value.found, caught.value.nearest) == (wrong, meant)
    for name in ("model", "max_tokens", "format"):
        with pytest.raises(ConfigError, match=rf"give this one to session\(\), as in memory.session\(.*{name}="):
            opened(where, **{name: "x"})
    with pytest.raises(ConfigError, match=r"^store: None is not accepted; allowed: an address or a path"):
        opened(None)


def test_the_known_options_equal_the_signature_of_open() -> None:
    """The list of a memory's options equals the signature of `open`."""
    taken = inspect.signature(AsyncMemory.open).parameters
    assert set(OPENING) == taken.keys() - {"where", "options"}

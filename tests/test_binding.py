"""The current memory and session inside a `bind` block, and forks of a memory."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from palimpsest import (
    AsyncMemory,
    AsyncSession,
    ConfigError,
    Memory,
    Session,
    carry,
    current_memory,
    current_session,
)
from palimpsest.errors import Closed


def seen() -> tuple[Any, str | None]:
    """Return the current memory and session."""
    try:
        session = current_session().id
    except ConfigError:
        session = None
    return current_memory(), session


def test_a_bind_block_sets_the_current_memory_and_session() -> None:
    """A `bind` block sets the current memory and session; nested blocks restore the outer ones, even after errors."""
    with Memory.open("memory://") as one, Memory.open("memory://") as other:
        with one.bind(one.session("a")):
            assert seen() == (one, "a")
            with other.bind() as given:
                assert given is other
                assert seen() == (other, None)
            with suppress(ZeroDivisionError), other.bind("b"):
                assert seen() == (other, "b")
                raise ZeroDivisionError
            assert seen() == (one, "a")
        with pytest.raises(ConfigError, match=r"memory\.bind\(\)"):
            current_memory()
        with pytest.raises(ConfigError, match=r"memory\.bind\(session\)"):
            current_session()


def test_a_function_without_arguments_reaches_the_bound_memory() -> None:
    """A function without arguments reaches the bound memory and session."""

    def step() -> None:
        current_memory().working().set("plan", ["look", "answer"])
        current_session().working.set("seen", True)
        current_session().add_user_message("hello")

    with Memory.open("memory://") as memory:
        with memory.bind("a"):
            step()
        assert memory.working().get("plan") == ["look", "answer"]
        assert memory.working("session/a").get("seen") is True
        assert [entry.text for entry in memory.session("a").entries()] == ["hello"]


def test_the_current_memory_of_the_wrong_class_is_refused() -> None:
    """Asking for the class that is not bound raises an error; type checkers know the class that is returned."""
    with Memory.open("memory://") as memory, memory.bind("a"):
        assert isinstance(current_memory(Memory), Memory)
        assert isinstance(current_session(Session), Session)
        with pytest.raises(ConfigError, match="Memory"):
            current_memory(AsyncMemory)
        with pytest.raises(ConfigError, match="Session"):
            current_session(AsyncSession)


@pytest.mark.parametrize("session", [7, object(), ["a"], ""])
def test_only_a_session_can_be_bound(session: Any) -> None:
    """Binding anything but a session is refused, and nothing is current then."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="session"), memory.bind(session):
        pass
    with pytest.raises(ConfigError):
        current_memory()


def test_each_task_sees_its_own_binding() -> None:
    """Fifty tasks at once, and the threads that they start, see the binding of the place where they were made."""

    async def run() -> None:
        async with AsyncMemory.open("memory://") as memory:

            async def one(number: int) -> None:
                with memory.bind(f"s{number}"):
                    await asyncio.sleep(0)
                    assert seen() == (memory, f"s{number}")
                    assert await asyncio.to_thread(seen) == (memory, f"s{number}")
                    assert await asyncio.create_task(inner()) == (memory, f"s{number}")
                    await current_memory(AsyncMemory).working(f"t/{number}").set("n", number)

            async def inner() -> tuple[Any, str | None]:
                await asyncio.sleep(0)
                return seen()

            await asyncio.gather(*(one(number) for number in range(50)))
            assert len(await memory.scopes("t/")) == 50

    asyncio.run(run())


def test_a_thread_sees_the_binding_of_a_copied_context() -> None:
    """A thread sees the binding if its context is copied; otherwise the error says how."""
    found = list[Any]()

    def work() -> None:
        try:
            found.append(seen())
        except ConfigError as fault:
            found.append(fault)

    with Memory.open("memory://") as memory, memory.bind("a"):
        for target in (work, carry(work)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        with ThreadPoolExecutor(4) as pool:
            carried = carry(seen)
            assert {one.result() for one in [pool.submit(carried) for _ in range(20)]} == {(memory, "a")}

    assert "palimpsest.carry" in str(found[0])
    assert found[1] == (memory, "a")


# --- forks of a memory


def test_a_forked_memory_shares_sessions_but_not_facts() -> None:
    """A fork of a memory shares its sessions but not its facts."""
    with Memory.open("memory://") as memory:
        fork = memory.fork("agent/billing")
        memory.working().set("k", "parent")
        fork.working().set("k", "child")
        fork.session("a").add_user_message("from the fork")

        assert (memory.working().get("k"), fork.working().get("k")) == ("parent", "child")
        assert fork.working().scope_id == "agent/billing"
        assert memory.working("agent/billing").get("k") == "child"
        assert [entry.text for entry in memory.session("a").entries()] == ["from the fork"]
        assert fork.fork("agent/other").working().to_dict() == {}


def test_a_forked_memory_cannot_destroy_sessions_of_its_origin() -> None:
    """A fork cannot destroy sessions of its memory, and closing it does not close the store."""
    with Memory.open("memory://") as memory:
        memory.session("a").add_user_message("hello")
        fork = memory.fork("child")
        fork.working().set("k", 1)
        other = memory.session("a").export()
        for destroying in (
            lambda: fork.sweep(untouched_for="1s"),
            lambda: fork.import_session(other, on_conflict="replace"),
            lambda: fork.for_tenant("default").delete_session("a"),
            lambda: fork.for_tenant("default").fork("another").delete_session("a"),
            lambda: fork.delete_session("a"),
            lambda: fork.forget(tenant="default"),
            lambda: fork.forget(session="a"),
            lambda: fork.forget(matches="hello"),
        ):
            with pytest.raises(ConfigError, match="fork"):
                destroying()
        assert fork.working().clear() == 1
        assert fork.sweep() == 0  # expired facts are already gone
        fork.close()
        with pytest.raises(Closed):
            fork.working().get("k")
        assert [entry.text for entry in memory.session("a").entries()] == ["hello"]
        assert memory.delete_session("a")


@pytest.mark.parametrize("scope", ["default", "", "a//b", 7])
def test_a_forked_memory_needs_its_own_scope(scope: Any) -> None:
    """A fork needs a scope that differs from its memory's."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="scope"):
        memory.fork(scope)
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="scope"):
        memory.fork("child").fork("child")
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="scope"):
        memory.fork("child").fork("default")


def test_facts_of_an_ephemeral_session_are_not_stored() -> None:
    """Facts of an ephemeral session are not stored, and those of a read-only session cannot change."""
    with Memory.open("memory://") as memory:
        session = memory.session("a", persistence="ephemeral")
        session.working.set("k", 1)
        assert session.working.get("k") == 1
        assert memory.scopes() == []
        with pytest.raises(ConfigError, match="readonly"):
            memory.session("a", readonly=True).working.set("k", 1)

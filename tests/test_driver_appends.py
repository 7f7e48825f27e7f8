"""Appends over a driver: an uncontended one skips the queue and keeps the queue's promises."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from palimpsest import AsyncMemory, StoreUnavailable
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.stores import STORES, Store
from suspending import SuspendingBackend, kind_of


class Forgetful(SuspendingBackend):
    """A backend that loses the answer of its next append, before or after doing it."""

    loses = ""

    async def called(self, verb: str, *given: Any, **named: Any) -> Any:
        when = self.loses if kind_of(verb, given) == "append" else ""
        if when:
            self.loses = ""
        if when == "before":
            raise StoreUnavailable(self.url, "the connection was lost", written=None)
        result = await super().called(verb, *given, **named)
        if when == "after":
            raise StoreUnavailable(self.url, "the connection was lost", written=None)
        return result


class Dawdling(SuspendingBackend):
    """A backend whose network delivers the next append only when `deliver` is called, long after it was given up."""

    dawdles = False

    def __init__(self) -> None:
        super().__init__()
        self._late: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    async def called(self, verb: str, *given: Any, **named: Any) -> Any:
        if self.dawdles and kind_of(verb, given) == "append":
            self.dawdles = False
            self._late.append((given, named))
            raise StoreUnavailable(self.url, "it has not answered", written=None)
        return await super().called(verb, *given, **named)

    async def deliver(self) -> None:
        """Do what has dawdled."""
        for (batches, at, *_), _ in self._late:
            await super().called("write", batches, at)


STORES.register("forgetful", lambda url, runner: Forgetful())
STORES.register("dawdling", lambda url, runner: Dawdling())


async def texts(memory: AsyncMemory) -> list[str]:
    """Return the texts of the log."""
    return [entry.text for entry in await memory.session("s").entries()]


def test_appends_during_a_write_are_one_batch() -> None:
    """The first goes alone; all that have come meanwhile are one batch, in their order."""

    async def do() -> list[str]:
        async with AsyncMemory.open("suspending://") as memory:
            session, backend = memory.session("s"), cast("SuspendingBackend", memory.store.backend)
            await session.add_user_message("known")
            hold = backend.hold("append", "before")
            first = asyncio.create_task(session.add_user_message("first"))
            await hold.reached()
            others = [asyncio.create_task(session.add_user_message(f"{number}")) for number in range(5)]
            await asyncio.sleep(0)
            before = backend.calls.count("append")
            hold.let_go()
            await asyncio.gather(first, *others)
            assert backend.calls.count("append") == before + 1
            return await texts(memory)

    assert asyncio.run(do()) == ["known", "first", "0", "1", "2", "3", "4"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_append_with_a_lost_answer_is_looked_for(when: str) -> None:
    """After a lost answer the append is looked for: stored, it is acknowledged; otherwise the error says so."""

    async def do() -> list[str]:
        async with AsyncMemory.open("forgetful://") as memory:
            session = memory.session("s")
            await session.add_user_message("known")
            cast("Forgetful", memory.store.backend).loses = when
            if when == "after":
                assert (await session.add_user_message("lost")).seq == 2
            else:
                with pytest.raises(StoreUnavailable) as caught:
                    await session.add_user_message("lost")
                assert caught.value.written is False
                assert await texts(memory) == ["known"]
                await session.add_user_message("lost")
            await session.add_user_message("more")
            return await texts(memory)

    assert asyncio.run(do()) == ["known", "lost", "more"]


def test_a_refused_append_is_retried_in_the_queue() -> None:
    """A refused append is made again in the queue, over what another process has written."""

    async def do() -> list[str]:
        async with AsyncMemory.open("suspending://") as memory:
            await memory.session("s").add_user_message("known")
            other = Store(memory.store.backend)
            await other.append(SessionKey("default", "s"), [Entry(content="of another")])
            assert (await memory.session("s").add_user_message("mine")).seq == 3
            return await texts(memory)

    assert asyncio.run(do()) == ["known", "of another", "mine"]


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("before", [[], ["known"]])
def test_an_append_reported_as_unwritten_never_arrives(before: list[str], retried: bool) -> None:
    """Once `written` is False, a request that a network still holds stores nothing, whenever it arrives."""

    async def do() -> list[str]:
        async with AsyncMemory.open("dawdling://") as memory:
            session, backend = memory.session("s"), cast("Dawdling", memory.store.backend)
            for text in before:
                await session.add_user_message(text)
            backend.dawdles = True
            with pytest.raises(StoreUnavailable) as caught:
                await session.add_user_message("mine")
            assert caught.value.written is False
            await backend.deliver()
            if retried:
                await session.add_user_message("mine")
            assert (await session.verify()).problems == ()
            return await texts(memory)

    assert asyncio.run(do()) == [*before, *(["mine"] if retried else [])]

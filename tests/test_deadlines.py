"""Calls of a server's store end within their time, all of them by one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.stores.servers import ServerBackend, ServerOptions


class Answering(ServerBackend[object]):
    """A backend whose server answers when a test says so."""

    def __init__(self, seconds: float) -> None:
        super().__init__("db://host/name", ServerOptions(timeout_seconds=seconds))

    async def connect(self) -> object:
        return self

    def translate(self, fault: BaseException, writes: bool) -> PalimpsestError:
        raise fault

    async def look(self, asks: Any) -> Any:
        return await self.run(lambda _: asks)

    async def write(self, batches: Any, at: int, **how: Any) -> Any:
        return await self.run(lambda _: batches, writes=True)

    async def list_with(self, ask: Any) -> Any:
        return []

    async def close(self) -> None:
        self.release()


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts the timers that are set."""

    timers = 0

    def call_at(self, *given: Any, **how: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*given, **how)


def run(do: Callable[[Answering], Awaitable[Any]], seconds: float = 0.05) -> Any:
    """Return the result of a function of a backend whose calls have so many seconds."""

    async def within() -> Any:
        backend = Answering(seconds)
        try:
            return await do(backend)
        finally:
            await backend.close()

    return asyncio.run(within())


def never() -> asyncio.Future[Any]:
    """Return an answer that does not come."""
    return asyncio.get_running_loop().create_future()


def test_each_unanswered_call_ends_at_its_deadline() -> None:
    """Each unanswered call ends after its time, a write with an unknown outcome; answered calls go on."""

    async def do(backend: Answering) -> list[Any]:
        async def later(call: Awaitable[Any]) -> Any:
            await asyncio.sleep(0.02)
            return await call

        answer = never()
        asyncio.get_running_loop().call_later(0.001, answer.set_result, "answer")
        calls = [backend.look(never()), later(backend.write(never(), 0)), backend.look(answer), later(answer)]
        return await asyncio.gather(*calls, later(backend.look(never())), return_exceptions=True)

    first, write, *answered, last = run(do)

    assert answered == ["answer", "answer"]
    for fault, written in ((first, False), (write, None), (last, False)):
        assert isinstance(fault, StoreUnavailable), fault
        assert "within 0.05 seconds (timeout_seconds)" in str(fault)
        assert fault.written is written
        assert isinstance(fault.__cause__, TimeoutError)


def test_a_task_continues_after_a_call_timed_out() -> None:
    """After a call's deadline its task is not cancelled, and its next call is answered."""

    async def do(backend: Answering) -> Any:
        with pytest.raises(StoreUnavailable):
            await backend.look(never())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        answer = never()
        answer.set_result("answer")
        return await backend.look(answer)

    assert run(do) == "answer"


@pytest.mark.parametrize("when", ["before its time is over", "as its time is over"])
def test_a_cancelled_call_raises_no_timeout(when: str) -> None:
    """A call cancelled before its deadline, or exactly at it, raises no TimeoutError."""

    async def do(backend: Answering) -> Any:
        together = when == "as its time is over"
        task = asyncio.create_task(backend.look(Together() if together else never()))
        await asyncio.sleep(0)
        if not together:
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    assert isinstance(run(do), asyncio.CancelledError)


class Together:
    """An answer whose task is cancelled when its deadline has passed but is not yet known to it."""

    def __await__(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        try:
            yield from never().__await__()
        except asyncio.CancelledError:
            task.cancel()
            raise


def test_answered_calls_share_one_timer() -> None:
    """Any number of answered calls set one timer."""
    backend = Answering(30)

    async def do() -> list[Any]:
        async def call(number: int) -> Any:
            answer = never()
            asyncio.get_running_loop().call_soon(answer.set_result, number)
            return await backend.look(answer)

        found = [await call(number) for number in range(20)]
        found += await asyncio.gather(*(call(number) for number in range(20, 40)))
        await backend.close()
        return found

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(do()) == list(range(40))
        assert runner.get_loop().timers == 1

"""Answers that come in pieces through a client that remembers: events pass through, and what came is kept."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from inspect import isawaitable
from typing import Any, TypeVar

from palimpsest import Answer, AsyncSession
from palimpsest.errors import Closed, InvalidEntry, PalimpsestError
from palimpsest.runtime.hushing import quietly
from palimpsest.runtime.lasting import Start, surely
from palimpsest.runtime.logs import Redact, warn_caller
from palimpsest.runtime.runner import drive

T = TypeVar("T")


async def ready(value: Any) -> Any:
    """What a verb of either kind of session, or a client, comes to."""
    return await value if isawaitable(value) else value


async def entered(stack: AsyncExitStack, block: Any) -> Any:
    """What a block of either kind gives; the stack leaves it."""
    if hasattr(block, "__aenter__"):
        return await stack.enter_async_context(block)
    return stack.enter_context(block)


async def surely_of(session: Any, start: Start[T], again: Start[T] | None = None) -> T:
    """What a coroutine comes to that adds to a session, and is run to its end where its task is cancelled."""
    return await (surely(start, again, session.redact) if isinstance(session, AsyncSession) else start())


class OpenAnswer:
    """An answer under way, with the turn that it is of: both end with `end`, once, whoever calls it."""

    def __init__(
        self,
        stack: AsyncExitStack,
        answer: Answer,
        hides: Callable[[object], bool],
        ended: Callable[[], None],
        redact: Redact | None,
    ) -> None:
        self._stacks = [stack]  # taken out once, whoever does it
        self._answer, self._hides, self._ended, self._redact = answer, hides, ended, redact
        self._owner: object = _runner()
        self._told = False

    @property
    def is_own(self) -> bool:
        """Whether the thread, or the task, that runs has asked for it, and nobody else has read of it."""
        return self._owner is _runner()

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return bool(self._stacks)

    def takes(self, event: object) -> bool:
        """Take an event of the stream, and return whether it is for the caller, who has also what cannot be kept."""
        if not self.is_own:
            self._owner = None
        try:
            with quietly(self._redact):
                self._answer.feed(event)
        except (InvalidEntry, Closed) as fault:
            why = "the next call has ended it" if isinstance(fault, Closed) else fault
            if not self._told:
                self._told = True
                warn_caller(f"not all of the answer is in the log: {why}")
        return not self._hides(event)

    def over(self) -> None:
        """Say that there is no more: it has ended, and where nothing of it is in the log, a warning says so, unless one
        has said so much."""
        if not (self._answer.entries or self._told):
            self._told = True
            told = "the answer is not in the log: the stream ended without one"
            warn_caller(told)

    async def end(self) -> None:
        """Keep what has come, and end the turn."""
        try:
            stack = self._stacks.pop()
        except IndexError:
            return
        self._ended()
        try:
            await stack.aclose()
        except InvalidEntry as fault:
            self._told = True
            warn_caller(f"the answer is not in the log: {fault}")
        except PalimpsestError as fault:
            self._told = True
            fault.answer = self._answer.whole
            raise


def _runner() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop runs here
        return threading.current_thread()


class _Passing(ABC):
    """A stream of a client, with the answer that is fed with its events."""

    def __init__(self, stream: Any, answer: OpenAnswer) -> None:
        self._stream, self._answer = stream, answer

    @property  # type: ignore[misc]  # so that it passes for what it stands before
    def __class__(self) -> type:
        return type(self._stream)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._stream, name)
        if name == "text_stream":
            return self._texts()
        if name == "until_done" or name.startswith("get_final_"):
            return self._at_the_end(value)
        return value

    @abstractmethod
    def _texts(self) -> Any:
        """The text alone, as it comes."""

    @abstractmethod
    def _at_the_end(self, value: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the stream that reads it to its end first: here its events are fed then."""


def _text(event: Any) -> str:
    """The text in an event of Anthropic's helper."""
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        text: str = event.delta.text
        return text
    return ""


class Events(_Passing):
    """A stream of a synchronous client."""

    def __init__(self, stream: Any, answer: OpenAnswer) -> None:
        super().__init__(stream, answer)
        self._events = iter(stream)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            while True:
                event = next(self._events)
                if self._answer.takes(event):
                    return event
        except StopIteration:
            self.close()
            self._answer.over()
            raise
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the answer: what has come of it is kept."""
        try:
            close = getattr(self._stream, "close", None)
            if close is not None:
                close()
        finally:
            drive(self._answer.end())

    def __del__(self) -> None:
        if self._answer.is_open:  # in the middle of whatever runs here, which may hold what its end waits for
            threading.Thread(target=_end, args=(self._answer,)).start()

    def _texts(self) -> Iterator[str]:
        return (text for text in map(_text, self) if text)

    def _at_the_end(self, value: Callable[..., Any]) -> Callable[..., Any]:
        def final(*args: Any, **given: Any) -> Any:
            for _ in self:
                pass
            return value(*args, **given)

        return final


def _end(answer: OpenAnswer) -> None:
    with suppress(Closed):  # what it would be kept in is gone, and nobody waits for it
        drive(answer.end())


class AsyncEvents(_Passing):
    """A stream of an asynchronous client."""

    def __init__(self, stream: Any, answer: OpenAnswer) -> None:
        super().__init__(stream, answer)
        self._events = aiter(stream)
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            while True:
                event = await anext(self._events)
                if self._answer.takes(event):
                    return event
        except StopAsyncIteration:
            await self.close()
            self._answer.over()
            raise
        except BaseException:
            await self.close()
            raise

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the answer: what has come of it is kept."""
        try:
            close = getattr(self._stream, "close", None) or getattr(self._stream, "aclose", None)
            if close is not None:
                await ready(close())
        finally:
            await self._answer.end()

    aclose = close

    def __del__(self) -> None:
        if not self._loop.is_closed():
            _ending(self._loop, self._answer)

    async def _texts(self) -> AsyncIterator[str]:
        async for event in self:
            if text := _text(event):
                yield text

    def _at_the_end(self, value: Callable[..., Any]) -> Callable[..., Any]:
        async def final(*args: Any, **given: Any) -> Any:
            async for _ in self:
                pass
            return await ready(value(*args, **given))

        return final


_tasks: set[asyncio.Task[None]] = set()
"""What ends answers that nobody reads on."""


def _ending(loop: asyncio.AbstractEventLoop, answer: OpenAnswer) -> None:
    def begin() -> None:
        task = loop.create_task(answer.end())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    if answer.is_open:
        loop.call_soon_threadsafe(begin)


class Helper:
    """What `.stream()` of a synchronous client gives: a block in which the answer comes."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = opened

    def __enter__(self) -> Any:
        self._events = drive(self._opened())
        return self._events

    def __exit__(self, *_: object) -> None:
        self._events.close()


class AsyncHelper:
    """The same of an asynchronous client."""

    def __init__(self, opened: Callable[[], Awaitable[Any]]) -> None:
        self._opened = opened

    async def __aenter__(self) -> Any:
        self._events = await self._opened()
        return self._events

    async def __aexit__(self, *_: object) -> None:
        await self._events.close()

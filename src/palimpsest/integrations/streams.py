"""Streamed answers of a client that remembers: events pass through to the caller, and what has come is stored."""

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
    """Return the value, awaited if it is awaitable: the result of a verb of either kind of session, or of a client."""
    return await value if isawaitable(value) else value


async def entered(stack: AsyncExitStack, block: Any) -> Any:
    """Enter a context manager of either kind and return what it gives; the stack leaves it."""
    if hasattr(block, "__aenter__"):
        return await stack.enter_async_context(block)
    return stack.enter_context(block)


async def surely_of(session: Any, start: Start[T], again: Start[T] | None = None) -> T:
    """Run a coroutine that adds to a session; with an AsyncSession to its end, even if its task is cancelled."""
    return await (surely(start, again, session.redact) if isinstance(session, AsyncSession) else start())


class OpenAnswer:
    """An answer that is being streamed, with its turn. Both end with `end`, once, whoever calls it."""

    def __init__(
        self,
        stack: AsyncExitStack,
        answer: Answer,
        hides: Callable[[object], bool],
        ended: Callable[[], None],
        redact: Redact | None,
    ) -> None:
        self._stacks = [stack]  # a list, so that exactly one caller of `end` pops it
        self._answer, self._hides, self._ended, self._redact = answer, hides, ended, redact
        self._owner: object = _runner()
        self._warned = False

    @property
    def is_own(self) -> bool:
        """Whether the current thread or task asked for the answer, and no other has read of it."""
        return self._owner is _runner()

    @property
    def is_open(self) -> bool:
        """Whether the answer has not ended."""
        return bool(self._stacks)

    def takes(self, event: object) -> bool:
        """Take an event of the stream; return whether the caller gets it.

        The caller also gets what cannot be stored.
        """
        if not self.is_own:
            self._owner = None
        try:
            with quietly(self._redact):
                self._answer.feed(event)
        except (InvalidEntry, Closed) as fault:
            why = "the next call has ended it" if isinstance(fault, Closed) else fault
            if not self._warned:
                self._warned = True
                warn_caller(f"not all of the answer is in the log: {why}")
        return not self._hides(event)

    def over(self) -> None:
        """Take note that the stream has ended.

        Warn if nothing of the answer is stored, unless a warning has said so.
        """
        if not (self._answer.entries or self._warned):
            self._warned = True
            warn_caller("the answer is not in the log: the stream ended without one")

    async def end(self) -> None:
        """Store what has come, and end the turn."""
        try:
            stack = self._stacks.pop()
        except IndexError:
            return
        self._ended()
        try:
            await stack.aclose()
        except InvalidEntry as fault:
            self._warned = True
            warn_caller(f"the answer is not in the log: {fault}")
        except PalimpsestError as fault:
            self._warned = True
            fault.answer = self._answer.whole
            raise


def _runner() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop runs here
        return threading.current_thread()


class _Passing(ABC):
    """A stream of a client whose events are also given to an answer."""

    def __init__(self, stream: Any, answer: OpenAnswer) -> None:
        self._stream, self._answer = stream, answer

    @property  # type: ignore[misc]  # so that isinstance() sees the stream's class
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
        """Return an iterator over the text alone, as it comes."""

    @abstractmethod
    def _at_the_end(self, value: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that first reads the stream to its end, so that all its events are given to the answer."""


def _text(event: Any) -> str:
    """Return the text in an event of Anthropic's helper."""
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
        """End the answer and store what has come of it."""
        try:
            close = getattr(self._stream, "close", None)
            if close is not None:
                close()
        finally:
            drive(self._answer.end())

    def __del__(self) -> None:
        # In a thread, since this may run in the middle of any code, which may hold a lock that `end` waits for.
        if self._answer.is_open:
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
    with suppress(Closed):  # the memory is closed already, and nobody waits for the answer
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
        """End the answer and store what has come of it."""
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
"""Tasks that end abandoned answers; kept here, since an event loop holds tasks only weakly."""


def _ending(loop: asyncio.AbstractEventLoop, answer: OpenAnswer) -> None:
    """End an abandoned answer on its event loop, from whatever thread this is."""

    def begin() -> None:
        task = loop.create_task(answer.end())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    if answer.is_open:
        loop.call_soon_threadsafe(begin)


class Helper:
    """What `.stream()` of a synchronous client returns: a context manager around the streamed answer."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = opened

    def __enter__(self) -> Any:
        self._events = drive(self._opened())
        return self._events

    def __exit__(self, *_: object) -> None:
        self._events.close()


class AsyncHelper:
    """What `.stream()` of an asynchronous client returns: a context manager around the streamed answer."""

    def __init__(self, opened: Callable[[], Awaitable[Any]]) -> None:
        self._opened = opened

    async def __aenter__(self) -> Any:
        self._events = await self._opened()
        return self._events

    async def __aexit__(self, *_: object) -> None:
        await self._events.close()

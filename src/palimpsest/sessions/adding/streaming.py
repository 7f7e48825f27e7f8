"""Answers that come in pieces: a block gathers the events, and stores the whole answer, or what arrived of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from palimpsest.errors import ConfigError
from palimpsest.formats.received import answer_stream
from palimpsest.log.entry import Entry
from palimpsest.runtime.hushing import quietly
from palimpsest.runtime.logs import Redact
from palimpsest.runtime.runner import Runner
from palimpsest.sessions.adding.usage import UsageRecorder
from palimpsest.sessions.adding.verbs import MARK, checked_key

if TYPE_CHECKING:
    from palimpsest.formats.received.stream import AnswerStream

CutOff: TypeAlias = Literal["keep", "drop"]
"""What becomes of an answer that was cut off: its text is kept, marked, or nothing is stored."""

Add: TypeAlias = Callable[..., Awaitable[tuple[Entry, ...]]]
"""The session's verb that adds, which lets no error out that quotes what is private."""


class Answer:
    """One answer as it comes: what `session.stream()` gives. Not safe to feed from two threads at once."""

    def __init__(self, stream: AnswerStream, *, drops: bool = False) -> None:
        self._stream, self._drops = stream, drops
        self.entries: tuple[Entry, ...] = ()
        """What was stored, once the block has ended."""

    @property
    def text(self) -> str:
        """What the model has said so far: no thoughts, no calls."""
        return self._stream.text

    @property
    def is_complete(self) -> bool:
        """Whether the provider has said that the answer is over."""
        return self._stream.is_complete

    @property
    def whole(self) -> dict[str, Any] | None:
        """What has come, as `add` takes it, where the store could not take it: the response, or of one that is not over
        the text; None for nothing, and for one that is not over where such are dropped."""
        if self._stream.is_complete:
            return self._stream.whole()
        return None if self._drops else self._stream.part()

    def feed(self, event: object) -> str:
        """Take the next `event` of the client's stream, and return what the model says in it ("" where it says
        nothing).

        Raises InvalidEntry for what is no event of the stream that was begun, and Closed after the block has ended:
        nothing more is stored.
        """
        return self._stream.feed(event)


class Streaming:
    """The streamed answers of one session."""

    def __init__(self, runner: Runner, add: Add, usage: UsageRecorder, redact: Redact | None) -> None:
        self._runner, self._add, self._usage, self._redact = runner, add, usage, redact

    def stream(
        self, cut_off: CutOff, key: str | None, metadata: dict[str, Any] | None
    ) -> AbstractAsyncContextManager[Answer]:
        """A block that stores what is fed."""
        if not isinstance(cut_off, str) or cut_off not in ("keep", "drop"):
            raise ConfigError("cut_off", cut_off, "keep or drop")
        return self._block(cut_off, checked_key(key), metadata)

    @asynccontextmanager
    async def _block(self, cut_off: CutOff, key: str | None, metadata: dict[str, Any] | None) -> AsyncIterator[Answer]:
        stream = answer_stream()
        answer = Answer(stream, drops=cut_off == "drop")
        try:
            yield answer
        except BaseException:
            await self._kept(answer, stream, cut_off, key, metadata)
            raise
        await self._kept(answer, stream, cut_off, key, metadata)

    async def _kept(
        self, answer: Answer, stream: AnswerStream, cut_off: CutOff, key: str | None, metadata: dict[str, Any] | None
    ) -> None:
        """Store what has arrived even for a task that is cancelled: nobody can have it come once more."""
        stream.end()

        async def store(*, again: bool = False) -> None:
            answer.entries = await self._stored(stream, cut_off, key, metadata, again=again)

        with quietly(self._redact):
            await self._runner.surely(store, partial(store, again=True))

    async def _stored(
        self,
        stream: AnswerStream,
        cut_off: CutOff,
        key: str | None,
        metadata: dict[str, Any] | None,
        *,
        again: bool,
    ) -> tuple[Entry, ...]:
        """Store what has arrived, and note what it cost."""
        whole, unless_last = stream.whole(), again and key is None
        if whole is None:
            return ()
        if stream.is_complete:
            entries = await self._add(whole, key=key, metadata=metadata, unless_last=unless_last)
            if again and (usage := stream.usage()) is not None:
                await self._usage.unless_noted([usage])
            return entries
        part = stream.part() if cut_off == "keep" else None
        entries = ()
        if part is not None:
            marked = {**(metadata or {}), MARK: True}
            entries = await self._add(part, format=stream.format, key=key, metadata=marked, unless_last=unless_last)
        usage = stream.usage()
        if usage is not None:
            await self._usage.of_answers([usage])
        return entries

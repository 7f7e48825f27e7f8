"""Streamed answers: a block collects the events, and stores the whole answer, or the part that arrived."""

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
from palimpsest.sessions.adding.decoding import MARK
from palimpsest.sessions.adding.usage import UsageRecorder
from palimpsest.sessions.adding.verbs import checked_key

if TYPE_CHECKING:
    from palimpsest.formats.received.stream import AnswerStream

CutOff: TypeAlias = Literal["keep", "drop"]
"""What to do with an answer that was cut off: store its text, marked as cut off, or store nothing."""

Add: TypeAlias = Callable[..., Awaitable[tuple[Entry, ...]]]
"""The session's `add`, whose errors quote nothing private."""


class Answer:
    """A streamed answer: what `session.stream()` gives its block. Not safe to feed from two threads at once."""

    def __init__(self, stream: AnswerStream, *, drops: bool = False) -> None:
        self._stream, self._drops = stream, drops
        self.entries: tuple[Entry, ...] = ()
        """The stored entries, once the block has ended."""

    @property
    def text(self) -> str:
        """The text of the answer so far, without thoughts and calls."""
        return self._stream.text

    @property
    def is_complete(self) -> bool:
        """Whether the provider has signalled the end of the answer."""
        return self._stream.is_complete

    @property
    def whole(self) -> dict[str, Any] | None:
        """What has arrived so far, in a form that `add` takes: for use if the store could not be written.

        A complete answer is a response; of an incomplete one it is the text. None if nothing has arrived, or if the
        answer is incomplete and `cut_off` is "drop".
        """
        if self._stream.is_complete:
            return self._stream.whole()
        return None if self._drops else self._stream.part()

    def feed(self, event: object) -> str:
        """Take the next `event` of the client's stream and return the answer's text in it ("" if it has none).

        Raises InvalidEntry if it is not an event, or not of the same stream as those before. Raises Closed after the
        block has ended, when nothing more is stored.
        """
        return self._stream.feed(event)


class Streaming:
    """Makes the blocks that store streamed answers of one session."""

    def __init__(self, runner: Runner, add: Add, usage: UsageRecorder, redact: Redact | None) -> None:
        self._runner, self._add, self._usage, self._redact = runner, add, usage, redact

    def stream(
        self, cut_off: CutOff, key: str | None, metadata: dict[str, Any] | None
    ) -> AbstractAsyncContextManager[Answer]:
        """Return a block that stores the answer that is fed to it."""
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
            await self._keep(answer, stream, cut_off, key, metadata)
            raise
        await self._keep(answer, stream, cut_off, key, metadata)

    async def _keep(
        self, answer: Answer, stream: AnswerStream, cut_off: CutOff, key: str | None, metadata: dict[str, Any] | None
    ) -> None:
        """Store what has arrived, even if the task is cancelled: the provider does not send it again."""
        stream.end()

        async def store(*, again: bool = False) -> None:
            answer.entries = await self._store(stream, cut_off, key, metadata, again=again)

        with quietly(self._redact):
            await self._runner.surely(store, partial(store, again=True))

    async def _store(
        self,
        stream: AnswerStream,
        cut_off: CutOff,
        key: str | None,
        metadata: dict[str, Any] | None,
        *,
        again: bool,
    ) -> tuple[Entry, ...]:
        """Store what has arrived, and record its usage. With `again`, an earlier try may have stored it already."""
        response, unless_last = stream.whole(), again and key is None
        if response is None:
            return ()
        if stream.is_complete:
            entries = await self._add(response, key=key, metadata=metadata, unless_last=unless_last)
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

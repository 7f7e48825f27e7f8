"""Turns: runs of the model as blocks, and what happens at their end: committing, compacting, persisting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.log import values
from palimpsest.log.checks import check_descriptors
from palimpsest.sessions.adding.appender import Appender, Block
from palimpsest.sessions.adding.gathered import Committed, TurnBuffer
from palimpsest.sessions.lazy_parts import Part
from palimpsest.sessions.lease import NESTED
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.sessions.compacting.auto import AutoCompaction
    from palimpsest.sessions.compacting.result import CompactionResult


WITHIN: ContextVar[tuple[Block, ...]] = ContextVar("palimpsest_turns", default=())
"""The blocks in which the present thread or task is, or in which it was started. A nested turn would wait for these."""


class TurnEnd(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """The result of `end_turn`: how many entries were `added` since the turn began, the ids of `open_calls`, and the
    results of the `compactions` that triggers led to."""

    added: int
    open_calls: tuple[str, ...]
    compactions: tuple[CompactionResult, ...] = ()


class EndsTurns(Protocol):
    """A session, as far as a turn's block uses it."""

    async def end_turn(self) -> TurnEnd:
        """End the current run of the model."""
        ...


E = TypeVar("E", bound=EndsTurns)


class Turns:
    """The turns of one session object."""

    def __init__(self, scope: SessionScope, appender: Appender, auto: Part[AutoCompaction]) -> None:
        self._scope, self._turn, self._appender, self._auto = scope, appender.turn, appender, auto

    def turn(self, session: E, atomic: bool, wait: timedelta | float | str | None) -> AbstractAsyncContextManager[E]:
        """Return a block that is a turn of the session, and that yields the session."""
        values.switch("atomic", atomic)
        if wait is None:
            return self._block(session, atomic, None)
        microseconds = values.microseconds("wait", 0 if wait is False else wait, zero=True)
        return self._block(session, atomic, microseconds / 1_000_000)

    @asynccontextmanager
    async def _block(self, session: E, atomic: bool, wait: float | None) -> AsyncIterator[E]:
        turn, block = self._turn, Block()
        if turn.block in WITHIN.get():
            raise ConfigError("turn", "a turn inside a turn", NESTED)
        await self._scope.gate.opened()
        try:
            remaining = await turn.open(block, wait)
            if atomic:
                turn.buffer = TurnBuffer()
            else:
                try:
                    await turn.take_lease(block, remaining, WITHIN.get())
                except OSError as fault:
                    check_descriptors(fault)
                    raise
            WITHIN.set((*WITHIN.get(), block))
            yield session
            await session.end_turn()
        except BaseException:
            if turn.block is block:
                self._forget()
            with suppress(PalimpsestError):  # the error that was raised matters more; the lease expires by itself
                await self._leave(block)
            raise
        finally:
            try:
                await self._leave(block)
            finally:
                await self._leave(block)  # an interrupt may have cut the first call short

    async def end(self) -> TurnEnd:
        """Commit what was collected, compact if a trigger fires, and apply the session's `persistence`."""
        turn, options = self._turn, self._scope.options
        buffer, turn.buffer = turn.buffer, None
        if buffer is not None and buffer.close():
            slots, committed = buffer.slots, Committed((), None)
            if slots:
                committed = await self._appender.commit(slots, given_ids=buffer.given_ids)
            await buffer.report(committed)
        self._scope.let_go()
        await turn.release()
        auto = await self._auto()
        compacted = await auto.turn_ended(auto.flush if options.flushes else None)
        seen = self._scope.store.seen(self._scope.key) if turn.added else None  # adding saw the head: no read needed
        head = seen.head if seen is not None else await self._scope.head()
        end = TurnEnd(turn.added, head.open_calls, compacted)
        self._forget()
        await self._scope.tell("turn:ended", **msgspec.structs.asdict(end))
        turn.added = 0
        return end

    def _forget(self) -> None:
        """Drop what is withheld, and everything that an EPHEMERAL session has added."""
        self._scope.let_go()
        if self._scope.is_ephemeral:
            self._scope.begin_anew()
            self._auto.begin_anew()

    async def _leave(self, block: Block) -> None:
        await self._turn.close(block)
        WITHIN.set(tuple([outer for outer in WITHIN.get() if outer is not block]))

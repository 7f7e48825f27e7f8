"""`Session`: the synchronous face of `AsyncSession`. The same verbs and signatures, one line each, no logic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from palimpsest.formats import Message
from palimpsest.log.change import BY_REQUEST, Record
from palimpsest.log.entry import Entry, Status
from palimpsest.log.head import Usage
from palimpsest.runtime.runner import drive
from palimpsest.sessions.adding.verbs import Content
from palimpsest.sessions.session import AsyncSession, TurnEnd

if TYPE_CHECKING:
    from palimpsest.compaction import Strategy
    from palimpsest.context.result import Context
    from palimpsest.log.summary import Summary
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.erased import Erased
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.history import When
    from palimpsest.sessions.options import Options
    from palimpsest.sessions.reading import Interaction, Stats
    from palimpsest.sessions.verifying import Verification
    from palimpsest.transfer.writing import Sink

T = TypeVar("T")


def mirrors(core: type) -> Callable[[type[T]], type[T]]:
    """Give a synchronous face the docstrings of the verbs that it mirrors."""

    def adopt(face: type[T]) -> type[T]:
        for name, verb in vars(face).items():
            told = getattr(core, name, None)
            if told is not None and not name.startswith("_") and not getattr(verb, "__doc__", None):
                verb.__doc__ = told.__doc__
        return face

    return adopt


@mirrors(AsyncSession)
class Session:
    """One conversation's log and its contexts. Made by `Memory.session`; opening it reads nothing.

    Every write is one commit, and acknowledged when it returns. Any number of sessions of any number of
    processes may write to one conversation: entries never interleave inside one `add` or an atomic turn.
    """

    def __init__(self, core: AsyncSession) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<Session {self.id!r}>"

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def options(self) -> Options:
        return self._core.options

    def add_user_message(
        self,
        content: Content,
        *,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        pinned: bool = False,
        expires_at: datetime | None = None,
    ) -> Entry:
        return drive(
            self._core.add_user_message(
                content, name=name, metadata=metadata, importance=importance, pinned=pinned, expires_at=expires_at
            )
        )

    def add_assistant_message(
        self,
        content: Content,
        *,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        pinned: bool = False,
        expires_at: datetime | None = None,
    ) -> Entry:
        return drive(
            self._core.add_assistant_message(
                content, name=name, metadata=metadata, importance=importance, pinned=pinned, expires_at=expires_at
            )
        )

    def add_system_message(
        self,
        content: Content,
        *,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        expires_at: datetime | None = None,
    ) -> Entry:
        return drive(self._core.add_system_message(content, name=name, metadata=metadata, expires_at=expires_at))

    def add_tool_call(
        self, name: str, arguments: Any, *, call_id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> Entry:
        return drive(self._core.add_tool_call(name, arguments, call_id=call_id, metadata=metadata))

    def add_tool_result(
        self,
        name: str | None,
        output: Any,
        *,
        call_id: str | None = None,
        status: Status = "unknown",
        metadata: dict[str, Any] | None = None,
    ) -> Entry:
        return drive(self._core.add_tool_result(name, output, call_id=call_id, status=status, metadata=metadata))

    def add_context(
        self,
        text: str,
        *,
        name: str,
        metadata: dict[str, Any] | None = None,
        pinned: bool = False,
        expires_at: datetime | None = None,
    ) -> Entry:
        return drive(self._core.add_context(text, name=name, metadata=metadata, pinned=pinned, expires_at=expires_at))

    def add(
        self,
        messages: Message | Sequence[Message],
        *,
        format: str | None = None,
        key: str | None = None,
        statuses: Mapping[str, Status] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[Entry, ...]:
        return drive(self._core.add(messages, format=format, key=key, statuses=statuses, metadata=metadata))

    def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
        return drive(self._core.add_entries(entries, key=key))

    def replace(
        self,
        messages: Message | Sequence[Message],
        *,
        format: str | None = None,
        key: str | None = None,
        statuses: Mapping[str, Status] | None = None,
        metadata: dict[str, Any] | None = None,
        seen: Context | int | None = None,
    ) -> tuple[Entry, ...]:
        return drive(
            self._core.replace(messages, format=format, key=key, statuses=statuses, metadata=metadata, seen=seen)
        )

    def resolve(self, call_id: str, *, status: Status = "unknown", output: str = "") -> Entry:
        return drive(self._core.resolve(call_id, status=status, output=output))

    def entries(
        self, *, after: int = 0, limit: int | None = None, at: int | None = None, rewound: bool = False
    ) -> list[Entry]:
        return drive(self._core.entries(after=after, limit=limit, at=at, rewound=rewound))

    def entry(self, id: str | int) -> Entry:
        return drive(self._core.entry(id))

    def active_entries(self) -> list[Entry]:
        return drive(self._core.active_entries())

    def interactions(self) -> list[Interaction]:
        return drive(self._core.interactions())

    def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        return drive(self._core.history(after=after, before=before))

    def stats(self) -> Stats:
        return drive(self._core.stats())

    def count(self) -> int:
        return drive(self._core.count())

    def context(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Message] = (),
        format: str | None = None,
        reserve: int | None = None,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        view: str | None = None,
        at: int | None = None,
        dry_run: bool = False,
    ) -> Context:
        return drive(
            self._core.context(
                system=system,
                tools=tools,
                format=format,
                reserve=reserve,
                max_tokens=max_tokens,
                max_messages=max_messages,
                view=view,
                at=at,
                dry_run=dry_run,
            )
        )

    def record_usage(
        self,
        input_tokens: int,
        output_tokens: int = 0,
        *,
        cached_tokens: int = 0,
        context: Context | None = None,
    ) -> Usage:
        return drive(self._core.record_usage(input_tokens, output_tokens, cached_tokens=cached_tokens, context=context))

    def pin(self, *ids: str | int) -> None:
        drive(self._core.pin(*ids))

    def unpin(self, *ids: str | int) -> None:
        drive(self._core.unpin(*ids))

    def erase(self, what: Iterable[str | int] | str | int | Query, *, reason: str = BY_REQUEST) -> Erased:
        return drive(self._core.erase(what, reason=reason))

    def repair(self) -> Erased:
        return drive(self._core.repair())

    def clear(self) -> int:
        return drive(self._core.clear())

    def fork(self, session_id: str | None = None, *, at: When | None = None) -> Session:
        return Session(drive(self._core.fork(session_id, at=at)))

    def rewind(self, to: When) -> int:
        return drive(self._core.rewind(to))

    def export(self) -> dict[str, Any]:
        return drive(self._core.export())

    def export_to(self, file: str | os.PathLike[str] | Sink, *, format: str = "palimpsest") -> int:
        return drive(self._core.export_to(file, format=format))

    def turn(self, *, atomic: bool = False, wait: float | None = None) -> AbstractContextManager[Session]:
        return self._within(self._core.turn(atomic=atomic, wait=wait))

    @contextmanager
    def _within(self, turn: Any) -> Iterator[Session]:
        try:
            drive(turn.__aenter__())
            try:
                yield self
            except BaseException as error:
                if not drive(turn.__aexit__(type(error), error, error.__traceback__)):
                    raise
            else:
                drive(turn.__aexit__(None, None, None))
        finally:
            drive(turn.gen.aclose())  # does something where an interrupt came before the turn heard of its end

    def end_turn(self) -> TurnEnd:
        return drive(self._core.end_turn())

    def compact(
        self,
        strategy: Strategy | Mapping[str, Any] | str | None = None,
        *,
        dry_run: bool = False,
        threshold: float | None = None,
        force: bool = True,
    ) -> CompactionResult:
        return drive(self._core.compact(strategy, dry_run=dry_run, threshold=threshold, force=force))

    def summaries(self, *, history: bool = False) -> list[Summary]:
        return drive(self._core.summaries(history=history))

    def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        return drive(self._core.expand(summary))

    def restore(self, summary: Summary | str | None = None) -> int:
        return drive(self._core.restore(summary))

    def verify(self) -> Verification:
        return drive(self._core.verify())

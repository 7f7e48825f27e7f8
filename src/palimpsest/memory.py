"""`AsyncMemory` and `Memory`: an opened store and its sessions. `Memory` has the same verbs and no logic."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from palimpsest.entries import now_us
from palimpsest.errors import ConfigError, ImportFailed, InvalidEntry, SessionNotFound, nearest
from palimpsest.events import Handler, Observers
from palimpsest.facade import Session, mirrors
from palimpsest.log import SessionKey
from palimpsest.options import Options, check_id
from palimpsest.privacy import KeepAll, PrivacyPolicy
from palimpsest.runners import Inline, Runner, Threaded, drive
from palimpsest.session import AsyncSession
from palimpsest.stores import SessionInfo, Store, info, open_store

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import BinaryIO, Unpack

    from palimpsest.ingest import ImportReport, Progress
    from palimpsest.options import SessionOptions
    from palimpsest.summarizers import Summarizer

DEFAULT_TENANT = "default"
OnConflict = Literal["error", "replace", "merge"]


class AsyncMemory:
    """A store and its sessions, for programs with an event loop: `async with AsyncMemory.open(url) as memory:`."""

    def __init__(
        self, where: str | Path, runner: Runner, tenant: str, clock: Callable[[], int], options: dict[str, Any]
    ) -> None:
        self._store: Store | None = None
        check_id(tenant, "tenant")
        self.runner, self.tenant, self.clock = runner, tenant, clock
        self.observers = Observers()
        self.privacy: PrivacyPolicy = KeepAll()
        self._where, self._store_options = where, options
        self._failed: set[tuple[str, str]] = set()

    @classmethod
    def open(
        cls, where: str | Path, *, tenant: str = DEFAULT_TENANT, clock: Callable[[], int] = now_us, **options: Any
    ) -> AsyncMemory:
        """Name the store to open: `sqlite:///relative.db`, `sqlite:////absolute.db`, or a path (of an SQLite file),
        `file:relative/folder`, `file:///absolute/folder`, or `memory://`.

        `tenant` owns every session of this memory and sees no other tenant's. `clock` returns microseconds
        since 1970. Further options are the store's: on disk `synchronous` ("FULL", "NORMAL"), `busy_seconds`,
        `readonly`, `large_bytes`. The store is opened by `async with`, which raises ConfigError for an
        address or option that is unknown and StoreError where the store cannot be opened.
        """
        return cls(where, Threaded(), tenant, clock, options)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the store, which `async with` does by itself."""
        if self._store is None:
            self._store = await self.runner.run(self._open)

    def _open(self) -> Store:
        return open_store(self._where, self.runner, clock=self.clock, **self._store_options)

    @property
    def store(self) -> Store:
        """The store behind this memory."""
        if self._store is None:
            raise ConfigError("memory", "not open yet", "`async with AsyncMemory.open(...) as memory:`")
        return self._store

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Return the session of this id; nothing is read or written before its first verb.

        Options: `model` (its window, tokenizer and prices are taken from the table), `max_tokens` for the
        whole request, `max_messages`, `max_context_ratio` of the model's window, `reserve` for the answer,
        `format` (default "openai"), `view` (default "main"), `counter` (a function from text to tokens),
        `short_term` (strategies, see `MaxTokens`), or `conditions` and `oversize` for the default one, `mask`
        (False: old tool results are never replaced by a note), `low_water` (share of the budget that a cut
        goes down to), `readonly`.

        Compaction: `long_term` (a strategy such as `Summarize(interaction_keep=3)`, its name, a mapping, or a list of
        these), `summarizer` (a function from prompt to text, a model string such as "openai:gpt-4o-mini", a
        `ModelSummarizer`; None: no model is asked), `auto_compact` ("inline", "background" or "off"), `long_term_run`
        ("first" that fires, or "all"), `before_turn` (look at the triggers before each context, too). `persistence` is
        "incremental", "flush" (with `archive=False`: what was compacted is destroyed at the turn's end) or "ephemeral"
        (nothing is written). Raises ConfigError naming the option.
        """
        if options.get("summarizer") is not None:
            self.summarizer(options["summarizer"])
        return AsyncSession(self, self._options(session_id, options))

    def _options(self, session_id: str, options: SessionOptions) -> Options:
        known: dict[str, Any] = Options.__init__.__kwdefaults__ or {}
        for name in options:
            if name not in known:
                raise ConfigError("session option", name, ", ".join(known), nearest=nearest(name, known))
        return Options(SessionKey(self.tenant, session_id), **options)

    async def sessions(self, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        """Return this tenant's sessions in the order of their ids: at most `limit` of those after `after`."""
        return await self.store.sessions(self.tenant, after=after, limit=limit)

    async def info(self, session_id: str) -> SessionInfo:
        """Return the session as a listing shows it. Raises SessionNotFound."""
        head = await self.store.head(SessionKey(self.tenant, session_id))
        if head is None:
            raise SessionNotFound(session_id)
        return info(session_id, head)

    async def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        """Store a session that `export()` gave, under its own id or another, and return that id.

        Every reference is checked and every total made anew; ids and times are kept. Where the session
        exists, "error" raises Conflict, "replace" puts the export in its place in one step, and "merge"
        appends those of its entries that are not there. Raises ImportFailed, and stores nothing, for an
        export that does not hold together.
        """
        from palimpsest.imports import imported

        if on_conflict not in ("error", "replace", "merge"):
            raise ConfigError("on_conflict", on_conflict, "error, replace or merge")
        found, dump = imported(data)
        key = SessionKey(self.tenant, session_id or found)
        check_id(key.session, "session")
        try:
            admitted = self.privacy.admit(dump.entries)
        except InvalidEntry as fault:
            raise ImportFailed(fault.where, fault.reason) from fault
        if on_conflict == "merge" and await self.store.head(key) is not None:
            await self.store.append(key, [entry for entry in admitted if not entry.erased], check_ids=True)
        else:
            from msgspec.structs import replace

            await self.store.load(key, replace(dump, entries=tuple(admitted)), replace=on_conflict == "replace")
        await self.observers.emit("session:imported", key.session, {"entries": len(admitted)}, self.runner.wait)
        return key.session

    async def import_file(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        source: str = "auto",
        format: str | None = None,
        session_id: str | None = None,
        key: str | None = None,
        strict: bool = False,
        branches: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Take the conversations of a file, or of a binary stream, into sessions and say what came of it.

        `source` is what the file is: "messages" (JSON or JSON lines of provider messages, in the `format` named or
        found), "chatgpt" or "claude" (their data exports, also as archives), "palimpsest" (our own exports),
        "openai-agents" (its SQLite database), "langchain" or "pydantic-ai"; "auto" finds out. Everything goes into
        `session_id` where one is given, else into sessions of the conversations' own ids, or named after the file.

        Importing a file again adds nothing, one that has grown adds what is new, and an import that was
        interrupted is completed by repeating it; under another `key` the same messages come once more. With
        `branches` the branches of a conversation that are not current become sessions, too (`<id>~2`, ...).
        `progress` is called with the bytes done and their total (None where nobody knows).

        What is malformed is reported with its place, and the rest is taken. Raises ImportFailed, and stores nothing,
        for a file that is of no source, or could be of several, and with `strict` for the first fault; OSError where
        the file cannot be opened; ConfigError for an option that is not accepted.
        """
        from palimpsest.ingest import import_file

        return await import_file(
            self,
            path,
            source=source,
            format=format,
            session_id=session_id,
            key=key,
            strict=strict,
            branches=branches,
            progress=progress,
        )

    async def delete_session(self, session_id: str) -> bool:
        """Destroy the session with everything that belongs to it and return whether there was one."""
        check_id(session_id, "session")
        return await self.store.delete(SessionKey(self.tenant, session_id))

    async def sweep(self) -> int:
        """Erase, in all of the store, what has expired; return how many entries and items that were."""
        return await self.store.sweep(self.clock())

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call `handler(session_id, facts)` after each `event` and return a function that stops it.

        Events: entry:added, cut, compressed, evicted, erased, restored, compaction:skipped, compaction:failed,
        session:cleared, session:forked, session:imported, session:rewound, context:over_budget, condition:error,
        usage:recorded, turn:ended. A handler may be a
        coroutine function; one that raises is logged and breaks nothing.
        """
        return self.observers.on(event, handler)

    def summarizer(self, given: object) -> Summarizer | None:
        """Return what answers prompts for what a session was given: of one thing there is one, with one breaker."""
        from palimpsest.summarizers import as_summarizer

        return as_summarizer(given, self.runner, self.clock)

    def first_failure(self, session: str, condition: str) -> bool:
        """Whether this condition fails for the first time in this session: its event is sent once."""
        before = len(self._failed)
        self._failed.add((session, condition))
        return len(self._failed) > before

    async def close(self) -> None:
        """Close the store, when what runs in the background is done; whoever uses it afterwards gets Closed.

        Closing twice is fine.
        """
        await self.runner.settle()
        if self._store is not None:
            await self._store.close()
        await self.runner.close()

    def __del__(self) -> None:
        if self._store is not None and self._store.left_open:
            told = f"the memory over {self._store.url} was not closed"
            warnings.warn(told, ResourceWarning, stacklevel=2, source=self)


@mirrors(AsyncMemory)
class Memory:
    """A store and its sessions: `with Memory.open("sqlite:///agent.db") as memory:`.

    Needs no event loop and starts no thread; safe to share between threads.
    """

    def __init__(self, core: AsyncMemory) -> None:
        self._core = core

    @classmethod
    def open(
        cls, where: str | Path, *, tenant: str = DEFAULT_TENANT, clock: Callable[[], int] = now_us, **options: Any
    ) -> Memory:
        """Open a store: `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`, or a path to a file.

        `tenant` owns every session of this memory and sees no other tenant's. `clock` returns microseconds
        since 1970. Further options are the store's: on disk `synchronous` ("FULL", "NORMAL"), `busy_seconds`,
        `readonly`, `large_bytes`. Raises ConfigError for an address or option that is unknown, StoreError
        where the store cannot be opened.
        """
        core = AsyncMemory(where, Inline(), tenant, clock, options)
        drive(core.connect())
        return cls(core)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        drive(self._core.connect())

    @property
    def tenant(self) -> str:
        """Who owns this memory's sessions."""
        return self._core.tenant

    @property
    def store(self) -> Store:
        return self._core.store

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> Session:
        return Session(self._core.session(session_id, **options))

    def sessions(self, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        return drive(self._core.sessions(after=after, limit=limit))

    def info(self, session_id: str) -> SessionInfo:
        return drive(self._core.info(session_id))

    def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        return drive(self._core.import_session(data, session_id=session_id, on_conflict=on_conflict))

    def import_file(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        source: str = "auto",
        format: str | None = None,
        session_id: str | None = None,
        key: str | None = None,
        strict: bool = False,
        branches: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        return drive(
            self._core.import_file(
                path,
                source=source,
                format=format,
                session_id=session_id,
                key=key,
                strict=strict,
                branches=branches,
                progress=progress,
            )
        )

    def delete_session(self, session_id: str) -> bool:
        return drive(self._core.delete_session(session_id))

    def sweep(self) -> int:
        return drive(self._core.sweep())

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        return self._core.on(event, handler)

    def close(self) -> None:
        drive(self._core.close())

"""`AsyncMemory`: an opened store and its sessions. `palimpsest.sessions.sync.Memory` has the same verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from palimpsest.errors import ConfigError, SessionNotFound
from palimpsest.log.change import BY_REQUEST
from palimpsest.log.checks import check_whole, checked_clock, unfit
from palimpsest.log.entry import now_us
from palimpsest.privacy.gate import Gate, gate_of, guarded
from palimpsest.runtime.events import Handler
from palimpsest.runtime.runner import Runner
from palimpsest.sessions.erasing import everywhere
from palimpsest.sessions.importing import importing
from palimpsest.sessions.options import admitted_options, check_id
from palimpsest.sessions.parts import Part
from palimpsest.sessions.remembered import VIEW_BYTES
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.sessions.session import AsyncSession
from palimpsest.stores import SessionInfo, Store
from palimpsest.stores.common import info
from palimpsest.stores.opening import keys_of, open_store, unlocked

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import BinaryIO, Unpack

    from palimpsest.privacy.policy import Policy
    from palimpsest.privacy.redaction import Redactor
    from palimpsest.sessions.derived import Derived
    from palimpsest.sessions.erased import Erased, Vacuumed
    from palimpsest.sessions.erasing.everywhere import Everywhere
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.scanned import Scanned
    from palimpsest.sessions.importing.report import ImportReport
    from palimpsest.sessions.importing.verbs import Importing, Progress
    from palimpsest.sessions.options import SessionOptions
    from palimpsest.stores.encrypted import Encryption
    from palimpsest.transfer.sources.limits import Given

Privacy: TypeAlias = "str | Mapping[str, Any] | Policy | Redactor"
"""What may not be kept: a preset's name, a policy, as a mapping or an object, or what applies one."""

DEFAULT_TENANT = "default"
OnConflict = Literal["error", "replace", "merge"]


@guarded
class AsyncMemory:
    """A store and its sessions, for programs with an event loop: `async with AsyncMemory.open(url) as memory:`."""

    def __init__(
        self,
        where: str | Path,
        runner: Runner,
        tenant: str,
        clock: Callable[[], int],
        encryption: Encryption | None,
        privacy: Gate,
        view_bytes: int,
        options: dict[str, Any],
    ) -> None:
        check_id(tenant, "tenant")
        self.runner, self.tenant, self._gate = runner, tenant, privacy
        runner.redact = privacy.redact if privacy.redactor is not None else None
        self._scope = MemoryScope(tenant, runner, checked_clock(clock), privacy, view_bytes)
        self._where, self._store_options = where, {"clock": self._scope.clock, **options}
        self._keys = keys_of(encryption)

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
        encryption: Encryption | None = None,
        privacy: Privacy | None = None,
        view_bytes: int = VIEW_BYTES,
        **options: Any,
    ) -> AsyncMemory:
        """Name the store to open: `sqlite:///relative.db`, `sqlite:////absolute.db`, or a path (of an SQLite file),
        `file:relative/folder`, `file:///absolute/folder`, or `memory://`.

        `tenant` owns every session of this memory and sees no other tenant's. `clock` returns microseconds
        since 1970. With `encryption` (`Keys`, a mapping of key ids to keys) what is stored is encrypted. `privacy`
        says what may not be kept: a preset ("default", "secrets"), a mapping or a `Policy`, or a `Redactor`, which has
        a key for pseudonyms, too; without it all is kept as it is. What contexts were made of is remembered in about
        `view_bytes` (default 64 MiB; 0: nothing is). Further options are the store's: on disk `synchronous` ("FULL",
        "NORMAL"), `busy_seconds`, `readonly`, `large_bytes`.
        The store is opened by `async with`, which raises ConfigError for an address or option that is unknown,
        StoreError where the store cannot be opened, and WrongKey where it is encrypted with other keys.
        """
        from palimpsest.runtime.threaded import Threaded  # asyncio, which a synchronous memory never loads

        runner, admits = Threaded(), gate_of(privacy)
        admits.outside = runner.outside
        return cls(where, runner, tenant, clock, encryption, admits, view_bytes, options)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the store, which `async with` does by itself."""
        if self._scope.opened is None:
            store = await self.runner.run(partial(open_store, self._where, self.runner, **self._store_options))
            try:
                self._scope.opened = await unlocked(store, self._keys, self._scope.clock)
                self._keys = None  # the store has what it needs of them
            except BaseException:
                await store.close()
                raise

    @property
    def store(self) -> Store:
        """The store behind this memory."""
        return self._scope.store

    @cached_property
    def _everywhere(self) -> Part[type[Everywhere]]:
        return Part(self.runner, everywhere)

    @cached_property
    def _importing(self) -> Part[Importing]:
        return Part(self.runner, lambda: importing(self._scope, self.session))

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Return the session of this id; nothing is read or written before its first verb.

        Options: `model` (its window, tokenizer and prices are taken from the table), `max_tokens` for the
        whole request, `max_messages` as the format counts them, `max_context_ratio` (the share of the model's window
        that the log may take; answer, system text and tools come beside it), `reserve` for the answer,
        `format` (default "openai"), `view` (default "main"), `counter` (a function from text to tokens),
        `short_term` (strategies, see `MaxTokens`), or `conditions` and `oversize` for the default one, `mask`
        (False: old tool results are never replaced by a note), `low_water` (share of the budget that a cut
        goes down to), `cache_seconds` (how long the provider's cache holds what it was sent, since the last call;
        None: what the format says; `math.inf`: no cut heeds it), `readonly`.

        Compaction: `long_term` (a strategy such as `Summarize(interaction_keep=3)`, its name, a mapping, or a list of
        these), `summarizer` (a function from prompt to text, a model string such as "openai:gpt-4o-mini", a
        `ModelSummarizer`; None: no model is asked), `auto_compact` ("inline", "background" or "off"), `long_term_run`
        ("first" that fires, or "all"), `before_turn` (look at the triggers before each context, too). `persistence` is
        "incremental", "flush" (with `archive=False`: what was compacted is destroyed at the turn's end) or "ephemeral"
        (nothing is written). Raises ConfigError naming the option.
        """
        if options.get("summarizer") is not None:
            self._scope.summarizer(options["summarizer"])
        given = admitted_options(self._scope.key(session_id), self._gate, options)
        return AsyncSession(SessionScope(self._scope, given))

    async def sessions(self, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        """Return this tenant's sessions in the order of their ids: at most `limit` of those after `after`."""
        if not isinstance(after, str) or unfit(after) is not None:
            raise ConfigError("after", after, "a session's id, or ''")
        check_whole(limit, "limit")
        return await self.store.sessions(self.tenant, after=after, limit=limit)

    async def info(self, session_id: str) -> SessionInfo:
        """Return the session as a listing shows it. Raises SessionNotFound."""
        check_id(session_id, "session")
        if (head := await self.store.head(self._scope.key(session_id))) is None:
            raise SessionNotFound(session_id)
        return info(session_id, head)

    async def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        """Store a session that `export()` gave, under its own id or another, and return that id.

        Every reference is checked and every total made anew; ids, times and links are kept. Where the session
        exists, "error" raises Conflict, "replace" puts the export in its place in one step, and "merge"
        appends those of its entries that are not there, but for what was taken back, and results whose call was
        erased. Raises ImportFailed, and stores nothing, for an export that does not hold together.
        """
        return await (await self._importing()).session(data, session_id=session_id, on_conflict=on_conflict)

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
        limits: Given = None,
    ) -> ImportReport:
        """Take the conversations of a file, or of a binary stream, into sessions and say what came of it.

        `source` is what the file is: "messages" (JSON or JSON lines of provider messages, in the `format` named or
        found), "chatgpt" or "claude" (their data exports, also as archives), "palimpsest" (our own exports),
        "openai-agents" (its SQLite database), "langchain" or "pydantic-ai"; "auto" finds out. Everything goes into
        `session_id` where one is given, else into sessions of the conversations' own ids, or named after the file.

        Importing a file again adds nothing, one that has grown adds what is new, and an import that was
        interrupted is completed by repeating it; under another `key` the same messages come once more. With
        `branches` the branches of a conversation that are not current become sessions, too (`<id>~2`, ...).
        `progress` is called with the bytes done and their total (None where nobody knows). `limits` (`Limits`, or a
        mapping with some of them) bounds what the file may hold: what is larger than one is refused, naming it.

        What is malformed is reported with its place, and the rest is taken. Raises ImportFailed, and stores nothing,
        for a file that is of no source, or could be of several, and with `strict` for the first fault; OSError where
        the file cannot be opened; ConfigError for an option that is not accepted.
        """
        return await (await self._importing()).file(
            path,
            source=source,
            format=format,
            session_id=session_id,
            key=key,
            strict=strict,
            branches=branches,
            progress=progress,
            limits=limits,
        )

    async def delete_session(self, session_id: str) -> bool:
        """Destroy the session with everything that belongs to it and return whether there was one."""
        check_id(session_id, "session")
        async with self._scope.drop_derived(key := self._scope.key(session_id)):
            there = await self.store.delete(key)
        self._scope.let_go(key)
        await self.store.scrub(whole=False)
        return there

    async def forget(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
        matches: str | Query | None = None,
        reason: str = BY_REQUEST,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Erased:
        """Destroy for good all that belongs to one of these, in every session and branch, and say what that was.

        `session` goes with every copy of its entries in branches. `tenant`, which must be this memory's own, goes with
        all sessions and items. What `matches` a text, or a `Query`, goes as `erase` has it. Of a `user` (an id) goes
        what messages of that `name`, or with that `user_id` in their metadata, said, with the whole interactions that
        they began; a session in which nothing else is left is deleted. Summaries are made anew from what is left,
        without a model, or withdrawn.

        Interrupted, the same again goes on with what is left. Sessions that come into being meanwhile are found.
        `progress` is called with the number of sessions done, and of all. `dry_run` changes nothing. Raises ConfigError
        unless exactly one is given, and in a memory that only reads; ErasureFailed where what was made from entries
        cannot be removed: what is erased by then stays erased.
        """
        forget = (await self._everywhere()).forget
        return await forget(self._scope, user, session, tenant, matches, reason, progress, dry_run=dry_run)

    async def vacuum(self, *, progress: Callable[[int, int], object] | None = None) -> Vacuumed:
        """Write anew what is kept where something was destroyed, and give back what the store does not use.

        That is of all tenants. Others go on writing meanwhile. It is what `remains` of an erasure in a large file asks
        for: then no byte of what was erased before is left. Interrupted, the same again goes on with what is left.
        `progress` is called with about how many bytes were gone through, and of how many. Raises ConfigError in a
        memory that only reads; StoreUnavailable where there is no room for a second copy of the largest table.
        """
        return await (await self._everywhere()).vacuum(self._scope, progress)

    async def derive(self, derived: Derived) -> Callable[[], None]:
        """Have something that is made from this tenant's entries, such as a search index, told before entries go.

        From then on the store knows its name, in every process: who erases where it has not joined leaves a note in the
        store. What such notes say is removed here first, before this returns, and later by `sweep`. Join before
        anything is made.

        Returns a function after which it is told no longer in this memory; the store knows of it until `underive`.
        Raises ConfigError for what is not as `palimpsest.sessions.derived.Derived` says, ErasureFailed where it does
        not remove what it should, and StoreUnavailable in a memory that only reads.
        """
        joined = self._scope.derivations
        await joined.join(derived)
        return lambda: joined.leave(derived)

    async def derivers(self) -> tuple[str, ...]:
        """Return the names of what is made from this tenant's entries, in this process or another."""
        return await self._scope.derivations.names()

    async def underive(self, name: str) -> bool:
        """Have the store forget what joined under this name, with the notes for it: for what is there no more.

        Returns whether the store knew of it.
        """
        check_id(name, "derived")
        return await self._scope.derivations.end(name)

    async def scan(
        self,
        privacy: Privacy | None = None,
        *,
        session: str | None = None,
        apply: bool = False,
        sample: int = 5,
        progress: Callable[[int, int], object] | None = None,
    ) -> Scanned:
        """Find what a policy would have redacted in what is stored already, and with `apply` redact it there.

        `privacy` is what `open` takes; without it, it is this memory's own. Looked at are all sessions of the tenant,
        or `session`: entries, rewound and archived ones, too, summaries of every version, records, names of contexts.
        Up to `sample` findings are shown as they would be. `progress` is called with the sessions done and all.

        With `apply` entries and summaries are rewritten in place, and entries of types that the policy withholds are
        erased, in every branch; each session begins a new epoch. The branches of `session`, which have copies of what
        was made of it, are scanned, too. What others add meanwhile is looked at, too. Interrupted, the same again goes
        on with what is left. What cannot be checked stays as it is, and is reported. Raises ConfigError without a
        policy, and for `apply` in a memory that only reads, or over a store that cannot rewrite; SessionNotFound;
        ErasureFailed where what was made from entries cannot be removed.
        """
        scan = (await self._everywhere()).scan
        return await scan(self._scope, privacy, session=session, apply=apply, sample=sample, progress=progress)

    async def sweep(self) -> int:
        """Erase what has expired of all that this tenant owns; return how many entries and items that were.

        Summaries that told of it are made anew from the rest, without a model. What joined with `derive` removes what
        was erased elsewhere meanwhile, too.
        """
        return await (await self._everywhere()).sweep(self._scope)

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call `handler(session_id, facts)` after each `event` and return a function that stops it.

        Events: entry:added, cut, compressed, evicted, erased, restored, compaction:skipped, compaction:failed,
        summarizer:failed, session:cleared, session:forked, session:imported, session:replaced, session:rewound,
        context:over_budget, condition:error, privacy:refused, redacted, usage:recorded, turn:ended. A handler may be a
        coroutine function; one that raises is logged and breaks nothing.
        """
        return self._scope.observers.on(event, handler)

    async def close(self) -> None:
        """Close the store, when what runs in the background is done; whoever uses it afterwards gets Closed.

        What is not done within 10 seconds is given up, which a warning in the log says: it loses nothing that was
        acknowledged. Closing twice is fine.
        """
        await self.runner.close(last=self._scope.close())

"""`AsyncMemory`: an opened store and its sessions. `palimpsest.sessions.sync.Memory` has the same verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec

from palimpsest.errors import ConfigError, SessionNotFound
from palimpsest.log import values
from palimpsest.log.change import BY_REQUEST
from palimpsest.log.entry import now_us
from palimpsest.log.head import ABOUT, About, SessionKey
from palimpsest.log.ids import check_id, check_scope
from palimpsest.log.values import checked_clock
from palimpsest.privacy.gate import Gate, gate_of, guarded
from palimpsest.runtime.events import EventName, Handler
from palimpsest.runtime.logs import warn
from palimpsest.runtime.once import lazy
from palimpsest.runtime.runner import Runner
from palimpsest.sessions.counting import counter_of
from palimpsest.sessions.lazy_parts import Part
from palimpsest.sessions.lease import COMPACTION_SECONDS, TURN_SECONDS
from palimpsest.sessions.opened import Opened
from palimpsest.sessions.opening_options import check_opening
from palimpsest.sessions.options import HISTORY, VALUE_BYTES, GivenOptions, Options
from palimpsest.sessions.remembered import VIEW_BYTES
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.sessions.session import AsyncSession
from palimpsest.stores import SessionInfo, Store
from palimpsest.stores.opening import keys_of, open_store, unlocked
from palimpsest.stores.options import discreet_address

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta
    from pathlib import Path
    from typing import BinaryIO, Unpack

    from palimpsest.compaction.knowledge import Embed, TextSplitter
    from palimpsest.formats import FormatName
    from palimpsest.log.entry import Kind, Role
    from palimpsest.privacy.policy import Policy
    from palimpsest.privacy.redaction import Redactor
    from palimpsest.sessions.declared import DefinitionInfo
    from palimpsest.sessions.derived import Derived
    from palimpsest.sessions.erased import Erased, Vacuumed
    from palimpsest.sessions.erasing.everywhere import Everywhere
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.scanned import Scanned
    from palimpsest.sessions.erasing.sweeper import Sweeper
    from palimpsest.sessions.importing.report import ImportReport
    from palimpsest.sessions.importing.verbs import Importing, Progress
    from palimpsest.sessions.knowledge.base import AsyncKnowledge
    from palimpsest.sessions.listing import Order, SessionPage
    from palimpsest.sessions.options import SessionOptions
    from palimpsest.sessions.recalling.recalled import IndexStatus, Recalled
    from palimpsest.sessions.recalling.verbs import Recalling
    from palimpsest.sessions.working import AsyncWorkingMemory
    from palimpsest.stores.encrypted import Encryption
    from palimpsest.stores.opening import GivenBreaker
    from palimpsest.stores.options import StoreOptions
    from palimpsest.tokens.counter import TokenCounter
    from palimpsest.transfer.sources import SourceName
    from palimpsest.transfer.sources.limits import Given

Privacy: TypeAlias = "str | Mapping[str, Any] | Policy | Redactor"
"""A privacy policy: a preset's name, a mapping, a `Policy`, or a `Redactor` that applies one."""


def declared(how: Literal["single", "environment"], *source: object) -> tuple[dict[str, Any], SessionOptions]:
    """Return the arguments with which to open a declared memory, and the options of its sessions.

    `palimpsest.resources` reads the declaration. It is imported by name, since it is a layer above this package.
    """
    opening: tuple[dict[str, Any], SessionOptions] = import_module(f"palimpsest.resources.{how}").opening(*source)
    return opening


def index_file(given: object, encryption: Encryption | None) -> tuple[str, Callable[[], None]]:
    """Return the path for a search index, and a function that raises if the file there is something else.

    Raises ConfigError for a value that is not a path, or for an encrypted store.
    """
    from palimpsest.recall.sqlite.identity import check_file, path_of  # only needed if a path is given

    if encryption is not None:
        allowed = "None: an encrypted store keeps its search index in memory, since the index has words in plain text"
        raise ConfigError("recall_index", given, allowed)
    path = path_of(given)
    return path, partial(check_file, path)


DEFAULT_TENANT = "default"
DEFAULT_SCOPE = "default"
OnConflict: TypeAlias = Literal["error", "replace", "merge"]
"""What an import does if the session exists already."""


@guarded
class AsyncMemory:
    """A store and its sessions, for programs with an event loop: `async with AsyncMemory.open(url) as memory:`.

    `session` returns a conversation, `working` a working memory of values under keys, `knowledge` a knowledge base of
    documents. `sessions` lists and `recall` searches all conversations of the tenant; `for_tenant` returns the memory
    of another tenant in the same store. `forget` destroys everything that belongs to a user. `close` closes the store.
    """

    def __init__(
        self,
        where: str | Path | None = None,
        runner: Runner | None = None,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
        encryption: Encryption | None = None,
        privacy: Gate | None = None,
        view_bytes: int = 0,
        options: dict[str, Any] | None = None,
        sweep_every: timedelta | float | str | None = None,
        turn_lease: timedelta | float | str = TURN_SECONDS,
        compaction_lease: timedelta | float | str = COMPACTION_SECONDS,
        embedder: object = None,
        recall_index: str | Path | None = None,
    ) -> None:
        if where is None or runner is None or privacy is None or options is None:  # not called by `open`
            if privacy is not None:  # called by `open`, but without an address
                raise ConfigError("store", where, "an address or a path, such as 'agent.db'")
            raise ConfigError("AsyncMemory", where, "what AsyncMemory.open(address) gives, such as for 'agent.db'")
        check_opening(where, options)
        check_id(tenant, "tenant")
        tenant = values.plain_text(tenant)
        self._sweep_every: float | None = None
        if sweep_every is not None:
            self._sweep_every = values.microseconds("sweep_every", sweep_every) / 1_000_000
        self._sweeper: Sweeper | None = None
        self.runner, self.tenant, self._gate = runner, tenant, privacy
        runner.redact = privacy.redact if privacy.redactor is not None else None
        leases = {"turn_lease": turn_lease, "compaction_lease": compaction_lease}
        turn, compaction = (values.microseconds(name, given) / 1_000_000 for name, given in leases.items())
        index: str | None = None
        self._check_index: Callable[[], None] | None = None
        if recall_index is not None:
            index, self._check_index = index_file(recall_index, encryption)
        shared = Opened(index)
        self._scope = MemoryScope(tenant, runner, checked_clock(clock), privacy, view_bytes, shared, turn, compaction)
        self._where, self._store_options = where, {"clock": self._scope.clock, **options}
        self._keys = keys_of(encryption)
        self._opener: AsyncMemory | None = None
        self._own_scope, self._is_fork = DEFAULT_SCOPE, False
        self._above: tuple[str, ...] = ()
        self._defaults: SessionOptions = {}
        if embedder is not None:
            self._scope.embed(embedder)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {discreet_address(str(self._where))!r} of tenant {self.tenant!r}>"

    @classmethod
    def from_resource(
        cls,
        source: str | Path | Mapping[str, Any],
        *,
        id: str | None = None,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
    ) -> AsyncMemory:
        """Open the store of a declared memory. Its sessions have the declared options; `session` may override them.

        Sessions have the ids that you pass to `session`; for session keys, templates and several memories use
        `palimpsest.resources`. Raises InvalidResource, which lists every mistake, and whatever `open` raises.

        Args:
            source: a file (.yaml, .yml, .json), a folder, or a mapping, as `Resources.load` takes it.
            id: which memory to open if the source declares several; None: the only one.
            tenant: the owner of every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        arguments, defaults = declared("single", source, id)
        memory = cls.open(**arguments, tenant=tenant, clock=clock)
        memory._defaults = defaults  # noqa: SLF001 (the same class)
        return memory

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
    ) -> AsyncMemory:
        """Open the store that environment variables name.

        `PALIMPSEST_MEMORY_BACKEND` is in_memory, file, sqlite, postgres, mongodb or redis, and `PALIMPSEST_MEMORY` with
        `_FILE_DIR`, `_SQLITE_PATH`, `_POSTGRES_URL`, `_MONGODB_URL` or `_REDIS_URL` says where the store is.
        Alternatively, `PALIMPSEST_MEMORY_RESOURCE` names a file that declares the memory. The variables that end in
        `_MAX_CONVERSATION_TOKENS` and `_SUMMARIZE_THRESHOLD`, both in tokens, are options of each session; without them
        there is no such limit, and no summary.

        Raises ConfigError, which names the variable, and whatever `from_resource` raises.

        Args:
            environ: the variables by name; None: those of this process.
            tenant: the owner of every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        arguments, defaults = declared("environment", environ)
        memory = cls.open(**arguments, tenant=tenant, clock=clock)
        memory._defaults = defaults  # noqa: SLF001 (the same class)
        return memory

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
        circuit_breaker: GivenBreaker = None,
        sweep_every: timedelta | float | str | None = None,
        turn_lease: timedelta | float | str = TURN_SECONDS,
        compaction_lease: timedelta | float | str = COMPACTION_SECONDS,
        embedder: object = None,
        recall_index: str | Path | None = None,
        **options: Unpack[StoreOptions],
    ) -> AsyncMemory:
        """Return a memory over a store: a path (`agent.db`, `~/agent.db`, a `pathlib.Path`) of an SQLite file, or an
        address: `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:relative/folder`, `file:///absolute/folder`,
        `memory://`, or that of a server.

        Nothing is opened yet: `async with` opens the store and closes it. Otherwise the first awaited verb opens it,
        and if that fails, the next one tries again.

        Opening raises ConfigError for an unknown address or option, StoreError if the store cannot be opened, and
        WrongKey if it is encrypted with other keys.

        Args:
            where: the store's address, or a path.
            tenant: the owner of every session of this memory, which sees no sessions of other tenants; "default" by
                default.
            clock: a function that returns microseconds since 1970, as a whole number.
            encryption: the keys that encrypt the stored content: `Keys`, or a mapping of key ids to keys. None: no
                encryption.
            privacy: the policy that says what must not be stored: a preset ("default", "secrets"), a mapping, a
                `Policy`, or a `Redactor`, which can also have a key for pseudonyms. None: everything is stored as is.
            view_bytes: about how many bytes of what contexts are made from to cache; 64 MiB by default, 0: no cache.
            circuit_breaker: when to stop calling a store that does not answer, for a while: True (after 5 calls in a
                row without an answer, for 30 seconds), a `CircuitBreaker`, or a mapping with its fields. None: never.
            sweep_every: how often to run `sweep` for this tenant while the memory is open: a timedelta, seconds, or
                text such as "1h". None: never.
            turn_lease: how long a `turn()` whose process was killed keeps the next one waiting: a timedelta, seconds,
                or text such as "30s" (default). A living process renews the lease three times in that time.
            compaction_lease: the same for a compaction that asks a summarizer; "5m" by default.
            embedder: turns texts into vectors, so that `recall` also searches by meaning: a model's name ("wordllama",
                "minilm"), a function or coroutine function from a list of texts to a vector for each, or an object with
                `embed_documents` or `encode`. It needs the extra `vectors`. None: `recall` compares words only.
            recall_index: the path of a local file for the search index of this store alone. None: beside a store on
                disk, inside a PostgreSQL store, and in memory for all others. The index holds words in plain text, so
                that of an encrypted store is always in memory.
            synchronous: on disk, what survives a power loss: "FULL" (default), every acknowledged write; "NORMAL", all
                but the last commits.
            busy_seconds: on disk, how long to wait for other writers; 30 by default.
            timeout_seconds: on a server, the most seconds that a call may take, including all waiting; 30 by default.
            pool_size: on a server, the most connections; 10 by default.
            schema_name: on PostgreSQL, the schema of the tables; "palimpsest" by default.
            prefix: on Redis, the prefix of every key; "palimpsest" by default.
            cluster: on Redis, whether the address names a node of a cluster; False by default.
            readonly: on disk or on a server, whether to write nothing; False by default.
            large_bytes: on disk or on a server, the size in bytes from which a text, or the data of an image, is stored
                only once, however many entries hold it.
        """
        from palimpsest.runtime.threaded import OneAtATime, Threaded  # asyncio, which a synchronous memory never loads

        runner, gate, store_options = Threaded(), gate_of(privacy), {**options, "circuit_breaker": circuit_breaker}
        gate.outside = runner.outside
        rest = sweep_every, turn_lease, compaction_lease, embedder, recall_index
        memory = cls(where, runner, tenant, clock, encryption, gate, view_bytes, store_options, *rest)
        gate.opening = OneAtATime(memory._open)
        return memory

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:  # __aexit__ will not be called, so end what the runner has started here
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the store, which `async with` does by itself, and the first verb."""
        if self._opener is not None:
            await self._opener.connect()
        elif self._scope.opened is None:
            await (self._gate.opening or self._open)()

    async def _open(self) -> None:
        if self._scope.opened is not None:  # a concurrent call opened it first
            return
        stores: list[Store] = []  # filled in the thread, so that a store is closed here even if `run` is cancelled
        try:
            await self.runner.run(lambda: stores.append(self._open_store()))
            if self._check_index is not None:
                await self.runner.run(self._check_index)
            self._scope.opened = await unlocked(stores[0], self._keys, self._scope.clock)
            self._keys = self._gate.opening = None  # the store has what it needs of the keys
            if self._sweep_every is not None:
                self._sweeper = await self._sweeping(self._sweep_every)
        except BaseException:
            for store in stores:
                await self.runner.surely(store.close)
            raise

    def _open_store(self) -> Store:
        """Open the store. Beside an event loop, import the module of contexts here, so that it does not block later."""
        if self.runner.suspends:
            import_module("palimpsest.sessions.contexts.verbs")
        return open_store(self._where, self.runner, **self._store_options)

    async def _sweeping(self, seconds: float) -> Sweeper:
        from palimpsest.sessions.erasing.sweeper import Sweeper  # loads `threading`

        return Sweeper(self.runner, seconds, self.sweep)

    def for_tenant(self, tenant: str) -> AsyncMemory:
        """Return the memory of another tenant over the same store, with the same policy, keys and clock.

        It has no connection and no thread of its own, so it is cheap enough to make one for each request. It need not
        be closed: closing it leaves the store open, and it ends when the memory that opened the store is closed. All
        memories of one tenant share their observers and what joined with `derive`. Raises ConfigError for an invalid
        id.

        Args:
            tenant: the owner of every session of that memory, an id.
        """
        check_id(tenant, "tenant")
        other = object.__new__(type(self))
        other.runner, other.tenant, other._gate, other._opener = self.runner, tenant, self._gate, self
        other._where, other._defaults = self._where, self._defaults
        other._sweeper, other._own_scope, other._is_fork, other._above = None, DEFAULT_SCOPE, self._is_fork, ()
        other._scope = self._scope.sharing(tenant)
        return other

    @property
    def store(self) -> Store:
        """The store behind this memory."""
        return self._scope.store

    @lazy
    def _listing(self) -> Part[Callable[..., Awaitable[SessionPage]]]:
        def make() -> Callable[..., Awaitable[SessionPage]]:
            from palimpsest.sessions.listing import listed  # a millisecond

            return listed

        return Part(self.runner, make)

    @lazy
    def _everywhere(self) -> Part[type[Everywhere]]:
        def make() -> type[Everywhere]:
            from palimpsest.sessions.erasing.everywhere import Everywhere  # forty milliseconds

            return Everywhere

        return Part(self.runner, make)

    @lazy
    def _recalling(self) -> Part[Recalling]:
        def make() -> Recalling:
            from palimpsest.sessions.recalling.verbs import Recalling  # twenty milliseconds

            return Recalling(self._scope)

        return Part(self.runner, make)

    @lazy
    def _importing(self) -> Part[Importing]:
        def make() -> Importing:
            from palimpsest.sessions.importing.verbs import (
                Importing,  # loads every source of files: twenty milliseconds
            )

            return Importing(self._scope, self.session)

        return Part(self.runner, make)

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Return the session with this id. Nothing is read or written before the first verb of the session.

        This object keeps the options; except where noted they are not stored. Raises ConfigError, which names the
        option, for a value that is not accepted.

        Args:
            session_id: 1 to 256 characters, none of them a control character.
            model: the model's name, by which its window, tokenizer and prices are looked up. None: unknown.
            max_tokens: the most tokens of a whole request and its answer together; None: the model's window.
            max_messages: the most messages of a context, as the format counts them; None: no limit.
            max_context_ratio: the share of the model's window that the log may take, over 0 and up to 1; answer, system
                text and tools are not part of it. None: no such limit.
            max_log_tokens: the most tokens of the log with its summaries; answer, system text and tools are not part
                of it. None: no such limit.
            reserve: tokens kept free for the answer, subtracted from `max_tokens`, or from the model's window if that
                is smaller or the only limit. None: with `max_tokens` 0, so that the request may take all of it; without
                it the model's longest answer, but at most half of the window.
            counter: counts tokens: a function from text to a number, the name of an encoding, or an object with `name`,
                `count` and `overhead` (whether to count what a provider adds to each message). None: the model's.
            format: the provider's format of messages; "openai" by default.
            view: the name of the view for which cuts are made; "main" by default.
            short_term: what contexts show: a `MaxTokens`, a mapping with its fields, or a list of these; None: a
                `MaxTokens` with `conditions` and `oversize`.
            conditions: expressions that entries must meet to be shown, for the default short-term strategy.
            oversize: what to do with an entry that is too large to fit even alone: "clamp" (default), "drop", "error"
                or "keep_newest".
            mask: whether a cut may replace old tool results by a note; True by default.
            low_water: the share of the budget that a cut goes down to, over 0 and under 1; 0.36 by default.
            summary_share: the share of the budget that summaries may take, over 0 and under 1. None: a quarter, and
                only if interactions need the room.
            tag_shares: for each tag the share of the budget that entries with this tag may take, from 0 to 1; the
                oldest are left out first. An entry's tags are in `metadata["tags"]`. None: no such limits.
            cache_seconds: how long after a call the provider's cache still holds what was sent; None: the default of
                the format; `math.inf`: cuts take no account of it.
            readonly: whether the session only reads: contexts store no cut, and verbs that write raise ConfigError;
                False by default.
            long_term: strategies of compaction, such as `Summarize(interaction_keep=3)`: an object, a name or a
                mapping, or a list of these. None: none.
            summarizer: writes summaries: a function from prompt to text, a model string such as "openai:gpt-4o-mini",
                or a `ModelSummarizer`; None: no model is called.
            auto_compact: where a strategy runs whose trigger fires: "inline" (default), "background", or "off": only in
                workers.
            long_term_run: which strategies run if several triggers fire: the "first" (default) or "all".
            before_turn: whether to check the triggers before each context, too; False by default.
            persistence: when added entries are stored: "incremental" (default), "flush" (with `archive=False` the end
                of a turn destroys what was compacted) or "ephemeral" (nothing is written).
            archive: whether to keep what was compacted; True by default; False is allowed only with "flush".
            user: the id of the user that the session belongs to, stored like the title. If the session belongs to
                another user, or to nobody, every verb raises WrongUser. None: the user is not checked.
            title: the session's title, stored when its first entry creates it; `describe` changes it. None: no title.
            metadata: your own JSON values about the session, stored like the title. None: none.
            lifetime: how long the session lasts after the last addition, stored like the title: a timedelta, seconds,
                or text such as "30d" or "1h30m". After that it no longer exists for any verb, and `sweep` destroys what
                is stored of it. None: for ever.
            facts: a scope of working memory, or a list of scopes, whose facts each context shows; none by default.
            facts_in: where contexts show them: `tail`, after the newest entry, as they are at each call (default), or
                `prefix`, before the log, as they were at the last cut.
            tail_share: the share of the log's room that is reserved for facts and tails, at most 0.5; None: 0.1 with
                `facts`, otherwise 0.
            definition: the declaration of the session, as `palimpsest.resources` returns it. None: not declared.
        """
        if (declared := self._defaults.get("definition")) is not None and "definition" not in options:
            options["definition"] = msgspec.structs.replace(declared, given=frozenset(options))
        options = {**self._defaults, **options}
        if options.get("summarizer") is not None:
            self._scope.summarizer(options["summarizer"])
        resolved = admitted_options(self._scope.key(session_id), self._gate, options)
        if resolved.about is None or resolved.about.user is None:
            return AsyncSession(SessionScope(self._scope, resolved))
        from palimpsest.sessions.owned import OwnedSession  # a millisecond, only needed if a user is given

        return OwnedSession(SessionScope(self._scope, resolved))

    def fork(self, scope: str) -> AsyncMemory:
        """Return a memory for a sub-agent: with the same conversations, but a working memory of its own.

        It shares its sessions with this memory: each sees what the other adds. Its `working()` is the given scope. The
        fork cannot destroy what it shares: `delete_session`, `forget`, `sweep` with `untouched_for` and an import with
        "replace" raise ConfigError there, and in memories that its `for_tenant` returns. Closing it leaves the store
        open. For a conversation of its own, a sub-agent uses `session.fork`. Raises ConfigError for an invalid scope,
        or the scope of this memory or of one that it was forked from.

        Args:
            scope: the scope of the fork's `working()`, an id or a path of ids, such as "agent/billing".
        """
        check_scope(scope)
        above = (*self._above, self._own_scope)
        if scope in above:
            raise ConfigError("scope", scope, "a scope other than that of the forked memory")
        other = self.for_tenant(self.tenant)
        other._own_scope, other._is_fork, other._above = scope, True, above  # noqa: SLF001 (the same class)
        return other

    def bind(self, session: AsyncSession | str | None = None) -> AbstractContextManager[AsyncMemory]:
        """Make this memory, and one of its sessions, the current ones inside a block: `with memory.bind(session):`.

        Inside, `palimpsest.current_memory()` and `palimpsest.current_session()` return them, also in functions that are
        called there and in tasks that are started there; `palimpsest.carry` takes them along into threads. Blocks can
        be nested: when an inner one ends, those of the outer one are current again.

        Args:
            session: the session, or its id; None: no session is current.
        """
        from palimpsest.sessions.binding import bound  # not needed by most memories

        return bound(self, session)

    def working(
        self, scope: str | None = None, *, history: int = HISTORY, value_bytes: int = VALUE_BYTES
    ) -> AsyncWorkingMemory:
        """Return the working memory of a scope: values that an agent keeps under keys. Nothing is read or written yet.

        Raises ConfigError for an invalid scope.

        Args:
            scope: an id, or a path of ids such as "user/ann"; None: the memory's own scope, which is "default", or the
                one that was passed to `fork`. Facts in "user/ann" and below are destroyed when `forget` forgets the
                user "ann", and facts in "session/7" with that session.
            history: how many older values of each fact to keep; 5 by default.
            value_bytes: the most bytes of JSON that a value, and the older values of a fact together, may have; 65,536
                by default.
        """
        from palimpsest.sessions.working import AsyncWorkingMemory  # not needed by most memories

        if scope is not None:
            check_scope(scope)
        return AsyncWorkingMemory(self._scope, scope or self._own_scope, history=history, value_bytes=value_bytes)

    def knowledge(
        self,
        collection: str,
        *,
        user: str | None = None,
        embedder: Embed | None = None,
        text_splitter: TextSplitter | Mapping[str, Any] | None = None,
        counter: TokenCounter | Callable[[str], int] | str | None = None,
    ) -> AsyncKnowledge:
        """Return a knowledge base: a searchable collection of documents and of summaries of sessions.

        Nothing is read yet. Raises ConfigError for a value that is not accepted.

        Args:
            collection: the name of the collection, like the `collection_id` of a strategy's knowledge base.
            user: an id: what you add can be found for this user alone, and searches find what belongs to this user or
                to everybody. None: what belongs to everybody, or to sessions without a user.
            embedder: turns texts into vectors: a model's name such as "wordllama", a function or coroutine function of
                a list of texts, or an object with `embed_documents` or `encode`. None: searches compare words.
            text_splitter: how to split documents: a `TextSplitter`, or a mapping with its fields; None: its defaults.
            counter: counts tokens for the splitter, as for a session; None: the default encoding.
        """
        from palimpsest.sessions.knowledge.making import of_memory  # not needed by most memories

        return of_memory(self._scope, collection, user, embedder, text_splitter, counter_of(counter, None))

    async def scopes(self, prefix: str = "") -> list[str]:
        """Return the scopes of working memory that have facts, sorted by code points.

        Args:
            prefix: only scopes that start with this text, such as "user/".
        """
        from palimpsest.sessions.fact_scopes import scopes  # not needed by most memories

        if not isinstance(prefix, str):
            raise ConfigError("prefix", type(prefix).__name__, "text that scopes begin with")
        return await scopes(self.store, self.tenant, prefix)

    async def definitions(self) -> list[DefinitionInfo]:
        """Return each definition of declared sessions, with the number of its sessions, sorted by name and version.

        This reads the heads of all sessions of the tenant.
        """
        from palimpsest.sessions.definitions import definitions_of  # not needed by most memories

        return await definitions_of(self.store, self.tenant)

    async def sessions(
        self,
        *,
        user: str | None = None,
        title: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        prefix: str = "",
        order: Order = "id",
        after: str = "",
        limit: int | None = None,
    ) -> SessionPage:
        """Return this tenant's sessions that match, all of them or one page.

        Pass the `next` of a page as `after` to get the following one; it is None on the last page. In the order
        "latest", a session that is written to during the listing may be missing. A session that cannot be read is
        listed as `damaged` if its id and user match, whatever else is asked for; it sorts as the oldest, and a warning
        names it once. Raises ConfigError for a value that is not accepted.

        Args:
            user: only sessions of this user; no other user's sessions are read. None: all sessions, also those without
                a user.
            title: only sessions whose title contains this text, in any letter case; None: any title or none.
            since: only sessions last written to at this time, with a time zone, or later; None: no bound.
            before: only sessions last written to before this time, with a time zone; None: no bound.
            prefix: only sessions whose ids start with this text.
            order: "id" (by code points), or "latest": the session that was written to last comes first.
            after: the `next` of the previous page, in the same order; in the order "id" also any id. "": from the
                first.
            limit: the most sessions on a page; None: all.
        """
        return await (await self._listing())(self._scope, user, title, since, before, prefix, order, after, limit)

    async def info(self, session_id: str) -> SessionInfo:
        """Return the session as `sessions` lists it. Raises SessionNotFound.

        Args:
            session_id: the session's id.
        """
        check_id(session_id, "session")
        if (head := await self.store.head(self._scope.key(session_id))) is None:
            raise SessionNotFound(session_id)
        return SessionInfo.of(session_id, head)

    async def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        """Store a session that `export()` returned, under its own id or another, and return that id.

        Every reference is checked and every total computed anew; ids, times and links are kept. If the session exists,
        "error" raises Conflict, "replace" replaces it by the export in one step, and "merge" appends the entries of the
        export that it does not have, except rewound entries and results whose call was erased. Raises ImportFailed, and
        stores nothing, for an export that is inconsistent.

        Args:
            data: what `export()` returned.
            session_id: the id to store the session under; None: its own.
            on_conflict: what to do if the session exists: "error" (default), "replace" or "merge".
        """
        if isinstance(on_conflict, str) and on_conflict == "replace":
            self._may_destroy()
        return await (await self._importing()).session(data, session_id=session_id, on_conflict=on_conflict)

    async def import_file(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        source: SourceName = "auto",
        format: FormatName | None = None,
        session_id: str | None = None,
        key: str | None = None,
        strict: bool = False,
        branches: bool = False,
        progress: Progress | None = None,
        limits: Given = None,
    ) -> ImportReport:
        """Import the conversations of a file, or of a binary stream, into sessions and return a report.

        Sources are "messages" (JSON or JSON lines of provider messages, whose `format` is given or detected), "chatgpt"
        and "claude" (their data exports, also as archives), "palimpsest" (exports of this library), "openai-agents"
        (its SQLite database), "langchain" and "pydantic-ai". Everything is imported into `session_id` if that is given,
        otherwise into one session for each conversation, with the conversation's id or a name made from that of the
        file. A session that the import creates takes the title of its conversation.

        Importing a file again adds nothing, importing one that has grown adds what is new, and an interrupted import is
        completed by repeating it. With another `key` the same messages are added once more.

        Content that is malformed, or exceeds one of the `limits`, is reported with its place, and the rest is imported.
        Raises ImportFailed, and stores nothing, for a file that fits no source or several, and with `strict` for the
        first fault; OSError if the file cannot be opened; and ConfigError for an option that is not accepted.

        Args:
            path: the file's path, or a binary file that is open for reading.
            source: the kind of file; "auto" (default) detects it.
            format: the format of messages of the source "messages"; None: detected by their shape.
            session_id: the session to import everything into; None: one session for each conversation.
            key: makes this import distinct from other imports of the same messages; None: the same messages are added
                once.
            strict: whether the first fault refuses the whole file.
            branches: whether branches of a conversation that are not its current one become sessions (`<id>~2`, ...),
                too.
            progress: called with the bytes done and their total (None: unknown).
            limits: `Limits`, or a mapping with some of them: the most that the file may hold. None: the defaults of
                `Limits`.
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

    async def recall(
        self,
        query: str,
        *,
        sessions: Iterable[str] | str | None = None,
        user: str | None = None,
        max_tokens: int | None = 2000,
        limit: int = 20,
        kinds: Iterable[Kind] | Kind | None = None,
        roles: Iterable[Role] | Role | None = None,
        names: Iterable[str] | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        neighbours: int = 1,
        model: str | None = None,
        counter: TokenCounter | Callable[[str], int] | str | None = None,
    ) -> Recalled:
        """Search the logs of this tenant's sessions, and return the passages that match best.

        This is `session.recall` over several sessions: as many passages are returned as fit into `max_tokens`. An entry
        that branches share is found once. Sessions that were not written to since the last search are not read. Raises
        ConfigError for a value that is not accepted. No error and no log line quotes the query.

        Args:
            query: what to search for, at most 10,000 characters; words in quotes are a phrase.
            sessions: ids of the sessions to search; None: all.
            user: an id: only sessions of this user. None: sessions of all users and of nobody.
            max_tokens: the most tokens of the result's `text`; 2,000 by default. None: no limit.
            limit: the most entries that may match; 20 by default.
            kinds: kinds of entries that may match, such as "message"; None: all. An empty list matches nothing.
            roles: roles that may match, such as "user"; None: all. An empty list matches nothing.
            names: names of speakers or tools that may match; None: all. An empty list matches nothing.
            since: a datetime with a time zone: only entries written then or later. None: no bound.
            until: a datetime with a time zone: only entries written before it. None: no bound.
            neighbours: how many entries of the same interaction to show on each side of a hit, if there is room; 1 by
                default.
            model: the model by whose tokenizer tokens are counted; None: unknown.
            counter: counts tokens, as for a session; None: the model's.
        """
        part = await self._recalling()
        asked = part.asked(query, max_tokens, limit, kinds, roles, names, since, until, neighbours)
        return await part.everywhere(asked, sessions, user, model, counter)

    async def index_status(self) -> IndexStatus:
        """Return where this tenant's search index is, its size, and how many sessions it is behind.

        The call indexes nothing. A damaged index counts as empty; the next search fills it again.
        """
        return await (await self._recalling()).status()

    async def rebuild_index(self, *, progress: Callable[[int, int], object] | None = None) -> IndexStatus:
        """Rebuild this tenant's search index from the logs, with vectors if there is an embedder; return its new
        status.

        Searches in the meantime use what is indexed so far, and index what they miss. If the call is interrupted, the
        next search or the next call goes on. If the embedder fails, words are indexed all the same, and a warning is
        issued. Raises ConfigError in a read-only memory.

        Args:
            progress: called with the number of sessions done and their total, first for the words, then for the
                vectors.
        """
        return await (await self._recalling()).rebuild(progress)

    async def delete_session(self, session_id: str) -> bool:
        """Destroy the session with all that belongs to it, including its working memory; return whether it existed.

        Damaged sessions can be deleted, too. Branches keep the entries that they share with the session. Raises
        StoreCorrupt if these can no longer be determined, because the records of who shares them are damaged as well. A
        warning names copies of the session in places that the store does not read; `forget` returns them.

        Args:
            session_id: the session's id.
        """
        check_id(session_id, "session")
        self._may_destroy()
        async with self._scope.drop_derived(key := self._scope.key(session_id)):
            await self._scope.drop_facts(key)
            existed = await self.store.delete(key)
        self._scope.let_go(key)
        await self._scope.scrub(self.store)
        for why in await self._scope.out_of_reach(session_id):
            warn("session %r was deleted, but damaged data that cannot be read may still hold it: %s", session_id, why)
        return existed

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
        """Destroy for good everything that belongs to a user, a session or a tenant, or that matches a query.

        The result says what was destroyed. Exactly one of the first four arguments must be given:

        - `user`: the sessions that belong to this user, as with `session`, and the user's working memory ("user/ID").
          In all other sessions, messages with this `name`, or with this `user_id` in their metadata, are erased with
          the whole interactions that they began; a session of which nothing else is left is deleted. If nothing names
          the user, `unknown` of the result says so.
        - `session`: the session with every copy of its entries in branches, and its working memory ("session/ID").
        - `tenant`: all sessions and items of the tenant, which must be this memory's own.
        - `matches`: all entries that match, as `erase` does it, and the facts of working memories that have the text.

        Summaries are made anew from what is left, without a model, or withdrawn. A damaged session is destroyed if its
        id, tenant or user is the one that is given. Other damaged sessions cannot be searched; `remains` of the result
        names them, and also the branches that keep entries which a damaged session shared with them.

        If the call is interrupted, the next one goes on with what is left. Sessions that are created in the meantime
        are included. Raises ConfigError unless exactly one of the four is given, and in a read-only memory; and
        ErasureFailed if something derived from entries cannot be removed: what was erased before that stays erased.

        Args:
            user: an id, as sessions have it, or messages in `name` or in `user_id` of their metadata.
            session: a session's id.
            tenant: this memory's own tenant.
            matches: a text, or a `Query`.
            reason: the reason, stored in the log in plain text.
            dry_run: whether to change nothing, and only return what would be destroyed.
            progress: called with the number of sessions done and their total.
        """
        self._may_destroy()
        forget = (await self._everywhere()).forget
        return await forget(self._scope, user, session, tenant, matches, reason, progress, dry_run=dry_run)

    def _may_destroy(self) -> None:
        """Raise ConfigError in a fork, whose conversations belong to the memory that was forked."""
        if self._is_fork:
            allowed = "the memory that it was forked from: a fork cannot delete or replace sessions, nor forget anybody"
            raise ConfigError("memory", "a fork", allowed)

    async def vacuum(self, *, progress: Callable[[int, int], object] | None = None) -> Vacuumed:
        """Rewrite the parts of the store in which something was destroyed, and free the space that is not used.

        This covers all tenants, and others can go on writing meanwhile. `remains` of an erasure in a large file asks
        for it: afterwards no byte is left of what was erased before. If the call is interrupted, the next one goes on
        with what is left. Raises ConfigError in a read-only memory, and StoreUnavailable if there is no room for a
        second copy of the largest table.

        Args:
            progress: called with the number of bytes gone through and their total, both approximate.
        """
        return await (await self._everywhere()).vacuum(self._scope, progress)

    async def durability(self) -> str:
        """Return a sentence for people: which acknowledged writes may be lost if the machine or the server fails."""
        return await self.store.durability()

    async def derive(self, derived: Derived) -> Callable[[], None]:
        """Register something that is derived from this tenant's entries, such as a search index.

        Before entries are erased, `derived` is asked to remove what it made from them. The store keeps its name for all
        processes: an erasure in a process in which it is not registered leaves a note in the store. Notes that are
        there already are carried out before this method returns, and later ones by `sweep`. Register before deriving
        anything.

        Returns a function that unregisters `derived` from this memory; the store keeps its name until `underive`.
        Raises ConfigError for an object that is not as `palimpsest.sessions.derived.Derived` says, ErasureFailed if it
        fails to remove what it should, and StoreUnavailable in a read-only memory.

        Args:
            derived: an object with a name, and a coroutine that removes what was made from entries.
        """
        derivations = self._scope.derivations
        await derivations.join(derived)
        return lambda: derivations.leave(derived)

    async def derivers(self) -> tuple[str, ...]:
        """Return the names of everything that was registered with `derive` for this tenant, in any process."""
        return await self._scope.derivations.names()

    async def underive(self, name: str) -> bool:
        """Make the store forget a name that was registered with `derive`, and the notes for it.

        Use it when what was derived no longer exists. Returns whether the store knew the name.

        Args:
            name: the name that was registered with `derive`.
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
        """Find stored content that a privacy policy would redact, and with `apply` redact it in the store.

        The scan covers all sessions of the tenant, or `session` alone: entries, also rewound and archived ones,
        summaries of every version, records, names of contexts and facts of working memories. Up to `sample` findings
        are shown as they would look after redaction.

        With `apply`, entries and summaries are rewritten in place, and entries of types that the policy withholds are
        erased, in every branch; each changed session begins a new epoch. Branches of `session` are scanned, too, since
        they hold copies of what was derived from it. What others add meanwhile is included. If the call is interrupted,
        the next one goes on with what is left. Content that cannot be checked stays as it is, and is reported.

        Raises ConfigError without a policy, and for `apply` in a read-only memory or over a store that cannot rewrite;
        SessionNotFound; and ErasureFailed if something derived from entries cannot be removed.

        Args:
            privacy: a preset's name, a policy, a mapping or a `Redactor`, as for `open`; None: the memory's own.
            session: a session's id; None: every session of the tenant.
            apply: whether to redact in the store what is found.
            sample: the most findings to show.
            progress: called with the number of sessions done and their total.
        """
        scan = (await self._everywhere()).scan
        return await scan(self._scope, privacy, session=session, apply=apply, sample=sample, progress=progress)

    async def sweep(
        self,
        *,
        untouched_for: timedelta | float | str | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Erase everything of this tenant that has expired; return how many entries and items were erased.

        Summaries of erased entries are made anew from what is left, without a model. Notes of erasures in other
        processes are carried out for what is registered with `derive`.

        With `untouched_for`, sessions that were not written to for so long are deleted, too, and counted. A session
        that is written to meanwhile stays, and so do branches of a deleted one. `sessions(before=…)` lists such
        sessions. A damaged session stays, since its last write is unknown.

        Raises ConfigError for a value that is not accepted, and in a read-only memory; and StoreCorrupt, after
        everything else is swept, if something damaged may have expired.

        Args:
            untouched_for: a timedelta, seconds, or text such as "90d" (s, m, h, d, w); None: no session is deleted.
            dry_run: whether to change nothing, and only count the sessions and entries that would go.
            progress: called with the number of deleted sessions so far and their total.
        """
        if untouched_for is not None:
            self._may_destroy()
        return await (await self._everywhere()).sweep(self._scope, untouched_for, progress, dry_run=dry_run)

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that redacts a text by this memory's privacy policy, for your own log lines; it never raises.

        None without a policy.
        """
        return self.runner.redact

    def on(self, event: EventName, handler: Handler) -> Callable[[], None]:
        """Call `handler(session_id, facts)` after each `event`; return a function that removes the handler.

        Events: entry:added, cut, compressed, evicted, erased, restored, compaction:skipped, compaction:failed,
        summarizer:failed, session:cleared, session:forked, session:imported, session:replaced, session:rewound,
        context:over_budget, condition:error, knowledge:deferred, privacy:redacted, privacy:refused, lock:waited,
        redacted, usage:recorded, turn:ended, config:changed. A handler may be a coroutine function. If it raises, the
        error is logged, and the operation that caused the event goes on.

        Args:
            event: the event's name.
            handler: a function, or coroutine function, of the session's id and the event's facts (a dict).
        """
        return self._scope.observers.on(event, handler)

    async def close(self) -> None:
        """Close the store after waiting for background work; later use of it raises Closed.

        Work that is not done within 10 seconds is given up, with a warning in the log; nothing acknowledged is lost by
        that. Closing twice is allowed. Closing a memory that `for_tenant` returned leaves the store open.
        """
        if self._sweeper is not None:
            self._sweeper.end()
        if self._opener is not None:
            self._scope.end()
        else:
            last, opening = self._scope.close(), self._gate.opening
            await self.runner.close(last=last if opening is None else partial(opening.after, last))


def admitted_options(key: SessionKey, gate: Gate, given: SessionOptions) -> Options:
    """Return a session's resolved options. Raises ConfigError for one that is unknown or holds private text.

    Records of cuts, compactions and counts store texts of the options: conditions, and the names of strategies, of the
    view and of the counter. So the policy is applied to these.
    """
    values.known("session option", given, GivenOptions.__struct_fields__)
    options = Options(key, **given)
    if about := {name: given.get(name) for name in ABOUT if given.get(name) is not None}:
        options.about = About(**gate.admit_about(about))
    if options.definition is not None:
        from palimpsest.sessions.declared import Declared  # only needed by declared sessions

        if not isinstance(options.definition, Declared):
            raise ConfigError("definition", options.definition, "a definition from palimpsest.resources, or None")
        options.about = msgspec.structs.replace(options.about or About(), definition=options.definition.definition)
    if gate.redactor is not None:
        tagged = " with every cut; tag entries, and test for the tag"
        gate.refuse(options.condition_texts, "conditions", tagged)
        gate.refuse([strategy.name for strategy in options.long_term], "long_term.name")
        gate.refuse([options.view] if "view" in given else (), "view")
        gate.refuse([options.counter.name] if given.get("counter") else (), "counter.name")
    return options

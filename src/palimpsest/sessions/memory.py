"""`AsyncMemory`: an opened store and its sessions. `palimpsest.sessions.sync.Memory` has the same verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec

from palimpsest.errors import ConfigError, SessionNotFound
from palimpsest.log import values
from palimpsest.log.change import BY_REQUEST
from palimpsest.log.checks import checked_clock
from palimpsest.log.entry import now_us
from palimpsest.log.head import ABOUT, About, SessionKey
from palimpsest.log.ids import check_id, check_scope
from palimpsest.privacy.gate import Gate, gate_of, guarded
from palimpsest.runtime.events import EventName, Handler
from palimpsest.runtime.logs import warn
from palimpsest.runtime.once import lazy
from palimpsest.runtime.runner import Runner
from palimpsest.sessions.counting import counter_of
from palimpsest.sessions.erasing import everywhere
from palimpsest.sessions.importing import importing
from palimpsest.sessions.lease import COMPACTION_SECONDS, TURN_SECONDS
from palimpsest.sessions.listing import Order, SessionPage, listed
from palimpsest.sessions.opened import Opened
from palimpsest.sessions.opening import check_opening
from palimpsest.sessions.options import HISTORY, VALUE_BYTES, GivenOptions, Options
from palimpsest.sessions.parts import Part
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
"""What may not be kept: a preset's name, a policy, as a mapping or an object, or what applies one."""


def declared(how: Literal["single", "environment"], *source: object) -> tuple[dict[str, Any], SessionOptions]:
    """What a declared memory is opened with, and the options of its sessions: said by the package for these, which
    stands above this one."""
    found: tuple[dict[str, Any], SessionOptions] = import_module(f"palimpsest.resources.{how}").opening(*source)
    return found


def index_file(given: object, encryption: Encryption | None) -> tuple[str, Callable[[], None]]:
    """The path of the file that a search index is to be kept in, and what raises where that is something else. Raises
    ConfigError."""
    from palimpsest.recall.identity import check_file, path_of  # only for who says where it is

    if encryption is not None:
        told = "None: an encrypted store has its search index in memory, for it holds words in plain text"
        raise ConfigError("recall_index", given, told)
    path = path_of(given)
    return path, partial(check_file, path)


DEFAULT_TENANT = "default"
DEFAULT_SCOPE = "default"
OnConflict: TypeAlias = Literal["error", "replace", "merge"]
"""What an import does where the session is there already."""


@guarded
class AsyncMemory:
    """A store and its sessions, for programs with an event loop: `async with AsyncMemory.open(url) as memory:`.

    `session` gives a conversation, `working` values under keys, `knowledge` documents. `sessions` and `recall` look
    into all conversations of the tenant, `for_tenant` is the same store for another one. `forget` destroys what belongs
    to somebody. `close` ends it.
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
        if where is None or runner is None or privacy is None or options is None:  # somebody else than `open`
            if privacy is not None:  # `open`, without an address
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
        """Open the store of a declared memory. Its sessions have what is declared, beside the options they are given.

        They have the ids that you give them; for keys, templates and several memories there is
        `palimpsest.resources`. Raises InvalidResource with every mistake, and what `open` raises.

        Args:
            source: a file (.yaml, .yml, .json), a folder, or a mapping, as `Resources.load` takes it.
            id: which memory, where the source declares several; None: the only one.
            tenant: who owns every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        given, defaults = declared("single", source, id)
        memory = cls.open(**given, tenant=tenant, clock=clock)
        memory._defaults = defaults  # noqa: SLF001 (one of its own class)
        return memory

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
    ) -> AsyncMemory:
        """Open the store that environment variables name: `PALIMPSEST_MEMORY_BACKEND` (in_memory, file, sqlite,
        postgres, mongodb, redis), with `_FILE_DIR`, `_SQLITE_PATH`, `_POSTGRES_URL`, `_MONGODB_URL` or `_REDIS_URL`; or
        `PALIMPSEST_MEMORY_RESOURCE`, a file that declares the memory.

        `_MAX_CONVERSATION_TOKENS` and `_SUMMARIZE_THRESHOLD`, in tokens, are options of each session; without them
        there is no such limit, and no summary. Raises ConfigError naming the variable, and what `from_resource` raises.

        Args:
            environ: the variables by name; None: those of this process.
            tenant: who owns every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        given, defaults = declared("environment", environ)
        memory = cls.open(**given, tenant=tenant, clock=clock)
        memory._defaults = defaults  # noqa: SLF001 (one of its own class)
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
        """Name the store to open: a path (`agent.db`, `~/agent.db`, a `pathlib.Path`) of an SQLite file, or an address:
        `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:relative/folder`, `file:///absolute/folder`, `memory://`.

        Nothing is opened yet. `async with` opens the store, and closes it; or the first verb that is awaited does, and
        the next one where that fails. It raises ConfigError for an address or option that is unknown, StoreError where
        the store cannot be opened, and WrongKey where it is encrypted with other keys.

        Args:
            where: the store's address, or a path.
            tenant: who owns every session of this memory, and sees no other tenant's; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
            encryption: keys that what is stored is encrypted with: `Keys`, or a mapping of key ids to keys. None: it is
                not.
            privacy: what may not be kept: a preset ("default", "secrets"), a mapping or a `Policy`, or a `Redactor`,
                which has a key for pseudonyms, too. None: all is kept as it is.
            view_bytes: about how many bytes of what contexts were made of are remembered; 64 MiB by default, 0: none.
            circuit_breaker: when a store that does not answer is left alone for a while: True (after 5 calls in a row,
                for 30 seconds), a `CircuitBreaker`, or a mapping with its fields. None: never.
            sweep_every: how often `sweep` runs by itself, for this tenant, while the memory is open: a timedelta,
                seconds, or text such as "1h". None: never.
            turn_lease: how long a `turn()` whose process was killed holds up the next one: a timedelta, seconds, or
                text such as "30s" (default). It is renewed three times in that time while its process lives.
            compaction_lease: the same of a compaction that pays for a summary; "5m" by default.
            embedder: what gives texts vectors, so that `recall` finds by meaning, too: a model's name ("wordllama",
                "minilm"), a function or coroutine function of a list of texts that returns a vector for each, or an
                object with `embed_documents` or `encode`. It needs the extra `vectors`. None: words alone count.
            recall_index: the path of a file on this machine in which the search index is kept, for this store alone.
                None: beside a store on a disk, inside one on PostgreSQL, and for all others in memory. It holds words
                in plain text, so an encrypted store has it in memory.
            synchronous: on disk, what a loss of power leaves: "FULL" (default), all that was acknowledged; "NORMAL",
                all but the last commits.
            busy_seconds: on disk, how long to wait for other writers; 30 by default.
            timeout_seconds: on a server, how long a call may take, whatever it waits for; 30 by default.
            pool_size: on a server, how many connections there are at most; 10 by default.
            schema_name: on PostgreSQL, the schema that the tables are in; "palimpsest" by default.
            prefix: on Redis, what every key begins with; "palimpsest" by default.
            cluster: on Redis, whether the address names a node of a cluster; False by default.
            readonly: on a disk or a server, whether nothing may be written; False by default.
            large_bytes: on a disk or a server, from how many bytes a text, or an image's data, is kept once, however
                many entries hold it.
        """
        from palimpsest.runtime.threaded import OneAtATime, Threaded  # asyncio, which a synchronous memory never loads

        runner, admits, with_breaker = Threaded(), gate_of(privacy), {**options, "circuit_breaker": circuit_breaker}
        admits.outside = runner.outside
        rest = sweep_every, turn_lease, compaction_lease, embedder, recall_index
        memory = cls(where, runner, tenant, clock, encryption, admits, view_bytes, with_breaker, *rest)
        admits.opening = OneAtATime(memory._open)
        return memory

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:  # nobody else ends what the runner has begun by then
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
        if self._scope.opened is not None:  # by whoever was first
            return
        made: list[Store] = []  # whoever is cancelled while it is opened is not given it, and closes it all the same
        try:
            await self.runner.run(lambda: made.append(self._open_store()))
            if self._check_index is not None:
                await self.runner.run(self._check_index)
            self._scope.opened = await unlocked(made[0], self._keys, self._scope.clock)
            self._keys = self._gate.opening = None  # the store has what it needs of the keys
            if self._sweep_every is not None:
                self._sweeper = await self._sweeping(self._sweep_every)
        except BaseException:
            for store in made:
                await self.runner.surely(store.close)
            raise

    def _open_store(self) -> Store:
        """The store; an event loop is not held up later by loading what almost every session is asked for."""
        if self.runner.suspends:
            import_module("palimpsest.sessions.contexts.verbs")
        return open_store(self._where, self.runner, **self._store_options)

    async def _sweeping(self, seconds: float) -> Sweeper:
        from palimpsest.sessions.erasing.sweeper import Sweeper  # `threading`, only for who has one

        return Sweeper(self.runner, seconds, self.sweep)

    def for_tenant(self, tenant: str) -> AsyncMemory:
        """Return the memory of another tenant over the same store, with the same policy, keys and clock.

        It has no connection and no thread of its own, so make one for each request. It need not be closed:
        that leaves the store open, and when the memory that opened the store closes it is over. Observers, and what
        joins with `derive`, are the tenant's, whichever of its memories they were given to. Raises ConfigError for
        what is no id.

        Args:
            tenant: who owns every session of that memory, an id.
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
    def _everywhere(self) -> Part[type[Everywhere]]:
        return Part(self.runner, everywhere)

    @lazy
    def _recalling(self) -> Part[Recalling]:
        def make() -> Recalling:
            from palimpsest.sessions.recalling.verbs import Recalling  # twenty milliseconds

            return Recalling(self._scope)

        return Part(self.runner, make)

    @lazy
    def _importing(self) -> Part[Importing]:
        return Part(self.runner, lambda: importing(self._scope, self.session))

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Return the session of this id; nothing is read or written before its first verb.

        The options are kept by this object, not in the store. Raises ConfigError naming the option that is not
        accepted.

        Args:
            session_id: 1 to 256 characters, none of them a control character.
            model: the model's name: its window, tokenizer and prices are taken from the table. None: not known.
            max_tokens: the most tokens of a whole request, with the answer; None: the model's window.
            max_messages: the most messages of a context, as the format counts them; None: no limit.
            max_context_ratio: the share of the model's window that the log may take, over 0 and up to 1; answer, system
                text and tools come beside it. None: no such share.
            max_log_tokens: tokens that the log may take, with its summaries; answer, system text and tools come beside
                it. None: no such limit.
            reserve: tokens kept free for the answer: they come off `max_tokens`, or off the model's window where that
                is smaller, or the only limit. None: beside `max_tokens` nothing, so the request may take all of it;
                without it the model's longest answer, but at most half of the window.
            counter: what counts tokens: a function from text to a number, an encoding's name, or an object with
                `name`, `count` and `overhead`: whether what a provider adds to messages is counted. None: the model's.
            format: the provider's format of messages, "openai" by default.
            view: the name of the window that cuts are made for, "main" by default.
            short_term: what contexts show: a `MaxTokens`, a mapping with its fields, or a list of these; None: one of
                `conditions` and `oversize`.
            conditions: expressions that entries must meet to be shown, for the default short-term strategy.
            oversize: what becomes of what does not fit alone: "clamp" (default), "drop", "error" or "keep_newest".
            mask: whether a cut may replace old tool results by a note; True by default.
            low_water: the share of the budget that a cut goes down to, over 0 and under 1; 0.36 by default.
            summary_share: the share of the budget that summaries take at most, over 0 and under 1. None: a quarter, and
                only where interactions want the room.
            tag_shares: by tag, the share of the budget that entries with it take at most, from 0 to 1; the oldest are
                left out first. An entry has the tags in `metadata["tags"]`. None: they take what there is.
            cache_seconds: how long the provider's cache holds what it was sent, since the last call; None: what the
                format says; `math.inf`: no cut heeds it.
            readonly: whether the session only reads: contexts store no cut, and verbs that write raise ConfigError;
                False by default.
            long_term: strategies of compaction, such as `Summarize(interaction_keep=3)`: one or a list of objects,
                names and mappings. None: none.
            summarizer: what writes summaries: a function from prompt to text, a model string such as
                "openai:gpt-4o-mini", a `ModelSummarizer`; None: no model is asked.
            auto_compact: where a strategy that fires runs: "inline" (default), "background", or "off": only in workers.
            long_term_run: which strategies that fire run: the "first" (default) or "all".
            before_turn: whether the triggers are looked at before each context, too; False by default.
            persistence: when what is added is stored: "incremental" (default), "flush" (with `archive=False`: what was
                compacted is destroyed at the turn's end) or "ephemeral" (nothing is written).
            archive: whether what was compacted is kept; True by default, and False only for "flush".
            user: whose session it is, an id. Where it is another's, or nobody's, every verb raises WrongUser. None: not
                said, and not looked at.
            title: what it is called, kept with a session that its first entry makes; `describe` changes it. None: none.
            metadata: what else is said of it, JSON values, kept like the title. None: nothing.
            lifetime: how long it lasts when nothing is added to it any more, kept like the title: a timedelta, seconds,
                or text such as "30d" or "1h30m". Then there is no such session, and `sweep` destroys what is stored of
                it. None: for ever.
            facts: a scope of a working memory, or a list of these, whose facts stand in each context; none by default.
            facts_in: where they stand: `tail`, behind the newest entry, as they are at each call (default), or
                `prefix`, before the log, as they were at the last cut.
            tail_share: the share of the log's room that is kept for facts and tails, at most 0.5; None: 0.1 with
                `facts`, else nothing.
            definition: what declares the session; `palimpsest.resources` gives it. None: nothing does.
        """
        if (declared := self._defaults.get("definition")) is not None and "definition" not in options:
            options["definition"] = msgspec.structs.replace(declared, given=frozenset(options))
        options = {**self._defaults, **options}
        if options.get("summarizer") is not None:
            self._scope.summarizer(options["summarizer"])
        given = admitted_options(self._scope.key(session_id), self._gate, options)
        if given.about is None or given.about.user is None:
            return AsyncSession(SessionScope(self._scope, given))
        from palimpsest.sessions.owned import OwnedSession  # a millisecond, for who says whose sessions are

        return OwnedSession(SessionScope(self._scope, given))

    def fork(self, scope: str) -> AsyncMemory:
        """Return a memory with the same conversations and a working memory of its own: for a sub-agent.

        Its sessions are those of this memory, and what is added to one is seen by both. `working()` of it is the scope
        given. It destroys nothing that it shares: `delete_session`, `forget`, a sweep of what is `untouched_for` long
        and an import that is to "replace" raise ConfigError there, and in what `for_tenant` makes of it; closing it
        leaves the store open. For a conversation of its own there is `session.fork`. Raises ConfigError for a scope
        that is this memory's own, or that of one which this was forked from, or none.

        Args:
            scope: what `working()` of the fork is, an id or a path of ids, such as "agent/billing".
        """
        check_scope(scope)
        above = (*self._above, self._own_scope)
        if scope in above:
            raise ConfigError("scope", scope, "another one than that of the memory that is forked")
        other = self.for_tenant(self.tenant)
        other._own_scope, other._is_fork, other._above = scope, True, above  # noqa: SLF001 (one of its own class)
        return other

    def bind(self, session: AsyncSession | str | None = None) -> AbstractContextManager[AsyncMemory]:
        """Make this memory the current one in a block, with one of its sessions: `with memory.bind(session):`.

        Inside, `palimpsest.current_memory()` and `palimpsest.current_session()` return them, in functions that are not
        given them, and in tasks that are made there; `palimpsest.carry` takes them into threads. A block inside has its
        own; after it these are current again.

        Args:
            session: the session, or its id; None: none is current.
        """
        from palimpsest.sessions.binding import bound  # only for who binds

        return bound(self, session)

    def working(
        self, scope: str | None = None, *, history: int = HISTORY, value_bytes: int = VALUE_BYTES
    ) -> AsyncWorkingMemory:
        """Return the working memory of a scope: values that an agent keeps under keys. Nothing is read or written yet.

        Raises ConfigError for what is no scope.

        Args:
            scope: an id, or a path of ids such as "user/ann"; None: the memory's own, which is "default", or what
                `fork` was given. What is in "user/ann", and beneath it, goes with the user "ann" in `forget`, and what
                is in "session/7" with that session.
            history: how many older values of each fact are kept; 5 by default.
            value_bytes: the most bytes of JSON that a value may have, and the older values of a fact together; 65,536
                by default.
        """
        from palimpsest.sessions.working import AsyncWorkingMemory  # only for who has one

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
        """Return a knowledge base: documents and summaries of sessions that a search finds. Nothing is read yet.

        Raises ConfigError for what is not accepted.

        Args:
            collection: its name, as `collection_id` of a strategy's knowledge base has it.
            user: an id: what is added is found for that user alone, and found is what is theirs, or everybody's. None:
                what is everybody's, or of sessions without a user.
            embedder: what makes a vector of each text: a model's name such as "wordllama", a function or coroutine
                function of a list of texts, or an object with `embed_documents` or `encode`. None: words are compared.
            text_splitter: how documents are split, a `TextSplitter` or a mapping with its fields; None: as that does by
                default.
            counter: what counts tokens for that, as for a session; None: the default encoding.
        """
        from palimpsest.sessions.knowledge.making import of_memory  # only for who has one

        return of_memory(self._scope, collection, user, embedder, text_splitter, counter_of(counter, None))

    async def scopes(self, prefix: str = "") -> list[str]:
        """Return the scopes of working memories that have facts, by code points.

        Args:
            prefix: only scopes that begin so, such as "user/".
        """
        from palimpsest.sessions.scopes import scopes  # the same

        if not isinstance(prefix, str):
            raise ConfigError("prefix", type(prefix).__name__, "text that scopes begin with")
        return await scopes(self.store, self.tenant, prefix)

    async def definitions(self) -> list[DefinitionInfo]:
        """Return each definition that sessions are under which are declared, with their number, by name and version.

        It reads the heads of all sessions of the tenant.
        """
        from palimpsest.sessions.definitions import definitions_of  # only for who asks

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
        """Return this tenant's sessions: all that fit, or a page of them, whose `next` is `after` for the page behind
        (None: there is none). One that is written to while the latest are listed may be left out. One that cannot be
        read is `damaged`: it fits whatever its id and its user fit, is the oldest, and a warning names it once.

        Raises ConfigError for what is not accepted.

        Args:
            user: only sessions of this user; nothing is read of any other's. None: of all, and of nobody.
            title: only sessions in whose titles this is, in any letter case; None: with any title, and without.
            since: only sessions that were written to at this time, with a time zone, or later; None: whenever.
            before: only sessions that were last written to before this time, with a time zone; None: whenever.
            prefix: only sessions whose ids begin so.
            order: "id" (by code points), or "latest": the one that was written to last comes first.
            after: the `next` of the page before, in the same order; by id also any id. "": from the first.
            limit: the most sessions of a page; None: all.
        """
        return await listed(self._scope, user, title, since, before, prefix, order, after, limit)

    async def info(self, session_id: str) -> SessionInfo:
        """Return the session as a listing shows it. Raises SessionNotFound.

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
        """Store a session that `export()` gave, under its own id or another, and return that id.

        Every reference is checked and every total made anew; ids, times and links are kept. Where the session
        exists, "error" raises Conflict, "replace" puts the export in its place in one step, and "merge"
        appends those of its entries that are not there, but for what was taken back, and results whose call was
        erased. Raises ImportFailed, and stores nothing, for an export that does not hold together.

        Args:
            data: what `export()` gave.
            session_id: the id to store it under; None: its own.
            on_conflict: what happens where the session exists: "error" (default), "replace" or "merge".
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
        """Take the conversations of a file, or of a binary stream, into sessions and say what came of it.

        `source` is what the file is: "messages" (JSON or JSON lines of provider messages, in the `format` named or
        found), "chatgpt" or "claude" (their data exports, also as archives), "palimpsest" (our own exports),
        "openai-agents" (its SQLite database), "langchain" or "pydantic-ai"; "auto" finds out. Everything goes into
        `session_id` where one is given, else into sessions of the conversations' own ids, or named after the file. The
        title of a conversation becomes that of a session which it makes.

        Importing a file again adds nothing, one that has grown adds what is new, and an import that was
        interrupted is completed by repeating it; under another `key` the same messages come once more. With
        `branches` the branches of a conversation that are not current become sessions, too (`<id>~2`, ...).
        `progress` is called with the bytes done and their total (None where nobody knows). `limits` (`Limits`, or a
        mapping with some of them) bounds what the file may hold: what is larger than one is refused, naming it.

        What is malformed is reported with its place, and the rest is taken. Raises ImportFailed, and stores nothing,
        for a file that is of no source, or could be of several, and with `strict` for the first fault; OSError where
        the file cannot be opened; ConfigError for an option that is not accepted.

        Args:
            path: the file's path, or a binary file that is open for reading.
            source: what the file is; "auto" (default) finds out.
            format: what messages of the source "messages" are; None: found by their shape.
            session_id: the session that takes everything; None: one for each conversation.
            key: what makes an import of the same messages another one; None: the same again adds nothing.
            strict: whether the first fault refuses the whole file.
            branches: whether branches that are not current become sessions, too.
            progress: called with the bytes done and their total (None: unknown).
            limits: the most that the file may hold; None: the limits' own defaults.
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
        """Find what was said in any session of this tenant, and return the passages that answer a query best, as many
        as `max_tokens` have room for.

        It is `session.recall` over several sessions. An entry that branches share is found once. Sessions that nobody
        has written to since the last search are not read. Raises ConfigError for what is not accepted; no error and no
        log quotes the query.

        Args:
            query: what is looked for, at most 10,000 characters; words in quotes are a phrase.
            sessions: ids of the sessions to look in; None: all.
            user: an id: only sessions that are theirs. None: anybody's.
            max_tokens: tokens that the result may have, as `text`; 2,000 by default. None: no limit.
            limit: the most entries that answer; 20 by default.
            kinds: kinds of entries that may answer, such as "message"; None: all. Of an empty list nothing is.
            roles: roles that may have said it, such as "user"; None: all. Of an empty list nobody has.
            names: who may have said it, or which tools; None: anybody. Of an empty list nobody has.
            since: a datetime with a time zone: written then or later. None: at any time.
            until: a datetime with a time zone: written before it. None: at any time.
            neighbours: how many entries of the same interaction on each side of a hit are shown, where there is room
                left; 1 by default.
            model: the model whose tokens are counted; None: not known.
            counter: what counts tokens, as for a session; None: the model's.
        """
        part = await self._recalling()
        asked = part.asked(query, max_tokens, limit, kinds, roles, names, since, until, neighbours)
        return await part.everywhere(asked, sessions, user, model, counter)

    async def index_status(self) -> IndexStatus:
        """Return where this tenant's search index is, how large, and how many sessions it is behind.

        Nothing is indexed by it. An index that is damaged is found empty, and is filled by the next search.
        """
        return await (await self._recalling()).status()

    async def rebuild_index(self, *, progress: Callable[[int, int], object] | None = None) -> IndexStatus:
        """Make this tenant's search index anew from the logs, its vectors too where there is an embedder, and return
        how it is then.

        Searches meanwhile find what is in it so far, and complete it for themselves. Interrupted, the next search, or
        the same again, goes on. `progress` is called with the number of sessions done, and of all: for the words, and
        then for the vectors. An embedder that fails leaves the words, and a warning. Raises ConfigError in a memory
        that only reads.

        Args:
            progress: called with the sessions done and their total.
        """
        return await (await self._recalling()).rebuild(progress)

    async def delete_session(self, session_id: str) -> bool:
        """Destroy the session with everything that belongs to it, its working memory too, and return whether there was
        one.

        So goes one that is damaged, too; its branches keep what they share. Raises StoreCorrupt where nobody can tell
        any more what that is, because who reads what is damaged as well. A warning tells of a copy of it that lies
        where the store does not read it; `forget` returns that.

        Args:
            session_id: the session's id.
        """
        check_id(session_id, "session")
        self._may_destroy()
        async with self._scope.drop_derived(key := self._scope.key(session_id)):
            await self._scope.drop_facts(key)
            there = await self.store.delete(key)
        self._scope.let_go(key)
        await self._scope.scrub(self.store)
        for why in await self._scope.out_of_reach(session_id):
            warn("session %r was deleted, and is still in what cannot be read: %s", session_id, why)
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

        `session` goes with every copy of its entries in branches, and with its working memory ("session/ID"). `tenant`,
        which must be this memory's own, goes with all sessions and items. What `matches` a text, or a `Query`, goes as
        `erase` has it, with the facts of working memories that have the text. Of a `user` (an id) go the sessions that
        are theirs, as with `session`, and their working memory ("user/ID"). In other sessions goes what messages of
        that `name`, or with that `user_id` in their metadata, said, with the whole interactions that they began; one in
        which nothing else is left is deleted. Where nothing names the user, `unknown` of the result says so. Summaries
        are made anew from what is left, without a model, or withdrawn.

        A session that is damaged goes where it is meant by its id, its tenant or its user; into any other nobody can
        look, and `remains` of the result names it. It names the branches, too, that keep what one shared with them.

        Interrupted, the same again goes on with what is left. Sessions that come into being meanwhile are found.
        `progress` is called with the number of sessions done, and of all. `dry_run` changes nothing. Raises ConfigError
        unless exactly one is given, and in a memory that only reads; ErasureFailed where what was made from entries
        cannot be removed: what is erased by then stays erased.

        Args:
            user: an id, as sessions have it, or messages in `name` or in `user_id` of their metadata.
            session: a session's id.
            tenant: this memory's own tenant.
            matches: a text, or a `Query`.
            reason: why, kept in the log in clear words.
            dry_run: whether nothing is changed, and only told what would go.
            progress: called with the sessions done and their total.
        """
        self._may_destroy()
        forget = (await self._everywhere()).forget
        return await forget(self._scope, user, session, tenant, matches, reason, progress, dry_run=dry_run)

    def _may_destroy(self) -> None:
        """Raise ConfigError in a fork, whose conversations are another's."""
        if self._is_fork:
            allowed = "the memory that was forked: a fork deletes and replaces no session, and forgets nobody"
            raise ConfigError("memory", "a fork", allowed)

    async def vacuum(self, *, progress: Callable[[int, int], object] | None = None) -> Vacuumed:
        """Write anew what is kept where something was destroyed, and give back what the store does not use.

        That is of all tenants. Others go on writing meanwhile. It is what `remains` of an erasure in a large file asks
        for: then no byte of what was erased before is left. Interrupted, the same again goes on with what is left.
        `progress` is called with about how many bytes were gone through, and of how many. Raises ConfigError in a
        memory that only reads; StoreUnavailable where there is no room for a second copy of the largest table.

        Args:
            progress: called with the bytes gone through and their total, both about.
        """
        return await (await self._everywhere()).vacuum(self._scope, progress)

    async def durability(self) -> str:
        """Return a sentence for people: what is lost with the machine, or with the server, of what was acknowledged."""
        return await self.store.durability()

    async def derive(self, derived: Derived) -> Callable[[], None]:
        """Have something that is made from this tenant's entries, such as a search index, told before entries go.

        From then on the store knows its name, in every process: who erases where it has not joined leaves a note in the
        store. What such notes say is removed here first, before this returns, and later by `sweep`. Join before
        anything is made.

        Returns a function after which it is told no longer in this memory; the store knows of it until `underive`.
        Raises ConfigError for what is not as `palimpsest.sessions.derived.Derived` says, ErasureFailed where it does
        not remove what it should, and StoreUnavailable in a memory that only reads.

        Args:
            derived: an object with a name, and a coroutine that removes what was made from entries.
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

        Args:
            name: the name that joined with `derive`.
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
        or `session`: entries, rewound and archived ones, too, summaries of every version, records, names of contexts,
        facts of working memories.
        Up to `sample` findings are shown as they would be. `progress` is called with the sessions done and all.

        With `apply` entries and summaries are rewritten in place, and entries of types that the policy withholds are
        erased, in every branch; each session begins a new epoch. The branches of `session`, which have copies of what
        was made of it, are scanned, too. What others add meanwhile is looked at, too. Interrupted, the same again goes
        on with what is left. What cannot be checked stays as it is, and is reported. Raises ConfigError without a
        policy, and for `apply` in a memory that only reads, or over a store that cannot rewrite; SessionNotFound;
        ErasureFailed where what was made from entries cannot be removed.

        Args:
            privacy: a preset's name, a policy, a mapping or a `Redactor`; None: the memory's own.
            session: a session's id; None: every session of the tenant.
            apply: whether what is found is redacted where it is stored.
            sample: the most findings to show.
            progress: called with the sessions done and their total.
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
        """Erase what has expired of all that this tenant owns; return how many entries and items that were.

        With `untouched_for` the sessions that nobody has written to for so long are deleted, too, and counted; one that
        somebody writes to meanwhile stays, and so do branches of one that goes. `sessions(before=…)` lists them. A
        damaged one stays: nobody knows when it was written to. Raises ConfigError for what is not accepted, and in a
        memory that only reads; StoreCorrupt, when all else is swept, for what is damaged and may have expired.

        Summaries that told of it are made anew from the rest, without a model. What joined with `derive` removes what
        was erased elsewhere meanwhile, too.

        Args:
            untouched_for: a timedelta, seconds, or text such as "90d" (s, m, h, d, w); None: no session is deleted.
            dry_run: whether nothing is changed, and only sessions and entries are counted that would go.
            progress: called with the sessions done and their total, of those that are deleted.
        """
        if untouched_for is not None:
            self._may_destroy()
        return await (await self._everywhere()).sweep(self._scope, untouched_for, progress, dry_run=dry_run)

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that takes out of a text what this memory's policy finds, for log lines of your own, and never
        raises. None without a policy.
        """
        return self.runner.redact

    def on(self, event: EventName, handler: Handler) -> Callable[[], None]:
        """Call `handler(session_id, facts)` after each `event` and return a function that stops it.

        Events: entry:added, cut, compressed, evicted, erased, restored, compaction:skipped, compaction:failed,
        summarizer:failed, session:cleared, session:forked, session:imported, session:replaced, session:rewound,
        context:over_budget, condition:error, knowledge:deferred, privacy:refused, redacted, usage:recorded, turn:ended,
        config:changed. A handler may be a coroutine function; one that raises is logged and breaks nothing.

        Args:
            event: the event's name.
            handler: a function, or coroutine function, of the session's id and the event's facts (a dict).
        """
        return self._scope.observers.on(event, handler)

    async def close(self) -> None:
        """Close the store, when what runs in the background is done; whoever uses it afterwards gets Closed.

        What is not done within 10 seconds is given up, which a warning in the log says: it loses nothing that was
        acknowledged. Closing twice is fine. One that `for_tenant` gave leaves the store open.
        """
        if self._sweeper is not None:
            self._sweeper.end()
        if self._opener is not None:
            self._scope.end()
        else:
            last, opening = self._scope.close(), self._gate.opening
            await self.runner.close(last=last if opening is None else partial(opening.after, last))


def admitted_options(key: SessionKey, gate: Gate, given: SessionOptions) -> Options:
    """Return a session's options, resolved. Raises ConfigError for one that is unknown, or would store what is private.

    What is stored of them is what cuts, compactions and counts are known by later.
    """
    values.known("session option", given, GivenOptions.__struct_fields__)
    made = Options(key, **given)
    if said := {name: given.get(name) for name in ABOUT if given.get(name) is not None}:
        made.about = About(**gate.said(said))
    if made.definition is not None:
        from palimpsest.sessions.declared import Declared  # only for who has one

        if not isinstance(made.definition, Declared):
            raise ConfigError("definition", made.definition, "what palimpsest.resources gives, or None")
        made.about = msgspec.structs.replace(made.about or About(), definition=made.definition.definition)
    if gate.redactor is not None:
        tagged = " with every cut; tag entries, and ask for the tag"
        gate.refuse(made.condition_texts, "conditions", tagged)
        gate.refuse([strategy.name for strategy in made.long_term], "long_term.name")
        gate.refuse([made.view] if "view" in given else (), "view")
        gate.refuse([made.counter.name] if given.get("counter") else (), "counter.name")
    return made

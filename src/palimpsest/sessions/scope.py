"""The shared state of a memory's parts (`MemoryScope`), and of one open session's (`SessionScope`).

Parts get a scope and never see the memory or the session itself.
"""

from __future__ import annotations

from _weakref import ref  # `weakref` costs a cold start a millisecond
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from palimpsest.errors import Closed, ConfigError, WrongUser
from palimpsest.log import values
from palimpsest.log.head import Head, SessionKey
from palimpsest.privacy.gate import Gate
from palimpsest.runtime.events import EventName, Observers
from palimpsest.runtime.logs import warn_caller
from palimpsest.runtime.once import lazy
from palimpsest.runtime.runner import Last, Runner
from palimpsest.sessions.lease import COMPACTION_SECONDS, TURN_SECONDS, Renewals
from palimpsest.sessions.opened import Opened
from palimpsest.sessions.options import Options
from palimpsest.sessions.remembered import VIEW_BYTES, Sent, Views
from palimpsest.stores import Store

if TYPE_CHECKING:
    from palimpsest.context.budget import Reckoned
    from palimpsest.context.result import Context
    from palimpsest.recall.opening import Recall
    from palimpsest.sessions.declared import Declared
    from palimpsest.sessions.definitions import Definitions
    from palimpsest.sessions.derived import Derivations, Unmaking
    from palimpsest.sessions.fact_scopes import Leaving
    from palimpsest.sessions.shelves.keeping import Keeper
    from palimpsest.sessions.withheld import Withheld
    from palimpsest.summaries.models import Asked


UNBOUNDED = (
    "nothing bounds this context: the session has no max_tokens, and no model whose window is known. It grows with the "
    "conversation until the provider refuses it. Open the session with max_tokens=… or model=… (this is said once)"
)


class MemoryScope:
    """What the parts of one memory share. The memory creates it; afterwards only its store changes (opened, closed)."""

    def __init__(
        self,
        tenant: str,
        runner: Runner,
        clock: Callable[[], int],
        gate: Gate,
        view_bytes: int = VIEW_BYTES,
        shared: Opened | None = None,
        turn_seconds: float = TURN_SECONDS,
        compaction_seconds: float = COMPACTION_SECONDS,
    ) -> None:
        self.tenant, self.runner, self.clock, self.gate = tenant, runner, clock, gate
        self._shared, self._ended, self.closing = shared or Opened(), False, False
        self.observers = self._shared.observers.setdefault(tenant, Observers(runner.redact))
        self.renewals = Renewals(runner, turn_seconds)
        self.compactions = Renewals(runner, compaction_seconds)
        self.withheld: dict[tuple[SessionKey, Store], Withheld] = {}
        """What is withheld of open interactions, shared by all objects of a session."""
        values.whole("view_bytes", view_bytes)
        self.views = Views(view_bytes)

    def warn_unbounded(self) -> None:
        """Warn, once, that nothing limits the size of a context."""
        if not self._shared.warned:
            self._shared.warned = True
            warn_caller(UNBOUNDED)

    def sharing(self, tenant: str) -> MemoryScope:
        """Return the scope of another tenant's memory, which shares the store, leases and cache of this one."""
        scope = MemoryScope(tenant, self.runner, self.clock, self.gate, shared=self._shared)
        scope.renewals, scope.compactions = self.renewals, self.compactions
        scope.withheld, scope.views = self.withheld, self.views
        return scope

    @property
    def opened(self) -> Store | None:
        """The store, or None before it is open."""
        return self._shared.store

    @opened.setter
    def opened(self, store: Store) -> None:
        if self.closing:  # the memory was closed while the store opened, so nothing would close the store
            raise Closed("the memory")
        self._shared.store = store
        store.ending = partial(_ended, ref(self))

    @property
    def store(self) -> Store:
        """The store. Raises ConfigError before it is open, Closed after the memory was closed."""
        if self._ended:
            raise Closed(f"the memory of tenant {self.tenant!r}")
        if self.opened is None:
            allowed = "this inside `async with AsyncMemory.open(...)`, or after a first awaited call"
            raise ConfigError("memory", "not open yet", allowed)
        return self.opened

    @property
    def derivations(self) -> Derivations:
        """What is derived from this tenant's entries, such as the search index, and must be erased with them."""
        by_tenant = self._shared.derivations
        if self.tenant not in by_tenant:
            from palimpsest.sessions import derived  # a millisecond, only needed to erase or derive

            own: dict[str, Any] = {derived.INDEX: self._recall, derived.KNOWLEDGE: partial(self.keeper, joins=False)}
            derivations = derived.Derivations(self.runner, self.store, self.tenant, self.views.clear, own)
            return by_tenant.setdefault(self.tenant, derivations)  # another thread may have been first
        return by_tenant[self.tenant]

    def embed(self, given: object) -> None:
        """Make searches compare texts by meaning, too. Raises ConfigError for what cannot be used as an embedder."""
        from palimpsest.recall.embedders import embedder  # an extra

        self._shared.embedder = embedder(given, self.runner)

    embedder = property(lambda self: self._shared.embedder, doc="Turns texts into vectors, or None.")

    async def _recall(self) -> Recall:
        """Return the search over this tenant's logs."""
        shared_indexes = self._shared.indexes
        if not shared_indexes:
            from palimpsest.recall.opening import Indexes  # only needed to search, or to erase what is indexed

            indexes = Indexes(self.store, self.runner, self.clock, self._shared.recall_index, self.embedder)
            shared_indexes.setdefault("", indexes)  # atomic: another thread may have been first
        return await shared_indexes[""].of(self.tenant)

    async def recall(self) -> Recall:
        """Return the search over this tenant's logs, and register it so that erasures also erase from its index."""
        recall = await self._recall()
        await self.derivations.add(recall, lasting=bool(recall.index.name))
        return recall

    async def keeper(self, *, joins: bool = True) -> Keeper:
        """Return the keeper of this tenant's knowledge bases; with `joins`, register it so that erasures reach them."""
        from palimpsest.sessions.shelves.keeping import Keeper  # only needed if there is one, or to erase what is in it

        keeper = self._shared.keepers.setdefault(self.tenant, Keeper(self.sharing(self.tenant)))
        if joins:
            await self.derivations.add(keeper, lasting=self.store.writable)
        return keeper

    async def scrub(self, store: Store) -> tuple[str, ...]:
        """Overwrite the bytes of what was destroyed, in a store and what is derived from it; return what remains."""
        remains = (await store.scrub(whole=False)).remains
        derivations = self._shared.derivations.get(self.tenant)
        return remains + (await derivations.scrub(whole=False) if derivations is not None else ())

    def definitions(self, scope: SessionScope, declared: Declared) -> Definitions:
        """Return the definition of a declared session."""
        from palimpsest.sessions.definitions import Definitions, KnownDefinitions  # only needed by declared sessions

        self._shared.definitions = self._shared.definitions or KnownDefinitions()
        return Definitions(scope, declared, self._shared.definitions)

    def end(self) -> None:
        """Refuse further use of this memory, which shares a store that another memory closes."""
        self._ended = True

    def close(self) -> Last:
        """Stop renewing leases and empty the cache; return a function that closes the store, if one is open by then."""
        self.closing = True
        held = [*self.renewals.close(), *self.compactions.close()]
        counts = self.views.unstored() if self.opened is not None and self.opened.blocking else []
        self.views.clear()
        return partial(self._shared.close, self.runner, held, counts)

    def with_store(self, store: Store) -> MemoryScope:
        """Return the scope of the same memory over another store, without observers."""
        scope = MemoryScope(self.tenant, self.runner, self.clock, self.gate)
        scope.opened = store
        return scope

    def key(self, session: str) -> SessionKey:
        """Return the key of this tenant's session."""
        return SessionKey(self.tenant, session)

    def summarizer(self, given: object) -> Asked | None:
        """Return the summarizer for a session's option. The same option gives the same object, with one breaker."""
        from palimpsest.summaries.models import as_summarizer  # four milliseconds, only needed to summarise

        return as_summarizer(given, self.runner, self.clock)

    def drop_derived(self, key: SessionKey, seqs: Collection[int] | None = None) -> Unmaking:
        """Return a block that first removes what was derived from these entries of a session (None: from all of it)."""
        return self.derivations.unmaking(self.store, key, seqs, branches=False)

    async def end_expired(self, key: SessionKey, leaving: Leaving | None = None) -> bool:
        """Destroy a session whose lifetime is over, and before that what was derived from it; return whether it was
        over.

        With `leaving`, the facts are destroyed by that, which handles many sessions at once.
        """
        async with self.drop_derived(key):
            ended = await self.store.end(key)
        if ended:
            await (self.drop_facts(key) if leaving is None else leaving.drop(key.session))
        self.let_go(key)
        return ended

    async def drop_facts(self, key: SessionKey) -> None:
        """Destroy the working memory of a session that was deleted."""
        from palimpsest.sessions.fact_scopes import drop_scopes  # only needed if a session is deleted

        await drop_scopes(self.store, key.tenant, "session", key.session)

    async def out_of_reach(self, session: str | None = None) -> list[str]:
        """Return why content that no listing shows cannot be read, of the tenant, or only what names this session."""
        return [why for why, named in (await self.store.unread(self.tenant)).items() if session in (None, *named)]

    def let_go(self, key: SessionKey) -> None:
        """Drop what is withheld of a session in the memory's store."""
        self.withheld.pop((key, self.store), None)

    async def tell(self, event: EventName, session: str, /, **facts: Any) -> None:
        """Tell observers what happened to a session."""
        await self.observers.emit(event, session, facts, self.runner.wait)


class SessionScope:
    """What the parts of one open session share.

    These attributes change: `about`, the description that the session is expected to have; `store`, which an EPHEMERAL
    session replaces after each turn; `sent` and `reckoned`, the last context and its budget; and `summaries_added`,
    which says, by knowledge base, up to which epoch (and since which creation) the session's summaries were added.
    """

    def __init__(self, memory: MemoryScope, options: Options, store: Store | None = None) -> None:
        self.memory, self.options, self.key = memory, options, options.key
        self.runner, self.clock, self.gate = memory.runner, memory.clock, memory.gate
        self.observers, self.withheld = memory.observers, memory.withheld
        if store is not None or memory.opened is not None:
            self.store = store or self._own_store()
        self.about = options.about
        self.sent: Context | Sent | None = None
        self.reckoned: Reckoned | None = None
        self.summaries_added: dict[str, tuple[int, int]] = {}

    @lazy
    def store(self) -> Store:
        """The store, if the session was created before the memory was open: looked up at the first verb."""
        return self._own_store()

    @lazy
    def definitions(self) -> Definitions | None:
        """The definition of the session; None if it is not declared."""
        declared = self.options.definition
        return None if declared is None else self.memory.definitions(self, declared)

    @property
    def is_ephemeral(self) -> bool:
        """Whether nothing of the session is written to the memory's store."""
        return self.options.persistence == "ephemeral"

    @property
    def tenant(self) -> str:
        """The tenant that owns the session."""
        return self.key.tenant

    @property
    def place(self) -> tuple[SessionKey, Store]:
        """The session's key in `withheld`."""
        return self.key, self.store

    def _own_store(self) -> Store:
        if not self.is_ephemeral:
            return self.memory.store
        from palimpsest.stores.overlay import Overlay  # two milliseconds, only needed by an EPHEMERAL session

        return Overlay(self.memory.store, self.clock)

    def begin_anew(self) -> None:
        """Drop everything that an EPHEMERAL session has added."""
        self.store, self.sent = self._own_store(), None

    def of(self, session: str) -> SessionScope:
        """Return the scope of another session, such as a branch, in the same store and with the same options."""
        return SessionScope(self.memory, self.options.of(session), self.store)

    def may_write(self) -> None:
        """Raise ConfigError in a session that was opened `readonly`."""
        if self.options.readonly:
            raise ConfigError("readonly", True, "False: a session opened with readonly=True cannot be written to")

    def check_user(self, head: Head | None) -> None:
        """Raise WrongUser if the session belongs to another user than the one that it was opened for."""
        has_owner = head is not None and (head.about is not None or head.next_seq > 1)
        if head is not None and has_owner and self.about is not None and self.about.user not in (None, head.user):
            raise WrongUser(self.key.session, str(self.about.user), head.user)

    async def check_user_seen(self) -> None:
        """Raise WrongUser by the head that this process saw last, without a read if that belongs to the user.

        If it does not, the head is read: the session may have been deleted and begun anew since.
        """
        seen = self.store.seen(self.key)
        try:
            self.check_user(seen.head if seen is not None else None)
        except WrongUser:
            self.check_user(await self.store.head(self.key))

    async def head(self) -> Head:
        """Return the session's head; an empty one if the session does not exist."""
        return await self.store.head(self.key) or Head()

    def let_go(self) -> None:
        """Drop what is withheld, because its interaction is over."""
        self.withheld.pop(self.place, None)

    def drop_derived(self, seqs: Collection[int] | None) -> Unmaking:
        """Return a block that first removes what was derived from these entries (None: from all), in every branch.

        Nothing is derived from an EPHEMERAL session, since its entries are written to no store.
        """
        return self.memory.derivations.unmaking(self.store, self.key, () if self.is_ephemeral else seqs)

    async def tell(self, event: EventName, /, **facts: Any) -> None:
        """Tell observers what happened."""
        await self.observers.emit(event, self.key.session, facts, self.runner.wait)


async def _ended(of: ref[MemoryScope], store: Store, key: SessionKey) -> None:
    """Destroy a session whose lifetime is over, and before that what was derived from it. Called by the store."""
    scope = of()
    if scope is None:
        await store.end(key)
    else:
        await scope.sharing(key.tenant).end_expired(key)

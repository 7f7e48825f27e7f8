"""What parts share: those of a memory, and those of one open session. No part knows the memory itself."""

from __future__ import annotations

from _weakref import ref  # `weakref` costs a cold start a millisecond
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from palimpsest.errors import Closed, ConfigError, WrongUser
from palimpsest.log.checks import check_whole
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
    from palimpsest.sessions.scopes import Leaving
    from palimpsest.sessions.shelves.keeping import Keeper
    from palimpsest.sessions.withheld import Withheld
    from palimpsest.summaries.models import Asked


UNBOUNDED = (
    "nothing bounds this context: the session has no max_tokens, and no model whose window is known. It grows with the "
    "conversation until the provider refuses it. Open the session with max_tokens=… or model=… (this is said once)"
)


class MemoryScope:
    """What the parts of one memory share. Made once, by the memory; only that its store opens, and closes, changes."""

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
        """What is withheld of open interactions: several objects of one session see it."""
        check_whole(view_bytes, "view_bytes")
        self.views = Views(view_bytes)

    def tell_unbounded(self) -> None:
        """Warn, once, that nothing keeps a context from growing."""
        if not self._shared.warned:
            self._shared.warned = True
            warn_caller(UNBOUNDED)

    def sharing(self, tenant: str) -> MemoryScope:
        """The scope of another tenant's memory, which shares the store of this one and whatever runs beside it."""
        scope = MemoryScope(tenant, self.runner, self.clock, self.gate, shared=self._shared)
        scope.renewals, scope.compactions = self.renewals, self.compactions
        scope.withheld, scope.views = self.withheld, self.views
        return scope

    @property
    def opened(self) -> Store | None:
        """The store, from when it is open."""
        return self._shared.store

    @opened.setter
    def opened(self, store: Store) -> None:
        if self.closing:  # meanwhile: what closes it has seen none
            raise Closed("the memory")
        self._shared.store = store
        store.ending = partial(_ended, ref(self))

    @property
    def store(self) -> Store:
        """The store. Raises ConfigError before it is open, Closed after the memory was closed."""
        if self._ended:
            raise Closed(f"the memory of tenant {self.tenant!r}")
        if self.opened is None:
            allowed = "`async with AsyncMemory.open(...)`, or a verb that is awaited, before what is not awaited"
            raise ConfigError("memory", "not open yet", allowed)
        return self.opened

    @property
    def derivations(self) -> Derivations:
        """What is made from this tenant's entries."""
        known = self._shared.derivations
        if self.tenant not in known:
            from palimpsest.sessions import derived  # a millisecond, only for who erases or derives

            own: dict[str, Any] = {derived.INDEX: self._recall, derived.KNOWLEDGE: partial(self.keeper, joins=False)}
            made = derived.Derivations(self.runner, self.store, self.tenant, self.views.clear, own)
            return known.setdefault(self.tenant, made)  # another thread may have been first
        return known[self.tenant]

    def embed(self, given: object) -> None:
        """Have what is searched found by its meaning, too. Raises ConfigError for what gives no vectors."""
        from palimpsest.recall.embedders import embedder  # an extra

        self._shared.embedder = embedder(given, self.runner)

    embedder = property(lambda self: self._shared.embedder, doc="What gives texts vectors; None: nothing.")

    async def _recall(self) -> Recall:
        """What this tenant's logs are searched with."""
        known = self._shared.indexes
        if not known:
            from palimpsest.recall.opening import Indexes  # only for who searches, or erases what is searched

            indexes = Indexes(self.store, self.runner, self.clock, self._shared.recall_index, self.embedder)
            known.setdefault("", indexes)
        return await known[""].of(self.tenant)

    async def recall(self) -> Recall:
        """The same, for who searches: from then on whoever erases takes what goes out of it."""
        known = await self._recall()
        await self.derivations.add(known, lasting=bool(known.index.name))
        return known

    async def keeper(self, *, joins: bool = True) -> Keeper:
        """What keeps the knowledge bases of this tenant. One that `joins` is told from then on before entries go."""
        from palimpsest.sessions.shelves.keeping import Keeper  # only for who has one, or erases what is in it

        known = self._shared.keepers.setdefault(self.tenant, Keeper(self.sharing(self.tenant)))
        if joins:
            await self.derivations.add(known, lasting=self.store.writable)
        return known

    async def scrub(self, store: Store) -> tuple[str, ...]:
        """See that no byte is left of what was destroyed, in a store and what is made from it; return what remains."""
        remains = (await store.scrub(whole=False)).remains
        known = self._shared.derivations.get(self.tenant)
        return remains + (await known.scrub(whole=False) if known is not None else ())

    def definitions(self, scope: SessionScope, declared: Declared) -> Definitions:
        """The definition of a declared session."""
        from palimpsest.sessions.definitions import Definitions, Known  # only for who declares memories

        self._shared.definitions = self._shared.definitions or Known()
        return Definitions(scope, declared, self._shared.definitions)

    def end(self) -> None:
        """Let nobody use this memory any more, whose store is another's."""
        self._ended = True

    def close(self) -> Last:
        """Renew nothing any more, and remember nothing. Return what closes the store, where one is open by then."""
        self.closing = True
        held = [*self.renewals.close(), *self.compactions.close()]
        counts = self.views.unstored() if self.opened is not None and self.opened.blocking else []
        self.views.clear()
        return partial(self._shared.close, self.runner, held, counts)

    def over(self, store: Store) -> MemoryScope:
        """The scope of the same memory over another store, of which no observer hears."""
        scope = MemoryScope(self.tenant, self.runner, self.clock, self.gate)
        scope.opened = store
        return scope

    def key(self, session: str) -> SessionKey:
        """Return the key of this tenant's session."""
        return SessionKey(self.tenant, session)

    def summarizer(self, given: object) -> Asked | None:
        """Return what answers prompts for what a session was given: of one thing there is one, with one breaker."""
        from palimpsest.summaries.models import as_summarizer  # four milliseconds, only to summarise

        return as_summarizer(given, self.runner, self.clock)

    def drop_derived(self, key: SessionKey, seqs: Collection[int] | None = None) -> Unmaking:
        """What was made from anything of a session, or from these entries of it alone, goes before that does."""
        return self.derivations.unmaking(self.store, key, seqs, branches=False)

    async def end_over(self, key: SessionKey, leaving: Leaving | None = None) -> bool:
        """Destroy a session if its time is over, and what was made from it before; return whether it was. One that is
        `leaving` with others leaves its facts to that."""
        async with self.drop_derived(key):
            ended = await self.store.end(key)
        if ended:
            await (self.drop_facts(key) if leaving is None else leaving.drop(key.session))
        self.let_go(key)
        return ended

    async def drop_facts(self, key: SessionKey) -> None:
        """Destroy the working memory of a session that is no more."""
        from palimpsest.sessions.scopes import drop_scopes  # only where a session goes

        await drop_scopes(self.store, key.tenant, "session", key.session)

    async def out_of_reach(self, session: str | None = None) -> list[str]:
        """Why something of the tenant's, or of what names a session, cannot be read that no listing tells of."""
        return [why for why, named in (await self.store.unread(self.tenant)).items() if session in (None, *named)]

    def let_go(self, key: SessionKey) -> None:
        """Forget what is withheld of a session in the memory's store."""
        self.withheld.pop((key, self.store), None)

    async def tell(self, event: EventName, session: str, /, **facts: Any) -> None:
        """Tell observers what happened to a session."""
        await self.observers.emit(event, session, facts, self.runner.wait)


class SessionScope:
    """What the parts of one open session share.

    Of it change `about`, as what it takes the session for, `store`, where an EPHEMERAL session begins anew after each
    turn, and what contexts write of the last one: `sent`, and its budget, as it was `reckoned`. `brought` says as of
    which epoch, and of which beginning, the session's summaries were brought to its knowledge bases, by these.
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
        self.brought: dict[str, tuple[int, int]] = {}

    @lazy
    def store(self) -> Store:
        """The store; of a session that was made before the memory was open, from its first verb."""
        return self._own_store()

    @lazy
    def definitions(self) -> Definitions | None:
        """Which definition it is under; None: it is not declared."""
        declared = self.options.definition
        return None if declared is None else self.memory.definitions(self, declared)

    @property
    def is_ephemeral(self) -> bool:
        """Whether nothing of the session is written to the memory's store."""
        return self.options.persistence == "ephemeral"

    @property
    def tenant(self) -> str:
        """Whose session it is."""
        return self.key.tenant

    @property
    def place(self) -> tuple[SessionKey, Store]:
        """Where the session is, as `withheld` knows it."""
        return self.key, self.store

    def _own_store(self) -> Store:
        if not self.is_ephemeral:
            return self.memory.store
        from palimpsest.stores.overlay import Overlay  # two milliseconds, only for an EPHEMERAL session

        return Overlay(self.memory.store, self.clock)

    def begin_anew(self) -> None:
        """Forget all that an EPHEMERAL session has added."""
        self.store, self.sent = self._own_store(), None

    def of(self, session: str) -> SessionScope:
        """The scope of another session, such as a branch, in the same store and with the same options."""
        return SessionScope(self.memory, self.options.of(session), self.store)

    def may_write(self) -> None:
        """Raise ConfigError in a session that was opened to read."""
        if self.options.readonly:
            raise ConfigError("readonly", True, "False, for a session that writes")

    def check_user(self, head: Head | None) -> None:
        """Raise WrongUser for a session that is not the user's as whose it was opened."""
        said = head is not None and (head.about is not None or head.next_seq > 1)
        if head is not None and said and self.about is not None and self.about.user not in (None, head.user):
            raise WrongUser(self.key.session, str(self.about.user), head.user)

    async def check_user_seen(self) -> None:
        """The same for the session as this process saw it last. Where that was another's it is looked at again: it may
        have been deleted since, and begun anew."""
        seen = self.store.seen(self.key)
        try:
            self.check_user(seen.head if seen is not None else None)
        except WrongUser:
            self.check_user(await self.store.head(self.key))

    async def head(self) -> Head:
        """The session's head; an empty one for a session that does not exist."""
        return await self.store.head(self.key) or Head()

    def let_go(self) -> None:
        """Forget what is withheld: its interaction is over."""
        self.withheld.pop(self.place, None)

    def drop_derived(self, seqs: Collection[int] | None) -> Unmaking:
        """What was made from these entries (None: from anything of the session) goes before they do, in every branch.

        Of an EPHEMERAL session nothing is made: nobody else has seen its entries.
        """
        return self.memory.derivations.unmaking(self.store, self.key, () if self.is_ephemeral else seqs)

    async def tell(self, event: EventName, /, **facts: Any) -> None:
        """Tell observers what happened."""
        await self.observers.emit(event, self.key.session, facts, self.runner.wait)


async def _ended(of: ref[MemoryScope], store: Store, key: SessionKey) -> None:
    """End a session whose time is over; what was made from it goes before it does."""
    scope = of()
    if scope is None:
        await store.end(key)
    else:
        await scope.sharing(key.tenant).end_over(key)

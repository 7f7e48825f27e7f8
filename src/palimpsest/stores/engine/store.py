"""The store, as sessions call it: the engine over any backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry, now_us
from palimpsest.log.head import About, Head, SessionKey
from palimpsest.runtime.once import lazy
from palimpsest.stores.backend import Backend, Scrubbed
from palimpsest.stores.engine.appends import Append, Appends
from palimpsest.stores.engine.counting import Counting
from palimpsest.stores.engine.crowds import Chance, Crowds, by_chance
from palimpsest.stores.engine.known import Over
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.opened import Opened
from palimpsest.stores.engine.queues import Queues
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.values import Appended, Dump, SessionInfo, Standing

if TYPE_CHECKING:
    from palimpsest.stores.engine.changing import Changing, Rewrite
    from palimpsest.stores.engine.maintenance import Maintenance

T = TypeVar("T")


class Store(Opened):
    """Where logs and heads live, with items and leases beside them, over a backend.

    Every call is one atomic step: it happens whole or not at all, and what it has acknowledged survives the
    process (for durable stores, in the default setting, the machine). Entries go in and come out as values;
    changing what came out changes nothing stored. A session that nobody has written to is empty, not an error.

    Any call raises Closed after `close`, ForkedProcess in a child of the process that opened the store,
    StoreUnavailable when the backend cannot be reached, is full or is locked for too long, and StoreCorrupt
    when what is stored cannot be read. Writes raise StoreUnavailable, too, where the store is read-only.
    """

    def __init__(self, backend: Backend, clock: Callable[[], int] = now_us, chance: Chance = by_chance) -> None:
        crowds = Crowds(backend, chance)
        super().__init__(backend, crowds, clock)
        self._sessions = sessions = Sessions(backend, crowds, clock)
        self.ending: Callable[[Store, SessionKey], Awaitable[object]] = Store.end  # a memory tells who derives
        self._large = Large(backend.look, backend.large_bytes)
        self._reading = Reading(sessions, self._large)
        self._counting = Counting(sessions, self._reading, clock)
        self._appends = Queues(backend, Appends(sessions, self._large, self._reading))

    @lazy
    def _changing(self) -> Changing:
        """What commits changes, such as a cut: who adds and reads a little does without."""
        from palimpsest.stores.engine.changing import Changing  # three modules

        return Changing(self._sessions, self._reading, self._large)

    @lazy
    def _maintenance(self) -> Maintenance:
        """What most processes that add, read and cut do without."""
        from palimpsest.stores.engine.maintenance import Maintenance  # two modules more

        return Maintenance(self._sessions, self._changing, self._large, self._items, self._leases)

    async def _make(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `_run`, for what may make a session: one of its name whose time is over is ended first."""
        try:
            return await self._run(start)
        except Over as over:
            await self.ending(self, over.key)
            return await self._make(start)

    async def _rarely(
        self,
        run: Callable[[Callable[[], Coroutine[Any, Any, T]]], Awaitable[T]],
        do: Callable[[Maintenance], Coroutine[Any, Any, T]],
    ) -> T:
        """Run what most processes do without."""
        await self._loaded("_maintenance")
        return await run(lambda: do(self._maintenance))

    async def _loaded(self, name: str) -> None:
        """See that this part is made: over a driver it is loaded in a thread, before anything is awaited."""
        if not (self.blocking or name in vars(self)):
            await self.backend.apart(getattr, self, name)

    # --- logs

    @property
    def era(self) -> int:
        """How often it turned out that the store has lost what it had acknowledged."""
        return self._sessions.era

    async def head(self, key: SessionKey) -> Head | None:
        """Return the session's head, or None for a session that does not exist."""
        known = await self._look(lambda: self._sessions.find(key))
        return None if known.there is None else known.head

    async def standing(self, key: SessionKey) -> Standing:
        """Return how the session is now, with an empty head for one that does not exist."""
        return (await self._look(lambda: self._sessions.find(key))).standing

    def seen(self, key: SessionKey) -> Standing | None:
        """Return how this process saw the session last, in whatever it read or wrote; None: it did not."""
        self.check()
        return known.standing if (known := self._sessions.remembered(key)) is not None else None

    def glance(self, key: SessionKey) -> Standing | None:
        """Return how a session that this process has seen is now, where that can be told on an event loop's thread
        without waiting for anybody; None where it cannot."""
        self.check()
        return known.standing if (known := self._sessions.glance(key)) is not None else None

    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, about: About | None = None
    ) -> Appended:
        """Append entries as one batch: linked by `palimpsest.log.linking.link`, committed once.

        `check_ids` says that ids were given: an id that the session has and that says the same is left out,
        one that says something else raises Conflict, and then nothing of the batch is stored. `about` is what a session
        becomes that has no entries yet, and of which nothing was said; raises WrongUser where one is not its user's.
        """
        self._may_write()
        try:
            return await self._appends.run(Append(key, entries, check_ids, about))
        except Over as over:
            await self.ending(self, over.key)
            return await self.append(key, entries, check_ids=check_ids, about=about)

    async def read(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        counter: str | None = None,
    ) -> list[Entry]:
        """Return entries with `after` < seq < `before`, in log order, or newest first.

        `limit` counts entries. With `counter` each entry carries its stored count by that counter in
        `tokens`. Tombstones are included.
        """
        reading, where = self._reading, (key, after, before, limit, newest_first)
        return (await self._look(lambda: reading.page(*where, counter)))[1]

    async def page(
        self, key: SessionKey, *, after: int, before: int, limit: int, newest_first: bool, counter: str, revision: int
    ) -> tuple[Standing, list[Entry], list[Record]]:
        """Return how the session is, what `read` does, and the record of a revision (0: none), all of one moment."""
        return await self._look(lambda: self._reading.page(key, after, before, limit, newest_first, counter, revision))

    async def fetch(
        self, key: SessionKey, seqs: Iterable[int] = (), ids: Iterable[str] = (), *, counter: str | None = None
    ) -> list[Entry]:
        """Return the entries of these seqs and ids in log order; those that do not exist are left out."""
        places, names = tuple(seqs), tuple(ids)
        return (await self._look(lambda: self._reading.fetch(key, places, names, counter)))[1]

    async def fetch_with_head(
        self, key: SessionKey, seqs: Iterable[int], ids: Iterable[str] = ()
    ) -> tuple[Head | None, list[Entry]]:
        """Return the session's head, as `head` does, and entries, as `fetch` does, all of one moment."""
        places, names = tuple(seqs), tuple(ids)
        known, found = await self._look(lambda: self._reading.fetch(key, places, names, None))
        return None if known.there is None else known.head, found

    async def records(self, key: SessionKey, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return the records with `after` < revision < `before`, oldest first."""
        return await self._look(lambda: self._reading.records(key, after, before))

    async def count(
        self,
        key: SessionKey,
        counter: str,
        counts: Mapping[int, int],
        mark: object = None,
        *,
        epoch: int | None = None,
    ) -> None:
        """Store token counts by seq, of entries that have none by this counter. A lost count is counted again.

        Counts of entries that do not exist are left out. Where they were all there while the session had a `mark`, and
        it has that still, none of them is looked for. Nothing is stored where the session is not in this `epoch` any
        more: since what was counted was read, its words may have become others.
        """
        self.check()
        if self.writable and counts:
            await self._run(lambda: self._counting.count(key, counter, dict(counts), mark, epoch))

    async def uncounted(
        self, key: SessionKey, counter: str, *, after: int = 0, limit: int | None = None
    ) -> tuple[int, list[Entry]]:
        """Return the epoch, and the entries behind `after` that have no count by `counter`, at most `limit`."""
        return await self._look(lambda: self._counting.uncounted(key, counter, after, limit))

    async def note(self, key: SessionKey, figures: Mapping[str, Mapping[int, int]]) -> None:
        """Store figures of entries, by name and seq, in the place of those that are there, all in one step.

        They go with their entries. Those of entries that do not exist are left out.
        """
        given = {name: dict(some) for name, some in figures.items()}
        self.check()
        if self.writable:
            await self._run(lambda: self._counting.note(key, given))

    async def noted(self, key: SessionKey, name: str, *, after: int = 0) -> dict[int, int]:
        """Return the figures of this name of entries behind `after`, by seq."""
        return await self._look(lambda: self._counting.noted(key, name, after))

    async def commit(
        self, key: SessionKey, change: Change, *, expect_revision: int | None = None, expect_epoch: int | None = None
    ) -> Head:
        """Commit one change (cut, compaction, erasure, clear, pins, usage, prompt, attempts) and return the new head.

        A replacement adds its entries in the same step, linked by `palimpsest.log.resuming.committed`.
        All but usage, prompt and attempts leave a record. Erasing replaces entries by tombstones, in every branch that
        has them: each of those gets the change as a record of its own. What it names that is not there, is a tombstone
        already, or has another id, is left out: so it needs no expectation, and the record says what went. Of every
        summary that stands for an erased entry the words go in the same step, and no record's state goes on counting on
        it. Clearing removes what is before it from this session alone. Raises Conflict unless revision and epoch are as
        expected, and the session is the one that the change is meant for.
        """
        await self._loaded("_changing")
        return await self._make(lambda: self._changing.commit(key, change, expect_revision, expect_epoch))

    async def fork(self, key: SessionKey, into: str, head: Head, *, expect_epoch: int, created: int = 0) -> None:
        """Make the session `into` of the same tenant: a branch of `key` with the given head.

        It has the entries of `key` before `head.next_seq`, with ids, places and counts, and the records up to
        `head.revision`. What is added to one branch afterwards is in no other; deleting, clearing or replacing
        one leaves the others whole. Raises Conflict where `into` exists, or unless the epoch of `key` is as
        expected and it is the session that began at `created` (0: any); what is added meanwhile does not conflict.
        """
        await self._rarely(self._make, lambda rare: rare.wholes.fork(key, into, head, expect_epoch, created))

    async def branches(self, key: SessionKey) -> list[str]:
        """Return the other sessions of the tenant that share entries with this one, tombstones included, by id."""
        return await self._rarely(self._look, lambda rare: rare.wholes.branches(key))

    async def sharing(self, key: SessionKey, seqs: Collection[int]) -> dict[str, tuple[int, ...]]:
        """Return which of these entries other sessions of the tenant share, by their ids."""
        return await self._rarely(self._look, lambda rare: rare.wholes.sharing(key, seqs)) if seqs else {}

    async def load(self, key: SessionKey, dump: Dump, *, replace: bool = False) -> None:
        """Write a whole session in one step. Raises Conflict where it exists, unless `replace` is set."""
        await self._rarely(self._make, lambda rare: rare.loading.load(key, dump, replace))

    async def delete(self, key: SessionKey, *, expect: int | None = None) -> bool:
        """Destroy the session with all that is its, also where its head is damaged; return whether there was one.

        Raises Conflict if it is not at the revision `expect`, where one is given: then it must be readable.
        """
        return await self._rarely(self._run, lambda rare: rare.wholes.delete(key, expect))

    async def destroy(self, key: SessionKey) -> tuple[str, ...] | None:
        """Destroy the session as `delete` does one whose head is damaged, by what its branches read: they keep that.

        Returns the other sessions that may share entries with it, by id; None where there is no such session.
        """
        return await self._rarely(self._run, lambda rare: rare.wholes.destroying.destroy(key))

    async def sessions(
        self, tenant: str, *, after: str = "", limit: int = 1000, begin: str = "", user: str | None = None
    ) -> list[SessionInfo]:
        """Return the tenant's sessions whose id sorts after `after`, by id (Unicode code points): at most `limit`.

        The first may be called `begin`. With `user` those of this user alone: nothing is read of any other's. One whose
        head cannot be read is marked as `damaged`, and the log names it once.
        """
        return await self._rarely(self._look, lambda rare: rare.sessions(tenant, after, limit, begin, user))

    async def used(
        self, tenant: str, *, mark: int | None = None, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[tuple[int, SessionInfo]]:
        """Return the tenant's sessions in the order of their last write, each with the mark of that: at most `limit`.

        The page behind one begins at the mark of its last session, `after` the id of that. One that is written
        meanwhile comes at its new place: again, or with `newest_first` not at all.
        """
        return await self._rarely(self._look, lambda rare: rare.used(tenant, mark, after, limit, newest_first))

    # --- expiry, rewriting, and what goes

    async def due(self, tenant: str, now: int) -> list[tuple[SessionKey, tuple[int, ...]]]:
        """Return the tenant's entries that have expired at `now` (microseconds) and were not swept yet, by session; of
        one whose time is over none, for it goes whole."""
        return await self._rarely(self._look, lambda rare: rare.due(tenant, now))

    async def ended(self, key: SessionKey) -> bool:
        """End the session if its time is over, with all that goes with it; return whether it is there all the same, as
        nothing may be written. Of one that this process has seen nothing is looked at before its time is over.
        """
        self.check()
        if self._sessions.remembered(key) is not None:
            return False
        if (await self._look(lambda: self._sessions.find(key))).over is None:
            return False
        if self.writable:
            await self.ending(self, key)
        return not self.writable

    async def end(self, key: SessionKey) -> bool:
        """Destroy the session if its time is over; return whether it was."""
        return await self._rarely(self._run, lambda rare: rare.wholes.end(key))

    async def sweep(self, tenant: str, now: int) -> int:
        """Erase what of the tenant's has expired at `now` (microseconds), entries and items; return how much."""
        return await self._rarely(self._run, lambda rare: rare.sweep(tenant, now))

    async def rewrite(self, key: SessionKey, how: Rewrite, seqs: Collection[int]) -> int:
        """Rewrite the session's head, its records and these entries in one step; return how many records and entries.

        What `how` raises undoes the step. What other writers commit meanwhile is never undone. Entries that branches
        share become others there, too, with the heads of those: also in a branch that somebody makes meanwhile.
        """
        await self._loaded("_changing")
        return await self._run(lambda: self._changing.rewrite(key, how, seqs))

    async def clear_items(self, tenant: str, namespace: str | None = None, *, dry_run: bool = False) -> dict[str, int]:
        """Remove all items of the tenant, or of one namespace, those that have expired, too, and return how many there
        were by namespace. With all of them its leases end. With `dry_run` nothing is removed.
        """
        if dry_run:
            return await self._look(lambda: self._items.clear(tenant, namespace, dry_run))
        if namespace is None:
            await self._rarely(self._run, lambda rare: rare.loading.clear(tenant))
            await self._run(lambda: self._leases.end_all(tenant))
        return await self._run(lambda: self._items.clear(tenant, namespace, dry_run))

    async def scrub(
        self, *, whole: bool = True, progress: Callable[[int, int], object] = lambda _, __: None
    ) -> Scrubbed:
        """See that no byte of what was destroyed is left where the store keeps things: for whoever has destroyed it.

        Without `whole` what would take long is left for another time; with it that is done by pieces, so that others go
        on, and unused room is given back. `progress` is told about how many bytes were gone through, and of how many.
        """
        await self._loaded("_maintenance")
        return await self._maintenance.scrub(whole, progress, self.check)

"""The store as sessions call it: the engine over any backend."""

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
from palimpsest.stores.engine.known import NotSweptYet
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

    Every call is one atomic step: it happens whole or not at all. What it has acknowledged survives the process (for
    durable stores, in the default setting, the machine). Entries go in and come out as values; changing one that came
    out changes nothing stored. A session that nobody has written to is empty, not an error.

    Any call raises Closed after `close`, ForkedProcess in a child of the process that opened the store,
    StoreUnavailable when the backend cannot be reached, is full or is locked for too long, and StoreCorrupt when what
    is stored cannot be read. Writes raise StoreUnavailable, too, if the store is read-only.
    """

    def __init__(self, backend: Backend, clock: Callable[[], int] = now_us, chance: Chance = by_chance) -> None:
        crowds = Crowds(backend, chance)
        super().__init__(backend, crowds, clock)
        self._sessions = sessions = Sessions(backend, crowds, clock)
        self.ending: Callable[[Store, SessionKey], Awaitable[object]] = Store.end  # a memory also tells derivers
        self._large = Large(backend.look, backend.large_bytes)
        self._reading = Reading(sessions, self._large)
        self._counting = Counting(sessions, self._reading, clock)
        self._appends = Queues(backend, Appends(sessions, self._large, self._reading))

    @lazy
    def _changing(self) -> Changing:
        """Commits changes such as a cut. Loaded on first use: adding and reading a little needs none."""
        from palimpsest.stores.engine.changing import Changing  # three modules

        return Changing(self._sessions, self._reading, self._large)

    @lazy
    def _maintenance(self) -> Maintenance:
        """What most processes that add, read and cut do without. Loaded on first use."""
        from palimpsest.stores.engine.maintenance import Maintenance  # two modules more

        return Maintenance(self._sessions, self._changing, self._large, self._items, self._leases)

    async def _make(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Like `_run`, for calls that may make a session: an expired session of the same name is ended first."""
        try:
            return await self._run(start)
        except NotSweptYet as unswept:
            await self.ending(self, unswept.key)
            return await self._make(start)

    async def _rarely(
        self,
        run: Callable[[Callable[[], Coroutine[Any, Any, T]]], Awaitable[T]],
        do: Callable[[Maintenance], Coroutine[Any, Any, T]],
    ) -> T:
        """Run a call that needs `Maintenance`, by `_look`, `_run` or `_make`."""
        await self._loaded("_maintenance")
        return await run(lambda: do(self._maintenance))

    async def _loaded(self, name: str) -> None:
        """Load this part. Over a driver it is loaded in a thread, before anything is awaited."""
        if not (self.blocking or name in vars(self)):
            await self.backend.apart(getattr, self, name)

    # --- logs

    @property
    def era(self) -> int:
        """How many times the store was found to have lost writes that it had acknowledged."""
        return self._sessions.era

    async def head(self, key: SessionKey) -> Head | None:
        """Return the session's head, or None for a session that does not exist."""
        known = await self._look(lambda: self._sessions.find(key))
        return None if known.stored is None else known.head

    async def standing(self, key: SessionKey) -> Standing:
        """Return how the session is now; one that does not exist has an empty head."""
        return (await self._look(lambda: self._sessions.find(key))).standing

    def seen(self, key: SessionKey) -> Standing | None:
        """Return the session as this process last saw it, by reading or writing; None if it has not."""
        self.check()
        return known.standing if (known := self._sessions.remembered(key)) is not None else None

    def has_lost(self, key: SessionKey) -> bool:
        """Return whether the session has lost entries without its head knowing it. That happens to an overlay alone."""
        return False

    def glance(self, key: SessionKey) -> Standing | None:
        """Return a session that this process has seen as it is now, if that can be told without waiting; else None."""
        self.check()
        return known.standing if (known := self._sessions.glance(key)) is not None else None

    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, about: About | None = None
    ) -> Appended:
        """Append entries as one batch: linked by `palimpsest.log.linking.link`, committed once.

        `check_ids` says that the caller chose the ids: an entry whose id is stored already with the same content is
        left out; with other content Conflict is raised, and nothing of the batch is stored. `about` is given to a
        session that has no entries and no `about` yet. Raises WrongUser if the session is another user's.
        """
        self._may_write()
        try:
            return await self._appends.run(Append(key, entries, check_ids, about))
        except NotSweptYet as unswept:
            await self.ending(self, unswept.key)
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
        reading, position = self._reading, (key, after, before, limit, newest_first)
        return (await self._look(lambda: reading.page(*position, counter)))[1]

    async def page(
        self, key: SessionKey, *, after: int, before: int, limit: int, newest_first: bool, counter: str, revision: int
    ) -> tuple[Standing, list[Entry], list[Record]]:
        """Return the session, the entries as `read` does, and the record of a revision (0: none), all of one moment."""
        return await self._look(lambda: self._reading.page(key, after, before, limit, newest_first, counter, revision))

    async def fetch(
        self, key: SessionKey, seqs: Iterable[int] = (), ids: Iterable[str] = (), *, counter: str | None = None
    ) -> list[Entry]:
        """Return the entries with these seqs and ids, in log order. Those that do not exist are left out."""
        all_seqs, all_ids = tuple(seqs), tuple(ids)
        return (await self._look(lambda: self._reading.fetch(key, all_seqs, all_ids, counter)))[1]

    async def fetch_with_head(
        self, key: SessionKey, seqs: Iterable[int], ids: Iterable[str] = ()
    ) -> tuple[Head | None, list[Entry]]:
        """Return the session's head, as `head` does, and entries, as `fetch` does, all of one moment."""
        all_seqs, all_ids = tuple(seqs), tuple(ids)
        known, entries = await self._look(lambda: self._reading.fetch(key, all_seqs, all_ids, None))
        return None if known.stored is None else known.head, entries

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

        Counts of entries that do not exist are left out. If all of them existed while the session had the `mark`, and
        it still has that, they are not looked for. Nothing is stored after this `epoch`, as texts may have changed.
        """
        self.check()
        if self.writable and counts:
            await self._run(lambda: self._counting.count(key, counter, dict(counts), mark, epoch))

    async def uncounted(
        self, key: SessionKey, counter: str, *, after: int = 0, limit: int | None = None
    ) -> tuple[int, list[Entry]]:
        """Return the epoch, and the entries after seq `after` that have no count by `counter`, at most `limit`."""
        return await self._look(lambda: self._counting.uncounted(key, counter, after, limit))

    async def note(self, key: SessionKey, figures: Mapping[str, Mapping[int, int]]) -> None:
        """Store figures of entries, by name and seq, replacing those that are stored, all in one step.

        A figure is dropped with its entry. Figures of entries that do not exist are left out.
        """
        given = {name: dict(by_seq) for name, by_seq in figures.items()}
        self.check()
        if self.writable:
            await self._run(lambda: self._counting.note(key, given))

    async def noted(self, key: SessionKey, name: str, *, after: int = 0) -> dict[int, int]:
        """Return the figures of this name of the entries after seq `after`, by seq."""
        return await self._look(lambda: self._counting.noted(key, name, after))

    async def commit(
        self, key: SessionKey, change: Change, *, expect_revision: int | None = None, expect_epoch: int | None = None
    ) -> Head:
        """Commit one change (cut, compaction, erasure, clear, pins, usage, prompt, attempts) and return the new head.

        A replacement adds its entries in the same step, linked by `palimpsest.log.resuming.committed`. All but usage,
        prompt and attempts leave a record. Erasing replaces entries by tombstones, in every branch that has them; each
        branch gets the change as a record of its own. Entries named by an erasure that do not exist, are tombstones
        already, or have another id are left out. So an erasure needs no expectation, and its record says what was
        erased. The text of every summary that covers an erased entry is erased in the same step, and no record's state
        refers to it any more. Clearing removes entries before a seq from this session alone. Raises Conflict unless
        revision and epoch are as expected, and the session is the one that the change is meant for.
        """
        await self._loaded("_changing")
        return await self._make(lambda: self._changing.commit(key, change, expect_revision, expect_epoch))

    async def fork(self, key: SessionKey, into: str, head: Head, *, expect_epoch: int, created: int = 0) -> None:
        """Make the session `into` of the same tenant: a branch of `key` with the given head.

        It has the entries of `key` before `head.next_seq`, with their ids, seqs and counts, and the records up to
        `head.revision`. Entries added to one branch afterwards are in no other; deleting, clearing or replacing one
        leaves the others whole. Raises Conflict if `into` exists, or unless `key` is in the expected epoch and began at
        `created` (0: any). Entries that are added to `key` meanwhile do not conflict.
        """
        await self._rarely(self._make, lambda rare: rare.wholes.fork(key, into, head, expect_epoch, created))

    async def branches(self, key: SessionKey) -> list[str]:
        """Return the ids of the tenant's other sessions that share entries with this one, tombstones included."""
        return await self._rarely(self._look, lambda rare: rare.wholes.branches(key))

    async def sharing(self, key: SessionKey, seqs: Collection[int]) -> dict[str, tuple[int, ...]]:
        """Return which of these entries the tenant's other sessions share: seqs by session id."""
        return await self._rarely(self._look, lambda rare: rare.wholes.sharing(key, seqs)) if seqs else {}

    async def load(self, key: SessionKey, dump: Dump, *, replace: bool = False) -> None:
        """Write a whole session in one step. Raises Conflict if it exists, unless `replace` is set."""
        await self._rarely(self._make, lambda rare: rare.loading.load(key, dump, replace))

    async def delete(self, key: SessionKey, *, expect: int | None = None) -> bool:
        """Destroy the session and all that belongs to it, even if its head is damaged; return whether it existed.

        Raises Conflict if `expect` is given and the session is not at that revision; then its head must be readable.
        """
        return await self._rarely(self._run, lambda rare: rare.wholes.delete(key, expect))

    async def destroy(self, key: SessionKey) -> tuple[str, ...] | None:
        """Destroy the session as `delete` does one with a damaged head: what its branches read is kept.

        Returns the ids of the other sessions that may share entries with it; None if there is no such session.
        """
        return await self._rarely(self._run, lambda rare: rare.wholes.destroying.destroy(key))

    async def sessions(
        self, tenant: str, *, after: str = "", limit: int = 1000, begin: str = "", user: str | None = None
    ) -> list[SessionInfo]:
        """Return at most `limit` of the tenant's sessions whose id sorts after `after`, by id (Unicode code points).

        `begin` is an id to begin with, inclusive. With `user` only this user's sessions are returned, and no other
        session is read. A session whose head cannot be read is marked as `damaged`; the program's log names it once.
        """
        return await self._rarely(self._look, lambda rare: rare.sessions(tenant, after, limit, begin, user))

    async def used(
        self, tenant: str, *, mark: int | None = None, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[tuple[int, SessionInfo]]:
        """Return at most `limit` of the tenant's sessions in the order of their last write, each with that write's
        mark.

        The next page begins at the mark of the last session returned; `after` is that session's id. A session that is
        written meanwhile moves to its new position: it is returned again, or with `newest_first` not at all.
        """
        return await self._rarely(self._look, lambda rare: rare.used(tenant, mark, after, limit, newest_first))

    # --- expiry, rewriting, and what goes

    async def due(self, tenant: str, now: int) -> list[tuple[SessionKey, tuple[int, ...]]]:
        """Return the tenant's entries that expired by `now` (microseconds) and are not swept, by session; none of a
        session that has expired itself.
        """
        return await self._rarely(self._look, lambda rare: rare.due(tenant, now))

    async def ended(self, key: SessionKey) -> bool:
        """End the session if it has expired; return whether it is still there, as nothing may be written.

        A session in this process's cache that has not expired is not looked at.
        """
        self.check()
        if self._sessions.remembered(key) is not None:
            return False
        if (await self._look(lambda: self._sessions.find(key))).expired is None:
            return False
        if self.writable:
            await self.ending(self, key)
        return not self.writable

    async def end(self, key: SessionKey) -> bool:
        """Destroy the session if it has expired; return whether it was destroyed."""
        return await self._rarely(self._run, lambda rare: rare.wholes.end(key))

    async def sweep(self, tenant: str, now: int, *, entries: bool = True) -> int:
        """Erase the tenant's items, and `entries`, that have expired at `now` (microseconds); return how many."""
        return await self._rarely(self._run, lambda rare: rare.sweep(tenant, now, entries=entries))

    async def rewrite(self, key: SessionKey, how: Rewrite, seqs: Collection[int]) -> int:
        """Rewrite the session's head, its records and these entries in one step; return how many records and entries.

        An exception that `how` raises cancels the step. Commits of other writers meanwhile are never undone. Entries
        that branches share are rewritten there, too, with the heads of those branches, even of one that is made
        meanwhile.
        """
        await self._loaded("_changing")
        return await self._run(lambda: self._changing.rewrite(key, how, seqs))

    async def clear_items(self, tenant: str, namespace: str | None = None, *, dry_run: bool = False) -> dict[str, int]:
        """Remove all items of the tenant, or of one namespace, expired ones included; return how many by namespace.

        Without a namespace the tenant's leases are ended, too. With `dry_run` nothing is removed.
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
        """Make sure that no byte of what was destroyed is left where the store keeps things.

        Without `whole`, slow work is left for another time. With it that is done piece by piece, so that others can go
        on, and unused room is given back. `progress` is called with the bytes gone through and with all, both roughly.
        """
        await self._loaded("_maintenance")
        return await self._maintenance.scrub(whole, progress, self.check)

"""The seam to everything that is derived from entries, such as a search index: it is told before entries go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from palimpsest.errors import ConfigError, ErasureFailed, PalimpsestError
from palimpsest.log.head import SessionKey
from palimpsest.runtime.logs import warn
from palimpsest.sessions.erased import Erased
from palimpsest.stores import derivers

if TYPE_CHECKING:
    from palimpsest.runtime.runner import Runner
    from palimpsest.stores import Store

T = TypeVar("T")


class Derived(Protocol):
    """Something derived from entries, such as a search index. Before entries go, it is told what to remove.

    Its `name` identifies it in all processes: an object that joins under a name has to reach everything that was
    derived under that name. It may be told to remove entries that stay after all, because the erasure then failed,
    another writer was first, or a session began anew before a note of its end was worked off. What was removed then
    can be derived again from the entries. Any exception raised here stops the erasure: nothing is erased, and the
    erasure may be repeated. An entry that expires before it is added may be swept without this being told.
    """

    name: str

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """Remove what was derived from these `entries` (ids by `seq`) of a `session` of `tenant`; return how much.

        Entries that branches share are told once for each branch. Possibly nothing derived from them exists.
        """
        ...

    async def gone(self, tenant: str, session: str) -> int:
        """Remove what was derived from anything of a `session` of `tenant`; return how much was removed."""
        ...


@runtime_checkable
class Settling(Protocol):
    """Optional verbs of a `Derived` that reads logs by itself: it is told when an erasure is over, too.

    A reader may have read entries before they went, and would derive something from them after it was told to remove
    that. So after `erased` or `gone` it must not take these entries in again until `settled` is called. An eraser that
    is killed in between never calls it: after a while, treat the entries as settled.
    """

    async def settled(self, tenant: str, session: str, entries: Mapping[int, str] | None) -> None:
        """Learn that the erasure of these entries (None: of the whole session) has been done, or has failed.

        Those that are still in the log stay there, with the text that they have now: a redaction may have changed it.
        """
        ...

    async def scrub(self, *, whole: bool) -> Sequence[str]:
        """Overwrite every byte of what was removed. Without `whole`, postpone what would take long.

        Return plain sentences about what remains.
        """
        ...


@runtime_checkable
class Summarised(Protocol):
    """Optional verb of a `Derived` that derives something from summaries."""

    async def summarised(self, session: str) -> None:
        """Learn that summaries of this session were made anew from what an erasure has left."""
        ...


class Derivations:
    """Everything derived from the entries of one tenant. Every path that destroys entries calls this first.

    Objects that joined here are told directly. For those that joined in other processes, as the store knows, a note is
    left in the store. Those that belong to the store itself, such as its index, are in `own` by kind and can be made
    in every process. `remember_nothing` drops what this memory has cached of entries.
    """

    def __init__(
        self,
        runner: Runner,
        store: Store,
        tenant: str,
        remember_nothing: Callable[[], None],
        own: Mapping[str, Callable[[], Awaitable[Any]]],
    ) -> None:
        self._runner, self._tenant, self._own = runner, tenant, own
        self.remember_nothing = remember_nothing
        self._derivers = derivers.Derivers(store, tenant)
        self._all: list[Derived] = []
        self._unscrubbed = False

    async def join(self, derived: Derived) -> None:
        """Tell this object of erasures from now on, after it has removed what went while it was away.

        Raises ConfigError for an object that is no `Derived`, ErasureFailed if it fails to remove what went.
        """
        verbs = [callable(getattr(derived, verb, None)) for verb in ("erased", "gone")]
        name = getattr(derived, "name", None)
        if not all(verbs) or not isinstance(name, str) or not 0 < len(name) <= 256 or not name.isprintable():
            rule = "an object with a name of 1 to 256 characters and the coroutine functions erased and gone"
            raise ConfigError("derived", derived, rule)
        if any(other.name == name for other in self._all):
            raise ConfigError("derived", name, "a name that no other derived object of this memory has")
        await self._derivers.mark(name)
        await self._catch_up(derived)
        self._all.append(derived)

    async def add(self, derived: Derived, *, lasting: bool) -> None:
        """Tell this object of erasures from now on, unless one of its name has joined.

        With `lasting`, what it derives outlives this process, so its name is noted in the store.
        """
        if lasting:
            await self._derivers.mark(derived.name)
        if all(other.name != derived.name for other in self._all):
            await self._catch_up(derived)
            self._all.append(derived)

    async def catch_up(self) -> None:
        """Have every object here remove what other processes left notes about."""
        for derived in self._all:
            await self._catch_up(derived)

    async def _catch_up(self, derived: Derived) -> None:
        has_removed = False
        async for id, note in self._derivers.notes(derived.name):
            key = SessionKey(self._tenant, note.session)
            await self._tell(derived, key, note.entries, "so the note of what remains is kept")
            await self._settle(derived, [(key, note.entries)])
            await self._derivers.done(derived.name, id)
            has_removed = True
        if has_removed:
            await self._scrub(derived, whole=False)

    def leave(self, derived: Derived) -> None:
        """Tell this object no longer. Its name stays in the store, so notes are left for it."""
        self._all = [other for other in self._all if other is not derived]

    async def names(self) -> tuple[str, ...]:
        """Return the names under which something has joined, here or in another process."""
        return tuple(await self._derivers.names())

    async def end(self, name: str) -> bool:
        """Tell the object of this name no longer and remove the name from the store. Return whether it was there."""
        self._all = [derived for derived in self._all if derived.name != name]
        return await self._derivers.unmark(name)

    def unmaking(
        self, store: Store, key: SessionKey, seqs: Collection[int] | None, *, branches: bool = True
    ) -> Unmaking:
        """Return an `Unmaking` for these entries of a session (None: all of it). For no entries it does nothing."""
        return Unmaking(self, store, key, seqs, branches=branches)

    async def tell(self, unmaking: Unmaking) -> tuple[set[str], Erased]:
        """Have what was derived from these entries removed.

        Returns the names that were told, directly or by a note, and a report of what was removed and what remains.
        """
        names, report = await self._derivers.names(), Erased()
        await self._fetch_own(names)
        registered = {derived.name: derived for derived in self._all}
        absent = [name for name in names if name not in registered]
        if not (absent or registered):
            return set(), report
        self._unscrubbed = True
        async for key, entries in unmaking.entries():
            unmaking.told.append((key, entries))
            removed = {name: await self._tell(derived, key, entries) for name, derived in registered.items()}
            await self._leave_notes(absent, key, entries)
            report += Erased(derived={name: number for name, number in removed.items() if number})
        return {*registered, *absent}, report + _report_absent(absent)

    async def tell_late(self, unmaking: Unmaking, told: Collection[str]) -> Erased:
        """Tell what joined after the names in `told`, now that the entries are gone.

        Objects here get a note as well, so that what they fail to remove now is tried again.
        """
        names = await self._derivers.names()
        late = sorted({*names, *(derived.name for derived in self._all)}.difference(told))
        if not late:
            return Erased()
        await self._fetch_own(late)
        async for key, entries in unmaking.entries():
            await self._leave_notes(late, key, entries)
        joined_here = [derived for derived in self._all if derived.name in late]
        for derived in joined_here:
            await self._catch_up(derived)
        return _report_absent([name for name in late if all(derived.name != name for derived in joined_here)])

    async def settle(self, told: Sequence[tuple[SessionKey, dict[int, str] | None]]) -> None:
        """Tell every `Settling` object that the erasure of these entries is over."""
        for derived in self._all:
            await self._settle(derived, told)

    async def _settle(self, derived: Derived, told: Sequence[tuple[SessionKey, dict[int, str] | None]]) -> None:
        if not isinstance(derived, Settling):
            return
        try:
            for key, entries in told:
                await self._awaited(derived, derived.settled(*key, entries))
        except Exception as fault:  # noqa: BLE001 (the erasure is done; one that is not told treats it as settled later)
            warn("%r failed when it was told how an erasure ended (%s)", derived.name, type(fault).__name__)

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """Overwrite what was removed from derived data; return sentences about what remains.

        Without `whole` this does nothing if nothing was removed since the last time.
        """
        if whole:
            await self._fetch_own(await self._derivers.names())
        if not (whole or self._unscrubbed):
            return ()
        self._unscrubbed = False
        return tuple([sentence for derived in self._all for sentence in await self._scrub(derived, whole=whole)])

    async def _scrub(self, derived: Derived, *, whole: bool) -> Sequence[str]:
        if not isinstance(derived, Settling):
            return ()
        try:
            return await self._awaited(derived, derived.scrub(whole=whole))
        except Exception as fault:  # noqa: BLE001 (the erasure is done; that bytes of it remain is reported)
            self._unscrubbed = True
            return (UNSCRUBBED.format(derived.name, type(fault).__name__),)

    async def summarised(self, session: str) -> None:
        """Tell every `Summarised` object that an erasure or a redaction has changed the session's summaries."""
        await self._fetch_own(await self._derivers.names())
        self._unscrubbed = True
        for derived in self._all:
            if isinstance(derived, Summarised):
                await self._awaited(derived, derived.summarised(session))

    async def _awaited(self, derived: Derived, doing: Awaitable[T]) -> T:
        """Await a call of a derived object. A user's one goes through the runner: it may wait for anything."""
        return await doing if _kind(derived.name) in self._own else await self._runner.wait(doing)

    async def _fetch_own(self, names: Sequence[str]) -> None:
        """Add those of these names that belong to the store itself: they can be made in every process."""
        known = {derived.name for derived in self._all}
        for kind, fetch in self._own.items():
            if any(_kind(name) == kind and name not in known for name in names):
                derived = await fetch()
                if derived.name in names:
                    await self.add(derived, lasting=False)

    async def _leave_notes(self, names: Sequence[str], key: SessionKey, entries: Mapping[int, str] | None) -> None:
        for name in names:
            await self._derivers.leave(name, key.session, entries)

    async def _tell(
        self,
        derived: Derived,
        key: SessionKey,
        entries: Mapping[int, str] | None,
        then: str = "so nothing was erased; fix that, and erase again",
    ) -> int:
        try:
            doing: Any = derived.gone(*key) if entries is None else derived.erased(*key, dict(entries))
            return int(await self._awaited(derived, doing))
        except Exception as fault:  # any exception stops the erasure: what is derived must not outlive its entries
            raise ErasureFailed(derived.name, type(fault).__name__, then) from fault


INDEX, KNOWLEDGE = derivers.INDEX, derivers.KNOWLEDGE
"""Kinds of derived data that belong to the store itself, so that every process can reach them."""

UNSCRUBBED = "{!r} could not overwrite what it removed ({}). The next erasure, or `memory.vacuum`, tries again"
AWAY = (
    "{!r} is not in this process: a note is kept, and it removes what it made from this when it joins next; if it no "
    "longer exists, drop the note with `memory.underive`, or `palimpsest derived forget`"
)


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _report_absent(absent: Sequence[str]) -> Erased:
    """Report that what these names derived is removed only when they join again."""
    return Erased(remains=tuple(AWAY.format(name) for name in absent))


class Unmaking:
    """Has what was derived from entries of a session (`seqs` None: from anything of it) removed before they go.

    Use it with `async with` around the step that destroys the entries. On entering, everything that has joined is told,
    or a note is left for it. On leaving, so is what has joined meanwhile, which may have read the entries. `done` is
    the report; it is complete after the block. If the step raises, nothing is told late: repeating the step tells all.
    """

    def __init__(
        self,
        derivations: Derivations,
        store: Store,
        key: SessionKey,
        seqs: Collection[int] | None,
        *,
        branches: bool = True,
    ) -> None:
        self._derivations = derivations if seqs is None or seqs else None
        self._store, self._key, self._seqs, self._branches = store, key, seqs, branches
        self._told_names = set[str]()
        self.told: list[tuple[SessionKey, dict[int, str] | None]] = []
        """The entries that were told about, for telling afterwards that their erasure is over."""
        self.done = Erased()

    async def __aenter__(self) -> Self:
        try:
            await self.tell_again()
        except PalimpsestError:
            if self._derivations is not None:
                await self._derivations.settle(self.told)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._derivations is not None:
            self._derivations.remember_nothing()
        try:
            if self._derivations is not None and kind is None:
                self.done += await self._derivations.tell_late(self, self._told_names)
        finally:
            if self._derivations is not None:
                await self._derivations.settle(self.told)

    async def tell_again(self) -> None:
        """Tell again, for entries that were added meanwhile and that the step destroyed, too."""
        if self._derivations is not None:
            names, done = await self._derivations.tell(self)
            self._told_names |= names
            self.done += done

    async def entries(self) -> AsyncIterator[tuple[SessionKey, dict[int, str] | None]]:
        """Yield each session concerned with its entries, ids by `seq` (None: all). Works for tombstones, too."""
        if self._seqs is None:
            yield self._key, None
            return
        entries = {entry.seq: entry.id for entry in await self._store.fetch(self._key, self._seqs)}
        yield self._key, entries
        sharing = await self._store.sharing(self._key, entries) if self._branches else {}
        for branch, seqs in sharing.items():
            yield self._key._replace(session=branch), {seq: entries[seq] for seq in seqs}

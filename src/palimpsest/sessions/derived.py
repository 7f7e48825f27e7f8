"""The seam to what is made from entries, such as a search index: it is told before they go."""

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
    """Something that is made from entries, such as a search index: it is told, before they go, what to remove.

    Its name says which it is, in all processes: whoever joins under a name reaches all that was made under it. What is
    removed here and stays after all, because the erasure then failed, another writer was first, or a session began anew
    before a note of its end was worked off, can be made again from its entries. Whatever this raises stops the erasure:
    nothing is erased, and repeating it goes on. An entry that has expired before it is added may be swept without a
    word.
    """

    name: str

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """Remove what was made from these `entries` of a `session` of `tenant`, ids by `seq`; return how much that was.

        Of entries that branches share, each branch is told of. Nothing may be there any more.
        """
        ...

    async def gone(self, tenant: str, session: str) -> int:
        """Remove what was made from anything of a `session` of `tenant`; return how much that was."""
        ...


@runtime_checkable
class Settling(Protocol):
    """What something that is made from entries may have beside: then it is told afterwards, too.

    Who reads entries while others erase may have read them before they went, and make something of them after they were
    removed here. So one that reads by itself takes nothing back from `erased` and `gone` on, until this says how things
    stand. Whoever is killed in between never says it: after a while, take them for settled.
    """

    async def settled(self, tenant: str, session: str, entries: Mapping[int, str] | None) -> None:
        """Know that what was to be done to these entries (None: to the session) was done, or failed.

        What of them is still in the log is there to stay, with the text that it has now: one that was redacted has
        another.
        """
        ...

    async def scrub(self, *, whole: bool) -> Sequence[str]:
        """See that no byte is left of what was removed; without `whole` leave what would take long for another time.

        Return in plain sentences what remains.
        """
        ...


@runtime_checkable
class Summarised(Protocol):
    """What something that is made from summaries may have beside."""

    async def summarised(self, session: str) -> None:
        """Know that summaries of this session were made anew of what an erasure has left."""
        ...


class Derivations:
    """What is made from the entries of one tenant. Every path that destroys entries comes by here first.

    What has joined here is told; for what has joined elsewhere, as the store knows, a note is left there. What is the
    store's `own`, such as its index, is at hand everywhere, by name. What this memory remembers of entries is forgotten
    by `remember_nothing`.
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
        """Have this told from now on, when it has removed what went while it was away.

        Raises ConfigError for what is not as `Derived` says, ErasureFailed where it does not remove that.
        """
        verbs = [callable(getattr(derived, verb, None)) for verb in ("erased", "gone")]
        name = getattr(derived, "name", None)
        if not all(verbs) or not isinstance(name, str) or not 0 < len(name) <= 256 or not name.isprintable():
            rule = "an object with a name of 1 to 256 characters and the coroutine functions erased and gone"
            raise ConfigError("derived", derived, rule)
        if any(one.name == name for one in self._all):
            raise ConfigError("derived", name, "a name that nothing else has that joined")
        await self._derivers.mark(name)
        await self._catch_up(derived)
        self._all.append(derived)

    async def add(self, derived: Derived, *, lasting: bool) -> None:
        """Have this told from now on, which knows by itself what went while it was away. The store learns its name if
        what it made is `lasting`."""
        if lasting:
            await self._derivers.mark(derived.name)
        if all(one.name != derived.name for one in self._all):
            await self._catch_up(derived)
            self._all.append(derived)

    async def catch_up(self) -> None:
        """Have removed what others have left notes of."""
        for derived in self._all:
            await self._catch_up(derived)

    async def _catch_up(self, derived: Derived) -> None:
        done = False
        async for id, note in self._derivers.notes(derived.name):
            key = SessionKey(self._tenant, note.session)
            await self._tell(derived, key, note.entries, "the note of it stays")
            await self._settle(derived, [(key, note.entries)])
            await self._derivers.done(derived.name, id)
            done = True
        if done:
            await self._scrub(derived, whole=False)

    def leave(self, derived: Derived) -> None:
        """Have this told no longer. The store knows of it still."""
        self._all = [one for one in self._all if one is not derived]

    async def names(self) -> tuple[str, ...]:
        """The names under which something has joined, here or elsewhere."""
        return tuple(await self._derivers.names())

    async def end(self, name: str) -> bool:
        """Have this told no longer, and the store know of it no more; return whether it did."""
        self._all = [one for one in self._all if one.name != name]
        return await self._derivers.unmark(name)

    def unmaking(
        self, store: Store, key: SessionKey, seqs: Collection[int] | None, *, branches: bool = True
    ) -> Unmaking:
        """What goes before these entries of a session do (None: all of it), or nothing, where there are none."""
        return Unmaking(self, store, key, seqs, branches=branches)

    async def tell(self, what: Unmaking) -> tuple[set[str], Erased]:
        """Have this removed; return who was told, at once or by a note, how much that was, and what remains."""
        names, done = await self._derivers.names(), Erased()
        await self._fetch_own(names)
        here = {derived.name: derived for derived in self._all}
        absent = [name for name in names if name not in here]
        if not (absent or here):
            return set(), done
        self._unscrubbed = True
        async for key, entries in what.entries():
            what.told.append((key, entries))
            told = {name: await self._tell(derived, key, entries) for name, derived in here.items()}
            await self._leave(absent, key, entries)
            done += Erased(derived={name: number for name, number in told.items() if number})
        return {*here, *absent}, done + _away(absent)

    async def tell_late(self, what: Unmaking, told: Collection[str]) -> Erased:
        """The same for whoever has joined since those were told, when the entries are gone: nobody knew of it before.

        Who is at hand has a note, too: so what it fails to remove is not forgotten.
        """
        names = await self._derivers.names()
        late = sorted({*names, *(derived.name for derived in self._all)}.difference(told))
        if not late:
            return Erased()
        await self._fetch_own(late)
        async for key, entries in what.entries():
            await self._leave(late, key, entries)
        here = [derived for derived in self._all if derived.name in late]
        for derived in here:
            await self._catch_up(derived)
        return _away([name for name in late if all(derived.name != name for derived in here)])

    async def settle(self, told: Sequence[tuple[SessionKey, dict[int, str] | None]]) -> None:
        """Tell whoever wants to know that what was to be done to these entries of sessions is over."""
        for derived in self._all:
            await self._settle(derived, told)

    async def _settle(self, derived: Derived, told: Sequence[tuple[SessionKey, dict[int, str] | None]]) -> None:
        if not isinstance(derived, Settling):
            return
        try:
            for key, entries in told:
                await self._waited(derived, derived.settled(*key, entries))
        except Exception as fault:  # noqa: BLE001 (what was done is done; who is never told takes it for settled)
            warn("%r could not be told how an erasure ended (%s)", derived.name, type(fault).__name__)

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """See that no byte is left of what was removed from what has joined; return what remains."""
        if whole:
            await self._fetch_own(await self._derivers.names())
        if not (whole or self._unscrubbed):
            return ()
        self._unscrubbed = False
        return tuple([told for derived in self._all for told in await self._scrub(derived, whole=whole)])

    async def _scrub(self, derived: Derived, *, whole: bool) -> Sequence[str]:
        if not isinstance(derived, Settling):
            return ()
        try:
            return await self._waited(derived, derived.scrub(whole=whole))
        except Exception as fault:  # noqa: BLE001 (what was erased is erased; that bytes of it remain is told)
            self._unscrubbed = True
            return (UNSCRUBBED.format(derived.name, type(fault).__name__),)

    async def summarised(self, session: str) -> None:
        """Tell whoever wants to know that a session has other summaries than before an erasure."""
        await self._fetch_own(await self._derivers.names())
        self._unscrubbed = True
        for derived in self._all:
            if isinstance(derived, Summarised):
                await self._waited(derived, derived.summarised(session))

    async def _waited(self, derived: Derived, doing: Awaitable[T]) -> T:
        """What something of ours does is a step of the erasure, what somebody else's does may wait for anything."""
        return await doing if _kind(derived.name) in self._own else await self._runner.wait(doing)

    async def _fetch_own(self, names: Sequence[str]) -> None:
        """Have at hand what is the store's own, where there is any: it belongs to the store, not to who made it."""
        known = {one.name for one in self._all}
        for own, fetch in self._own.items():
            if any(_kind(name) == own and name not in known for name in names):
                derived = await fetch()
                if derived.name in names:
                    await self.add(derived, lasting=False)

    async def _leave(self, names: Sequence[str], key: SessionKey, entries: Mapping[int, str] | None) -> None:
        for name in names:
            await self._derivers.leave(name, key.session, entries)

    async def _tell(
        self,
        derived: Derived,
        key: SessionKey,
        entries: Mapping[int, str] | None,
        then: str = "so nothing was erased",
    ) -> int:
        try:
            doing: Any = derived.gone(*key) if entries is None else derived.erased(*key, dict(entries))
            return int(await self._waited(derived, doing))
        except Exception as fault:  # whatever it is: what was made from entries must not outlive them
            raise ErasureFailed(derived.name, type(fault).__name__, then) from fault


INDEX, KNOWLEDGE = derivers.INDEX, derivers.KNOWLEDGE
"""What is a store's own: it is at hand wherever the store is."""

UNSCRUBBED = "{!r} could not see that no byte is left of it ({}). The next erasure, or `memory.vacuum`, tries again"
AWAY = (
    "{!r} is not at hand here: it removes what it has made of this when it joins next, for which there is a note; one "
    "that is there no more is forgotten with `memory.underive`, or `palimpsest derived forget`"
)


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _away(names: Sequence[str]) -> Erased:
    return Erased(remains=tuple(AWAY.format(name) for name in names))


class Unmaking:
    """What was made from these entries of a session (None: from anything of it) goes before they do.

    `async with` stands around the step that destroys them. Before it, whoever has joined is told, or a note is left for
    it; behind it, so is who has joined meanwhile, and may have made something of them. `done` is what went, and what
    remains, and is whole when all that has ended. What the step raises is left to whoever repeats it.
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
        self._told = set[str]()
        self.told: list[tuple[SessionKey, dict[int, str] | None]] = []
        """What was told of, so that it can be told how that ended."""
        self.done = Erased()

    async def __aenter__(self) -> Self:
        try:
            await self.again()
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
                self.done += await self._derivations.tell_late(self, self._told)
        finally:
            if self._derivations is not None:
                await self._derivations.settle(self.told)

    async def again(self) -> None:
        """Have it removed once more: the step took what others have added meanwhile, too."""
        if self._derivations is not None:
            names, done = await self._derivations.tell(self)
            self._told |= names
            self.done += done

    async def entries(self) -> AsyncIterator[tuple[SessionKey, dict[int, str] | None]]:
        """Yield which entries of which sessions these are, ids by `seq`, as tombstones tell it, too."""
        if self._seqs is None:
            yield self._key, None
            return
        entries = {entry.seq: entry.id for entry in await self._store.fetch(self._key, self._seqs)}
        yield self._key, entries
        sharing = await self._store.sharing(self._key, entries) if self._branches else {}
        for branch, seqs in sharing.items():
            yield self._key._replace(session=branch), {seq: entries[seq] for seq in seqs}

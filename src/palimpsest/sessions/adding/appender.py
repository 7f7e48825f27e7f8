"""The one way by which entries reach the store: identity, privacy, store, event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.errors import ConfigError, PrivacyRefused
from palimpsest.log.checks import check, check_names
from palimpsest.log.entry import Entry, derived_ids, new_ids
from palimpsest.privacy.gate import Admitted

if TYPE_CHECKING:
    from palimpsest.log.head import SessionKey
    from palimpsest.sessions.lease import Lease
    from palimpsest.sessions.memory import AsyncMemory
    from palimpsest.sessions.options import Options
    from palimpsest.sessions.reading import LogReader
    from palimpsest.sessions.withheld import Withheld
    from palimpsest.stores import Appended, Store


class Appender:
    """What every verb that adds ends in. A part of `AsyncSession`."""

    def __init__(self, memory: AsyncMemory, options: Options, store: Store | None = None) -> None:
        self._memory, self._options, self._gate = memory, options, memory.privacy
        self._store = store or store_of(memory, options)
        self._buffer: TurnBuffer | None = None
        self._lease: Lease | None = None
        self._in_turn = False
        self._added = 0

    @property
    def _reader(self) -> LogReader:
        from palimpsest.sessions.reading import LogReader  # not every session reads its log

        return LogReader(self._store, self._options)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._options.key.session

    @property
    def options(self) -> Options:
        """What the session was opened with."""
        return self._options

    async def _append(
        self, entries: Sequence[Entry], where: str, key: str | None = None, *, checked: bool = False
    ) -> tuple[Entry, ...]:
        """Identity, privacy, store, event: the one way into the log. What is withheld comes back as it was given."""
        self._may_write()
        for entry in entries:
            if not checked:
                check(entry, where)
            check_names(entry, where)
        if not entries:
            return ()
        given_ids = key is not None or bool([1 for entry in entries if entry.id])
        if key is not None:
            entries = _identified(entries, derived_ids(key, len(entries)))
        elif self._buffer is not None:  # otherwise they get their ids with their place in the log
            entries = _identified(entries, new_ids(len(entries), self._memory.clock() // 1000), own=True)
        if self._gate.redactor is None and self._buffer is None:
            return await self._stored(entries, given_ids=given_ids)
        slots = await self._admitted(entries)
        if self._buffer is None:
            return await self._commit(slots, given_ids=given_ids)
        self._buffer.slots.extend(slots)
        self._buffer.given_ids |= given_ids
        return tuple(slot.kept or slot.own or own for slot, own in zip(slots, entries, strict=True))

    async def _stored(self, entries: Sequence[Entry], *, given_ids: bool) -> tuple[Entry, ...]:
        """Store one batch of which nothing is withheld."""
        done = await self._store.append(self._options.key, entries, check_ids=given_ids)
        await self._follow_up(done)
        return done.entries

    async def _admitted(self, entries: Sequence[Entry]) -> Sequence[Admitted]:
        """What may be stored of the entries. Raises PrivacyRefused, and tells so."""
        try:
            return await self._gate.entries(self._store, self._options.key, entries)
        except PrivacyRefused as fault:
            facts = {"rule": fault.rule, "kind": fault.kind, "why": fault.why}
            await self._memory.observers.emit("privacy:refused", self.id, facts, self._memory.runner.wait)
            raise

    async def _commit(self, slots: Sequence[Admitted], *, given_ids: bool) -> tuple[Entry, ...]:
        """Store what may be stored of a batch, and hold the rest back."""
        withholds = any(map(_is_withheld, slots))
        held = self._memory.withheld.get(self._place)
        if withholds:
            held = held or await self._hold()
            slots = held.expecting(slots)
        kept = [slot.kept for slot in slots if slot.kept is not None]
        if held is None:
            return await self._stored(kept, given_ids=given_ids)
        stored, revision, following = tuple[Entry, ...](), 0, held
        try:
            if kept:
                done = await self._store.append(self._options.key, kept, check_ids=given_ids)
                stored, revision = done.entries, done.head.revision
            if not kept or done.added:  # else all of it was there before
                await self._memory.runner.whole(lambda: following.follow(slots, stored, revision))
        finally:
            if withholds and not held.holds:  # it failed, or all of it was there before
                self._let_go()
        if kept:
            await self._follow_up(done)
        elif self._lease is not None:
            await self._lease.renew()
        if not self._in_turn and held.interaction_ended:
            self._let_go()
        rest = iter(stored)
        return tuple(next(rest) if slot.kept is not None else slot.own or Entry() for slot in slots)

    async def _follow_up(self, done: Appended) -> None:
        """Count what was added, keep the turn's lease alive, tell who asked to be told."""
        self._added += done.added
        if self._lease is not None:
            await self._lease.renew()
        observers = self._memory.observers
        if done.added and observers.wants("entry:added"):
            for entry in done.entries:
                if entry.revision == done.head.revision:  # the others were there already
                    await observers.emit("entry:added", self.id, {"entry": entry}, self._memory.runner.wait)
        await self._appended(done)

    @property
    def _place(self) -> tuple[SessionKey, Store]:
        return self._options.key, self._store

    async def _hold(self) -> Withheld:
        """What is withheld of the session's open interaction, from now on."""
        from palimpsest.sessions.withheld import Withheld

        begun = await Withheld.begin(*self._place, self._memory.clock)
        return self._memory.withheld.setdefault(self._place, begun)  # another thread may have been first

    def _let_go(self) -> None:
        """Forget what is withheld: its interaction is over."""
        self._memory.withheld.pop(self._place, None)

    async def _appended(self, done: Appended) -> None:
        """What follows an append that is committed and told: it cannot fail any more."""

    def _may_write(self) -> None:
        """Raise ConfigError in a session that was opened to read."""
        if self._options.readonly:
            raise ConfigError("readonly", True, "False, for a session that writes")


def store_of(memory: AsyncMemory, options: Options) -> Store:
    """Where the session writes: the memory's store, or one that keeps everything to itself."""
    if options.persistence != "ephemeral":
        return memory.store
    from palimpsest.stores.overlay import Overlay

    return Overlay(memory.store, memory.clock)


class TurnBuffer:
    """What an atomic turn has gathered: entries with their ids, and whether a caller's key gave any of those."""

    def __init__(self) -> None:
        self.slots: list[Admitted] = []
        self.given_ids = False


def _identified(entries: Sequence[Entry], ids: Sequence[str], *, own: bool = False) -> list[Entry]:
    """The entries with these ids; with `own` one that has an id keeps it."""
    given = zip(entries, ids, strict=True)
    return [msgspec.structs.replace(entry, id=(own and entry.id) or id) for entry, id in given]


def _is_withheld(slot: Admitted) -> bool:
    return slot.own is not None

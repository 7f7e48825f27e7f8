"""The one way by which entries reach the store: identity, privacy, store, event; and the turn in which they do."""

from __future__ import annotations

from _thread import get_ident  # `threading` costs a cold start a millisecond
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.errors import ConfigError, PrivacyRefused
from palimpsest.log.checks import check, check_names
from palimpsest.log.entry import Entry, derived_ids, new_ids
from palimpsest.privacy.gate import Admitted
from palimpsest.runtime.once import lazy
from palimpsest.sessions.adding.gathered import Committed, Told, TurnBuffer
from palimpsest.sessions.compacting.lazily import LazyAutoCompaction
from palimpsest.sessions.lease import NESTED, Lease, waited_for
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.sessions.adding.there import There
    from palimpsest.sessions.withheld import Withheld
    from palimpsest.stores import Appended

OPEN = "open"


class Block:
    """A turn as the block that it is, its `lease`, and the thread in which it is: all tasks of an event loop are in
    one."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.thread = get_ident()


class OpenTurn:
    """One session object's turn: how many entries were `added` since it began, the `lease` that it holds, the `buffer`
    of an atomic one. Of threads and tasks that share the object one has a turn at a time."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self._blocks: dict[str, Block] = {}
        self.added = 0
        self.buffer: TurnBuffer | None = None
        self.lease: Lease | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is one."""
        return bool(self._blocks)

    @property
    def block(self) -> Block | None:
        """The one that is open."""
        return self._blocks.get(OPEN)

    async def open(self, block: Block, wait: float | None) -> float | None:
        """Wait until no other block of this object is open, for `wait` seconds at most; return what is left of them."""

        async def is_next() -> bool:
            return self._blocks.setdefault(OPEN, block) is block

        waited = await waited_for(is_next, self._scope.runner, f"the turn of session {self._scope.key.session!r}", wait)
        self.added = 0
        return None if wait is None else max(wait - waited, 0)

    async def take_lease(self, block: Block, wait: float | None, outer: Sequence[Block]) -> None:
        """Wait for whoever has a turn on the session, for `wait` seconds at most, and go next.

        Raises ConfigError where that would be for ever, since one of the `outer` blocks waits for this one: who has
        begun a task waits for it, while a thread goes on by itself.
        """
        scope, renewals = self._scope, self._scope.memory.renewals
        block.lease = Lease(scope.store, scope.runner, scope.key, "turn", renewals.seconds, scope.clock)
        held = [one.lease for one in outer if one.lease and one.lease.held and one.thread == get_ident()]
        if wait is None and any(map(block.lease.is_same, held)):
            raise ConfigError("turn", "a turn inside a turn", NESTED)
        await block.lease.take(renewals, wait)
        self.lease = block.lease  # from now on: who adds beside a turn that still waits is in none

    async def close(self, block: Block) -> None:
        """Let the next one in, where this block was. It may be cut short, and is whole then when it is repeated."""
        try:
            if block.lease is not None:
                await block.lease.give_back()
        finally:
            if self.block is block:
                buffer, self.buffer, self.lease = self.buffer, None, None
                if buffer is not None:
                    buffer.close()
                self._blocks.clear()

    async def release(self) -> None:
        """Let the next one in."""
        if self.lease is not None:
            await self.lease.give_back()
            self.lease = None


class Appender:
    """What every verb that adds ends in, in a `turn` or not."""

    def __init__(self, scope: SessionScope, turn: OpenTurn, auto: LazyAutoCompaction) -> None:
        self._scope, self._options, self._gate = scope, scope.options, scope.gate
        self.turn, self._auto = turn, auto

    @lazy
    def there(self) -> There:
        """What is there already."""
        from palimpsest.sessions.adding.there import There  # what contexts show, for few who add

        return There(self._scope, self.admitted, lambda: self.turn.buffer)

    async def append(
        self,
        entries: Sequence[Entry],
        where: str,
        key: str | None = None,
        *,
        checked: bool = False,
        told: Told | None = None,
    ) -> tuple[Entry, ...]:
        """Identity, privacy, store, event: the one way into the log. What is withheld comes back as it was given.

        What the entries cost is `told` when they are stored, unless a key says that all of them were there.
        """
        scope, given_ids = self._scope, key is not None
        scope.may_write()
        for entry in entries:
            if not checked:
                check(entry, where)
            check_names(entry, where)
            given_ids = given_ids or entry.id != ""
        if self.turn.lease is not None and entries:
            await self.turn.lease.check()
        buffer = self.turn.buffer  # read once: another thread may end the turn meanwhile
        if key is not None:
            entries = _identified(entries, derived_ids(key, len(entries)))
        elif buffer is not None:  # otherwise they get their ids with their place in the log
            entries = _identified(entries, new_ids(len(entries), scope.clock() // 1000), own=True)
        if self._gate.redactor is not None or buffer is not None or not entries:
            return await self._through_gate(entries, buffer, given_ids=given_ids, keyed=key is not None, told=told)
        if self._options.definition is not None:
            await self.declare()
        store, views = scope.store, scope.memory.views
        remembers = store is scope.memory.opened and not self._options.long_term  # which may store counts of them
        counts = views.counted(scope.key, entries, self._options.counter, scope.runner) if remembers else {}
        done = await store.append(scope.key, entries, check_ids=given_ids, about=scope.about)
        if remembers and done.added == len(done.entries):
            views.appended(store, scope.key, done.entries, counts)
        if self._options.long_term or scope.observers.handled or self._options.definition is not None:
            await self.follow_up(done)
        else:  # as a rule there is nothing to be done: a coroutine less
            self.turn.added += done.added
        if told is not None:
            await _tell(told, 0 if key is None else _new_from(done, done.entries))
        return done.entries

    async def _through_gate(
        self, entries: Sequence[Entry], buffer: TurnBuffer | None, *, given_ids: bool, keyed: bool, told: Told | None
    ) -> tuple[Entry, ...]:
        """Have the policy see a batch, and store it, or gather it in the atomic turn that is open."""
        done = Committed((), None)
        if entries or buffer is not None:
            slots = await self.admitted(entries)
            if buffer is not None and buffer.take(slots, given_ids=given_ids, keyed=keyed, told=told):
                return tuple(slot.kept or slot.own or own for slot, own in zip(slots, entries, strict=True))
            done = await self.commit(slots, given_ids=given_ids)
        if told is not None:
            await _tell(told, done.new_from if keyed else 0)
        return done.entries

    async def declare(self) -> None:
        """See to it that the store knows what the session's definition says, before the session refers to it."""
        if self._scope.definitions is not None:
            await self._scope.definitions.keep()

    async def _stored(self, entries: Sequence[Entry], *, given_ids: bool) -> Committed:
        """Store one batch of which nothing is withheld."""
        scope = self._scope
        done = await scope.store.append(scope.key, entries, check_ids=given_ids, about=scope.about)
        await self.follow_up(done)
        return Committed(done.entries, _new_from(done, done.entries))

    async def admitted(self, entries: Sequence[Entry]) -> Sequence[Admitted]:
        """What may be stored of the entries. Raises PrivacyRefused, and tells so."""
        self._scope.may_write()
        if self._options.definition is not None:  # pseudonyms may make the session
            await self.declare()
        try:
            return await self._gate.entries(self._scope.store, self._scope.key, entries, self._scope.about)
        except PrivacyRefused as fault:
            await self._scope.tell("privacy:refused", rule=fault.rule, kind=fault.kind, why=fault.why)
            raise

    async def commit(self, slots: Sequence[Admitted], *, given_ids: bool) -> Committed:
        """Store what may be stored of a batch, and hold the rest back."""
        withholds = any(map(_is_withheld, slots))
        held = self._scope.withheld.get(self._scope.place)
        if withholds:
            held = held or await self._hold()
            slots = held.expecting(slots)
        kept = [slot.kept for slot in slots if slot.kept is not None]
        if held is None:
            return await self._stored(kept, given_ids=given_ids)
        stored, revision, following = tuple[Entry, ...](), 0, held
        done: Appended | None = None
        try:
            if kept:
                scope = self._scope
                done = await scope.store.append(scope.key, kept, check_ids=given_ids, about=scope.about)
                stored, revision = done.entries, done.head.revision
            if done is None or done.added:  # else all of it was there before
                await self._scope.store.together(lambda: following.follow(slots, stored, revision))
        finally:
            if withholds and not held.holds:  # it failed, or all of it was there before
                self._scope.let_go()
        if done is not None:
            await self.follow_up(done)
        if not self.turn.is_open and held.interaction_ended:
            self._scope.let_go()
        rest = iter(stored)
        batch = tuple(next(rest) if slot.kept is not None else slot.own or Entry() for slot in slots)
        return Committed(batch, _new_from(done, batch))

    async def follow_up(self, done: Appended) -> None:
        """Count what was added, tell who asked to be told, look at the triggers."""
        self.turn.added += done.added
        observers = self._scope.observers
        if done.added and observers.wants("entry:added"):
            for entry in done.entries:
                if entry.revision == done.head.revision:  # the others were there already
                    await self._scope.tell("entry:added", entry=entry)
        if done.added and self._scope.definitions is not None:
            await self._scope.definitions.tell(done.head)
        if done.added and self._options.long_term:
            await (await self._auto.there()).appended(done, in_turn=self.turn.is_open)

    async def _hold(self) -> Withheld:
        """What is withheld of the session's open interaction, from now on."""
        from palimpsest.sessions.withheld import Withheld  # a store in memory, only where texts are withheld

        begun = await Withheld.begin(*self._scope.place, self._scope.clock)
        return self._scope.withheld.setdefault(self._scope.place, begun)  # another thread may have been first


def _identified(entries: Sequence[Entry], ids: Sequence[str], *, own: bool = False) -> list[Entry]:
    """The entries with these ids; with `own` one that has an id keeps it."""
    given = zip(entries, ids, strict=True)
    return [msgspec.structs.replace(entry, id=(own and entry.id) or id) for entry, id in given]


def _new_from(done: Appended | None, batch: Sequence[Entry]) -> int | None:
    """The place in a batch of the first entry that an append added; None where it added none."""
    if done is None or not done.added:
        return None
    return next(i for i, entry in enumerate(batch) if entry.revision == done.head.revision)


async def _tell(told: Told, new_from: int | None) -> None:
    """Tell from which entry on of a batch they are new, where any is."""
    if new_from is not None:
        await told(new_from)


def _is_withheld(slot: Admitted) -> bool:
    return slot.own is not None

"""The one way by which entries reach the store, and the state of the turn in which they are added.

Each batch gets its ids, passes the privacy policy, and is stored (or collected by an atomic turn); then observers are
told and triggers are checked.
"""

from __future__ import annotations

from _thread import get_ident  # `threading` costs a cold start a millisecond
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.errors import ConfigError, PrivacyRefused
from palimpsest.log.checks import check, check_names
from palimpsest.log.codec import encode, escaped, unescaped
from palimpsest.log.entry import Entry
from palimpsest.log.ids import derived_ids, new_ids
from palimpsest.privacy.gate import Admitted
from palimpsest.runtime.once import lazy
from palimpsest.sessions.adding.gathered import Committed, NoteUsage, TurnBuffer
from palimpsest.sessions.lazy_parts import Part
from palimpsest.sessions.lease import NESTED, Lease, waited_for
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.sessions.adding.existing import ExistingEntries
    from palimpsest.sessions.adding.usage import UsageRecorder
    from palimpsest.sessions.compacting.auto import AutoCompaction
    from palimpsest.sessions.withheld import Withheld
    from palimpsest.stores import Appended

OPEN = "open"
"""The only key of `OpenTurn._blocks`. `dict.setdefault` is atomic, so one of several threads sets it."""


class Block:
    """One `with session.turn()` block: its `lease`, and the thread that entered it.

    All tasks of an event loop have the same thread.
    """

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.thread = get_ident()


class OpenTurn:
    """The turn of one session object. Of threads and tasks that share the object, one has a turn at a time.

    `added` counts the entries added since the turn began. `lease` is the lease that it holds, `buffer` the buffer of an
    atomic turn.
    """

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self._blocks: dict[str, Block] = {}
        self.added = 0
        self.buffer: TurnBuffer | None = None
        self.lease: Lease | None = None

    @property
    def is_open(self) -> bool:
        """Whether a block is open."""
        return bool(self._blocks)

    @property
    def block(self) -> Block | None:
        """The block that is open."""
        return self._blocks.get(OPEN)

    async def open(self, block: Block, wait: float | None) -> float | None:
        """Open a block once no other block of this object is open; return how many seconds of `wait` remain.

        Raises LockTimeout after `wait` seconds (None: never).
        """

        async def is_next() -> bool:
            return self._blocks.setdefault(OPEN, block) is block

        waited = await waited_for(is_next, self._scope.runner, f"the turn of session {self._scope.key.session!r}", wait)
        self.added = 0
        return None if wait is None else max(wait - waited, 0)

    async def take_lease(self, block: Block, wait: float | None, outer: Sequence[Block]) -> None:
        """Take the lease of the session's turn once no other session object has it, in any process.

        Raises LockTimeout after `wait` seconds (None: never). Raises ConfigError if the wait would never end, because
        one of the `outer` blocks holds the lease and waits for this block: code that starts a task waits for it, while
        a block of another thread goes on by itself.
        """
        scope, renewals = self._scope, self._scope.memory.renewals
        block.lease = Lease(scope.store, scope.runner, scope.key, "turn", renewals.seconds, scope.clock)
        outer_leases = [
            other.lease for other in outer if other.lease and other.lease.held and other.thread == get_ident()
        ]
        if wait is None and any(map(block.lease.is_same, outer_leases)):
            raise ConfigError("turn", "a turn inside a turn", NESTED)
        if waited := await block.lease.take(renewals, wait):
            await scope.tell("lock:waited", lock="turn", seconds=waited)
        self.lease = block.lease  # only now: adds beside a turn that still waits belong to no turn

    async def close(self, block: Block) -> None:
        """End this block and let the next one open. If an interrupt cuts this short, calling it again completes it."""
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
        """Give the turn's lease back, so that the next turn can begin."""
        if self.lease is not None:
            await self.lease.give_back()
            self.lease = None


class Appender:
    """Appends entries to one session's log, or to the buffer of its `turn` while that is atomic."""

    def __init__(self, scope: SessionScope, turn: OpenTurn, auto: Part[AutoCompaction]) -> None:
        self._scope, self._options, self._gate = scope, scope.options, scope.gate
        self.turn, self._auto = turn, auto

    @lazy
    def existing(self) -> ExistingEntries:
        """Finds entries that need not be added again."""
        from palimpsest.sessions.adding.existing import ExistingEntries  # loads the states of entries; few adds need it

        return ExistingEntries(self._scope, self.admitted, lambda: self.turn.buffer)

    @lazy
    def usage(self) -> UsageRecorder:
        """Records what providers report of their calls."""
        from palimpsest.sessions.adding.usage import UsageRecorder  # half a millisecond

        return UsageRecorder(self._scope)

    async def append(
        self,
        entries: Sequence[Entry],
        where: str,
        key: str | None = None,
        *,
        checked: bool = False,
        note_usage: NoteUsage | None = None,
    ) -> tuple[Entry, ...]:
        """Append a batch and return its entries as stored; withheld ones come back as they were given.

        `where` names the batch in errors, and `checked` says that its entries are checked already. `note_usage` is
        called when the entries are stored, unless the log had all of them already under the same key.
        """
        scope, given_ids, plain = self._scope, key is not None, True
        scope.may_write()
        for entry in entries:
            if not checked:
                check(entry, where)
            if not _is_simple(entry):
                check_names(entry, where)
                given_ids, plain = given_ids or entry.id != "", False
        if not plain:
            entries = [*map(_joined, entries)]
        if self.turn.lease is not None and entries:
            await self.turn.lease.check()
        buffer = self.turn.buffer  # read once: another thread may end the turn meanwhile
        if key is not None:
            entries = _identified(entries, derived_ids(key, len(entries)))
        elif buffer is not None:  # otherwise the store gives them ids together with their places in the log
            entries = _identified(entries, new_ids(len(entries), scope.clock() // 1000), own=True)
        if self._gate.redactor is not None or buffer is not None or not entries:
            return await self._through_gate(
                entries, buffer, given_ids=given_ids, keyed=key is not None, note_usage=note_usage
            )
        if self._options.definition is not None:
            await self.declare()
        store, views = scope.store, scope.memory.views
        remembers = scope.key in views and store is scope.memory.opened
        remembers = remembers and not self._options.long_term  # a strategy may store their counts
        counts = views.counted(scope.key, entries, self._options.counter, scope.runner) if remembers else {}
        appended = await store.append(scope.key, entries, check_ids=given_ids, about=scope.about)
        if remembers and appended.added == len(appended.entries):
            views.appended(store, scope.key, appended.entries, counts)
        options = self._options
        if options.long_term or options.flushes or scope.observers.handled or options.definition is not None:
            await self.follow_up(appended)
        else:  # usually there is nothing else to do, and this saves a coroutine
            self.turn.added += appended.added
        if note_usage is not None:
            await _note_from(note_usage, 0 if key is None else _new_from(appended, appended.entries))
        return appended.entries

    async def _through_gate(
        self,
        entries: Sequence[Entry],
        buffer: TurnBuffer | None,
        *,
        given_ids: bool,
        keyed: bool,
        note_usage: NoteUsage | None,
    ) -> tuple[Entry, ...]:
        """Apply the privacy policy to a batch, and store it, or collect it in the `buffer` of the open atomic turn."""
        committed = Committed((), None)
        if entries or buffer is not None:
            slots = await self.admitted(entries)
            await self.tell_redacted(slots)
            if buffer is not None and buffer.take(slots, given_ids=given_ids, keyed=keyed, note_usage=note_usage):
                return tuple(slot.kept or slot.own or given for slot, given in zip(slots, entries, strict=True))
            committed = await self.commit(slots, given_ids=given_ids)
        if note_usage is not None:
            await _note_from(note_usage, committed.new_from if keyed else 0)
        return committed.entries

    async def declare(self) -> None:
        """Store what the session's definition says, if the store does not have it, before the session refers to it."""
        if self._scope.definitions is not None:
            await self._scope.definitions.keep()

    async def _stored(self, entries: Sequence[Entry], *, given_ids: bool) -> Committed:
        """Store a batch of which nothing is withheld."""
        scope = self._scope
        appended = await scope.store.append(scope.key, entries, check_ids=given_ids, about=scope.about)
        await self.follow_up(appended)
        return Committed(appended.entries, _new_from(appended, appended.entries))

    async def admitted(self, entries: Sequence[Entry]) -> Sequence[Admitted]:
        """Apply the privacy policy to the entries. Raises PrivacyRefused, after telling observers of it."""
        self._scope.may_write()
        if self._options.definition is not None:  # storing a pseudonym may already create the session
            await self.declare()
        entries = [*map(_joined, entries)]
        try:
            return await self._gate.entries(self._scope.store, self._scope.key, entries, self._scope.about)
        except PrivacyRefused as fault:
            await self._scope.tell("privacy:refused", rule=fault.rule, kind=fault.kind, why=fault.why)
            raise

    async def tell_redacted(self, slots: Sequence[Admitted]) -> None:
        """Tell observers how many entries of a batch were redacted or withheld, if any was."""
        if self._scope.observers.wants("privacy:redacted") and (count := sum(slot.redacted for slot in slots)):
            await self._scope.tell("privacy:redacted", entries=count)

    async def commit(self, slots: Sequence[Admitted], *, given_ids: bool) -> Committed:
        """Store what may be stored of a batch, and keep the withheld rest in memory until the interaction ends."""
        withholds = any(map(_is_withheld, slots))
        withheld = self._scope.withheld.get(self._scope.place)
        if withholds:
            withheld = await self._hold()
            slots = withheld.expecting(slots)
        kept = [slot.kept for slot in slots if slot.kept is not None]
        if withheld is None:
            return await self._stored(kept, given_ids=given_ids)
        stored, revision, following = tuple[Entry, ...](), 0, withheld
        appended: Appended | None = None
        try:
            if kept:
                scope = self._scope
                appended = await scope.store.append(scope.key, kept, check_ids=given_ids, about=scope.about)
                stored, revision = appended.entries, appended.head.revision
            if appended is None or appended.added:  # otherwise the log had all of it already
                await self._scope.store.together(lambda: following.follow(slots, stored, revision))
        finally:
            if withholds and not withheld.holds:  # the commit failed, or the log had all of it already
                self._scope.let_go()
        if appended is not None:
            await self.follow_up(appended)
        if not self.turn.is_open and withheld.interaction_ended:
            self._scope.let_go()
        remaining = iter(stored)
        batch = tuple(next(remaining) if slot.kept is not None else slot.own or Entry() for slot in slots)
        return Committed(batch, _new_from(appended, batch))

    async def follow_up(self, appended: Appended) -> None:
        """After an append: count the new entries for the turn, tell observers, and check the triggers."""
        self.turn.added += appended.added
        observers = self._scope.observers
        if appended.added and observers.wants("entry:added"):
            for entry in appended.entries:
                if entry.revision == appended.head.revision:  # the others are not new
                    await self._scope.tell("entry:added", entry=entry)
        if appended.added and self._scope.definitions is not None:
            await self._scope.definitions.tell(appended.head)
        if appended.added and (self._options.long_term or self._options.flushes):
            await (await self._auto()).appended(appended, in_turn=self.turn.is_open)

    async def _hold(self) -> Withheld:
        """Return what keeps the withheld entries of the session's open interaction, begun anew if it is not valid."""
        from palimpsest.sessions.withheld import MOST, Withheld  # loads the memory store; only if texts are withheld

        scope = self._scope
        if (withheld := scope.withheld.get(scope.place)) is not None:
            if (await scope.store.together(withheld.session, reads=True))[0] is not None:
                return withheld
            scope.let_go()
        begun = await Withheld.begin(*scope.place, scope.clock)
        crowd = list(scope.withheld)
        for oldest in crowd[: max(len(crowd) - MOST + 1, 0)]:
            scope.withheld.pop(oldest, None)  # most likely nobody will ever answer there
        return scope.withheld.setdefault(scope.place, begun)  # another thread may have been first


def _is_simple(entry: Entry) -> bool:
    """Whether an entry has ASCII texts alone, and no id, metadata or native message: every store can keep it as it is.

    Most entries are, so each append asks this first, in one call.
    """
    content, name, call_id = entry.content, entry.name, entry.call_id
    if type(content) is not str or not content.isascii() or entry.id or entry.native is not None:
        return False
    return (name is None or name.isascii()) and (call_id is None or call_id.isascii()) and entry.metadata is None


def _joined(entry: Entry) -> Entry:
    """Return the entry as its stored form gives it back: two surrogates that make a pair are one character.

    Text in which a program has joined the halves of a character, such as those of two pieces of a stream, has pairs.
    """
    try:
        encode(entry)
    except UnicodeEncodeError:
        return unescaped(escaped(entry), Entry)
    return entry


def _identified(entries: Sequence[Entry], ids: Sequence[str], *, own: bool = False) -> list[Entry]:
    """Return the entries with these ids; with `own`, an entry that has an id keeps it."""
    pairs = zip(entries, ids, strict=True)
    return [msgspec.structs.replace(entry, id=(own and entry.id) or id) for entry, id in pairs]


def _new_from(appended: Appended | None, batch: Sequence[Entry]) -> int | None:
    """Return the index in the batch of the first entry that the append added, or None if it added none."""
    if appended is None or not appended.added:
        return None
    return next(i for i, entry in enumerate(batch) if entry.revision == appended.head.revision)


async def _note_from(note_usage: NoteUsage, new_from: int | None) -> None:
    """Note the usage of a batch whose entries from the index `new_from` on are new, if any is."""
    if new_from is not None:
        await note_usage(new_from)


def _is_withheld(slot: Admitted) -> bool:
    return slot.own is not None

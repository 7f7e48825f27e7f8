"""The sessions of a backend: remembered as they were last seen, read as they are now, and written."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.codec import decoded
from palimpsest.log.head import SessionKey
from palimpsest.runtime.logs import warn
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import Ask, Backend, Batch, Look, Place, PlaceHead, Range, Refusal, Seen, Step
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.forms import (
    DAMAGED,
    LAST,
    Spoilt,
    head_of,
    key_of,
    new_log,
    read_as,
    read_cold,
    read_hot,
)
from palimpsest.stores.engine.known import (
    KNOWN,
    Known,
    NotSweptYet,
    accept_notes,
    bar_place,
    bar_step,
    own_place,
    pointer_place,
)
from palimpsest.stores.rules import AsyncLook, async_look, heads_at

_replace = msgspec.structs.replace

Asks = Callable[[Known], Sequence[Ask]]

WAY_OUT = "restore a backup, or destroy the session: `delete_session`, `palimpsest delete`"
"""Advice for a head that cannot be read."""

Prepared = tuple[Batch, Sequence[Known]]
"""A batch, and the sessions as they are after it."""

Prepare = Callable[[Known, list[Seen], int, AsyncLook], Coroutine[Any, Any, Prepared | None]]
"""Prepares a change of a session: given the session as known, what was seen of it, the time, and a way to look at the
store. Returns None if there is nothing to do. Awaits nothing but that look. The session's own step comes first in
the batch.
"""


class Sessions:
    """The sessions of a backend, with a cache: a cached session may be outdated, which the next write finds out.

    A new `era` begins when a session turns out to have gone back to an earlier revision. Then the store has lost writes
    that it had acknowledged, and nothing seen before proves anything about what is stored.
    """

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self.backend, self.url, self.crowds, self.clock = backend, backend.url, crowds, clock
        self._known: dict[SessionKey, Known] = {}
        self.era = 0
        self.warned = set[tuple[SessionKey, int]]()
        """Entries, by session and seq, for which a warning that they cannot be read was logged."""

    def remembered(self, key: SessionKey) -> Known | None:
        """Return the session as it was last seen; None if it was not, or has expired."""
        known = self._known.get(key)
        return known if known is None or known.head.expires is None or not self._has_expired(known) else None

    def _has_expired(self, known: Known) -> bool:
        return known.head.is_over(self.clock())

    def remember(self, known: Known) -> None:
        """Cache a session that was seen or written."""
        if known.stored is None:
            self._known.pop(known.key, None)
            return
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[known.key] = known

    def forget(self, key: SessionKey) -> None:
        """Drop the session from the cache."""
        self._known.pop(key, None)

    # --- reading

    async def find(self, key: SessionKey) -> Known:
        """Return the session as it is stored now."""
        return (await self.look(key))[0]

    def glance(self, key: SessionKey) -> Known | None:
        """Return a remembered session as it is stored now, if the backend can tell without waiting; else None."""
        known = self.remembered(key)
        stored = self.backend.glance(known.place) if known is not None else None
        if known is None or stored is None:
            return None
        current = self.current(known, stored)
        if (current.log, current.era) != (known.log, known.era) or (
            current.head.expires is not None and self._has_expired(current)
        ):
            return None
        self.remember(current)
        return current

    async def look(
        self, key: SessionKey, asks: Asks | None = None, *, even_expired: bool = False
    ) -> tuple[Known, list[Seen]]:
        """Return the session as it is stored now, and what was seen of all that `asks` asks for, as of one moment.

        `asks` is called with the session as known, and again whenever that turns out to be outdated. Nothing is seen of
        a session that does not exist, or that has expired (unless `even_expired`). A session that this process sees for
        the first time is checked: if its log has rows beyond its head, somebody has restored an old head, and
        StoreCorrupt is raised.
        """
        remembered = self._known.get(key)
        known = remembered or await self._locate(key)
        while known.stored is not None:
            asked = asks(known) if asks is not None else ()
            newest = [] if remembered is not None else [_ask_newest(known)]
            seen = await self.backend.look([Ask(known.place), *asked, *newest])
            current = self.current(known, seen[0].head)
            if current.era != known.era:
                known, remembered = current, None
                continue
            if newest and current.log == known.log:
                self._check(current, seen.pop())
            self.remember(current)
            if current.log != known.log:
                known = await self._locate(key)  # it may have been made anew, in another home
            elif current.head.expires is not None and not even_expired and self._has_expired(current):
                return Known(key, own_place(key), new_log(), pointer=current.pointer, expired=current), []
            elif current.reads_as(known):
                return current, seen[1:]
            else:
                known = current
        return known, []

    def _check(self, known: Known, newest: Seen) -> None:
        """Raise StoreCorrupt if the log has entries or records that are newer than the head."""
        last_known = (known.head.next_seq - 1, known.head.revision)
        for what, rows, last in zip(("entries", "records"), newest.rows, last_known, strict=True):
            if rows and rows[0][0] & LAST > last:
                problem = f"is out of date: the store has {what} that it does not know"
                raise StoreCorrupt(self.url, f"the head of session {known.key.session!r} {problem}; {WAY_OUT}")

    async def _locate(self, key: SessionKey) -> Known:
        """Find the home of a session that is not cached, and read it there."""
        place, pointed_by = own_place(key), pointer_place(key)
        own_head, pointer = await heads_at(self.backend, [place, pointed_by])
        if own_head is not None or pointer is None:
            return self.read(key, place, own_head)
        elsewhere = place._replace(home=self.home_of(key, pointer.hot))
        (stored,) = await heads_at(self.backend, [elsewhere])
        known = self.read(key, place if stored is None else elsewhere, stored)
        return _replace(known, pointer=pointer.hot)

    def home_of(self, key: SessionKey, pointer: bytes) -> str:
        """Return the home that a pointer names. Raises StoreCorrupt if the pointer cannot be read."""
        what = f"the pointer to session {key.session!r}"
        return read_as(self.url, what, lambda: decoded(pointer, tuple[str, int])[0])

    def read(self, key: SessionKey, place: Place, stored: PlaceHead | None) -> Known:
        """Return the session whose stored head at `place` is this; None stands for no session."""
        if stored is None:
            return Known(key, place, new_log())
        return self.current(Known(key, place, 0, cold_version=-1), stored)

    def current(self, known: Known, stored: PlaceHead | None) -> Known:
        """Return the session with the head that is stored now; `known` itself if that is unchanged.

        Raises StoreCorrupt, which names the session, if the head cannot be read. Begins a new era if the session has
        gone back.
        """
        if stored is None:
            return Known(known.key, own_place(known.key), new_log(), pointer=known.pointer, era=self.era)
        before = known.stored
        if before is not None and before.hot == stored.hot:
            return known
        try:
            hot = read_hot(stored.hot)
            if (
                before is not None
                and (hot.log, hot.cold_version) == (known.log, known.cold_version)
                and before.cold == stored.cold
            ):
                head, shares = known.head, known.shares
            else:
                cold = read_cold(stored.cold)
                head, shares = cold.head, cold.shares
            head = head_of(hot, head)
        except DAMAGED as cause:
            problem = f"the head of session {known.key.session!r} cannot be read ({cause})"
            why = stored.hot.why if isinstance(stored.hot, Spoilt) else problem
            raise StoreCorrupt(self.url, f"{why}; {WAY_OUT}") from cause
        if before is not None and hot.log == known.log and hot.revision <= known.head.revision:
            self._note_loss(known, hot.revision)
        return Known(
            known.key, known.place, hot.log, head, stored, shares, hot.cold_version, known.pointer, era=self.era
        )

    def _note_loss(self, known: Known, revision: int) -> None:
        """Begin a new era: a known session is at this revision, which it had already passed."""
        self.era += 1
        self._known.clear()
        problem = f"session {known.key.session!r} is at revision {revision}, but was at {known.head.revision} before"
        warn("%s: %s", self.url, f"{problem}: the store lost acknowledged writes, or an earlier state was put back")

    def after_refusal(self, known: Known, stored: PlaceHead | None) -> Known | None:
        """Return the session with the head that a refusal reports; None if it must be located anew."""
        current = self.current(known, stored)
        if (
            stored is None
            or current.log != known.log
            or current.era != known.era
            or (current.head.expires is not None and self._has_expired(current))
        ):
            self.forget(known.key)
            return None
        self.remember(current)
        return current

    # --- writing

    async def creation_steps(self, known: Known, at: int) -> list[Step]:
        """Return the steps that belong to the creation of a session in the home of its own name; none if it exists.

        They establish that the session is in no other home. A pointer to another home is either left over from a branch
        that is gone or belongs to a branch that is being made right now. The branch's maker is barred first, then the
        pointer is dropped. If the branch was made in time, the step will be refused. Raises NotSweptYet if an expired
        session of this name must be removed first.
        """
        if known.expired is not None:
            raise NotSweptYet(known.key)
        if known.stored is not None or known.place.home != known.key.session:
            return []
        barred = known.pointer is None or await self.bar_branch(known.key, known.pointer, at)
        return [Step(pointer_place(known.key), known.pointer if barred else None)]

    async def bar_branch(self, key: SessionKey, pointer: bytes, at: int) -> bool:
        """Bar a branch from being made in the home that the pointer names; return False if it was made first."""
        place = own_place(key)._replace(home=self.home_of(key, pointer))
        branch, bar = await heads_at(self.backend, [place, bar_place(place)])
        return branch is None and await self.write([Step(place), bar_step(place, bar, at)], at) is None

    async def write(self, batch: Batch, at: int, *after: Known) -> Refusal | None:
        """Write a batch, and remember these sessions as they are after it; return None, or the heads that refuse it."""
        return (await self.write_over((batch, after), at, lambda _, __: None))[0]

    async def write_over(
        self, prepared: Prepared, at: int, prepare_anew: Callable[[Refusal, Look], Prepared | None]
    ) -> tuple[Refusal | None, Sequence[Known]]:
        """Write a batch; return what refused it (None: nothing), and the sessions after it.

        If it would be refused, `prepare_anew` may prepare another batch from the heads that are stored and a way to
        look at more, while nobody else can write. So a writer that never pauses cannot keep this one out for ever.
        """
        batch, after = prepared
        instead: Batch | None = None

        def again(_: int, __: Batch, heads: Refusal, look: Look) -> Batch | None:
            nonlocal after, instead
            other = prepare_anew(heads, look)
            if other is None:
                return None
            instead, after = other
            return instead

        refusal = await self.crowds.write(batch, at, again=again)
        if refusal is not None and (accepting := accept_notes(batch if instead is None else instead, refusal)):
            refusal = await self.crowds.write(accepting, at)
        if refusal is None:
            for known in after:
                self.remember(known)
        return refusal, after

    async def change(
        self,
        key: SessionKey,
        asks: Asks,
        prepare: Prepare,
        refused: Callable[[Refusal], None] = lambda _: None,
        *,
        even_expired: bool = False,
    ) -> Sequence[Known] | None:
        """Write what `prepare` makes of a session, until no other writer interferes; return the sessions after it.

        Returns None if `prepare` makes nothing. `refused` is called with the heads that refused a batch, and may raise.
        """
        while True:
            known, seen = await self.look(key, asks, even_expired=even_expired)
            refusal, after = await self.attempt(known, seen, asks, prepare, even_expired=even_expired)
            if refusal is None:
                return after
            refused(refusal)

    async def attempt(
        self, known: Known, seen: list[Seen], asks: Asks | None, prepare: Prepare, *, even_expired: bool = False
    ) -> tuple[Refusal | None, Sequence[Known] | None]:
        """Write what `prepare` makes of a session, once; return the refusal (None: none), and the sessions after it.

        If another writer was first, the change is prepared anew from what is stored by then. Where the store allows it
        that happens while nobody else can write, so the change ends beside writers that are quicker and never pause.
        """
        at = self.clock()
        prepared = await prepare(known, seen, at, self.backend.look)
        if prepared is None:
            return None, None
        return await self.write_over(prepared, at, partial(self._prepare_anew, known, asks, prepare, at, even_expired))

    def _prepare_anew(
        self, known: Known, asks: Asks | None, prepare: Prepare, at: int, even_expired: bool, heads: Refusal, look: Look
    ) -> Prepared | None:
        """Prepare the change over the session as stored now; None if the session must be looked up again first."""
        current = self.current(known, heads[0]) if known.stored is not None else known
        if (
            current.stored is None
            or current.era != known.era
            or not current.reads_as(known)
            or (current.head.is_over(at) and not even_expired)
        ):
            return None
        try:
            return drive(prepare(current, look(asks(current)) if asks is not None else [], at, async_look(look)))
        except Conflict:  # raised again once the caller has looked up the session
            return None


def _ask_newest(known: Known) -> Ask:
    """Ask for the newest entry and the newest record of a session's own log."""
    whole = [(key_of(known.log, 0), key_of(known.log, LAST))]
    return known.ask(*(Range(table, whole, 1, newest_first=True) for table in ("entry", "record")))

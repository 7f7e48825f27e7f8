"""The sessions of a backend, as they were last seen, and as they are: looked at, and written."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.codec import decoded
from palimpsest.log.head import Head, SessionKey
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
from palimpsest.stores.engine.known import ENDS, KNOWN, OWNED, Known, Over, bar_of, barred, root, where_of
from palimpsest.stores.rules import Looks, awaited, expect_of, heads_at

_replace = msgspec.structs.replace

Asks = Callable[[Known], Sequence[Ask]]

WAY_OUT = "restore a backup, or destroy the session: `delete_session`, `palimpsest delete`"
"""What is to be done about a head that cannot be read."""

Made = tuple[Batch, Sequence[Known]]
"""A batch, and the sessions after it."""

Make = Callable[[Known, list[Seen], int, Looks], Coroutine[Any, Any, Made | None]]
"""Makes a change of a session as it is known, by what was seen of it, at a time; None where there is nothing to do. It
waits for nothing but what it looks at. The session's own step is the first."""


class Sessions:
    """The sessions of a backend, with a memory: what is remembered may be outdated, and a write finds that out.

    A new era begins where a session turns out to have gone back: then the store has lost what it had acknowledged, and
    nothing that was seen before tells anything of what is there.
    """

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self.backend, self.url, self.crowds, self.clock = backend, backend.url, crowds, clock
        self._known: dict[SessionKey, Known] = {}
        self.era = 0
        self.told = set[tuple[SessionKey, int]]()
        """The entries of which it was told that they cannot be read."""

    def remembered(self, key: SessionKey) -> Known | None:
        """The session as it was last seen; None where it was not, or its time is over."""
        known = self._known.get(key)
        return known if known is None or known.head.expires is None or not self._is_over(known) else None

    def _is_over(self, known: Known) -> bool:
        return known.head.is_over(self.clock())

    def remember(self, known: Known) -> None:
        """Remember what was seen, or written."""
        if known.there is None:
            self._known.pop(known.key, None)
            return
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[known.key] = known

    def forget(self, key: SessionKey) -> None:
        """Remember the session no longer."""
        self._known.pop(key, None)

    # --- reading

    async def find(self, key: SessionKey) -> Known:
        """The session as it is stored now."""
        return (await self.look(key))[0]

    def glance(self, key: SessionKey) -> Known | None:
        """The session as it is stored now, where that can be told without waiting for anybody; None where it cannot."""
        known = self.remembered(key)
        there = self.backend.glance(known.place) if known is not None else None
        if known is None or there is None:
            return None
        now = self.now(known, there)
        if (now.log, now.era) != (known.log, known.era) or (now.head.expires is not None and self._is_over(now)):
            return None
        self.remember(now)
        return now

    async def look(self, key: SessionKey, asks: Asks | None = None, *, over: bool = False) -> tuple[Known, list[Seen]]:
        """The session as it is stored now, and what was seen of all that `asks` asks for of it, as of one moment.

        `asks` is asked by what is known of the session, and again where that was outdated. Nothing is looked at of one
        that is not there, or, without `over`, has expired. One that this process has not seen before is checked: where
        its log has rows that its head does not know, somebody has put back an old head. Raises StoreCorrupt then.
        """
        remembered = self._known.get(key)
        known = remembered or await self._sought(key)
        while known.there is not None:
            more = asks(known) if asks is not None else ()
            newest = [] if remembered is not None else [_newest(known)]
            seen = await self.backend.look([Ask(known.place), *more, *newest])
            now = self.now(known, seen[0].head)
            if now.era != known.era:
                known, remembered = now, None
                continue
            if newest and now.log == known.log:
                self._check(now, seen.pop())
            self.remember(now)
            if now.log != known.log:
                known = await self._sought(key)  # it may be elsewhere by now
            elif now.head.expires is not None and not over and self._is_over(now):
                return Known(key, root(key), new_log(), pointer=now.pointer, over=now), []
            elif now.reads_as(known):
                return now, seen[1:]
            else:
                known = now
        return known, []

    def _check(self, known: Known, newest: Seen) -> None:
        """Raise StoreCorrupt where a log has entries or records that are newer than the head."""
        ends = (known.head.next_seq - 1, known.head.revision)
        for what, rows, end in zip(("entries", "records"), newest.rows, ends, strict=True):
            if rows and rows[0][0] & LAST > end:
                told = f"is of an earlier time: there are {what} that it does not know"
                raise StoreCorrupt(self.url, f"the head of session {known.key.session!r} {told}; {WAY_OUT}")

    async def _sought(self, key: SessionKey) -> Known:
        """The session where it is, of which nothing is remembered."""
        place, where = root(key), where_of(key)
        own, other = await heads_at(self.backend, [place, where])
        if own is not None or other is None:
            return self.read(key, place, own)
        elsewhere = place._replace(home=self.home_of(key, other.hot))
        (there,) = await heads_at(self.backend, [elsewhere])
        found = self.read(key, place if there is None else elsewhere, there)
        return _replace(found, pointer=other.hot)

    def home_of(self, key: SessionKey, pointer: bytes) -> str:
        """The home that a pointer names. Raises StoreCorrupt."""
        what = f"where session {key.session!r} is"
        return read_as(self.url, what, lambda: decoded(pointer, tuple[str, int])[0])

    def read(self, key: SessionKey, place: Place, there: PlaceHead | None) -> Known:
        """The session whose stored head this is."""
        if there is None:
            return Known(key, place, new_log())
        return self.now(Known(key, place, 0, stirred=-1), there)

    def now(self, known: Known, there: PlaceHead | None) -> Known:
        """The session with the head that is stored now; itself where it is the one that is known.

        Raises StoreCorrupt, naming it, where it cannot be read.
        """
        if there is None:
            return Known(known.key, root(known.key), new_log(), pointer=known.pointer, era=self.era)
        before = known.there
        if before is not None and before.hot == there.hot:
            return known
        try:
            hot = read_hot(there.hot)
            if (
                before is not None
                and (hot.log, hot.stirred) == (known.log, known.stirred)
                and before.cold == there.cold
            ):
                head, shares = known.head, known.shares
            else:
                cold = read_cold(there.cold)
                head, shares = cold.head, cold.shares
            head = head_of(hot, head)
        except DAMAGED as cause:
            told = f"the head of session {known.key.session!r} cannot be read ({cause})"
            why = there.hot.why if isinstance(there.hot, Spoilt) else told
            raise StoreCorrupt(self.url, f"{why}; {WAY_OUT}") from cause
        if before is not None and hot.log == known.log and hot.revision <= known.head.revision:
            self._lost(known, hot.revision)
        return Known(known.key, known.place, hot.log, head, there, shares, hot.stirred, known.pointer, era=self.era)

    def _lost(self, known: Known, revision: int) -> None:
        """Begin another era: a session that was known is at this revision, which it has passed."""
        self.era += 1
        self._known.clear()
        was = f"session {known.key.session!r} is at revision {revision}, and was at {known.head.revision}"
        warn("%s: %s", self.url, f"{was}: the store has lost what it acknowledged, or an earlier state was put back")

    def moved(self, known: Known, there: PlaceHead | None) -> Known | None:
        """The session by the head that a refusal tells; None where it has to be looked for."""
        now = self.now(known, there)
        if (
            there is None
            or now.log != known.log
            or now.era != known.era
            or (now.head.expires is not None and self._is_over(now))
        ):
            self.forget(known.key)
            return None
        self.remember(now)
        return now

    # --- writing

    async def created(self, known: Known, at: int) -> list[Step]:
        """What is done in the step that makes a session in the home of its own name; nothing for one that is there.

        It says that the session is nowhere else. A pointer that says otherwise is of a branch that is gone, or that
        somebody is just making: it is dropped, and who makes the branch is kept from it first. Where the branch was
        made in time the step will be refused. Raises Over where an expired session of the name has to go first.
        """
        if known.over is not None:
            raise Over(known.key)
        if known.there is not None or known.place.home != known.key.session:
            return []
        kept = known.pointer is None or await self.keeps_from(known.key, known.pointer, at)
        return [Step(where_of(known.key), known.pointer if kept else None)]

    async def keeps_from(self, key: SessionKey, pointer: bytes, at: int) -> bool:
        """Keep whoever has begun to make a branch where a pointer says from it; False where it is there by now."""
        place = root(key)._replace(home=self.home_of(key, pointer))
        branch, bar = await heads_at(self.backend, [place, barred(place)])
        return branch is None and await self.write([Step(place), bar_of(place, bar, at)], at) is None

    async def write(self, batch: Batch, at: int, *after: Known) -> Refusal | None:
        """Write a batch, after which these sessions are so; what came of it."""
        return (await self.write_over((batch, after), at, lambda _, __: None))[0]

    async def write_over(
        self, made: Made, at: int, anew: Callable[[Refusal, Look], Made | None]
    ) -> tuple[Refusal | None, Sequence[Known]]:
        """Write a batch; what came of it, and the sessions after it.

        Where it would be refused, `anew` is given the heads that are there, and what looks at more, and may say what is
        written instead, while nobody else can write: so nobody who never pauses is in the way for ever.
        """
        batch, after = made
        instead: Batch | None = None

        def again(_: int, __: Batch, heads: Refusal, look: Look) -> Batch | None:
            nonlocal after, instead
            other = anew(heads, look)
            if other is None:
                return None
            instead, after = other
            return instead

        refusal = await self.crowds.write(batch, at, again=again)
        if refusal is not None and (over := _over_notes(batch if instead is None else instead, refusal)):
            refusal = await self.crowds.write(over, at)
        if refusal is None:
            for known in after:
                self.remember(known)
        return refusal, after

    async def change(
        self,
        key: SessionKey,
        asks: Asks,
        make: Make,
        refused: Callable[[Refusal], None] = lambda _: None,
        *,
        over: bool = False,
    ) -> Sequence[Known] | None:
        """Write what `make` makes of a session, as `tried` does, until nobody is in the way; the sessions after it.

        None where it makes nothing. `refused` is told of a batch that was not written, and may raise.
        """
        while True:
            known, seen = await self.look(key, asks, over=over)
            refusal, after = await self.tried(known, seen, asks, make, over=over)
            if refusal is None:
                return after
            refused(refusal)

    async def tried(
        self, known: Known, seen: list[Seen], asks: Asks | None, make: Make, *, over: bool = False
    ) -> tuple[Refusal | None, Sequence[Known] | None]:
        """Write what `make` makes of a session by what was seen of it; what came of it, and the sessions after it.

        Where somebody was first it is made anew by what there is by then, while nobody else can write if the store has
        that: so it ends beside those who never pause, be they quicker.
        """
        at = self.clock()
        made = await make(known, seen, at, self.backend.look)
        if made is None:
            return None, None
        return await self.write_over(made, at, partial(self._anew, known, asks, make, at, over))

    def _anew(
        self, known: Known, asks: Asks | None, make: Make, at: int, over: bool, heads: Refusal, look: Look
    ) -> Made | None:
        """What is made of the session as it is by now, by what is seen of it now; None where it is to be sought."""
        now = self.now(known, heads[0]) if known.there is not None else known
        if now.there is None or now.era != known.era or not now.reads_as(known) or (now.head.is_over(at) and not over):
            return None
        try:
            return drive(make(now, look(asks(now)) if asks is not None else [], at, awaited(look)))
        except Conflict:  # whoever asked for it hears of that when he has looked
            return None


def _over_notes(batch: Batch, heads: Refusal) -> Batch | None:
    """The batch over the notes that are there, where nothing else refuses it: what a session's head says is so, and a
    note that is lost or left over, as by another program's copy, keeps nobody from changing it."""
    pairs = [(step, expect_of(head)) for step, head in zip(batch, heads, strict=True)]
    other = [step.place for step, there in pairs if not step.rows_only and step.expect != there]
    if not other or not all(place.space == ENDS or place.space.startswith(OWNED) for place in other):
        return None
    return [step if step.rows_only else msgspec.structs.replace(step, expect=there) for step, there in pairs]


def _newest(known: Known) -> Ask:
    """What asks for the newest entry and the newest record of a session's own log."""
    whole = [(key_of(known.log, 0), key_of(known.log, LAST))]
    return known.ask(*(Range(table, whole, 1, newest_first=True) for table in ("entry", "record")))


def expected(key: SessionKey, head: Head, revision: int | None, epoch: int | None = None, created: int = 0) -> None:
    """Raise Conflict unless the head is where the caller saw it, and of the session that began then (0: of any)."""
    if created and head.created != created:
        raise Conflict(f"session {key.session!r}", "was deleted or replaced by another writer: read it again")
    if revision is not None and head.revision != revision:
        raise Conflict(f"session {key.session!r}", f"is at revision {head.revision}, not {revision}: read it again")
    if epoch is not None and head.epoch != epoch:
        raise Conflict(f"session {key.session!r}", f"is in epoch {head.epoch}, not {epoch}: read it again")

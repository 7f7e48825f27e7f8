"""Appends: what a batch says that writes them, and what became of it. Where they meet is `queues`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from palimpsest.errors import Conflict, InvalidEntry, PalimpsestError, StoreCorrupt, StoreUnavailable, WrongUser
from palimpsest.log.entry import Entry, same, unpack
from palimpsest.log.head import About, SessionKey
from palimpsest.log.linking import link
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import Ask, Batch, Cells, Look, Range, Refusal, Step
from palimpsest.stores.engine.forms import DAMAGED, checked, entry_row
from palimpsest.stores.engine.known import Known, met, noted, where_of
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.rules import Looks, awaited, expect_of
from palimpsest.stores.values import Appended

REFUSED = (Conflict, InvalidEntry, StoreCorrupt, WrongUser)
"""What an append may be told before anything of it is written."""

Made = tuple[Known, Known, Batch]
"""A session before and after appends, and what makes it so."""

Sent = tuple[Known, Sequence[Entry], Appended | None]
"""The session over which an append was written of which nobody has heard, its entries as they were linked, its result.
"""


class Append(msgspec.Struct, eq=False):
    """One append that waits to be written, and what became of it.

    `linked` are its entries as somebody has begun to write them, over the session that is `over`. `sent` is each time
    that this was done and no answer came: it may be there, or still come to be.
    """

    key: SessionKey
    entries: Sequence[Entry]
    check_ids: bool
    about: About | None = None
    result: Appended | None = None
    error: BaseException | None = None
    done: bool = False
    claimed: bool = False
    withdrawn: bool = False
    linked: Sequence[Entry] = ()
    over: Known | None = None
    sent: list[Sent] = []

    def unheard(self) -> None:
        """Note that it was sent, if it was, and that no answer has come."""
        if self.over is not None:
            self.sent.append((self.over, self.linked, self.result))
            self.over = None


class Appends:
    """Appends to sessions."""

    def __init__(self, sessions: Sessions, large: Large, reading: Reading) -> None:
        self._sessions, self._large, self._reading, self._clock = sessions, large, reading, sessions.clock
        self._backend, self.crowds = sessions.backend, sessions.crowds

    async def write(self, claimed: Sequence[Append]) -> None:
        """Write these appends, one batch a session, until each is settled, or a crowd has to be waited for."""
        if len(claimed) == 1 and not self.crowds.is_at(claimed[0].key):
            await self.quickly(claimed[0])
            if claimed[0].done or self.crowds.is_at(claimed[0].key):
                return
        left: dict[SessionKey, list[Append]] = {}
        for append in claimed:
            append.unheard()
            left.setdefault(append.key, []).append(append)
        there = {key: None if self.crowds.is_at(key) else self._sessions.remembered(key) for key in left}
        while left:
            at = self._clock()
            batches = list[Made]()
            for key, appends in left.items():
                made = await self._batch(key, appends, there[key], at)
                if made is not None:
                    batches.append(made)

            steps = [batch for _, _, batch in batches]
            again = partial(self._again, batches, left, at)
            done = await self._backend.write(steps, at, again=again) if batches else ()
            for (before, after, _), refusal in zip(batches, done, strict=True):
                key = after.key
                self.crowds.note(key, refusal is not None)
                if refusal is not None:
                    there[key] = self._sessions.moved(before, refusal[0])
                    for append in left[key]:
                        append.over = None
                else:
                    self._sessions.remember(after)
                    there[key] = after
                    for append in left[key]:
                        append.done = append.done or append.over is not None
            left = {key: [one for one in appends if not one.done] for key, appends in left.items()}
            left = {key: appends for key, appends in left.items() if appends and not self.crowds.is_at(key)}

    async def quickly(self, append: Append) -> None:
        """Write an append as most are, alone and to a known session, if it is one."""
        known = self._sessions.remembered(append.key)
        if known is None or append.over is not None or append.sent:
            return
        at, appends = self._clock(), [append]
        made = self._plain(appends, known, at)
        if made is None:
            return

        batches = [made]
        again = partial(self._again, batches, {append.key: appends}, at)
        (refusal,) = await self._backend.write((made[2],), at, again=again)
        if refusal is not None or self.crowds.refused:  # as a rule neither
            self.crowds.note(append.key, refusal is not None)
        if refusal is not None:
            append.over = None
            self._sessions.moved(known, refusal[0])
        else:
            self._sessions.remember(batches[0][1])
            append.done = True

    def _again(
        self,
        batches: list[Made],
        appends: Mapping[SessionKey, list[Append]],
        at: int,
        number: int,
        _: Batch,
        heads: Refusal,
        look: Look,
    ) -> Batch | None:
        """What writes the appends of the batch of this number over the head that is there, if it is of the same log."""
        before = batches[number][0]
        known = self._sessions.now(before, heads[0])
        if known.there is None or known.head.is_over(at) or not known.reads_as(before):
            return None
        anew = drive(self._made(appends[before.key], known, at, awaited(look)))
        if anew is None:
            return None
        batches[number] = anew
        return anew[2]

    def _plain(self, appends: Sequence[Append], known: Known, at: int) -> Made | None:
        """What writes appends as most are, without asking the store for anything; None where some are not so."""
        head, log = known.head, known.log
        if known.there is None and (known.pointer is not None or known.over is not None):
            return None
        rows: list[Cells] = []
        for append in appends:
            if append.check_ids or append.sent:
                return None
            try:
                if append.about is not None:
                    head = met(append.key, head, append.about)
                head, linked = link(head, append.entries, at)
            except (InvalidEntry, WrongUser):
                return None
            append.linked, append.result = linked, Appended(head, tuple(linked), len(linked))
            for entry in linked:
                rows.append(entry_row(log, entry))  # noqa: PERF401 (a list of its own each time would cost more)
        if not rows or self._large.meant(rows):
            return None
        for append in appends:
            append.over = known
        if head.about is not None:
            head = head.renewed(at)
        after, step = known.grown(head)
        steps = step, Step(known.logs, rows_only=True, put=(("entry", rows),))
        if known.there is None or head.about is not known.head.about or head.expires != known.head.expires:
            new = () if known.there is not None else (Step(where_of(known.key)),)
            return known, after, (*steps, *new, *noted(known, after))
        return known, after, steps

    async def _batch(self, key: SessionKey, appends: list[Append], known: Known | None, at: int) -> Made | None:
        """What writes these appends; None where none is to be written."""
        if known is None or any([append.check_ids for append in appends]):  # noqa: C419
            known = await self._sessions.find(key)
        return await self._made(appends, known, at, self._backend.look)

    async def _made(self, appends: list[Append], known: Known, at: int, look: Looks) -> Made | None:
        """What writes these appends to a session as it is known; None where none is to be written.

        What is settled by what is stored already is settled here. An error that may be due to what the others before it
        enter is told when that is stored: until then it is not `over` anything. An append that may have been written is
        looked for each time: the batch compares a head that was seen before, so it cannot come unnoticed in between.
        """
        appends = [one for one in appends if not one.done]
        if (plain := self._plain(appends, known, at)) is not None:
            return plain
        key, head, entered = known.key, known.head, list[Entry]()
        for append in appends:
            append.over = None
            if append.sent and await self._is_there(append, look):
                continue
            try:
                met_as = met(key, head, append.about)
                found: dict[str, Entry] = {}
                fresh = append.entries
                if append.check_ids:
                    there = await self._reading.within(look).by_ids(known, [entry.id for entry in append.entries])
                    found = {entry.id: entry for entry in (*there, *entered)}
                    fresh = _unknown_only(append.entries, found)
                if not fresh:
                    append.result = Appended(head, tuple(found[entry.id] for entry in append.entries), 0)
                    append.linked = [one for one in append.result.entries if one in entered]
                    append.over = known if append.linked else None
                    append.done = append.over is None
                    continue
                after, linked = link(met_as, fresh, at)
            except REFUSED as fault:
                if not entered:
                    append.error, append.done = fault, True
                continue
            head = after
            append.linked, append.over = linked, known
            entered += linked
            given = linked
            if len(linked) != len(append.entries):
                found |= {entry.id: entry for entry in linked}
                given = [found[entry.id] for entry in append.entries]
            append.result = Appended(head, tuple(given), len(linked))
        if not entered:
            return None
        log = known.log
        rows = [entry_row(log, entry) for entry in entered]
        now, step = known.grown(head.renewed(at))
        put, more = await self._large.within(look).split(known, rows)
        steps = [step, Step(known.logs, None, None, None, None, True, (), put), *more]
        return known, now, [*steps, *noted(known, now), *await self._sessions.created(known, at)]

    async def was_done(self, own: Append, fault: PalimpsestError) -> bool:
        """Whether an append was written though the answer was lost; where it was not, the fault says so from now on.

        Who may still be writing it has the head that it is written over, or keeps others from making one: so whoever
        compares that waits for him. Where it is as it was nothing of the append is there.
        """
        own.unheard()
        try:
            if own.sent and (await self._is_there(own, self._backend.look) or await self._has_come(own)):
                return True
        except PalimpsestError:
            if isinstance(fault, StoreUnavailable):
                fault.written = None  # it may have been, the time before
            raise fault from None
        finally:
            self._sessions.forget(own.key)
        if isinstance(fault, StoreUnavailable):
            fault.written = False
        return False

    async def _has_come(self, append: Append) -> bool:
        """Whether it is there now, when nobody is writing it any more."""
        over = append.sent[-1][0]
        hot = expect_of(over.there)
        (moved,) = await self._backend.write([[Step(over.place, hot, hot)]], self._clock())
        return moved is not None and await self._is_there(append, self._backend.look)

    async def _is_there(self, append: Append, look: Looks) -> bool:
        """Whether an append is there that was sent and of which nobody has heard: then it is settled."""
        keys = [over.log << 32 | linked[0].seq for over, linked, _ in append.sent]
        asks = list[Ask]()
        for (over, _, _), key in zip(append.sent, keys, strict=True):
            asks += Ask(over.place), over.ask(Range("entry", [(key, key)]))
        seen = await look(asks)
        for (_, linked, result), key, there in zip(append.sent, keys, seen[1::2], strict=True):
            try:
                append.done = any(unpack(checked(row[1], key)).id == linked[0].id for row in there.rows[0])
            except DAMAGED:
                append.done = True  # there is something, and nobody else writes there
            if append.done:
                append.linked, append.result = linked, result
                break
        return append.done


def _unknown_only(entries: Sequence[Entry], known: Mapping[str, Entry]) -> list[Entry]:
    """Return the entries that are not known yet. Raises Conflict for a known id with other content."""
    fresh: dict[str, Entry] = {}
    for entry in entries:
        before = known.get(entry.id) or fresh.get(entry.id)
        if before is None:
            fresh[entry.id] = entry
        elif not before.erased and not same(before, entry):
            place = f", as number {before.seq} of the log" if before.seq else ""
            told = f"is there already with other content{place}; a key or id is used once: give this content another"
            raise Conflict(f"entry {entry.id}", told)
    return list(fresh.values())

"""Appends: preparing the batch that writes them, writing it, and settling each append. `queues` brings them here."""

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
from palimpsest.stores.engine.known import Known, note_steps, pointer_place, with_about
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.rules import AsyncLook, async_look
from palimpsest.stores.values import Appended

REFUSED = (Conflict, InvalidEntry, StoreCorrupt, WrongUser)
"""Errors with which an append can be refused before anything of it is written."""

SEARCH = 2.0
"""Seconds that may be spent on finding out whether an append without an answer was written. Meanwhile others wait."""

PreparedAppends = tuple[Known, Known, Batch]
"""A session before the appends, the session after them, and the batch that takes it from one to the other."""

Sent = tuple[Known, Sequence[Entry], Appended | None]
"""One attempt to write an append that got no answer: the session it was written over, the entries as linked for it, and
the result it would have.
"""


class Append(msgspec.Struct, eq=False):
    """One append that waits to be written, and what became of it.

    `claimed` says that a writer has taken it, `withdrawn` that its caller has taken it back, `done` that it has a
    `result` or an `error`. `linked` are its entries as linked for the attempt under way, over the session `base`;
    `base` is None when no attempt is. `sent` are earlier attempts that got no answer: each may have been written, or
    may still be.
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
    base: Known | None = None
    sent: list[Sent] = []

    def note_unanswered(self) -> None:
        """Move the attempt under way, if there is one, to the attempts without an answer."""
        if self.base is not None:
            self.sent.append((self.base, self.linked, self.result))
            self.base = None


class Appends:
    """Writes appends to sessions."""

    def __init__(self, sessions: Sessions, large: Large, reading: Reading) -> None:
        self._sessions, self._large, self._reading, self._clock = sessions, large, reading, sessions.clock
        self._backend, self.crowds = sessions.backend, sessions.crowds

    async def write(self, claimed: Sequence[Append]) -> None:
        """Write these appends, one batch per session, until each is settled or its session is crowded."""
        if len(claimed) == 1 and not self.crowds.is_at(claimed[0].key):
            await self.quickly(claimed[0])
            if claimed[0].done or self.crowds.is_at(claimed[0].key):
                return
        pending: dict[SessionKey, list[Append]] = {}
        for append in claimed:
            append.note_unanswered()
            pending.setdefault(append.key, []).append(append)
        known_by_key = {key: None if self.crowds.is_at(key) else self._sessions.remembered(key) for key in pending}
        while pending:
            at = self._clock()
            prepared_batches = list[PreparedAppends]()
            for key, appends in pending.items():
                prepared = await self._batch(key, appends, known_by_key[key], at)
                if prepared is not None:
                    prepared_batches.append(prepared)

            batches = [batch for _, _, batch in prepared_batches]
            again = partial(self._batch_again, prepared_batches, pending, at)
            refusals = await self._backend.write(batches, at, again=again) if prepared_batches else ()
            for (before, after, _), refusal in zip(prepared_batches, refusals, strict=True):
                key = after.key
                self.crowds.note(key, refusal is not None)
                if refusal is not None:
                    known_by_key[key] = self._sessions.after_refusal(before, refusal[0])
                    for append in pending[key]:
                        append.base = None
                else:
                    self._sessions.remember(after)
                    known_by_key[key] = after
                    for append in pending[key]:
                        append.done = append.done or append.base is not None
            pending = {key: [append for append in appends if not append.done] for key, appends in pending.items()}
            pending = {key: appends for key, appends in pending.items() if appends and not self.crowds.is_at(key)}

    async def quickly(self, append: Append) -> None:
        """Write a single append to a remembered session without reading first: the common case.

        Leaves the append unsettled if the session is not remembered, if the append needs more than linking, or if the
        batch is refused.
        """
        known = self._sessions.remembered(append.key)
        if known is None or append.base is not None or append.sent:
            return
        at, appends = self._clock(), [append]
        prepared = self._plain_batch(appends, known, at)
        if prepared is None:
            return

        prepared_batches = [prepared]
        again = partial(self._batch_again, prepared_batches, {append.key: appends}, at)
        (refusal,) = await self._backend.write((prepared[2],), at, again=again)
        if refusal is not None or self.crowds.refused:  # usually neither, and the call is saved
            self.crowds.note(append.key, refusal is not None)
        if refusal is not None:
            append.base = None
            self._sessions.after_refusal(known, refusal[0])
        else:
            self._sessions.remember(prepared_batches[0][1])
            append.done = True

    def _batch_again(
        self,
        prepared_batches: list[PreparedAppends],
        appends: Mapping[SessionKey, list[Append]],
        at: int,
        number: int,
        _: Batch,
        heads: Refusal,
        look: Look,
    ) -> Batch | None:
        """Prepare the refused batch of this number over the head that is stored now, if that is of the same log."""
        before = prepared_batches[number][0]
        known = self._sessions.current(before, heads[0])
        if known.stored is None or known.head.is_over(at) or not known.reads_as(before):
            return None
        prepared = drive(self._batch_over(appends[before.key], known, at, async_look(look)))
        if prepared is None:
            return None
        prepared_batches[number] = prepared
        return prepared[2]

    def _plain_batch(self, appends: Sequence[Append], known: Known, at: int) -> PreparedAppends | None:
        """Prepare appends that need nothing from the store; None if any of them does."""
        head, log = known.head, known.log
        if known.stored is None and (known.pointer is not None or known.expired is not None):
            return None  # something must be barred or swept before the session can be created
        rows: list[Cells] = []
        for append in appends:
            if append.check_ids or append.sent:
                return None
            try:
                if append.about is not None:
                    head = with_about(append.key, head, append.about)
                head, linked = link(head, append.entries, at)
            except (InvalidEntry, WrongUser):
                return None
            append.linked, append.result = linked, Appended(head, tuple(linked), len(linked))
            for entry in linked:
                rows.append(entry_row(log, entry))  # noqa: PERF401 (a list for each append would cost more)
        if not rows or self._large.may_hold(rows):
            return None
        for append in appends:
            append.base = known
        if head.about is not None:
            head = head.renewed(at)
        after, step = known.append_step(head)
        steps = step, Step(known.logs, rows_only=True, put=(("entry", rows),))
        if known.stored is None or head.about is not known.head.about or head.expires != known.head.expires:
            # A session is only created if no pointer says that it is in another home.
            creation = () if known.stored is not None else (Step(pointer_place(known.key)),)
            return known, after, (*steps, *creation, *note_steps(known, after))
        return known, after, steps

    async def _batch(
        self, key: SessionKey, appends: list[Append], known: Known | None, at: int
    ) -> PreparedAppends | None:
        """Prepare the appends to one session; None if nothing is left to write.

        The session is looked up if it is not known, or if ids must be checked.
        """
        if known is None or any([append.check_ids for append in appends]):  # noqa: C419
            known = await self._sessions.find(key)
        return await self._batch_over(appends, known, at, self._backend.look)

    async def _batch_over(
        self, appends: list[Append], known: Known, at: int, look: AsyncLook
    ) -> PreparedAppends | None:
        """Prepare appends over a session as it is known; None if nothing is left to write.

        Settles appends whose outcome follows from what is already stored. An append that fails only after others of
        this batch were entered may fail because of them, so its error is reported once those are stored: until then its
        `base` stays None. An append that may have been written already is looked for each time. The batch compares a
        head that was seen before that look, so the append cannot arrive unnoticed in between.
        """
        appends = [append for append in appends if not append.done]
        if (plain_batch := self._plain_batch(appends, known, at)) is not None:
            return plain_batch
        key, head, entered = known.key, known.head, list[Entry]()
        for append in appends:
            append.base = None
            if append.sent and await self._find_sent(append, look):
                continue
            try:
                user_head = with_about(key, head, append.about)
                by_id: dict[str, Entry] = {}
                fresh = append.entries
                if append.check_ids:
                    stored = await self._reading.within(look).by_ids(known, [entry.id for entry in append.entries])
                    by_id = {entry.id: entry for entry in (*stored, *entered)}
                    fresh = _unknown_only(append.entries, by_id)
                if not fresh:
                    append.result = Appended(head, tuple(by_id[entry.id] for entry in append.entries), 0)
                    # Repeats entries that this batch enters itself: settled with it.
                    append.linked = [entry for entry in append.result.entries if entry in entered]
                    append.base = known if append.linked else None
                    append.done = append.base is None
                    continue
                after, linked = link(user_head, fresh, at)
            except REFUSED as fault:
                if not entered:
                    append.error, append.done = fault, True
                continue
            head = after
            append.linked, append.base = linked, known
            entered += linked
            results = linked
            if len(linked) != len(append.entries):
                by_id |= {entry.id: entry for entry in linked}
                results = [by_id[entry.id] for entry in append.entries]
            append.result = Appended(head, tuple(results), len(linked))
        if not entered:
            return None
        log = known.log
        rows = [entry_row(log, entry) for entry in entered]
        after_all, step = known.append_step(head.renewed(at))
        puts, large_steps = await self._large.within(look).split(known, rows)
        steps = [step, Step(known.logs, rows_only=True, put=puts), *large_steps, *note_steps(known, after_all)]
        return known, after_all, [*steps, *await self._sessions.creation_steps(known, at)]

    async def was_done(self, own: Append, fault: PalimpsestError) -> bool | None:
        """Return whether an append was written although its answer was lost, and say so in `fault.written`.

        None means that this cannot be found out: the store gives no answer within `SEARCH` seconds.

        An earlier attempt that is still being written either holds a lock on the head that it compares, and is waited
        for, or has still to compare it: so that head is changed, and whatever a network delivers later is refused.
        """
        own.note_unanswered()
        done: bool | None = None
        try:
            done = bool(own.sent) and await self._backend.briefly(lambda: self._find_or_bar(own), SEARCH)
        except (PalimpsestError, TimeoutError):
            pass  # an earlier attempt may have been written
        finally:
            self._sessions.forget(own.key)
        if isinstance(fault, StoreUnavailable):
            fault.written = done
        return done

    async def _find_or_bar(self, own: Append) -> bool:
        return await self._find_sent(own, self._backend.look) or await self._arrived_late(own)

    def fail(self, append: Append, fault: StoreUnavailable) -> None:
        """Settle an append with the error of a write that got no answer, whether that wrote the append or not."""
        append.note_unanswered()
        written = None if append.sent else False
        append.error, append.done = StoreUnavailable(fault.store, fault.reason, written=written, late=fault.late), True
        self._sessions.forget(append.key)

    async def _arrived_late(self, append: Append) -> bool:
        """Return whether the append is stored once no earlier attempt can be written any more."""
        (refusal,) = await self._backend.write([append.sent[-1][0].barrier()], self._clock())
        return refusal is not None and await self._find_sent(append, self._backend.look)

    async def _find_sent(self, append: Append, look: AsyncLook) -> bool:
        """Return whether an unanswered attempt of the append is stored; if so, settle the append with its result."""
        keys = [base.log << 32 | linked[0].seq for base, linked, _ in append.sent]
        asks = list[Ask]()
        for (base, _, _), key in zip(append.sent, keys, strict=True):
            asks += Ask(base.place), base.ask(Range("entry", [(key, key)]))
        seen = await look(asks)
        for (_, linked, result), key, found in zip(append.sent, keys, seen[1::2], strict=True):
            try:
                append.done = any(unpack(checked(row[1], key)).id == linked[0].id for row in found.rows[0])
            except DAMAGED:
                append.done = True  # unreadable, but only this append could have written this key of this log
            if append.done:
                append.linked, append.result = linked, result
                break
        return append.done


def _unknown_only(entries: Sequence[Entry], known: Mapping[str, Entry]) -> list[Entry]:
    """Return the entries that are not stored yet. Raises Conflict if an id is used already with other content."""
    fresh: dict[str, Entry] = {}
    for entry in entries:
        before = known.get(entry.id) or fresh.get(entry.id)
        if before is None:
            fresh[entry.id] = entry
        elif not before.erased and not same(before, entry):
            where = f", as number {before.seq} of the log" if before.seq else ""
            problem = f"exists with other content{where}; a key or id is used once: give this content another"
            raise Conflict(f"entry {entry.id}", problem)
    return list(fresh.values())

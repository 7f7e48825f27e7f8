"""Building a context: read the head, settle what is shown, commit a new cut. Here the pure parts meet I/O.

A cut is committed by compare-and-set of the revision; after one conflict, or where another epoch has begun while it
was read, all is read again, after a second, or where the store cannot write, the view is given without being stored.
Nothing but a view's configured budget commits a cut.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.asks import Steps
from palimpsest.context.budget import Reckoned
from palimpsest.context.cold import cold_level
from palimpsest.context.layout import Recollection
from palimpsest.context.newest import NotRead, newest
from palimpsest.context.result import Context
from palimpsest.context.settle import COLD, Settled
from palimpsest.context.terms import Terms
from palimpsest.errors import Conflict, StoreUnavailable
from palimpsest.log.change import Change
from palimpsest.log.head import Head
from palimpsest.sessions.answers import answered, at_hand
from palimpsest.sessions.contexts.request import ContextRequest, terms_of, why_unstored
from palimpsest.sessions.options import Options
from palimpsest.sessions.remembered import Recall, Remembered, Views
from palimpsest.stores import Store, best_effort
from palimpsest.tokens.counter import Encoding

if TYPE_CHECKING:
    from palimpsest.sessions.definitions import Definitions

TOGETHER = 128
"""Counts of a session that are remembered are stored when there are so many, or as its memory closes: a transaction for
those of each turn costs as much as a third of a context. What a process that dies has not stored is counted again, and
so is what one over a driver has not: there each session would be two trips to a server more before it is closed."""


PROVISIONAL = "the token counter failed, so another one counted for now"
"""What is told of a context whose figures are not the counter's own."""


class Overflow(msgspec.Struct, frozen=True):
    """So many tokens are over the `level`: all the room, or what is to be shown while the cache is cold."""

    tokens: int
    level: int
    cold: bool


class ContextBuilder:
    """One context in the making.

    With `yields` a cut that would evict is not committed; `overflow` then says what did not fit, and into how much, for
    somebody who can summarise it.
    """

    def __init__(
        self,
        store: Store,
        options: Options,
        call: ContextRequest,
        now: int,
        *,
        yields: bool = False,
        views: Views | None = None,
        definitions: Definitions | None = None,
    ) -> None:
        self._store, self._options, self._call, self._now, self._yields = store, options, call, now, yields
        self._views, self._definitions = views, definitions
        self.terms = terms_of(options, call)
        self._unstored = why_unstored(options, call, self.terms, store)
        if self._unstored is not None:  # each call would make a cut of its own
            self.terms = msgspec.structs.replace(self.terms, cache_life=None)
        self.changed: Change | None = None
        self.overflow: Overflow | None = None
        self.committed: Head | None = None
        self.seen = Head()
        """The session as it was shown."""
        self.reckoned: Reckoned | None = None
        """What it was shown by."""

    async def context(self) -> Context:
        """Return the context, its cut committed where it needed one: under an event loop in one call of a worker, or
        in none where all that it is made of is at hand."""
        recall, counter = self._recall(), self._options.counter
        if recall is not None and isinstance(counter, Encoding):  # another may take long
            with suppress(NotRead):
                steps = self._steps(last_try=False)
                done = at_hand(self._store, self._options.key, counter.name, steps, recall)
                context = await self._settled(*done.value, recall, last_try=False) if done is not None else None
                if context is not None:
                    return context
        return await self._store.together(self._made, reads=True)

    def _recall(self) -> Recall | None:
        return self._views.of(self._options.key) if self._views is not None else None

    def _steps(self, *, last_try: bool) -> Callable[[], Steps[tuple[Settled, Context | None]]]:
        before = self._before if self._definitions is not None else None
        return partial(newest, self.terms, self._now, last_try=last_try, before=before)

    async def _made(self) -> Context:
        key, counter = self._options.key, self._options.counter.name
        for last_try in (False, True):
            steps, recall = self._steps(last_try=last_try), self._recall()
            try:
                settled, context = await answered(self._store, key, counter, steps, recall)
            except NotRead as missing:
                assert self._definitions is not None, "who is not asked for one misses none"
                await self._definitions.read(missing.digest)
                settled, context = await answered(self._store, key, counter, steps, recall)
            context = await self._settled(settled, context, recall, last_try=last_try)
            if context is not None:
                return context
        raise AssertionError("the second try returns")

    async def _settled(
        self, settled: Settled, context: Context | None, recall: Recall | None, *, last_try: bool
    ) -> Context | None:
        """The context of what was settled, with its counts and its cut stored; None: all is to be read anew."""
        self.seen, self.reckoned = settled.layout.head, settled.layout.reckoned
        stored, notes = await self._store_counts(settled, recall)
        if context is None and settled.reason is not None:
            context = await self._recut(settled, notes, last_try=last_try)
        elif context is not None:
            for note in (*notes, *[PROVISIONAL] * settled.meter.is_provisional):
                context.noted(note)
        if context is not None and self._views is not None and recall is not None:
            self._keep(self._views, recall, settled, stored=stored)
        return context

    def _before(self, head: Head) -> Terms | None:
        """The terms of the definition that the session is under, where that is another one than its own."""
        assert self._definitions is not None, "only a declared session has another definition"
        held = self._definitions.held(head, self._options)
        return None if held is None else terms_of(held, self._call)

    @property
    def _adopts(self) -> Definitions | None:
        """The definition that a cut puts the session under, where this call may do so."""
        call, own = self._call, self._options
        asks = call.view in (None, own.view) and call.max_tokens is call.max_messages is None
        return self._definitions if asks and not call.dry_run and not own.readonly and self._store.writable else None

    async def _adopted(self, head: Head) -> None:
        """Put the session under its own definition where no cut does it."""
        if self._adopts is None or not self._adopts.differs(head):
            return
        try:
            await self._adopts.keep()
            await self._store.commit(self._options.key, self._adopts.adopted(head.created), expect_epoch=head.epoch)
        except (Conflict, StoreUnavailable):
            return  # the next call does it

    async def _recut(self, settled: Settled, notes: tuple[str, ...], *, last_try: bool) -> Context | None:
        """Return the context of a new cut, committed where that is due; None: others were first, once."""
        layout, plan, head = settled.layout, settled.plan, settled.layout.head
        for_now = f"{PROVISIONAL}, so the cut was not stored" if settled.meter.is_provisional else None
        if (why := for_now or self._unstored) is not None:
            if self._unstored is not None:
                await self._adopted(head)
            return await self._given(settled, head, None, why)
        if self._yields and plan is not None and plan.evicted and layout.budget is not None:
            cold = settled.reason == COLD
            level = layout.budget.down_to(cold_level(self.terms.low_water))[0] if cold else layout.budget.room
            self.overflow = Overflow(plan.tokens_before, level, cold)
            return await self._given(settled, head, None, "what does not fit is summarised first")
        change = _change(self.terms.view, settled)
        try:
            if self._adopts is not None and head.definition != self._adopts.own:
                await self._adopts.keep()
                about, said = self._adopts.said()
                change = msgspec.structs.replace(change, about=about, said=said)
            after = await self._store.commit(
                self._options.key, change, expect_revision=head.revision, expect_epoch=head.epoch
            )
        except Conflict:
            if not last_try:
                return None
            told = "other writers were first twice, so the cut was not stored"
            return await self._given(settled, head, None, *notes, told)
        except StoreUnavailable as fault:  # what can be read can be sent: a full disk stops no model call
            return await self._given(settled, head, None, *notes, f"the cut was not stored: {fault}")
        self.changed, self.committed = change, after
        return await self._given(settled, after, after.epoch, *notes)

    def _keep(self, views: Views, recall: Recall, settled: Settled, *, stored: bool) -> None:
        """Have it remembered what was read for a context, and how it was shown, if the next one may go on with it."""
        key, counter, mark = self._options.key, self._options.counter.name, recall.mark
        if not self._is_kept or settled.meter.is_provisional:
            return  # what the session's own contexts need stays remembered
        start, before, view, cut = 0, recall.before, settled.view, settled.layout.cut
        if self.committed is not None:
            seen, start = self._store.seen(key), cut.start
            mark = seen.mark if seen is not None and seen.head is self.committed else None
            view = view.stored_as(self.committed.views[self.terms.view]) if view is not None else None
        if mark is None:
            return
        made = settled.meter.counted
        holds = before is not None and before.holds(recall.mark, counter)
        known = before.recollection.stored if before is not None and holds else {}
        if made and not stored:
            view = None  # who reads anew would count anew
        counts = {**known, **made} if made and stored else known
        if start:  # what a cut has passed is let go of, but for what it shows all the same
            shown = {*cut.pins, *cut.anchors}
            counts = {seq: count for seq, count in counts.items() if seq >= start or seq in shown}
        recollection = Recollection(counts, view)
        stretches = tuple(stretch.since(start) for stretch in recall.stretches if stretch.high > start)
        views.keep(
            key, Remembered(mark, counter, stretches, recollection, recall.unstored if holds else {}), recall.era
        )

    @property
    def _is_kept(self) -> bool:
        """Whether what is read for this call, and made of it, is remembered."""
        call = self._call
        return not call.dry_run and call.max_tokens is call.max_messages is None

    async def _given(self, settled: Settled, head: Head, epoch: int | None, *notes: str) -> Context:
        return await self._store.apart(settled.given, head, epoch, notes)

    async def _store_counts(self, settled: Settled, recall: Recall | None) -> tuple[bool, tuple[str, ...]]:
        """Store what was counted, or have it remembered to be stored with more; return whether that was done, and why
        not: a count can be made again."""
        meter = settled.meter
        if not meter.counted or not self._store.writable or self._options.readonly or self._call.dry_run:
            return False, ()
        counts, name, mark = meter.counted, meter.counter.name, recall.mark if recall is not None else None
        if recall is not None and self._is_kept:
            if recall.before is not None and recall.before.holds(recall.mark, name):
                counts = recall.unstored = {**recall.before.unstored, **counts}
                if len(counts) < TOGETHER:
                    return True, ()
            recall.unstored = {}
        epoch = settled.layout.head.epoch
        fault = await best_effort(self._store.count(self._options.key, name, counts, mark, epoch=epoch))
        return fault is None, (f"counts were not stored: {fault}",) if fault is not None else ()


def _change(view: str, settled: Settled) -> Change:
    layout, plan = settled.layout, settled.plan
    detail: dict[str, object] = {"tokens_after": layout.tokens}
    if plan is not None:
        detail |= {
            "tokens_before": plan.tokens_before,
            "evicted": plan.evicted,
            "masked": plan.masked,
            "clamped": plan.clamped,
            "rungs": list(plan.rungs),
        }
    created = layout.head.created
    return Change(kind="cut", reason=settled.reason or "", created=created, view=view, cut=layout.cut, detail=detail)

"""Building a context: read the head, decide what to show, commit a new cut. Here the pure parts meet I/O.

A cut is committed by compare-and-set of the revision. After one conflict, or if another epoch began during the reads,
everything is read again. After a second one, or if the store cannot write, the context is returned and its cut is not
stored. Only a context within the view's configured budget commits a cut.
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
from palimpsest.context.layout import CachedContext
from palimpsest.context.newest import NotRead, newest
from palimpsest.context.result import Context
from palimpsest.context.settle import COLD, Settled
from palimpsest.context.terms import Terms
from palimpsest.errors import Conflict, StoreUnavailable
from palimpsest.log.change import Change
from palimpsest.log.head import Head
from palimpsest.sessions.answers import run_cached, run_steps
from palimpsest.sessions.contexts.request import ContextRequest, terms_of, why_unstored
from palimpsest.sessions.options import Options
from palimpsest.sessions.remembered import CacheUse, Remembered, Views
from palimpsest.stores import Store, best_effort
from palimpsest.tokens.counter import Encoding

if TYPE_CHECKING:
    from palimpsest.sessions.definitions import Definitions

TOGETHER = 128
"""Token counts of a session are remembered, and stored once there are so many, or when the memory closes. Storing those
of each turn in a transaction of their own would cost as much as a third of a context. Counts that a killed process has
not stored are made again. So are those that a memory over a network driver has not stored when it closes: storing them
would take two more round trips for each session."""


PROVISIONAL = "the token counter failed, so its fallback counted for now"
"""The note of a context whose numbers are not from the session's own counter."""


class Overflow(msgspec.Struct, frozen=True):
    """That the log has more `tokens` than the `level`: the whole room, or if `cold`, the level for a cold cache."""

    tokens: int
    level: int
    cold: bool


class ContextBuilder:
    """Builds one context.

    With `yields`, a cut that would evict entries is not committed. `overflow` then says how much did not fit, so that
    the caller can have it summarised first.
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
        if self._unstored is not None:  # a cold cache would make every call cut anew, since no cut is stored
            self.terms = msgspec.structs.replace(self.terms, cache_life=None)
        self.changed: Change | None = None
        self.overflow: Overflow | None = None
        self.committed: Head | None = None
        self.seen = Head()
        """The head that the context shows."""
        self.reckoned: Reckoned | None = None
        """The budget that the context was made by."""

    async def context(self) -> Context:
        """Return the context, after committing its cut if it needed one.

        On an event loop this takes a single call of the store's worker thread, or none if everything that the context
        is made of is remembered.
        """
        cache, counter = self._cache(), self._options.counter
        if cache is not None and isinstance(counter, Encoding):  # a counter of the user's may be slow
            with suppress(NotRead):
                steps = self._steps(last_try=False)
                done = run_cached(self._store, self._options.key, counter.name, steps, cache)
                context = await self._finish(*done.value, cache, last_try=False) if done is not None else None
                if context is not None:
                    return context
        return await self._store.together(self._read_and_build, reads=True)

    def _cache(self) -> CacheUse | None:
        return self._views.of(self._options.key) if self._views is not None else None

    def _steps(self, *, last_try: bool) -> Callable[[], Steps[tuple[Settled, Context | None]]]:
        before = self._earlier_terms if self._definitions is not None else None
        return partial(newest, self.terms, self._now, last_try=last_try, before=before)

    async def _read_and_build(self) -> Context:
        key, counter = self._options.key, self._options.counter.name
        for last_try in (False, True):
            steps, cache = self._steps(last_try=last_try), self._cache()
            try:
                settled, context = await run_steps(self._store, key, counter, steps, cache)
            except NotRead as missing:
                assert self._definitions is not None, "only declared sessions have definitions to read"
                await self._definitions.read(missing.digest)
                settled, context = await run_steps(self._store, key, counter, steps, cache)
            context = await self._finish(settled, context, cache, last_try=last_try)
            if context is not None:
                return context
        raise AssertionError("the second try returns")

    async def _finish(
        self, settled: Settled, context: Context | None, cache: CacheUse | None, *, last_try: bool
    ) -> Context | None:
        """Store the counts and the cut of a computed context, remember it and return it; None: read everything anew."""
        self.seen, self.reckoned = settled.layout.head, settled.layout.reckoned
        stored, notes = await self._store_counts(settled, cache)
        if context is None and settled.reason is not None:
            context = await self._recut(settled, notes, last_try=last_try)
        elif context is not None:
            for note in (*notes, *[PROVISIONAL] * settled.meter.is_provisional):
                context.noted(note)
        if context is not None and self._views is not None and cache is not None:
            self._remember(self._views, cache, settled, stored=stored)
        return context

    def _earlier_terms(self, head: Head) -> Terms | None:
        """Return the terms of an earlier definition that the session still is under; None if it is under its own."""
        assert self._definitions is not None, "only a declared session has another definition"
        held = self._definitions.held(head, self._options)
        return None if held is None else terms_of(held, self._call)

    @property
    def _definition_to_adopt(self) -> Definitions | None:
        """The definition that a cut of this call may put the session under, or None."""
        call, own = self._call, self._options
        is_own = call.view in (None, own.view) and call.max_tokens is call.max_messages is None
        return self._definitions if is_own and not call.dry_run and not own.readonly and self._store.writable else None

    async def _adopt(self, head: Head) -> None:
        """Put the session under its own definition without a cut, because this call stores none."""
        if self._definition_to_adopt is None or not self._definition_to_adopt.differs(head):
            return
        try:
            await self._definition_to_adopt.keep()
            await self._store.commit(
                self._options.key, self._definition_to_adopt.adoption(head.created), expect_epoch=head.epoch
            )
        except (Conflict, StoreUnavailable):
            return  # the next call tries again

    async def _recut(self, settled: Settled, notes: tuple[str, ...], *, last_try: bool) -> Context | None:
        """Return the context of a new cut, after committing the cut if this call may; None after a first conflict."""
        layout, plan, head = settled.layout, settled.plan, settled.layout.head
        provisional = f"{PROVISIONAL}, so the cut was not stored" if settled.meter.is_provisional else None
        if (why := provisional or self._unstored) is not None:
            if self._unstored is not None:
                await self._adopt(head)
            return await self._build(settled, head, None, why)
        if self._yields and plan is not None and plan.evicted and layout.budget is not None:
            cold = settled.reason == COLD
            level = layout.budget.down_to(cold_level(self.terms.low_water))[0] if cold else layout.budget.room
            self.overflow = Overflow(plan.tokens_before, level, cold)
            return await self._build(settled, head, None, "entries that do not fit are summarised first")
        change = _change(self.terms.view, settled)
        try:
            if self._definition_to_adopt is not None and head.definition != self._definition_to_adopt.own:
                await self._definition_to_adopt.keep()
                about, said = self._definition_to_adopt.change_fields()
                change = msgspec.structs.replace(change, about=about, said=said)
            after = await self._store.commit(
                self._options.key, change, expect_revision=head.revision, expect_epoch=head.epoch
            )
        except Conflict:
            if not last_try:
                return None
            note = "other writers changed the session during both attempts, so the cut was not stored"
            return await self._build(settled, head, None, *notes, note)
        except StoreUnavailable as fault:  # a full disk must not stop a model call: the context can still be sent
            return await self._build(settled, head, None, *notes, f"the cut was not stored: {fault}")
        self.changed, self.committed = change, after
        return await self._build(settled, after, after.epoch, *notes)

    def _remember(self, views: Views, cache: CacheUse, settled: Settled, *, stored: bool) -> None:
        """Remember what was read for this context and how it was rendered, if the next context can build on it.

        `stored` says that the counts made for it are stored, or remembered to be stored later.
        """
        key, counter, mark = self._options.key, self._options.counter.name, cache.mark
        if not self._may_cache or settled.meter.is_provisional:
            return  # so that what is remembered for the session's own contexts is not replaced
        start, before, view, cut = 0, cache.before, settled.view, settled.layout.cut
        if self.committed is not None:
            seen, start = self._store.seen(key), cut.start
            mark = seen.mark if seen is not None and seen.head is self.committed else None
            view = view.stored_as(self.committed.views[self.terms.view]) if view is not None else None
        if mark is None:
            return
        new_counts = settled.meter.counted
        holds = before is not None and before.holds(cache.mark, counter)
        old_counts = before.cached.stored if before is not None and holds else {}
        if new_counts and not stored:
            view = None  # its counts are stored nowhere, so whoever reads the log would make them again
        counts = {**old_counts, **new_counts} if new_counts and stored else old_counts
        if start:  # drop the counts of what the cut has passed, except what it still shows
            shown = {*cut.pins, *cut.anchors}
            counts = {seq: count for seq, count in counts.items() if seq >= start or seq in shown}
        cached = CachedContext(counts, view)
        stretches = tuple(stretch.since(start) for stretch in cache.stretches if stretch.high > start)
        views.keep(key, Remembered(mark, counter, stretches, cached, cache.unstored if holds else {}), cache.era)

    @property
    def _may_cache(self) -> bool:
        """Whether to remember what was read and computed for this call: not if it has its own budget, or is dry."""
        call = self._call
        return not call.dry_run and call.max_tokens is call.max_messages is None

    async def _build(self, settled: Settled, head: Head, epoch: int | None, *notes: str) -> Context:
        return await self._store.apart(settled.build_context, head, epoch, notes)

    async def _store_counts(self, settled: Settled, cache: CacheUse | None) -> tuple[bool, tuple[str, ...]]:
        """Store the new counts, or remember them until there are enough to store.

        Returns whether that was done, and notes that say why not. A failure is no error, since counts can be made
        again.
        """
        meter = settled.meter
        if not meter.counted or not self._store.writable or self._options.readonly or self._call.dry_run:
            return False, ()
        counts, name, mark = meter.counted, meter.counter.name, cache.mark if cache is not None else None
        if cache is not None and self._may_cache:
            if cache.before is not None and cache.before.holds(cache.mark, name):
                counts = cache.unstored = {**cache.before.unstored, **counts}
                if len(counts) < TOGETHER:
                    return True, ()
            cache.unstored = {}
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

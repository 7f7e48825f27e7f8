"""Assembling a context: read head and window, plan a cut where one is due, commit it. Here the pure parts meet I/O.

A cut is committed by compare-and-set of the revision; after one conflict, or where another epoch has begun while it
was read, all is read again, after a second, or where the store cannot write, the view is given without being stored.
Nothing but a view's configured budget commits a cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.budget import refuse_fixed
from palimpsest.context.cut import Room, Sight, nothing
from palimpsest.context.cut import plan as planned
from palimpsest.context.result import Context, CutOutcome
from palimpsest.context.window import BY_CONDITION, BY_CUT
from palimpsest.errors import BudgetImpossible, ConfigError, Conflict, StoreUnavailable
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.checks import check_depth
from palimpsest.log.head import RENDERER, Cut, Head
from palimpsest.sessions.contexts.layout import Layout, LayoutReader
from palimpsest.sessions.contexts.request import ContextRequest, limits_of, why_unstored
from palimpsest.sessions.options import Options, check_id
from palimpsest.stores import Store, keep_counts

if TYPE_CHECKING:
    from palimpsest.context.cut import CutPlan
    from palimpsest.context.short_term import AppliedCondition, MaxTokens


COMPACTED, PINNED = "compaction", "pinned"
"""Why a view makes a new cut after its session was compacted, or something that it does not show was pinned."""

SUMMARY_SHARE = 0.25
"""Share of the budget that summaries take at most, where interactions want the room."""


class ContextBuilder:
    """One context in the making.

    With `yields` a cut that would evict is not committed; `overflow` then says what did not fit, and into how much, for
    somebody who can summarise it.
    """

    def __init__(self, store: Store, options: Options, call: ContextRequest, now: int, *, yields: bool = False) -> None:
        self.store, self.options, self.call = store, options, call
        if call.view is not None:
            check_id(call.view, "view")
        for i, tool in enumerate(call.tools):
            if not isinstance(tool, Mapping):
                raise ConfigError(f"tools[{i}]", tool, "a mapping: the tool's schema as the provider takes it")
            check_depth(tool, f"tools[{i}]")
        self.view = call.view or options.view
        self.layout_reader = LayoutReader(store, options, call, now)
        self.unstored = why_unstored(options, call, limits_of(options, call), store)
        self.changed: Change | None = None
        self._yields = yields
        self.overflow: tuple[int, int] | None = None

    async def context(self) -> Context:
        """Return the context, its cut committed where it needed one."""
        for last_try in (False, True):
            head = await self._head()
            state, reason, plan = await self._settle(head)
            notes = await self._store_counts()
            over = reason is None and await self._is_over(head)
            if over and not last_try:
                continue
            if over:  # it may show some texts as they were, and others as they are
                notes = (*notes, "others began new epochs meanwhile, so this context belongs to none")
            if reason is None:
                return self._context(state, None, plan, head, None if over else head.epoch, *notes)
            if self.unstored is not None:
                return self._context(state, reason, plan, head, None, self.unstored)
            if self._yields and plan is not None and plan.evicted and state.budget is not None:
                self.overflow = plan.tokens_before, state.budget.room
                return self._context(state, reason, plan, head, None, "what does not fit is summarised first")
            change = _change(self.view, state, reason, plan)
            try:
                after = await self.store.commit(
                    self.options.key, change, expect_revision=head.revision, expect_epoch=head.epoch
                )
            except Conflict:
                if last_try:
                    note = "other writers were first twice, so the cut was not stored"
                    return self._context(state, reason, plan, head, None, *notes, note)
                continue
            except StoreUnavailable as fault:  # what can be read can be sent: a full disk stops no model call
                return self._context(state, reason, plan, head, None, *notes, f"the cut was not stored: {fault}")
            self.changed = change
            return self._context(state, reason, plan, after, after.epoch, *notes)
        raise AssertionError("the second try returns")

    # --- from what is stored to what is shown

    async def _head(self) -> Head:
        return await self.store.head(self.options.key) or Head()

    async def _is_over(self, head: Head) -> bool:
        """Whether the epoch in which everything was read is over: what was read then may have changed meanwhile."""
        return (await self._head()).epoch != head.epoch

    async def _settle(self, head: Head) -> tuple[Layout, str | None, CutPlan | None]:
        """Return what is shown, why that is a new cut (None: it is not), and how the cut was planned."""
        state = await self.layout_reader.view(head, self._present_cut(head))
        if not self.options.exact:
            reason = self._due(head, state)
            if reason is None and state.fits:
                return state, None, None
            # Bounds left it open, or a cut is due anyway: from here on every figure is counted.
            self.layout_reader.meter.exact = True
            state = await self.layout_reader.view(head, state.cut, None if state.more else state.entries)
            reason = reason or self._due(head, state)  # more may have been read
            if reason is None and state.fits:
                return state, None, None
            return await self._recut(state, reason)
        self.layout_reader.meter.exact = True
        return await self._walk(await self.layout_reader.view(head, Cut(start=head.first_seq), planning=True))

    def _present_cut(self, head: Head) -> Cut:
        cut = head.views.get(self.view) or Cut(start=head.first_seq)
        return cut if cut.start >= head.first_seq else msgspec.structs.replace(cut, start=head.first_seq)

    def _due(self, head: Head, state: Layout) -> str | None:
        """Why the present cut may not be used again, whatever fits."""
        if state.cut.renderer != RENDERER:
            return "a new renderer"
        if state.cut.conditions != self.options.condition_texts:
            return "changed configuration"
        if state.cut.compaction != head.compaction:
            return COMPACTED
        if is_unshown(head, state):
            return PINNED
        return state.window.stale[0][1] if state.window.stale else None

    async def _recut(self, state: Layout, reason: str | None) -> tuple[Layout, str | None, CutPlan | None]:
        """Cut to low water, or only leave out what is stale where the rest fits."""
        cut = msgspec.structs.replace(
            state.cut,
            gone=state.gone,
            conditions=self.options.condition_texts,
            factor=self.layout_reader.factor(state.head),
            renderer=RENDERER,
            reason=reason or "high water",
        )
        target: Room | None = Room(state.budget.low_water, None) if state.budget else Room(None, None)
        if reason == COMPACTED:
            cut, target = await self._after_compaction(state.head, cut), None
        elif reason is not None:
            cut = await self._with_pins(state.head, cut)
        if reason is not None:
            state = await self.layout_reader.view(state.head, cut)
            if state.window.stale:  # what a restore has brought back may have expired, or have been superseded
                cut = msgspec.structs.replace(cut, gone=state.gone)
                state = await self.layout_reader.view(state.head, cut)
            if state.fits:
                return state, reason, None
        cut = await self._with_short_summaries(state, cut)
        state = await self.layout_reader.view(state.head, cut, planning=True)
        cut = msgspec.structs.replace(cut, gone=state.gone)
        for _, rules in self.layout_reader.rules:
            cut = await self.store.apart(self._sifted, state, cut, rules)
        if cut.gone != state.cut.gone:
            state = await self.layout_reader.view(state.head, cut, planning=True)
        state, plan = await self._planned(state, target)
        state = await self.layout_reader.view(state.head, plan.cut, state.entries)
        return state, reason or "high water", plan

    async def _after_compaction(self, head: Head, cut: Cut) -> Cut:
        """The cut from which a view starts anew: without what is covered or evicted, with what stands for it."""
        state = await self.layout_reader.window_reader.compaction(head)
        inactive = state.inactive
        empty = msgspec.structs.replace(cut, start=head.next_seq, pins=(), anchors=(), skipped=(), summaries=())
        pinned = (await self.layout_reader.view(head, empty, (), planning=True)).before
        ahead = [(group.seq, group.last) for group in pinned]  # whole groups, tombstones included
        visible = spans.visible(spans.union(inactive, ahead), head.first_seq - 1, head.next_seq)
        start = await self.layout_reader.window_reader.first(visible) or head.next_seq
        cut = msgspec.structs.replace(
            cut,
            start=start,
            mask=max(cut.mask, state.mask),
            anchors=(),
            gone=tuple(sorted(cut.still_gone(start, head.pinned))),
            compaction=head.compaction,
            skipped=tuple((max(low, start), high) for low, high in inactive if high >= start),
            summaries=await self.layout_reader.window_reader.shown_summaries(state.current, None),
        )
        return await self._with_pins(head, cut)

    async def _with_pins(self, head: Head, cut: Cut) -> Cut:
        """The cut with all that is pinned, whole groups, but for what has expired or was superseded.

        What conditions or cuts had left out comes back, in its place where the cut has not passed that.
        """
        pinned = set(head.pinned)
        everywhere = msgspec.structs.replace(cut, start=head.next_seq, pins=(), anchors=(), gone=())
        seen = await self.layout_reader.view(head, everywhere, (), planning=True)
        groups = [group for group in seen.before if any(entry.seq in pinned for entry in group.entries)]
        pins = pinned.union(entry.seq for group in groups for entry in group.entries)
        back = [(group.seq, group.last) for group in groups]
        gone = [piece for span in cut.gone for piece in spans.minus([span], back)]
        stale = [(seq, seq) for seq, _ in seen.window.stale]
        return msgspec.structs.replace(cut, gone=tuple(sorted({*gone, *stale})), pins=tuple(sorted(pins)))

    async def _with_short_summaries(self, state: Layout, cut: Cut, limit: int | None = None) -> Cut:
        """The cut with its summaries within their share of the budget, or of `limit`: interactions want the room."""
        budget = state.budget
        if budget is not None:
            limit = budget.counted_limit if limit is None else min(limit, budget.counted_limit)
        if not cut.summaries or limit is None:
            return cut
        most = budget.max_messages if budget is not None else None
        shown = await self.layout_reader.window_reader.shown_summaries(
            [shown.revision for shown in cut.summaries],
            int(limit * SUMMARY_SHARE),
            None if most is None else max(int(most * SUMMARY_SHARE), 1),
        )
        return msgspec.structs.replace(cut, summaries=shown)

    async def _walk(self, state: Layout) -> tuple[Layout, str | None, CutPlan | None]:
        """Walk the log anew, strategy by strategy, each on what the one before left."""
        plan = None
        if state.head.compaction:
            bounds = [one.memory_max_tokens for one, _ in self.layout_reader.rules if one.memory_max_tokens is not None]
            cut = await self._after_compaction(state.head, state.cut)
            cut = await self._with_short_summaries(state, cut, max(min(bounds), 0) if bounds else None)
            state = await self.layout_reader.view(state.head, cut, planning=True)
        if state.window.stale:
            cut = msgspec.structs.replace(state.cut, gone=state.gone)
            state = await self._again(state, cut)
        for strategy, rules in self.layout_reader.rules:
            cut = msgspec.structs.replace(state.cut, reason="an exact walk")
            cut = await self.store.apart(self._sifted, state, cut, rules)
            state = await self._again(state, cut)
            state, plan = await self._planned(state, None, strategy)
            state = await self.layout_reader.view(state.head, plan.cut, state.entries)
        return state, "an exact walk", plan

    async def _planned(
        self, state: Layout, target: Room | None, strategy: MaxTokens | None = None
    ) -> tuple[Layout, CutPlan]:
        """Plan a cut: with the summaries where they leave room for what may not be left out, else without them."""
        try:
            return state, await self.store.apart(self._plan, state, target, strategy)
        except BudgetImpossible:
            if not state.summaries:
                raise
        cut = msgspec.structs.replace(state.cut, summaries=())  # what they cover stays in reach
        if strategy is not None:
            state = await self._again(state, cut)
        else:
            state = await self.layout_reader.view(state.head, cut, planning=True)
        return state, await self.store.apart(self._plan, state, target, strategy)

    async def _again(self, state: Layout, cut: Cut) -> Layout:
        """The same entries under another cut, to plan from: with all that is pinned before them, as it is sent, too."""
        return await self.layout_reader.view(state.head, cut, state.entries, planning=True, more=state.more)

    def _sifted(self, state: Layout, cut: Cut, rules: list[AppliedCondition]) -> Cut:
        from palimpsest.context.short_term import sift  # with conditions, four milliseconds

        session = self.options.key.session
        gone = sift(state.window.groups, rules, state.head, self.layout_reader.meter, session) if rules else []
        return msgspec.structs.replace(cut, gone=tuple(sorted({*cut.gone, *gone})))

    def _plan(self, state: Layout, target: Room | None, strategy: MaxTokens | None = None) -> CutPlan:
        budget = state.budget
        oversize = self.layout_reader.rules[0][0].oversize if self.layout_reader.rules and strategy is None else "clamp"
        room = Room(budget.room, budget.max_messages) if budget else Room(None, None)
        if strategy is not None:
            oversize = strategy.oversize
            if strategy.memory_max_tokens is not None and strategy.memory_max_tokens > 0:
                own = strategy.memory_max_tokens - state.fixed.tokens
                refuse_fixed(own, 0, state.fixed)
                if not strategy.count_pinned:
                    pinned = set(state.head.pinned)
                    groups = [*state.before, *state.window.groups]
                    own += sum(g.cost for g in groups if any(entry.seq in pinned for entry in g.entries))
                room = msgspec.structs.replace(room, tokens=own if room.tokens is None else min(own, room.tokens))
        if target is not None and room.messages is not None:
            target = msgspec.structs.replace(target, messages=max(int(room.messages * self.options.low_water), 1))
        first = state.entries[0] if state.entries else None
        room, target = state.beside_summaries(room), state.beside_summaries(target) if target else None
        sight = Sight(
            groups=state.window.groups,
            head=state.before,
            begins=_beginning(state) if state.more else state.cut.start,
            partial=state.more and first is not None and first.turn != first.seq,
            more=state.more,
            pinned=frozenset(state.head.pinned),
            cut=state.cut,
            room=room,
            target=target or room,
            meter=self.layout_reader.meter,
            masks=self.options.mask and strategy is None,
            gap=strategy is not None and strategy.gap == "skip",
            oversize=oversize,
        )
        if strategy is not None and strategy.memory_max_tokens is not None and strategy.memory_max_tokens <= 0:
            return nothing(sight)
        return planned(sight)

    async def _store_counts(self) -> tuple[str, ...]:
        """Store what was counted; where that fails say so, for a count can be made again."""
        stores = self.store.writable and not (self.options.readonly or self.call.dry_run)
        if stores and self.layout_reader.meter.counted:
            meter = self.layout_reader.meter
            fault = await keep_counts(self.store, self.options.key, meter.counter.name, meter.counted)
            if fault is not None:
                return (f"counts were not stored: {fault}",)
        return ()

    def _context(
        self, state: Layout, reason: str | None, plan: CutPlan | None, head: Head, epoch: int | None, *notes: str
    ) -> Context:
        over = plan.over if plan is not None else reason is None and not state.fits
        rungs, before = (plan.rungs, plan.tokens_before) if plan is not None else ((), None)
        margin = self.options.default_factor()
        outcome = CutOutcome(state.cut, head, epoch, reason, rungs, before, over, notes, margin)
        meter = self.layout_reader.meter
        return Context(state.window, state.before, state.summaries, state.fixed, meter, state.budget, outcome)


def is_unshown(head: Head, state: Layout) -> bool:
    """Whether something is pinned that the cut does not show, and knows nothing of: the cut has passed it, or a
    condition, or the cut, leaves it out."""
    window, unknown = state.window, set(head.pinned).difference(state.cut.pins)
    if not unknown or state.cut.passed(unknown):
        return bool(unknown)
    groups = {entry.group for entry, why in window.left_out if why in (BY_CUT, BY_CONDITION)}
    members = [entry for group in window.groups for entry in group.entries]
    members += [entry for entry, _ in window.left_out]  # for whatever reason: its group is shown for it
    return any(entry.seq in unknown and entry.group in groups for entry in members)


def _beginning(state: Layout) -> int:
    """Where the first group begins whose beginning was read; behind the log where none was."""
    return next((entry.seq for entry in state.entries if entry.seq == entry.group), state.head.next_seq)


def _change(view: str, state: Layout, reason: str, plan: CutPlan | None) -> Change:
    detail: dict[str, object] = {"tokens_after": state.tokens}
    if plan is not None:
        detail |= {
            "tokens_before": plan.tokens_before,
            "evicted": plan.evicted,
            "masked": plan.masked,
            "clamped": plan.clamped,
            "rungs": list(plan.rungs),
        }
    return Change(kind="cut", reason=reason, created=state.head.created, view=view, cut=state.cut, detail=detail)

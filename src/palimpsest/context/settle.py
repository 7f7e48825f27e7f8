"""Decide what a context shows: the present cut while it holds, else a new one, planned from what the log holds. Pure.

It asks for what it needs (`palimpsest.context.asks`) and commits nothing: the caller decides whether to store a cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.asks import Long, Steps
from palimpsest.context.cold import cold_share, holds, is_crowded
from palimpsest.context.cut import CutPlan, Room
from palimpsest.context.groups import Meter
from palimpsest.context.layout import CachedContext, Layout, LayoutReader, View, is_unshown
from palimpsest.context.planning import is_worth, plan_cut
from palimpsest.context.reading import WindowReader
from palimpsest.context.result import Context, CutOutcome
from palimpsest.context.terms import SUMMARY_SHARE, Terms
from palimpsest.errors import BudgetImpossible
from palimpsest.log import spans, values
from palimpsest.log.head import RENDERER, Cut, FactsShown, Head
from palimpsest.log.withdrawal import bare

if TYPE_CHECKING:
    from palimpsest.context.short_term import AppliedCondition, MaxTokens
    from palimpsest.context.tail import Lead, TailPart

HIGH_WATER, COLD, EXACT, CROWDED = "high water", "a cold cache", "an exact walk", "a full share"
"""Reasons for a new cut: the present one does not fit any more, the provider's cache is cold, an exact walk makes one
at every call, or entries with a tag take more than their share."""

_replace = msgspec.structs.replace


class Settled(msgspec.Struct, frozen=True):
    """What a context shows, counted by `meter`; why its cut is new (None: it is not); its plan (None: all is shown)."""

    layout: Layout
    meter: Meter
    margin: float
    reason: str | None = None
    plan: CutPlan | None = None
    view: View | None = None
    """What to remember for the next context."""
    lead: Lead | None = None
    """Facts that come before the log."""
    tail: Sequence[TailPart] = ()
    """What comes behind the log."""
    walked: bool = False
    """Whether a strategy, which walked the log anew, bounds it."""

    def build_context(self, head: Head, epoch: int | None, notes: Sequence[str] = ()) -> Context:
        """Build the context of this head, and of this epoch if its cut is stored.

        Raises InvalidContext if a rule of the provider is broken, which is a fault of this library.
        """
        layout, plan, reason = self.layout, self.plan, self.reason
        over = plan.over if plan is not None else reason is None and not layout.fits
        rungs, before = (plan.rungs, plan.tokens_before) if plan is not None else ((), None)
        notes, margin = tuple(notes), self.margin
        outcome = CutOutcome(layout.cut, head, epoch, reason, rungs, before, over, notes, margin, self.walked)
        ready = self.view.ready if self.view is not None else None
        shown = (layout.window, layout.before, layout.summaries, layout.reckoned, self.meter)
        return Context(*shown, outcome, ready, self.lead, self.tail)


class Settler:
    """Settles one context. Entries expire by `now`, in microseconds since 1970."""

    def __init__(
        self,
        terms: Terms,
        now: int,
        reader: type[WindowReader] = WindowReader,
        cached: CachedContext | None = None,
    ) -> None:
        self._terms, self._now, self._cached = terms, now, cached
        self._layouts = LayoutReader(terms, now, reader, cached.stored if cached is not None else None)
        self._meter, self.reader = self._layouts.meter, self._layouts.reader
        self._leads: dict[tuple[int, object], Lead] = {}

    def settle(self, head: Head) -> Steps[Settled]:
        """Return what is shown of the session with this head."""
        if self._terms.exact:
            self._meter.exact = True
            everything = Cut(start=head.first_seq, renderer=RENDERER)
            return (yield from self._walk((yield from self._layouts.view(head, everything, planning=True))))
        layout, reason = (yield from self._continue_view(head)), None
        if isinstance(layout, Settled):
            return layout
        if layout is None:
            cut = head.cut_of(self._terms.view)
            entries, more = yield from self._layouts.read(head, cut)
            layout = yield from self._layouts.view(head, cut, entries, more=more)
            reason = self._due_reason(layout)
            if reason is None and holds(layout, self._cold_share(layout), self._terms.tag_shares):
                return self._with_view(layout)
            yield Long()  # upper bounds left it open, or a cut is due anyway: from here on every figure is counted
            self._meter.exact = True
            layout = yield from self._layouts.view(head, cut, None if more else entries)
            reason = reason or self._due_reason(layout)  # more may have been read
            if reason is None and holds(layout, self._cold_share(layout), self._terms.tag_shares):
                return self._with_view(layout)
        cold = self._cold_share(layout)
        if reason is None and is_crowded(layout, self._terms.tag_shares):
            reason = CROWDED
        share, settled = cold or self._terms.low_water, None
        try:
            settled = yield from self._recut(layout, reason, share)
        except BudgetImpossible:
            if reason is not None or not layout.fits:
                raise  # otherwise only the cache is cold, and a new pin, shown clamped so far, has no room whole
        if settled is None or (reason is None and not is_worth(layout, settled.layout, settled.plan, share, cold)):
            return self._with_view(layout)
        return _replace(settled, view=self._layouts.remembered(settled.layout, None))

    def _continue_view(self, head: Head) -> Steps[Settled | Layout | None]:
        """Continue the remembered view: return what is shown if it fits, else its exact layout (None: no view)."""
        view = self._cached.view if self._cached is not None else None
        if view is None:
            return None
        layout = yield from self._layouts.extend(head, head.cut_of(self._terms.view), view)
        if layout is not None and self._due_reason(layout) is None:
            cold = self._cold_share(layout)
            if holds(layout, cold, self._terms.tag_shares):
                return self._with_view(layout, view)
            yield Long()
            if self._meter.guessed or not layout.reckoned.fixed.exact:
                layout = self._layouts.counted(layout)
                if holds(layout, cold, self._terms.tag_shares):
                    return self._with_view(layout, view)
            self._meter.exact, self._meter.guessed = True, 0
            return layout
        self._meter.exact, self._meter.guessed = False, 0
        return None

    def _cold_share(self, layout: Layout) -> float | None:
        return cold_share(layout, self._terms.cache_life, self._now, self._terms.low_water)

    def _within_shares(self, layout: Layout, cut: Cut) -> Cut:
        """Return the cut without entries that exceed the shares of their tags."""
        if not self._terms.tag_shares:
            return cut
        from palimpsest.context.shares import within_shares  # imported only for sessions with tag shares

        part = 1.0 if self._terms.exact else self._terms.low_water
        return within_shares(layout, cut, self._terms.tag_shares, part)

    def _with_view(self, layout: Layout, before: View | None = None) -> Settled:
        return _replace(self._settled(layout), view=self._layouts.remembered(layout, before))

    def stored(self, head: Head, *, whole: bool = False) -> Steps[Settled]:
        """Return what a head's newest cut shows: all that was given when it was made (or `whole`), else what fits."""
        layout = yield from self._layouts.view(head, head.cut_of(self._terms.view), whole=whole)
        if not (layout.fits or layout.budget is None or (layout.budget.room < 0 and layout.reckoned.fixed.exact)):
            self._meter.exact = True  # upper bounds left it open
            layout = yield from self._layouts.view(head, layout.cut, None if layout.more else layout.entries)
        return self._settled(layout)

    def _settled(self, layout: Layout, reason: str | None = None, plan: CutPlan | None = None) -> Settled:
        lead = None
        if self._terms.lead is not None:
            shown = layout.cut.facts if reason is None else None
            at = shown.at if shown is not None else self._now
            lead = self._lead(layout, at)
            layout = _replace(layout, cut=_replace(layout.cut, facts=FactsShown(at, lead.mark)))
        return Settled(layout, self._meter, self._terms.margin, reason, plan, lead=lead, tail=self._terms.tail)

    def _lead(self, layout: Layout, at: int) -> Lead:
        """Return the facts before the log as of time `at`, as far as the budget has room for them."""
        from palimpsest.context.tail import lead_of  # imported only for sessions with facts before the log

        room = layout.budget.beside if layout.budget is not None else None
        if (at, room) not in self._leads:
            self._leads[at, room] = lead_of(self._terms.lead or (), at, room, self._meter)
        return self._leads[at, room]

    def _facts_changed(self, layout: Layout) -> bool:
        """Whether the facts before the log are not those that the cut shows."""
        shown = layout.cut.facts
        if self._terms.lead is None or shown is None:
            return self._terms.lead is not None or shown is not None
        return self._lead(layout, shown.at).mark != shown.mark

    def _due_reason(self, layout: Layout) -> str | None:
        """Return why the present cut may not be used any more, even if it fits (None: it may)."""
        if layout.cut.renderer != RENDERER:
            return "a new renderer"
        if layout.cut.conditions != self._terms.conditions:
            return "changed configuration"
        if layout.cut.compaction != layout.head.compaction:
            return "compaction"
        if is_unshown(layout):
            return "pinned"
        if self._facts_changed(layout):
            return "facts"
        return layout.window.stale[0][1] if layout.window.stale else self._terms.due

    def _recut(self, layout: Layout, reason: str | None, share: float) -> Steps[Settled]:
        """Cut down to a `share` of the limits, or only leave out what is stale if the rest fits."""
        head = layout.head
        by_size = COLD if layout.fits else HIGH_WATER
        cut = _replace(
            layout.cut,
            gone=layout.gone,
            thoughts=head.next_seq,
            conditions=self._terms.conditions,
            factor=self._layouts.factor(head),
            margin=self._terms.margin,
            facts=None,
            renderer=RENDERER,
            reason=reason or by_size,
        )
        if compacted := cut.compaction != head.compaction:  # also if there is another reason
            cut = yield from self._after_compaction(head, cut)
            if self._terms.summary_share is not None:  # a share that was given applies even if there is room
                cut = yield from self._with_short_summaries(layout, cut)
        elif reason is not None:
            cut = yield from self._with_pins(head, cut)
        if reason is not None:
            layout = yield from self._layouts.view(head, cut)
            if layout.window.stale:  # entries that a restore brought back may have expired or been superseded
                cut = _replace(cut, gone=layout.gone)
                layout = yield from self._layouts.view(head, cut)
            if (reduced := self._within_shares(layout, cut)) is not cut:
                cut = reduced
                layout = yield from self._layouts.view(head, cut)
            if layout.fits:
                return self._settled(layout, reason)
        cut = yield from self._with_short_summaries(layout, cut)
        layout = yield from self._layouts.to_plan(layout, cut)
        cut = _replace(cut, gone=layout.gone)
        for _, rules in self._terms.strategies:
            cut = self._without_failing(layout, cut, rules)
        cut = self._within_shares(layout, cut)
        if cut.gone != layout.cut.gone:
            layout = yield from self._layouts.view(head, cut, planning=True)
        target = Room(*layout.budget.down_to(share)) if layout.budget else Room(None, None)  # by the new factor
        return (yield from self._cut(layout, reason or by_size, None if compacted else target))

    def _walk(self, layout: Layout) -> Steps[Settled]:
        """Walk the log anew, strategy by strategy, each on what the previous one left."""
        limits = [one.memory_max_tokens for one, _ in self._terms.strategies if one.memory_max_tokens is not None]
        if layout.head.compaction:
            cut = yield from self._after_compaction(layout.head, layout.cut)
            cut = yield from self._with_short_summaries(layout, cut, max(min(limits), 0) if limits else None)
            layout = yield from self._layouts.view(layout.head, cut, planning=True)
        if layout.window.stale:
            layout = yield from self._relaid(layout, _replace(layout.cut, gone=layout.gone))
        settled = self._settled(layout, EXACT)
        gone = layout.cut.gone
        for strategy, rules in self._terms.strategies:  # a plan forgets what is gone before its start: not between two
            cut = _replace(layout.cut, reason=EXACT, gone=spans.union(gone, layout.cut.gone))
            cut = self._within_shares(layout, self._without_failing(layout, cut, rules))
            gone = cut.gone
            layout = yield from self._relaid(layout, cut, planning=settled.plan is None)
            settled = yield from self._cut(layout, EXACT, None, strategy)
            layout = settled.layout
        head, cut = layout.head, _replace(layout.cut, thoughts=layout.head.next_seq)
        if cut.start > head.first_seq or cut.gone or cut.clamps or cut.skipped:  # the next call may show other messages
            layout = yield from self._relaid(layout, cut, planning=False)
            settled = _replace(settled, layout=layout)
        return _replace(settled, walked=bool(limits))

    def _relaid(self, layout: Layout, cut: Cut, *, planning: bool = True) -> Steps[Layout]:
        """Lay out the same entries under another cut; with `planning` also what the first plan may bring back."""
        return self._layouts.view(layout.head, cut, layout.entries, planning=planning, more=layout.more)

    def _after_compaction(self, head: Head, cut: Cut) -> Steps[Cut]:
        """Return the first cut after a compaction: without what is covered or evicted, with the summaries instead."""
        state = yield from self.reader.compaction(head)
        inactive = state.inactive
        empty = _replace(cut, start=head.next_seq, pins=(), anchors=(), skipped=(), summaries=())
        pinned = (yield from self._layouts.view(head, empty, (), planning=True)).before
        pinned_spans = [(group.seq, group.last) for group in pinned]  # whole groups, tombstones included
        candidates = spans.visible(spans.union(inactive, pinned_spans, bare(head)), head.first_seq - 1, head.next_seq)
        start = (yield from self.reader.first(candidates)) or head.next_seq
        cut = _replace(
            cut,
            start=start,
            mask=max(cut.mask, state.mask),
            anchors=(),
            gone=cut.still_gone(start, head.pinned),
            compaction=head.compaction,
            skipped=spans.since(inactive, start),
            hidden=state.hidden,
            summaries=(yield from self.reader.shown_summaries(state.current, None)),
            unshown=(),
        )
        return (yield from self._with_pins(head, cut))

    def _with_pins(self, head: Head, cut: Cut) -> Steps[Cut]:
        """Return the cut with the whole groups of all pins, except for expired or superseded entries.

        Pins that were left out come back: in their place, unless the cut has passed that.
        """
        pinned = set(head.pinned)
        everywhere = _replace(cut, start=head.next_seq, pins=(), anchors=(), gone=())
        pinned_layout = yield from self._layouts.view(head, everywhere, (), planning=True)
        groups = [group for group in pinned_layout.before if any(entry.seq in pinned for entry in group.entries)]
        pins = pinned.union(entry.seq for group in groups for entry in group.entries)
        returning = [(group.seq, group.last) for group in groups]
        stale = [(seq, seq) for seq, _ in pinned_layout.window.stale]
        return _replace(cut, gone=spans.union(spans.minus(cut.gone, returning), stale), pins=tuple(sorted(pins)))

    def _with_short_summaries(self, layout: Layout, cut: Cut, limit: int | None = None) -> Steps[Cut]:
        """Shorten the cut's summaries to their share of the budget, or of `limit`, to leave room for interactions."""
        budget = layout.budget
        if budget is not None:
            limit = budget.counted_limit if limit is None else min(limit, budget.counted_limit)
        if not cut.summaries or limit is None:
            return cut
        most, share = budget.max_messages if budget is not None else None, self._terms.summary_share or SUMMARY_SHARE
        shown = yield from self.reader.shown_summaries(
            [shown.revision for shown in cut.summaries],
            int(values.part(share, limit)),
            None if most is None else max(int(values.part(share, most)), 1),
        )
        return cut.showing(shown)

    def _without_failing(self, layout: Layout, cut: Cut, rules: list[AppliedCondition]) -> Cut:
        """Return the cut without the entries that fail the conditions."""
        if not rules:
            return cut
        from palimpsest.context.short_term import sift  # takes 4 ms, so only with conditions

        groups = sorted([*layout.before, *layout.window.groups], key=lambda group: group.seq)
        gone = sift(groups, rules, layout.head, self._meter, self._terms.session)
        return _replace(cut, gone=spans.union(cut.gone, gone))

    def _cut(
        self, layout: Layout, reason: str, target: Room | None, strategy: MaxTokens | None = None
    ) -> Steps[Settled]:
        """Cut with the summaries, or without them if they leave no room for what may not be left out."""
        try:
            planned = plan_cut(self._terms, layout, target, strategy, self._meter)
        except BudgetImpossible:
            if not layout.summaries:
                raise
            cut = layout.cut.showing(())  # recall still finds what the summaries cover
            if strategy is None:
                layout = yield from self._layouts.view(layout.head, cut, planning=True)
            else:
                layout = yield from self._relaid(layout, cut, planning=strategy is self._terms.strategies[0][0])
            planned = plan_cut(self._terms, layout, target, strategy, self._meter)
        layout = yield from self._layouts.view(layout.head, planned.cut, layout.entries or None)
        return self._settled(layout, reason, planned)

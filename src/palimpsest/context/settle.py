"""Deciding what a context shows: the present cut while it holds, else a new one, planned from what the log holds. Pure.

It asks for what it needs (`palimpsest.context.asks`) and commits nothing: whoever has it settle says whether the cut
is to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.asks import Long, Steps
from palimpsest.context.cold import cold_share, holds, is_crowded
from palimpsest.context.cut import CutPlan, Room
from palimpsest.context.groups import Meter
from palimpsest.context.layout import Layout, LayoutReader, Recollection, View, is_unshown
from palimpsest.context.planning import is_worth, planned_of
from palimpsest.context.reading import WindowReader
from palimpsest.context.result import Context, CutOutcome
from palimpsest.context.terms import SUMMARY_SHARE, Terms
from palimpsest.errors import BudgetImpossible
from palimpsest.log import spans, values
from palimpsest.log.head import RENDERER, Cut, FactsShown, Head

if TYPE_CHECKING:
    from palimpsest.context.short_term import AppliedCondition, MaxTokens
    from palimpsest.context.tail import Lead, TailPart

HIGH_WATER, COLD, EXACT, CROWDED = "high water", "a cold cache", "an exact walk", "a full share"
"""Why one does that holds no more, whose provider has forgotten what it was sent, that is made at every call, or whose
entries of a tag take more than their share."""

_replace = msgspec.structs.replace


class Settled(msgspec.Struct, frozen=True):
    """What is shown, counted by `meter`; why that is a new cut (None: it is not), and how that was planned (None:
    nothing was left out)."""

    layout: Layout
    meter: Meter
    margin: float
    reason: str | None = None
    plan: CutPlan | None = None
    view: View | None = None
    """What is to be remembered of it."""
    lead: Lead | None = None
    """Facts that stand before the log."""
    tail: Sequence[TailPart] = ()
    """What is to stand behind it."""

    def given(self, head: Head, epoch: int | None, notes: Sequence[str] = ()) -> Context:
        """Return the context of what is shown: of this head, and of an epoch where its cut is stored.

        Raises InvalidContext where a rule of the provider is broken, which is a fault of ours.
        """
        layout, plan, reason = self.layout, self.plan, self.reason
        over = plan.over if plan is not None else reason is None and not layout.fits
        rungs, before = (plan.rungs, plan.tokens_before) if plan is not None else ((), None)
        outcome = CutOutcome(layout.cut, head, epoch, reason, rungs, before, over, tuple(notes), self.margin)
        ready = self.view.ready if self.view is not None else None
        return Context(
            layout.window,
            layout.before,
            layout.summaries,
            layout.reckoned,
            self.meter,
            outcome,
            ready,
            self.lead,
            self.tail,
        )


class Settler:
    """Settles one context; `now` is the time of expiry, in microseconds since 1970."""

    def __init__(
        self,
        terms: Terms,
        now: int,
        reader: type[WindowReader] = WindowReader,
        recalled: Recollection | None = None,
    ) -> None:
        self._terms, self._now, self._recalled = terms, now, recalled
        self._layouts = LayoutReader(terms, now, reader, recalled.stored if recalled is not None else None)
        self._meter, self.reader = self._layouts.meter, self._layouts.reader
        self._leads: dict[tuple[int, object], Lead] = {}

    def settle(self, head: Head) -> Steps[Settled]:
        """Return what is shown of a session of this head."""
        if self._terms.exact:
            self._meter.exact = True
            return (yield from self._walk((yield from self._planning(head, Cut(start=head.first_seq)))))
        layout, reason = (yield from self._as_before(head)), None
        if isinstance(layout, Settled):
            return layout
        if layout is None:
            cut = head.cut_of(self._terms.view)
            entries, more = yield from self._layouts.read(head, cut)
            layout = yield from self._layouts.view(head, cut, entries, more=more)
            reason = self._due(layout)
            if reason is None and holds(layout, self._cold(layout), self._terms.tag_shares):
                return self._remembered(layout)
            yield Long()  # bounds left it open, or a cut is due anyway: from here on every figure is counted
            self._meter.exact = True
            layout = yield from self._layouts.view(head, cut, None if more else entries)
            reason = reason or self._due(layout)  # more may have been read
            if reason is None and holds(layout, self._cold(layout), self._terms.tag_shares):
                return self._remembered(layout)
        cold = self._cold(layout)
        if reason is None and is_crowded(layout, self._terms.tag_shares):
            reason = CROWDED
        share, settled = cold or self._terms.low_water, None
        try:
            settled = yield from self._recut(layout, reason, share)
        except BudgetImpossible:
            if reason is not None or not layout.fits:
                raise  # else only the cache is cold, and what was pinned since, shortened, has no room whole
        if settled is None or (reason is None and not is_worth(layout, settled.layout, settled.plan, share, cold)):
            return self._remembered(layout)
        return _replace(settled, view=self._layouts.remembered(settled.layout, None))

    def _as_before(self, head: Head) -> Steps[Settled | Layout | None]:
        """What is shown where that goes on with what was shown before, and fits; where it shows too much, how it is
        laid out, with every figure counted. None: nothing is known."""
        before = self._recalled.view if self._recalled is not None else None
        if before is None:
            return None
        layout = yield from self._layouts.again(head, head.cut_of(self._terms.view), before)
        if layout is not None and self._due(layout) is None:
            cold = self._cold(layout)
            if holds(layout, cold, self._terms.tag_shares):
                return self._remembered(layout, before)
            yield Long()
            if self._meter.guessed or not layout.reckoned.fixed.exact:
                layout = self._layouts.counted(layout)
                if holds(layout, cold, self._terms.tag_shares):
                    return self._remembered(layout, before)
            self._meter.exact, self._meter.guessed = True, 0
            return layout
        self._meter.exact, self._meter.guessed = False, 0
        return None

    def _cold(self, layout: Layout) -> float | None:
        return cold_share(layout, self._terms.cache_life, self._now, self._terms.low_water)

    def _within_shares(self, layout: Layout, cut: Cut) -> Cut:
        """The cut without what takes more than its share."""
        if not self._terms.tag_shares:
            return cut
        from palimpsest.context.shares import within_shares  # only for who has shares

        part = 1.0 if self._terms.exact else self._terms.low_water
        return within_shares(layout, cut, self._terms.tag_shares, part)

    def _remembered(self, layout: Layout, before: View | None = None) -> Settled:
        return _replace(self._settled(layout), view=self._layouts.remembered(layout, before))

    def stored(self, then: Head, *, whole: bool = False) -> Steps[Settled]:
        """Return what a head's newest cut shows: all that was given when it was made (or `whole`), else what fits."""
        layout = yield from self._layouts.view(then, then.cut_of(self._terms.view), whole=whole)
        if not (layout.fits or layout.budget is None or (layout.budget.room < 0 and layout.reckoned.fixed.exact)):
            self._meter.exact = True  # bounds left it open
            layout = yield from self._layouts.view(then, layout.cut, None if layout.more else layout.entries)
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
        """The facts of this time before the log, as far as the budget has room for them."""
        from palimpsest.context.tail import lead_of  # only for who has one

        room = layout.budget.beside if layout.budget is not None else None
        if (at, room) not in self._leads:
            self._leads[at, room] = lead_of(self._terms.lead or (), at, room, self._meter)
        return self._leads[at, room]

    def _shows_others(self, layout: Layout) -> bool:
        """Whether the facts that stand before the log are not those that the cut shows."""
        shown = layout.cut.facts
        if self._terms.lead is None or shown is None:
            return self._terms.lead is not None or shown is not None
        return self._lead(layout, shown.at).mark != shown.mark

    def _due(self, layout: Layout) -> str | None:
        """Why the present cut may not be used again, whatever fits."""
        if layout.cut.renderer != RENDERER:
            return "a new renderer"
        if layout.cut.conditions != self._terms.conditions:
            return "changed configuration"
        if layout.cut.compaction != layout.head.compaction:
            return "compaction"
        if is_unshown(layout):
            return "pinned"
        if self._shows_others(layout):
            return "facts"
        return layout.window.stale[0][1] if layout.window.stale else self._terms.due

    def _recut(self, layout: Layout, reason: str | None, share: float) -> Steps[Settled]:
        """Cut down to a share of the limits, or only leave out what is stale where the rest fits."""
        head = layout.head
        why = COLD if layout.fits else HIGH_WATER
        cut = _replace(
            layout.cut,
            gone=layout.gone,
            conditions=self._terms.conditions,
            factor=self._layouts.factor(head),
            facts=None,
            renderer=RENDERER,
            reason=reason or why,
        )
        if compacted := cut.compaction != head.compaction:  # whatever else is a reason
            cut = yield from self._after_compaction(head, cut)
            if self._terms.summary_share is not None:  # a share that was given is kept to, whatever has room
                cut = yield from self._with_short_summaries(layout, cut)
        elif reason is not None:
            cut = yield from self._with_pins(head, cut)
        if reason is not None:
            layout = yield from self._layouts.view(head, cut)
            if layout.window.stale:  # what a restore has brought back may have expired, or have been superseded
                cut = _replace(cut, gone=layout.gone)
                layout = yield from self._layouts.view(head, cut)
            if (fewer := self._within_shares(layout, cut)) is not cut:
                cut = fewer
                layout = yield from self._layouts.view(head, cut)
            if layout.fits:
                return self._settled(layout, reason)
        cut = yield from self._with_short_summaries(layout, cut)
        layout = yield from self._layouts.to_plan(layout, cut)
        cut = _replace(cut, gone=layout.gone)
        for _, rules in self._terms.strategies:
            cut = self._sifted(layout, cut, rules)
        cut = self._within_shares(layout, cut)
        if cut.gone != layout.cut.gone:
            layout = yield from self._planning(head, cut)
        target = Room(*layout.budget.down_to(share)) if layout.budget else Room(None, None)  # by the new factor
        return (yield from self._cut(layout, reason or why, None if compacted else target))

    def _walk(self, layout: Layout) -> Steps[Settled]:
        """Walk the log anew, strategy by strategy, each on what the one before left."""
        if layout.head.compaction:
            cut = yield from self._after_compaction(layout.head, layout.cut)
            bounds = [one.memory_max_tokens for one, _ in self._terms.strategies if one.memory_max_tokens is not None]
            cut = yield from self._with_short_summaries(layout, cut, max(min(bounds), 0) if bounds else None)
            layout = yield from self._planning(layout.head, cut)
        if layout.window.stale:
            layout = yield from self._again(layout, _replace(layout.cut, gone=layout.gone))
        settled = self._settled(layout, EXACT)
        for strategy, rules in self._terms.strategies:
            cut = self._sifted(layout, _replace(layout.cut, reason=EXACT), rules)
            cut = self._within_shares(layout, cut)
            layout = yield from self._again(layout, cut)
            settled = yield from self._cut(layout, EXACT, None, strategy)
            layout = settled.layout
        return settled

    def _planning(self, head: Head, cut: Cut) -> Steps[Layout]:
        """What a cut shows, to plan the next from."""
        return self._layouts.view(head, cut, planning=True)

    def _again(self, layout: Layout, cut: Cut) -> Steps[Layout]:
        """The same entries under another cut, to plan from: with all that is pinned before them, as it is sent, too."""
        return self._layouts.view(layout.head, cut, layout.entries, planning=True, more=layout.more)

    def _after_compaction(self, head: Head, cut: Cut) -> Steps[Cut]:
        """The cut from which a view starts anew: without what is covered or evicted, with what stands for it."""
        state = yield from self.reader.compaction(head)
        inactive = state.inactive
        empty = _replace(cut, start=head.next_seq, pins=(), anchors=(), skipped=(), summaries=())
        pinned = (yield from self._layouts.view(head, empty, (), planning=True)).before
        ahead = [(group.seq, group.last) for group in pinned]  # whole groups, tombstones included
        visible = spans.visible(spans.union(inactive, ahead, head.rewound), head.first_seq - 1, head.next_seq)
        start = (yield from self.reader.first(visible)) or head.next_seq
        cut = _replace(
            cut,
            start=start,
            mask=max(cut.mask, state.mask),
            anchors=(),
            gone=tuple(sorted(cut.still_gone(start, head.pinned))),
            compaction=head.compaction,
            skipped=spans.since(inactive, start),
            hidden=state.hidden,
            summaries=(yield from self.reader.shown_summaries(state.current, None)),
            unshown=(),
        )
        return (yield from self._with_pins(head, cut))

    def _with_pins(self, head: Head, cut: Cut) -> Steps[Cut]:
        """The cut with all that is pinned, whole groups, but for what has expired or was superseded.

        What conditions or cuts had left out comes back, in its place where the cut has not passed that.
        """
        pinned = set(head.pinned)
        everywhere = _replace(cut, start=head.next_seq, pins=(), anchors=(), gone=())
        seen = yield from self._layouts.view(head, everywhere, (), planning=True)
        groups = [group for group in seen.before if any(entry.seq in pinned for entry in group.entries)]
        pins = pinned.union(entry.seq for group in groups for entry in group.entries)
        back = [(group.seq, group.last) for group in groups]
        gone = [piece for span in cut.gone for piece in spans.minus([span], back)]
        stale = [(seq, seq) for seq, _ in seen.window.stale]
        return _replace(cut, gone=tuple(sorted({*gone, *stale})), pins=tuple(sorted(pins)))

    def _with_short_summaries(self, layout: Layout, cut: Cut, limit: int | None = None) -> Steps[Cut]:
        """The cut with its summaries within their share of the budget, or of `limit`: interactions want the room."""
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

    def _sifted(self, layout: Layout, cut: Cut, rules: list[AppliedCondition]) -> Cut:
        """The cut without what conditions drop."""
        if not rules:
            return cut
        from palimpsest.context.short_term import sift  # with conditions, four milliseconds

        gone = sift(layout.window.groups, rules, layout.head, self._meter, self._terms.session)
        return _replace(cut, gone=tuple(sorted({*cut.gone, *gone})))

    def _cut(
        self, layout: Layout, reason: str, target: Room | None, strategy: MaxTokens | None = None
    ) -> Steps[Settled]:
        """Cut: with the summaries where they leave room for what may not be left out, else without them."""
        try:
            planned = planned_of(self._terms, layout, target, strategy, self._meter)
        except BudgetImpossible:
            if not layout.summaries:
                raise
            cut = layout.cut.showing(())  # what they cover stays in reach
            layout = yield from (self._planning(layout.head, cut) if strategy is None else self._again(layout, cut))
            planned = planned_of(self._terms, layout, target, strategy, self._meter)
        layout = yield from self._layouts.view(layout.head, planned.cut, layout.entries or None)
        return self._settled(layout, reason, planned)

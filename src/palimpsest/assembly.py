"""Assembling a context: read head and window, plan a cut where one is due, commit it. Here the pure parts meet I/O.

A cut is committed by compare-and-set of the revision; after one conflict all is read again, after a second, or
where the store cannot write, the view is given without being stored. Nothing but a view's configured budget
commits a cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest import spans
from palimpsest.budget import Budget, Fixed, limit_of, measure, refuse_fixed, resolve
from palimpsest.calls import Call, limits_of, why_unstored
from palimpsest.context import Context, Outcome, ahead
from palimpsest.entries import Entry
from palimpsest.errors import BudgetImpossible, ConfigError, Conflict, StoreUnavailable
from palimpsest.formats import find_format
from palimpsest.gather import Gatherer
from palimpsest.log import RENDERER, Change, Cut, Head
from palimpsest.options import Options, check_id
from palimpsest.stores import Store
from palimpsest.summary import Summary
from palimpsest.window import Group, Meter, Window, look

if TYPE_CHECKING:
    from palimpsest.compaction.cutting import CutPlan, Room
    from palimpsest.compaction.max_tokens import MaxTokens, Rule


COMPACTED = "compaction"
"""Why a view makes a new cut after its session was compacted."""

SUMMARY_SHARE = 0.25
"""Share of the budget that summaries take at most, where interactions want the room."""


class _State(msgspec.Struct, frozen=True):
    """What was read under one cut, and what it shows."""

    head: Head
    cut: Cut
    budget: Budget | None
    fixed: Fixed
    entries: Sequence[Entry]
    more: bool
    """Whether entries older than those read may still be shown: the window is larger than its room."""
    before: list[Group]
    window: Window
    summaries: list[tuple[Summary, Group]]

    @property
    def ahead(self) -> Sequence[Group]:
        """What comes before the window."""
        return ahead(self.before, self.summaries, self.cut)

    def beside_summaries(self, room: Room) -> Room:
        """What of this room the summaries leave."""
        taken = sum(group.cost for _, group in self.summaries)
        tokens = None if room.tokens is None else room.tokens - taken
        return type(room)(tokens, None if room.messages is None else room.messages - len(self.summaries))

    @property
    def tokens(self) -> int:
        """What all of it costs under this cut."""
        return sum(group.cost for group in self.ahead) + sum(group.cost for group in self.window.groups)

    @property
    def fits(self) -> bool:
        """Whether all of it was read and is within the room."""
        if self.budget is None:
            return True
        messages = self.budget.max_messages
        if messages is not None:
            count = sum(group.messages for group in (*self.ahead, *self.window.groups))
            if count > messages:
                return False
        return not self.more and self.tokens <= self.budget.room


class Assembly:
    """One context in the making.

    With `yields` a cut that would evict is not committed; `overflow` then says what did not fit, and into how much, for
    somebody who can summarise it.
    """

    def __init__(self, store: Store, options: Options, call: Call, now: int, *, yields: bool = False) -> None:
        self.store, self.options, self.call = store, options, call
        self.now = 0 if call.at is not None else now
        if call.view is not None:
            check_id(call.view, "view")
        for i, tool in enumerate(call.tools):
            if not isinstance(tool, Mapping):
                raise ConfigError(f"tools[{i}]", tool, "a mapping: the tool's schema as the provider takes it")
        self.view = call.view or options.view
        self.failures: dict[str, str] = {}
        self.limits = limits_of(options, call)
        self.limit, self.reserve = limit_of(self.limits, options.model, options.model_name)
        self.unstored = why_unstored(options, call, self.limits, store)
        self.meter = Meter(options.counter, find_format(call.format or options.format), options.model)
        self.rules: list[tuple[MaxTokens, list[Rule]]] = [
            (strategy, options.rules(strategy, self.failures)) for strategy in options.strategies
        ]
        # What depends on age, or goes on after a gap, is only known when everything has been read.
        self.walks_all = any(
            strategy.gap == "skip" or any(rule.condition.dynamic for rule in rules) for strategy, rules in self.rules
        )
        self.gatherer = Gatherer(store, options.key, self.meter, masks=options.mask)
        self.changed: Change | None = None
        self._yields = yields
        self.overflow: tuple[int, int] | None = None

    async def context(self) -> Context:
        """Return the context, its cut committed where it needed one."""
        for last_try in (False, True):
            head = await self._head()
            state, reason, plan = await self._settle(head)
            notes = await self._store_counts()
            if reason is None:
                return self._context(state, None, plan, head, head.epoch, *notes)
            if self.unstored is not None:
                return self._context(state, reason, plan, head, None, self.unstored)
            if self._yields and plan is not None and plan.evicted and state.budget is not None:
                self.overflow = plan.tokens_before, state.budget.room
                return self._context(state, reason, plan, head, None, "what does not fit is summarised first")
            change = _change(self.view, state, reason, plan)
            try:
                after = await self.store.compact(self.options.key, change, expect_revision=head.revision)
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
        head = await self.store.head(self.options.key) or Head()
        if self.call.at is None:
            return head
        from palimpsest.past import Past

        return await Past(self.store, self.options.key).view(head, self.view, self.call.at)

    async def _settle(self, head: Head) -> tuple[_State, str | None, CutPlan | None]:
        """Return what is shown, why that is a new cut (None: it is not), and how the cut was planned."""
        state = await self._read(head, self._present_cut(head))
        if self.call.at is not None:
            return state, None, None
        if not self.options.exact:
            reason = self._due(head, state)
            if reason is None and state.fits:
                return state, None, None
            # Bounds left it open, or a cut is due anyway: from here on every figure is counted.
            self.meter.exact = True
            state = await self._read(head, state.cut, None if state.more else state.entries)
            if reason is None and state.fits:
                return state, None, None
            return await self._recut(state, reason)
        self.meter.exact = True
        return await self._walk(await self._read(head, Cut(start=head.first_seq), planning=True))

    def _present_cut(self, head: Head) -> Cut:
        cut = head.views.get(self.view) or Cut(start=head.first_seq)
        return cut if cut.start >= head.first_seq else msgspec.structs.replace(cut, start=head.first_seq)

    def _due(self, head: Head, state: _State) -> str | None:
        """Why the present cut may not be used again, whatever fits."""
        if state.cut.renderer != RENDERER:
            return "a new renderer"
        if state.cut.conditions != self.options.condition_texts:
            return "changed configuration"
        if state.cut.compaction != head.compaction:
            return COMPACTED
        return state.window.stale[0][1] if state.window.stale else None

    async def _recut(self, state: _State, reason: str | None) -> tuple[_State, str | None, CutPlan | None]:
        """Cut to low water, or only leave out what is stale where the rest fits."""
        from palimpsest.compaction.cutting import Room  # with its kin only where a cut is due

        cut = msgspec.structs.replace(
            state.cut,
            gone=_gone(state),
            conditions=self.options.condition_texts,
            factor=self._factor(state.head),
            renderer=RENDERER,
            reason=reason or "high water",
        )
        target: Room | None = Room(state.budget.low_water, None) if state.budget else Room(None, None)
        if reason == COMPACTED:
            cut, target = await self._after_compaction(state.head, cut), None
        if reason is not None:
            state = await self._read(state.head, cut)
            if state.fits:
                return state, reason, None
        cut = await self._with_short_summaries(state, cut)
        state = await self._read(state.head, cut, planning=True)
        cut = msgspec.structs.replace(cut, gone=_gone(state))
        for _, rules in self.rules:
            cut = self._sifted(state, cut, rules)
        if cut.gone != state.cut.gone:
            state = await self._read(state.head, cut, planning=True)
        try:
            plan = self._plan(state, target)
        except BudgetImpossible:
            if not state.summaries:
                raise
            # What may not be left out comes first; a summary stays recallable.
            state = await self._read(state.head, msgspec.structs.replace(cut, summaries=()), planning=True)
            plan = self._plan(state, target)
        state = await self._read(state.head, plan.cut, state.entries)
        return state, reason or "high water", plan

    async def _after_compaction(self, head: Head, cut: Cut) -> Cut:
        """The cut from which a view starts anew: without what is covered or evicted, with what stands for it."""
        state = await self.gatherer.compaction(head)
        inactive = state.inactive
        visible = spans.visible(spans.union(inactive, spans.of(head.pinned)), head.first_seq - 1, head.next_seq)
        start = visible[0][0] if visible else head.next_seq
        cut = msgspec.structs.replace(
            cut,
            start=start,
            mask=max(cut.mask, state.mask),
            anchors=(),
            gone=tuple(span for span in cut.gone if span[1] >= start),
            compaction=head.compaction,
            skipped=tuple((max(low, start), high) for low, high in inactive if high >= start),
            summaries=await self.gatherer.standing(state.current, None),
        )
        pinned = await self._read(head, cut, (), planning=True)
        return msgspec.structs.replace(cut, pins=tuple(e.seq for group in pinned.before for e in group.entries))

    async def _with_short_summaries(self, state: _State, cut: Cut) -> Cut:
        """The cut with its summaries within their share: interactions want the room."""
        if not cut.summaries or state.budget is None:
            return cut
        share = int(state.budget.limit / state.budget.factor * SUMMARY_SHARE)
        revisions = [shown.revision for shown in cut.summaries]
        return msgspec.structs.replace(cut, summaries=await self.gatherer.standing(revisions, share))

    async def _walk(self, state: _State) -> tuple[_State, str | None, CutPlan | None]:
        """Walk the log anew, strategy by strategy, each on what the one before left."""
        plan = None
        if state.head.compaction:
            cut = await self._with_short_summaries(state, await self._after_compaction(state.head, state.cut))
            state = await self._read(state.head, cut, planning=True)
        if state.window.stale:
            cut = msgspec.structs.replace(state.cut, gone=_gone(state))
            state = await self._read(state.head, cut, state.entries, planning=True)
        for strategy, rules in self.rules:
            cut = self._sifted(state, msgspec.structs.replace(state.cut, reason="an exact walk"), rules)
            state = await self._read(state.head, cut, state.entries)
            plan = self._plan(state, None, strategy)
            state = await self._read(state.head, plan.cut, state.entries)
        return state, "an exact walk", plan

    def _sifted(self, state: _State, cut: Cut, rules: list[Rule]) -> Cut:
        from palimpsest.compaction.max_tokens import sift

        gone = sift(state.window.groups, rules, state.head, self.meter, self.options.key.session) if rules else []
        return msgspec.structs.replace(cut, gone=tuple(sorted({*cut.gone, *gone})))

    def _plan(self, state: _State, target: Room | None, strategy: MaxTokens | None = None) -> CutPlan:
        from palimpsest.compaction.cutting import Room, Sight, nothing, plan

        budget = state.budget
        oversize = self.rules[0][0].oversize if self.rules and strategy is None else "clamp"
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
            begins=first.seq if state.more and first is not None else state.cut.start,
            partial=state.more and first is not None and first.turn != first.seq,
            more=state.more,
            pinned=frozenset(state.head.pinned),
            cut=state.cut,
            room=room,
            target=target or room,
            meter=self.meter,
            masks=self.options.mask and strategy is None,
            gap=strategy is not None and strategy.gap == "skip",
            oversize=oversize,
        )
        if strategy is not None and strategy.memory_max_tokens is not None and strategy.memory_max_tokens <= 0:
            return nothing(sight)
        return plan(sight)

    # --- reading

    async def _read(
        self, head: Head, cut: Cut, known: Sequence[Entry] | None = None, *, planning: bool = False
    ) -> _State:
        """Read what the cut shows, newest first, until the room is full; `known` entries need no reading.

        With `planning`, pinned entries and the open human message from before are read, too, whether or not
        the present cut shows them.
        """
        budget, fixed = self._budget(cut)
        if known is None:
            # What was given at a past revision is given whole: it fitted then.
            everything = self.call.at is not None or (self.meter.exact and self.walks_all)
            room = None if budget is None or everything else budget.room
            entries, more = await self.gatherer.window(head, cut, room)
        else:
            entries, more = [entry for entry in known if entry.seq >= cut.start], False
        seqs = {seq for seq in (*cut.pins, *cut.anchors) if seq < cut.start or spans.within(cut.skipped, seq)}
        if planning:
            first = entries[0] if entries else None
            oldest = first.seq if first else cut.start
            seqs |= {seq for seq in head.pinned if seq < oldest or spans.within(cut.skipped, seq)}
            if first is not None and 0 < first.turn < oldest:
                seqs.add(first.turn)
        newest: dict[str, int] = {}
        ahead = await self.gatherer.ahead(head, seqs, cut, known or (), self.now, newest)
        rules = [] if self.options.exact else self._static_rules(cut)
        window = look(entries, cut, self.meter, now=self.now, conditions=rules, newest=newest)
        window = msgspec.structs.replace(window, stale=[*ahead.stale, *window.stale])
        summaries = await self.gatherer.summaries(cut.summaries) if cut.summaries else []
        return _State(head, cut, budget, fixed, entries, more, ahead.groups, window, summaries)

    def _static_rules(self, cut: Cut) -> list[Rule]:
        """The conditions that depend on one message alone: those of today, or those that a cut of then recorded."""
        rules = [rule for _, found in self.rules for rule in found]
        if self.call.at is not None and cut.revision and cut.conditions != self.options.condition_texts:
            rules = self.options.parsed(cut.conditions, self.failures)
        return [rule for rule in rules if not rule.condition.dynamic]

    # --- budget and outcome

    def _factor(self, head: Head) -> float:
        """The provider's tokens for one counted token, from reported usage where there is any."""
        usage, default = head.usage, self.options.default_factor()
        if default == 1.0 or usage is None or not usage.counted:
            return default
        return max(usage.input_tokens / usage.counted, 0.1)

    def _budget(self, cut: Cut) -> tuple[Budget | None, Fixed]:
        fixed = measure(self.call.system, self.call.tools, self.meter, exact=self.meter.exact)
        factor = cut.factor or self.options.default_factor()
        budget = resolve(self.limit, self.reserve, self.limits, fixed, factor, self.options.low_water)
        if budget is not None and self.meter.exact:
            refuse_fixed(budget.room, budget.reserve, fixed)
        return budget, fixed

    async def _store_counts(self) -> tuple[str, ...]:
        """Store what was counted; where that fails say so, for a count can be made again."""
        if self.meter.counted and self.store.writable and not self.call.dry_run and self.call.at is None:
            try:
                await self.store.count(self.options.key, self.meter.counter.name, self.meter.counted)
            except StoreUnavailable as fault:
                return (f"counts were not stored: {fault}",)
        return ()

    def _context(
        self, state: _State, reason: str | None, plan: CutPlan | None, head: Head, epoch: int | None, *notes: str
    ) -> Context:
        if self.call.at is not None:
            epoch = None
        over = plan.over if plan is not None else reason is None and not state.fits
        rungs, before = (plan.rungs, plan.tokens_before) if plan is not None else ((), None)
        outcome = Outcome(state.cut, head, epoch, reason, rungs, before, over, notes)
        return Context(state.window, state.before, state.summaries, state.fixed, self.meter, state.budget, outcome)


def _gone(state: _State) -> tuple[tuple[int, int], ...]:
    """What the cut leaves out, and what has expired or was superseded under it."""
    return tuple(sorted({*state.cut.gone, *((seq, seq) for seq, _ in state.window.stale)}))


def _change(view: str, state: _State, reason: str, plan: CutPlan | None) -> Change:
    detail: dict[str, object] = {"tokens_after": state.tokens}
    if plan is not None:
        detail |= {
            "tokens_before": plan.tokens_before,
            "evicted": plan.evicted,
            "masked": plan.masked,
            "clamped": plan.clamped,
            "rungs": list(plan.rungs),
        }
    return Change(kind="cut", reason=reason, view=view, cut=state.cut, detail=detail)

"""From a layout to the plan of its next cut: the room it has, and what may become of what is shown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.budget import refuse_fixed
from palimpsest.context.cut import CutPlan, Room, Sight, plan, plan_nothing
from palimpsest.context.groups import Meter
from palimpsest.context.layout import Layout
from palimpsest.context.terms import Terms

if TYPE_CHECKING:
    from palimpsest.context.short_term import MaxTokens


def plan_cut(terms: Terms, layout: Layout, target: Room | None, strategy: MaxTokens | None, meter: Meter) -> CutPlan:
    """Return the plan of a cut of this layout, down to `target` (None: the whole room).

    With a `strategy` the plan is one step of an exact walk. Raises BudgetImpossible if no cut fits.
    """
    sight = _sight_of(terms, layout, target, strategy, meter)
    if strategy is not None and strategy.memory_max_tokens is not None and strategy.memory_max_tokens <= 0:
        return plan_nothing(sight)
    return plan(sight)


def is_worth(layout: Layout, after: Layout, plan: CutPlan | None, share: float, cold: float | None) -> bool:
    """Whether a cut that only size asks for is worth the cached prefix that it breaks.

    `share` is how far the cut goes down; `cold` is set if the cache has lost the prefix anyway. A layout that fits has
    to become smaller. One that exceeds its room on purpose, and would even with more notes, has to shrink by at least
    the distance between high and low water: otherwise each further group would make another cut.
    """
    saved, budget = layout.tokens - after.tokens, layout.budget
    if layout.fits:
        return saved > 0
    if plan is None or not plan.over or plan.evicted or layout.more or budget is None:
        return True
    return saved > (0 if cold is not None else budget.room - budget.down_to(share)[0])


def _sight_of(terms: Terms, layout: Layout, target: Room | None, strategy: MaxTokens | None, meter: Meter) -> Sight:
    """Return what the cut is planned from."""
    oversize = terms.strategies[0][0].oversize if terms.strategies and strategy is None else "clamp"
    room = Room(layout.budget.room, layout.budget.max_messages) if layout.budget else Room(None, None)
    if strategy is not None:
        oversize, room = strategy.oversize, _strategy_room(layout, room, strategy)
    room, oldest = layout.beside_summaries(room), layout.entries[0] if layout.entries else None
    return Sight(
        groups=layout.window.groups,
        ahead=layout.before,
        ends=_window_end(layout),
        partial=layout.more and oldest is not None and oldest.turn != oldest.seq,
        more=layout.more,
        pinned=frozenset(layout.head.pinned),
        cut=layout.cut if strategy is not None else msgspec.structs.replace(layout.cut, clamps=()),
        room=room,
        target=layout.beside_summaries(target) if target else room,
        meter=meter,
        masks=terms.masks and strategy is None,
        gap=strategy is not None and strategy.gap == "skip",
        oversize=oversize,
    )


def _window_end(layout: Layout) -> int:
    """Return where the window ends, as in `Sight.ends`; if nothing is shown, where it begins."""
    groups, waiting = layout.window.groups, layout.window.pending
    if not groups:
        return layout.beginning if layout.more else layout.cut.start
    return min(groups[-1].last + 1, waiting[0].seq) if waiting else groups[-1].last + 1


def _strategy_room(layout: Layout, room: Room, strategy: MaxTokens) -> Room:
    """Return the room under the strategy's own budget."""
    if strategy.memory_max_tokens is None or strategy.memory_max_tokens <= 0:
        return room
    tokens = strategy.memory_max_tokens - layout.reckoned.fixed.tokens
    refuse_fixed(tokens, 0, layout.reckoned.fixed)
    if not strategy.count_pinned:
        pinned = set(layout.head.pinned)
        groups = [*layout.before, *layout.window.groups]
        tokens += sum(g.cost for g in groups if any(entry.seq in pinned for entry in g.entries))
    return msgspec.structs.replace(room, tokens=tokens if room.tokens is None else min(tokens, room.tokens))

"""What a context is computed by, beside the log: what the options of its session say, and its call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.budget import Bounds, BudgetLimits
from palimpsest.formats import Format, Message
from palimpsest.tokens.counter import Encoding

if TYPE_CHECKING:
    from palimpsest.context.short_term import AppliedCondition, MaxTokens
    from palimpsest.context.tail import Facts, TailPart
    from palimpsest.tokens.counter import TokenCounter
    from palimpsest.tokens.models import Model


FEW_TOOLS = 64
"""Schemas of tools that are written out and measured in well under a millisecond."""

SUMMARY_SHARE = 0.25
"""Share of the budget that summaries take at most, where interactions want the room."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is computed by.

    `margin` is the provider's tokens for one counted token before any usage was reported, `low_water` the share of the
    budget that a cut goes down to. `cache_life`: for how many microseconds after a call the provider's cache is taken
    to hold what was sent (None: for ever). `masks`: whether old results may become notes. `exact`: whether the log is
    walked anew instead of keeping a window. `past`: whether the context is of an earlier revision. Summaries take
    `summary_share` of the budget at most; None: `SUMMARY_SHARE`, where interactions want the room. `tail_share` is the
    part of the log's room that is kept for what stands beside it: `lead`, facts before the log (None: none may), and
    `tail`, what comes behind it.
    """

    session: str
    view: str
    system: str | None = None
    tools: Sequence[Message] = ()
    counter: TokenCounter
    model: Model | None
    format: Format
    limits: BudgetLimits
    bounds: Bounds
    margin: float
    low_water: float
    cache_life: int | None = None
    masks: bool
    exact: bool
    past: bool = False
    due: str | None = None
    """Why a new cut is made, whatever fits; None: one is made where it is due."""
    tail_share: float = 0.0
    summary_share: float | None = None
    tag_shares: tuple[tuple[str, float], ...] = ()
    """By tag, the share of the budget that entries with it take at most."""
    lead: Sequence[Facts] | None = None
    tail: Sequence[TailPart] = ()
    strategies: Sequence[tuple[MaxTokens, list[AppliedCondition]]]
    conditions: tuple[str, ...]
    """Every condition of the low-water strategies, as a cut records them."""
    failures: dict[str, str]
    """Conditions that could not be evaluated, and why: filled while contexts are computed."""

    @property
    def is_long(self) -> bool:
        """Whether a context may take long to compute however little of the log it shows: what stands beside the log,
        shares, conditions and a counter of the user's take what they take, and each may load what only it needs."""
        if not isinstance(self.counter, Encoding) or self.exact or self.past or len(self.tools) > FEW_TOOLS:
            return True
        beside = self.lead is not None or self.tail or self.tag_shares
        return bool(beside) or any(rules for _, rules in self.strategies)

    @property
    def stands_beside(self) -> bool:
        """Whether anything is to stand beside the log, in the room that is kept for it."""
        return bool(self.tail) or (self.lead is not None and any(part.facts for part in self.lead))

    @property
    def keeps_newest(self) -> bool:
        """Whether the newest interaction is shown whole, whatever room there is."""
        return any(strategy.oversize == "keep_newest" for strategy, _ in self.strategies)

    @property
    def walks_all(self) -> bool:
        """Whether all has to be read: what depends on age, or goes on after a gap, is only known then."""
        return any(
            strategy.gap == "skip" or any(rule.condition.dynamic for rule in rules)
            for strategy, rules in self.strategies
        )

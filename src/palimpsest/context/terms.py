"""What a context is computed by, apart from the log: the options of its session and the arguments of the call."""

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
"""How many tool schemas are serialized and measured in well under a millisecond."""

MAIN = "main"
"""The view of sessions that name none."""

SUMMARY_SHARE = 0.25
"""Share of the budget that summaries take at most if interactions need the room."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is computed by.

    `margin` is the provider's tokens for one counted token before any usage was reported. `low_water` is the share of
    the budget that a cut goes down to. `cache_life` is for how many microseconds after a call the provider's cache is
    expected to hold what was sent (None: for ever). `masks`: old results may become notes. `exact`: the log is walked
    anew at each call instead of keeping a window. `past`: the context is of an earlier revision. `summary_share` is the
    most that summaries take of the budget (None: `SUMMARY_SHARE`, and only if interactions need the room). `tail_share`
    is the part of the log's room that is kept for what is shown beside it: `lead`, facts before the log (None: not
    allowed), and `tail`, what comes behind it.
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
    """Why a new cut is made even if the present one fits; None: a cut is made when it is due."""
    tail_share: float = 0.0
    summary_share: float | None = None
    tag_shares: tuple[tuple[str, float], ...] = ()
    """Pairs of a tag and the largest share of the budget that entries with this tag may take."""
    lead: Sequence[Facts] | None = None
    tail: Sequence[TailPart] = ()
    strategies: Sequence[tuple[MaxTokens, list[AppliedCondition]]]
    conditions: tuple[str, ...]
    """All conditions of the low-water strategies, as a cut records them."""
    failures: dict[str, str]
    """Conditions that could not be evaluated, and why. Filled while contexts are computed."""

    @property
    def keeps_thoughts(self) -> bool:
        """Whether the next context begins with the messages of this one until a cut, so that reasoning that is bound to
        them stays valid: not with a tail, nor in a view beside the main one, which the model's answers are not of."""
        return not self.tail_share and self.view == MAIN

    @property
    def is_long(self) -> bool:
        """Whether a context may take long to compute, however little of the log it shows.

        A user's counter, conditions, shares and parts beside the log take any time, and each may import modules of its
        own.
        """
        if not isinstance(self.counter, Encoding) or self.exact or self.past or len(self.tools) > FEW_TOOLS:
            return True
        beside = self.lead is not None or self.tail or self.tag_shares
        return bool(beside) or any(rules for _, rules in self.strategies)

    @property
    def stands_beside(self) -> bool:
        """Whether anything is shown beside the log, in the room kept for it."""
        return bool(self.tail) or (self.lead is not None and any(part.facts for part in self.lead))

    @property
    def keeps_newest(self) -> bool:
        """Whether the newest interaction is shown whole even if it exceeds the room."""
        return any(strategy.oversize == "keep_newest" for strategy, _ in self.strategies)

    @property
    def walks_all(self) -> bool:
        """Whether the whole log has to be read: a condition depends on age, the walk goes on after a gap, or an exact
        walk has conditions, so what fits is known only when they were evaluated."""
        return any(
            strategy.gap == "skip" or any(self.exact or rule.condition.dynamic for rule in rules)
            for strategy, rules in self.strategies
        )

    @property
    def most_walked(self) -> int | None:
        """How many counted tokens of the newest entries hold all that an exact walk shows; None: any number.

        It is twice the smallest budget, because a counted token may be less than one of the provider's.
        """
        limits = [
            strategy.memory_max_tokens
            for strategy, _ in self.strategies
            if strategy.memory_max_tokens is not None and strategy.count_pinned
        ]
        return 2 * max(min(limits), 0) if self.exact and limits else None

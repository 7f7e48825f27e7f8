"""What a context may cost: limits resolved to numbers, and what a call brings itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from palimpsest.errors import BudgetImpossible, ConfigError
from palimpsest.formats import Format, Message
from palimpsest.log import values
from palimpsest.log.checks import check_whole
from palimpsest.log.entry import Entry
from palimpsest.log.head import Usage
from palimpsest.tokens.counter import TokenCounter, compact, failures_of, tool_schema_tokens

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model


Shares: TypeAlias = tuple[tuple[str, float], ...]
"""Tags, and the share of the budget that entries with each take at most."""


class Beside(NamedTuple):
    """Counted tokens and messages that may stand beside the log; None: any number."""

    tokens: int
    messages: int | None

    def less(self, tokens: int, messages: int) -> Beside:
        """What is left of it beside these."""
        return Beside(self.tokens - tokens, None if self.messages is None else self.messages - messages)


class Budget(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Limits resolved to numbers, in tokens.

    `limit` bounds the whole request and the answer: the smaller of `max_tokens` and the model's window.
    `reserve` is kept for the answer, `fixed` is what system text, tools and the request itself cost. `share` is
    `max_context_ratio` of the window, or `max_log_tokens`: the log takes no more, whatever else there is (None: not
    given). `tail` is kept
    for what comes behind the log, `room` is what is left for the log: high water; `low_water` is where a cut stops.
    `factor` is how many of the provider's tokens one counted token stands for (1 where the model's tokenizer is
    public); `room`, `low_water`, `fixed` and `tail` are counted tokens. `max_messages` bounds provider messages of the
    log, `tail_messages` those of what comes behind it.
    """

    limit: int
    reserve: int
    fixed: int
    room: int
    low_water: int
    share: int | None = None
    factor: float = 1.0
    max_messages: int | None = None
    tail: int = 0
    tail_messages: int | None = None

    @property
    def beside(self) -> Beside:
        """The room of what is not of the log."""
        return Beside(self.tail, self.tail_messages)

    @property
    def available(self) -> int:
        """Tokens that the request may take: the limit less the reserve."""
        return self.limit - self.reserve

    @property
    def counted_limit(self) -> int:
        """The limit, or the share where that is less, in counted tokens."""
        return unscaled(self.limit if self.share is None else min(self.limit, self.share), self.factor)

    def down_to(self, part: float) -> tuple[int, int | None]:
        """Where a cut stops that goes down to this `part` of the limits (0 to 1): counted tokens of the log, and
        messages.
        """
        messages = None if self.max_messages is None else max(int(self.max_messages * part), 1)
        return _level(self.limit, self.share, self.factor, self.fixed, self.room, part), messages


class Bounds(msgspec.Struct, frozen=True):
    """What limits come to, in the provider's tokens; None: no bound.

    `limit` and `reserve` are of the whole request, `share` is of the log alone.
    """

    limit: int | None
    reserve: int
    share: int | None

    def log(self, factor: float) -> int | None:
        """What the log may take, in counted tokens, where a call brings nothing itself."""
        request = None if self.limit is None else self.limit - self.reserve
        known = [bound for bound in (request, self.share) if bound is not None]
        return unscaled(min(known), factor) if known else None


LEAST_FACTOR = 0.8
"""No tokenizer of a large model makes less of a text than this share of OpenAI's tokens. A report below it is none of
the whole input (some providers leave out what a cache served), and nothing is learned from it."""

MOST_FACTOR = 4.0
"""The most that a report makes of one counted token: beyond it lies what the context does not hold, such as tools that
`context()` was not told of."""


def learned(usage: Usage | None, margin: float) -> float:
    """The provider's tokens for one counted token, by what was reported for the same margin; else the margin.

    It is never less than one, so that no report lets a context pass which has too many tokens as they are counted.
    """
    ratio = _ratio(usage, margin)
    return margin if ratio is None or ratio < LEAST_FACTOR else min(max(ratio, 1.0), MOST_FACTOR)


def doubt(usage: Usage | None, margin: float) -> str | None:
    """Why what was reported does not scale budgets as it is; None where it does, or where there is nothing to scale."""
    ratio = _ratio(usage, margin)
    if ratio is None or LEAST_FACTOR <= ratio <= MOST_FACTOR:
        return None
    told = f"the reported input is {ratio:.2g} times what was counted"
    if ratio < LEAST_FACTOR:
        return f"{told}, so budgets keep the margin of {margin:g}: are cached tokens part of `input_tokens`?"
    return f"{told}, of which budgets heed {MOST_FACTOR:g}: was everything that was sent given to `context()`?"


def _ratio(usage: Usage | None, margin: float) -> float | None:
    if margin == 1.0 or usage is None or not usage.counted or usage.margin != margin:
        return None
    return usage.input_tokens / usage.counted


def scaled(counted: int, factor: float) -> int:
    """Counted tokens in the provider's scale, rounded up."""
    return counted if factor == 1.0 else -int(-counted * factor // 1)


def unscaled(tokens: int, factor: float) -> int:
    """The most counted tokens whose `scaled` figure is at most `tokens`."""
    counted = int(tokens / factor)
    return counted if scaled(counted, factor) <= tokens else counted - 1


class BudgetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a session or a call says about its budget, not yet resolved. Tokens; None: not given."""

    max_tokens: int | None = None
    max_messages: int | None = None
    max_context_ratio: float | None = None
    max_log_tokens: int | None = None
    reserve: int | None = None

    def check(self) -> None:
        """Raise ConfigError for a value that no budget can have."""
        for name, value in (
            ("max_tokens", self.max_tokens),
            ("max_messages", self.max_messages),
            ("max_log_tokens", self.max_log_tokens),
            ("reserve", self.reserve),
        ):
            check_whole(value, name, or_none=True)
        ratio = self.max_context_ratio
        if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1):
            raise ConfigError("max_context_ratio", ratio, "a number over 0 and at most 1, or None")


def bounds_of(limits: BudgetLimits, model: Model | None, name: str | None) -> Bounds:
    """Return what the limits come to with this model. Raises ConfigError for a share of an unknown window.

    A reserve that is not given is 0 beside `max_tokens`, else the model's output limit, but at most half of the
    limit: some models may answer with as much as they read. Nothing comes off a share of the window, neither for the
    answer nor for what a call brings itself: these, with the log, are held within the window.
    """
    window, share = model.window if model is not None else None, None
    if limits.max_context_ratio is not None:
        if window is None:
            raise ConfigError("max_context_ratio", limits.max_context_ratio, f"a model of known window, not {name!r}")
        share = int(values.part(limits.max_context_ratio, window))
    if limits.max_log_tokens is not None:
        share = limits.max_log_tokens if share is None else min(share, limits.max_log_tokens)
    bounds = [bound for bound in (limits.max_tokens, window) if bound is not None]
    limit = min(bounds) if bounds else None
    if limits.reserve is not None:
        return Bounds(limit, limits.reserve, share)
    if limits.max_tokens is not None or limit is None or model is None:
        return Bounds(limit, 0, share)
    return Bounds(limit, min(model.max_output or 0, limit // 2), share)


LOW_WATER = 0.36
"""Share of the limit that a cut goes down to, system text and tools included: the lowest bill that still holds
enough of real tool-calling conversations at 8,000 and at 16,000 tokens (`bench/cache_bill.py`)."""

LEAST_LOW_WATER, MOST_LOW_WATER = 0.2, 0.8
"""Shares of the room that a cut keeps at least, where system text and tools take most of the limit, and at most, where
reserve and tail do, unless low water is a larger one: else it would lie above the room."""


def _level(limit: int, share: int | None, factor: float, fixed: int, room: int, part: float) -> int:
    target = int(limit / factor * part) - fixed
    if share is not None:
        target = min(target, int(share / factor * part))
    return max(min(target, int(room * max(MOST_LOW_WATER, part))), int(room * LEAST_LOW_WATER), 0)


class Allowance(msgspec.Struct, frozen=True):
    """What a budget is resolved from, beside what the call brings itself."""

    bounds: Bounds
    limits: BudgetLimits
    factor: float
    low: float
    tail_share: float = 0.0

    def beside(self, fixed: Fixed) -> Reckoned:
        """What a call that brings so much leaves of it."""
        return Reckoned(self, fixed, self._resolved(fixed.tokens))

    def _resolved(self, fixed: int) -> Budget | None:
        limit, reserve, share = self.bounds.limit, self.bounds.reserve, self.bounds.share
        factor, most, tail_share = self.factor, self.limits.max_messages, self.tail_share
        if limit is None and most is None and share is None:
            return None
        if limit is None:
            limit, reserve = 2**62, 0
        room = unscaled(limit - reserve, factor) - fixed
        if share is not None:
            room = min(room, unscaled(share, factor))
        tail = int(max(room, 0) * tail_share)
        room -= tail
        kept = min(max(int(most * tail_share), 1), most - 1) if most is not None and tail_share else None
        return Budget(
            limit=limit,
            reserve=reserve,
            fixed=fixed,
            room=room,
            low_water=_level(limit, share, factor, fixed, room, self.low),
            share=share,
            factor=factor,
            max_messages=most - (kept or 0) if most is not None else None,
            tail=tail,
            tail_messages=kept,
        )


class Reckoned(msgspec.Struct, frozen=True):
    """What a call brings itself, and the budget that it leaves (None: nothing bounds the context).

    Where `fixed` is a bound, so is all of it. That may show that a context fits, and says nothing else: what is
    decided, kept or told is of `exactly`.
    """

    allowance: Allowance
    fixed: Fixed
    budget: Budget | None

    def exactly(self) -> Reckoned:
        """The same, by what the call brings as it is counted."""
        return self if self.fixed.exact else self.allowance.beside(self.fixed.counted())


def shares_of(given: Mapping[str, float] | None) -> Shares:
    """Return the shares by tag. Raises ConfigError, naming the tag, for what is none."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ConfigError("tag_shares", type(given).__name__, "a mapping of tags to shares, or None")
    for tag, share in given.items():
        if not isinstance(tag, str) or not tag:
            raise ConfigError("tag_shares", tag, "tags that are text")
        if not values.is_number(share) or not 0 <= share <= 1:
            raise ConfigError(f"tag_shares[{tag!r}]", share, "a share of the budget from 0 to 1")
    return tuple(given.items())


def refuse_fixed(room: int, reserve: int, fixed: Fixed) -> None:
    """Raise BudgetImpossible where what the call brings itself leaves less than no room."""
    if room < 0:
        parts = {"system": fixed.system_tokens, "tools": fixed.tools_tokens, "overhead": fixed.prime}
        raise BudgetImpossible(fixed.tokens, room + fixed.tokens, {**parts, "reserve": reserve})


class Fixed(msgspec.Struct, frozen=True):
    """What a call brings itself: system text and tools, with their cost in counted tokens."""

    system: str | None
    tools: Sequence[Message]
    system_tokens: int
    tools_tokens: int
    prime: int
    exact: bool
    counter: TokenCounter
    format: Format

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.system_tokens + self.tools_tokens + self.prime

    def counted(self) -> Fixed:
        """The same, counted."""
        return measure(self.system, self.tools, self.counter, self.format, exact=True)


def measure(system: str | None, tools: Sequence[Message], counter: TokenCounter, fmt: Format, *, exact: bool) -> Fixed:
    """Count what a call brings itself: exactly, or by an upper bound that needs no vocabulary.

    What this process has counted before is exact either way.
    """
    bound = None if exact else getattr(counter, "upper_bound", None)
    exact, system_tokens, tools_tokens = True, 0, 0
    if system:
        system_tokens, exact = _cost(counter, "system", system, partial(counter.count, system), bound)
        system_tokens += fmt.overhead(Entry(kind="message", role="system")) if counter.overhead else 0
    if tools:
        newer = getattr(counter, "name", "") != "cl100k_base"
        count = partial(tool_schema_tokens, tools, counter, gpt4o_family=newer)
        most = None if bound is None else lambda text: 64 * len(tools) + 4 * len(text.encode("utf-8", "surrogatepass"))
        tools_tokens, counted = _cost(counter, "tools", compact(tools), count, most)
        exact = exact and counted
    prime = fmt.prime + (fmt.tools_prime if tools else 0) if counter.overhead else 0
    return Fixed(system, tools, system_tokens, tools_tokens, prime, exact, counter, fmt)


KNOWN = 64
"""Texts whose counts are remembered: most programs have few system texts and lists of tools."""

_known: dict[tuple[int, str, str], tuple[TokenCounter, int]] = {}
"""Counts by the counter's id (which is its own while it is kept here), what was counted, and its text."""


def _cost(
    counter: TokenCounter, what: str, text: str, count: Callable[[], int], bound: Callable[[str], int] | None
) -> tuple[int, bool]:
    """What a text costs, and whether that is exact: counted before, or now, where there is no bound to take instead."""
    if (known := _known.get((id(counter), what, text))) is not None:
        return known[1], True
    if bound is not None:
        return bound(text), False
    failures, tokens = failures_of(counter), count()
    if failures_of(counter) == failures:  # else another one counted in its place
        if len(_known) >= KNOWN:
            _known.clear()
        _known[id(counter), what, text] = counter, tokens
    return tokens, True

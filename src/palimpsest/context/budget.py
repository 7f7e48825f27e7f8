"""What a context may cost: limits resolved to numbers, and the cost of what a call brings itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from palimpsest.errors import BudgetImpossible, ConfigError
from palimpsest.formats import Format, Message
from palimpsest.log import values
from palimpsest.log.entry import Entry
from palimpsest.log.head import Usage
from palimpsest.tokens.counter import TokenCounter, compact, failures_of, tool_schema_tokens

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model


Shares: TypeAlias = tuple[tuple[str, float], ...]
"""Pairs of a tag and the largest share of the budget that entries with this tag may take."""


class Beside(msgspec.Struct, frozen=True):
    """Room for what is shown beside the log, in counted tokens and in messages (None: any number)."""

    tokens: int
    messages: int | None

    def less(self, tokens: int, messages: int) -> Beside:
        """Return the room that remains once `tokens` in `messages` are taken from it."""
        return Beside(self.tokens - tokens, None if self.messages is None else self.messages - messages)


class Budget(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Limits resolved to numbers, in tokens.

    `limit` bounds the request and the answer together: the smaller of `max_tokens` and the model's window. `reserve` is
    kept for the answer. `fixed` is the cost of system text, tools and the request itself. `share` is the most that the
    log may take whatever else there is: `max_context_ratio` of the window, or `max_log_tokens` (None: neither was
    given). `tail` is kept for what comes behind the log. `room` is what remains for the log: high water. `low_water` is
    the size that a cut goes down to. `factor` is how many of the provider's tokens one counted token stands for (1
    where the model's tokenizer is public); `room`, `low_water`, `fixed` and `tail` are counted tokens. `max_messages`
    bounds the provider messages of the log, `tail_messages` those of what comes behind it.
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
        """The room for what is shown beside the log."""
        return Beside(self.tail, self.tail_messages)

    @property
    def available(self) -> int:
        """Tokens that the request may take: the limit less the reserve."""
        return self.limit - self.reserve

    @property
    def counted_limit(self) -> int:
        """The limit, or the share if that is smaller, in counted tokens."""
        return unscaled(self.limit if self.share is None else min(self.limit, self.share), self.factor)

    def down_to(self, part: float) -> tuple[int, int | None]:
        """Return the tokens and messages of the log after a cut down to `part` (0 to 1) of the limits.

        Tokens are counted ones; messages are None if they are not limited.
        """
        messages = None if self.max_messages is None else max(int(self.max_messages * part), 1)
        return _cut_level(self.limit, self.share, self.factor, self.fixed, self.room, part), messages


class Bounds(msgspec.Struct, frozen=True):
    """What the limits come to with a model, in the provider's tokens (None: no bound).

    `limit` and `reserve` apply to the whole request, `share` to the log alone.
    """

    limit: int | None
    reserve: int
    share: int | None

    def log(self, factor: float) -> int | None:
        """Return what the log may take, in counted tokens, if a call brings nothing itself (None: no bound)."""
        request = None if self.limit is None else self.limit - self.reserve
        bounds = [bound for bound in (request, self.share) if bound is not None]
        return unscaled(min(bounds), factor) if bounds else None


LEAST_FACTOR = 0.8
"""The smallest plausible ratio of the provider's tokens to counted ones: no tokenizer of a large model makes fewer
tokens of a text than this share of OpenAI's. A smaller report does not cover the whole input (some providers leave out
what a cache served), so nothing is learned from it."""

MOST_FACTOR = 4.0
"""The largest ratio that is learned from a report. A larger one comes from input that the context does not hold, such
as tools that `context()` was not given."""


def learned(usage: Usage | None, margin: float) -> float:
    """Return the provider's tokens for one counted token: from the usage reported with this margin, else the margin.

    The result is never less than 1, so that no report admits a context that is too large by its own count.
    """
    ratio = _reported_ratio(usage, margin)
    return margin if ratio is None or ratio < LEAST_FACTOR else min(max(ratio, 1.0), MOST_FACTOR)


def doubt(usage: Usage | None, margin: float) -> str | None:
    """Return why the reported usage does not scale budgets unchanged; None if it does, or nothing is to be scaled."""
    ratio = _reported_ratio(usage, margin)
    if ratio is None or LEAST_FACTOR <= ratio <= MOST_FACTOR:
        return None
    finding = f"the reported input is {ratio:.2g} times what was counted"
    if ratio < LEAST_FACTOR:
        return f"{finding}, so budgets keep the margin of {margin:g}: are cached tokens part of `input_tokens`?"
    return f"{finding}, and budgets follow at most {MOST_FACTOR:g}: was everything that was sent given to `context()`?"


def _reported_ratio(usage: Usage | None, margin: float) -> float | None:
    if margin == 1.0 or usage is None or not usage.counted or usage.margin != margin:
        return None
    return usage.input_tokens / usage.counted


def scaled(counted: int, factor: float) -> int:
    """Convert counted tokens to the provider's scale, rounding up."""
    return counted if factor == 1.0 else -int(-counted * factor // 1)


def unscaled(tokens: int, factor: float) -> int:
    """Return the largest number of counted tokens that `scaled` converts to at most `tokens`."""
    counted = int(tokens / factor)
    return counted if scaled(counted, factor) <= tokens else counted - 1


class BudgetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a session or a call was given, in tokens, not yet resolved (None: not given)."""

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
            values.whole(name, value, none=True)
        ratio = self.max_context_ratio
        if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1):
            raise ConfigError("max_context_ratio", ratio, "a number over 0 and at most 1, or None")


def bounds_of(limits: BudgetLimits, model: Model | None, name: str | None) -> Bounds:
    """Resolve the limits for this model. Raises ConfigError for a share of a window that is not known.

    Without a given reserve, it is 0 beside `max_tokens`, else the model's output limit, but at most half of the limit,
    because some models may answer with as much as they read. A share of the window is not reduced by the reserve or by
    what a call brings itself; the window still bounds these and the log together.
    """
    window, share = model.window if model is not None else None, None
    if limits.max_context_ratio is not None:
        if window is None:
            raise ConfigError("max_context_ratio", limits.max_context_ratio, f"a model with known window, not {name!r}")
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
"""Share of the limit that a cut goes down to, system text and tools included: the lowest bill measured that still holds
enough of real tool-calling conversations at 8,000 and at 16,000 tokens (`bench/cache_bill.py`)."""

LEAST_LOW_WATER, MOST_LOW_WATER = 0.2, 0.8
"""Bounds of low water, as shares of the room: the least, for system text and tools that take most of the limit, and the
most, for a reserve and a tail that do (low water would lie above the room), unless the option `low_water` is larger."""


def _cut_level(limit: int, share: int | None, factor: float, fixed: int, room: int, part: float) -> int:
    target = int(limit / factor * part) - fixed
    if share is not None:
        target = min(target, int(share / factor * part))
    return max(min(target, int(room * max(MOST_LOW_WATER, part))), int(room * LEAST_LOW_WATER), 0)


class Allowance(msgspec.Struct, frozen=True):
    """What a budget is resolved from, apart from what the call brings itself."""

    bounds: Bounds
    limits: BudgetLimits
    factor: float
    low: float
    tail_share: float = 0.0

    def beside(self, fixed: Fixed) -> Reckoned:
        """Return the budget that remains for the log beside what the call brings itself."""
        return Reckoned(self, fixed, self._resolved(fixed.tokens))

    def _resolved(self, fixed: int) -> Budget | None:
        limit, reserve, share = self.bounds.limit, self.bounds.reserve, self.bounds.share
        factor, cap, tail_share = self.factor, self.limits.max_messages, self.tail_share
        if limit is None and cap is None and share is None:
            return None
        if limit is None:
            limit, reserve = 2**62, 0
        room = unscaled(limit - reserve, factor) - fixed
        if share is not None:
            room = min(room, unscaled(share, factor))
        tail = int(max(room, 0) * tail_share)
        room -= tail
        tail_messages = min(max(int(cap * tail_share), 1), cap - 1) if cap is not None and tail_share else None
        return Budget(
            limit=limit,
            reserve=reserve,
            fixed=fixed,
            room=room,
            low_water=_cut_level(limit, share, factor, fixed, room, self.low),
            share=share,
            factor=factor,
            max_messages=cap - (tail_messages or 0) if cap is not None else None,
            tail=tail,
            tail_messages=tail_messages,
        )


class Reckoned(msgspec.Struct, frozen=True):
    """What a call brings itself, and the budget that this leaves (None: nothing bounds the context).

    Where `fixed` is an upper bound, the budget is a lower bound. That may prove that a context fits, but nothing else:
    whatever is decided, stored or reported uses `exactly`.
    """

    allowance: Allowance
    fixed: Fixed
    budget: Budget | None

    def exactly(self) -> Reckoned:
        """Return the same with what the call brings counted exactly."""
        return self if self.fixed.exact else self.allowance.beside(self.fixed.counted())


def shares_of(shares: Mapping[str, float] | None) -> Shares:
    """Return the shares by tag as pairs. Raises ConfigError, naming the tag, for an invalid share."""
    if shares is None:
        return ()
    if not isinstance(shares, Mapping):
        raise ConfigError("tag_shares", type(shares).__name__, "a mapping of tags to shares, or None")
    for tag, share in shares.items():
        if not isinstance(tag, str) or not tag:
            raise ConfigError("tag_shares", tag, "tags that are text")
        if not values.is_number(share) or not 0 <= share <= 1:
            raise ConfigError(f"tag_shares[{tag!r}]", share, "a share of the budget from 0 to 1")
    return tuple(shares.items())


def refuse_fixed(room: int, reserve: int, fixed: Fixed) -> None:
    """Raise BudgetImpossible if the room is negative: what the call brings itself exceeds the limit."""
    if room < 0:
        parts = {"system": fixed.system_tokens, "tools": fixed.tools_tokens, "overhead": fixed.prime}
        raise BudgetImpossible(fixed.tokens, room + fixed.tokens, {**parts, "reserve": reserve})


class Fixed(msgspec.Struct, frozen=True):
    """What a call brings itself: system text and tools, and their counted tokens (an upper bound unless `exact`)."""

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
        """The cost of all of it, and of the request itself."""
        return self.system_tokens + self.tools_tokens + self.prime

    def counted(self) -> Fixed:
        """Return the same with exact counts."""
        return measure(self.system, self.tools, self.counter, self.format, exact=True)


def measure(system: str | None, tools: Sequence[Message], counter: TokenCounter, fmt: Format, *, exact: bool) -> Fixed:
    """Count what a call brings itself: exactly, or by an upper bound that needs no vocabulary.

    Texts that this process has counted before are exact either way.
    """
    bound = None if exact else getattr(counter, "upper_bound", None)
    exact, system_tokens, tools_tokens = True, 0, 0
    if system:
        system_tokens, exact = _cost(counter, "system", system, partial(counter.count, system), bound)
        system_tokens += fmt.overhead(Entry(kind="message", role="system")) if counter.overhead else 0
    if tools:
        newer = getattr(counter, "name", "") != "cl100k_base"
        count = partial(tool_schema_tokens, tools, counter, gpt4o_family=newer)
        upper = None if bound is None else lambda text: 64 * len(tools) + 4 * len(text.encode("utf-8", "surrogatepass"))
        tools_tokens, tools_exact = _cost(counter, "tools", compact(tools), count, upper)
        exact = exact and tools_exact
    prime = fmt.prime + (fmt.tools_prime if tools else 0) if counter.overhead else 0
    return Fixed(system, tools, system_tokens, tools_tokens, prime, exact, counter, fmt)


KNOWN = 64
"""How many texts keep their counts: most programs have few system texts and lists of tools."""

_known: dict[tuple[int, str, str], tuple[TokenCounter, int]] = {}
"""Counts by the counter's id, kind of text, and text. The counter is kept, too, so that no other can get its id."""


def _cost(
    counter: TokenCounter, kind: str, text: str, count: Callable[[], int], bound: Callable[[str], int] | None
) -> tuple[int, bool]:
    """Return what a text costs, and whether that is exact: it was counted before, or `bound` is None."""
    if (remembered := _known.get((id(counter), kind, text))) is not None:
        return remembered[1], True
    if bound is not None:
        return bound(text), False
    failures, tokens = failures_of(counter), count()
    if failures_of(counter) == failures:  # otherwise a fallback counter has counted in its place
        if len(_known) >= KNOWN:
            _known.clear()
        _known[id(counter), kind, text] = counter, tokens
    return tokens, True

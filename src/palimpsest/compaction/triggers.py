"""When a strategy runs: rules over what a session holds, any one of which suffices. Pure.

    rule                          fires at                                             checked
    input_tokens_threshold        tokens of the last call > n                          when an interaction completes
    interaction_threshold_qty     completed uncovered interactions >= n                when an interaction completes
    interaction_threshold_tokens  their tokens > n                                     when an interaction completes
    on_tools_success_threshold    a listed tool has succeeded since the last run       when an interaction completes
    on_tools_error_threshold      a listed tool has failed since the last run          when an interaction completes
    max_entries                   active entries > n                                   after each append
    max_active_tokens             active tokens, summaries included, > n               after each append
    threshold                     tokens >= t x max_tokens, or messages >= t x max_messages   after each append
    message_count                 active messages >= n                                 after each append
    idle_seconds                  seconds since the last activity >= n                 always

A rule that has fired is quiet until there is something new to take: another completed interaction, or, for the rules
checked after each append, another group that may leave. New is what lies at or after `Snapshot.seen`.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from palimpsest.context.conditions import parse
from palimpsest.errors import ConfigError
from palimpsest.log import values

_COUNTS = (
    "input_tokens_threshold",
    "interaction_threshold_qty",
    "interaction_threshold_tokens",
    "max_entries",
    "max_active_tokens",
    "message_count",
)
TOOL_RULES = ("on_tools_success_threshold", "on_tools_error_threshold")
"""Rules about results since the last run. The other rules look at the present state."""


class Triggers(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """When a strategy runs by itself: as soon as one rule holds. Every rule is off by default.

    None, and any number of 0 or less, leaves a rule off. Raises ConfigError for an invalid value.

    Args:
        input_tokens_threshold: fires if the last call took more input tokens than this.
        interaction_threshold_qty: fires at so many completed interactions that no summary covers.
        interaction_threshold_tokens: fires if these interactions take more tokens than this.
        on_tools_success_threshold: names of tools, exact or with `*`; fires if one of them has succeeded since the last
            run.
        on_tools_error_threshold: names of tools, exact or with `*`; fires if one of them has failed since the last run.
        denied_is_error: whether a denied call counts as a failure.
        interaction_conditions: expressions that an interaction must meet to be counted by the two interaction rules;
            they filter nothing else.
        max_entries: fires if more entries than this are active.
        max_active_tokens: fires if the active set takes more tokens than this, summaries included.
        threshold: a share, over 0 and up to 1; fires if the active set takes this share of a limit.
        message_count: fires at so many active messages.
        idle_seconds: fires so many seconds after the last activity.
        max_tokens: the limit in tokens that `threshold` is a share of; None: the session's.
        max_messages: the limit in messages that `threshold` is a share of; None: the session's.
    """

    input_tokens_threshold: int | None = 0
    interaction_threshold_qty: int | None = 0
    interaction_threshold_tokens: int | None = 0
    on_tools_success_threshold: tuple[str, ...] = ()
    on_tools_error_threshold: tuple[str, ...] = ()
    denied_is_error: bool = False
    interaction_conditions: tuple[str, ...] = ()
    max_entries: int | None = 0
    max_active_tokens: int | None = 0
    threshold: float | None = None
    message_count: int | None = 0
    idle_seconds: float | None = 0
    max_tokens: int | None = None
    max_messages: int | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            values.whole(name, getattr(self, name), -values.MOST, none=True)
        idle: object = self.idle_seconds
        if idle is not None and not (values.is_number(idle) and isfinite(idle)):
            raise ConfigError("idle_seconds", idle, "a number of seconds, or None")
        values.share("threshold", self.threshold, none=True)
        values.whole("max_tokens", self.max_tokens, 1, none=True)
        values.whole("max_messages", self.max_messages, 1, none=True)
        values.switch("denied_is_error", self.denied_is_error)
        for name, content in (
            ("on_tools_success_threshold", "tool names"),
            ("on_tools_error_threshold", "tool names"),
            ("interaction_conditions", "expressions"),
        ):
            # Safe, since nobody else has seen the new struct. A list from a file becomes a tuple.
            msgspec.structs.force_setattr(self, name, values.texts(name, getattr(self, name), content))
        for i, text in enumerate(self.interaction_conditions):
            parse(text, f"interaction_conditions[{i}]")

    @property
    def enabled(self) -> tuple[str, ...]:
        """The names of the enabled rules."""
        names = [name for name in (*_COUNTS, "idle_seconds") if (getattr(self, name) or 0) > 0]
        names += [name for name in (*TOOL_RULES, "threshold") if getattr(self, name)]
        return tuple(names)

    @property
    def watches_tools(self) -> bool:
        """Whether a new tool result may fire a rule."""
        return bool(self.on_tools_success_threshold or self.on_tools_error_threshold)

    @property
    def counts_interactions(self) -> bool:
        """Whether a rule counts interactions or their tokens."""
        return (self.interaction_threshold_qty or 0) > 0 or (self.interaction_threshold_tokens or 0) > 0

    @property
    def heeds_calls(self) -> bool:
        """Whether a rule depends on the size of calls, so that this has to be remembered."""
        return (self.input_tokens_threshold or 0) > 0

    def heeds(self, input_tokens: int | None) -> bool:
        """Whether a call with so many `input_tokens` may fire a rule."""
        limit = self.input_tokens_threshold or 0
        return 0 < limit < (input_tokens or 0)

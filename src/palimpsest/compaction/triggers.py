"""When a strategy runs: rules over what a session holds, any of which is enough. Pure.

    rule                          fires at                                             looked at
    input_tokens_threshold        tokens of the last call > n                          when an interaction completes
    interaction_threshold_qty     completed uncovered interactions >= n                when an interaction completes
    interaction_threshold_tokens  their tokens > n                                     when an interaction completes
    on_tools_success_threshold    a listed tool finished well since the last run       when an interaction completes
    on_tools_error_threshold      a listed tool failed since the last run              when an interaction completes
    max_entries                   active entries > n                                   after each append
    max_active_tokens             active tokens, summaries included, > n               after each append
    threshold                     tokens >= t x max_tokens, or messages >= t x max_messages   after each append
    message_count                 active messages >= n                                 after each append
    idle_seconds                  seconds since the last activity >= n                 always

A rule that has fired is quiet until there is something new to take: one more completed interaction, or for the rules
looked at after each append one more group that may leave. What counts as new lies at or after `Snapshot.seen`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

import msgspec

from palimpsest.compaction import Snapshot, TriggerDecision, checking
from palimpsest.compaction.rules import Reading, measured, of_active_set, readings
from palimpsest.compaction.selecting import countable, uncovered
from palimpsest.conditions import parse
from palimpsest.errors import ConfigError
from palimpsest.window import Meter

_COUNTS = (
    "input_tokens_threshold",
    "interaction_threshold_qty",
    "interaction_threshold_tokens",
    "max_entries",
    "max_active_tokens",
    "message_count",
)
TOOL_RULES = ("on_tools_success_threshold", "on_tools_error_threshold")
"""Rules about results since the last run; the others look at what is there now."""


class Triggers(msgspec.Struct, frozen=True, kw_only=True):
    """When a strategy runs by itself: as soon as one rule holds. Every rule is off by default.

    None and every number of 0 or less leave a rule off. `threshold` is a share of the session's limits, or of
    `max_tokens` and `max_messages` where these are given. Tools are named exactly or with `*`; `denied_is_error` says
    that a denied call is a failure, too. `interaction_conditions` are expressions that an interaction must meet to be
    counted by the two interaction rules; they filter nothing else. Raises ConfigError for a value that a rule may not
    have.
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
            checking.whole(name, getattr(self, name), None, none=True)
        idle: object = self.idle_seconds
        if isinstance(idle, bool) or not isinstance(idle, int | float | None) or not isfinite(idle or 0):
            raise ConfigError("idle_seconds", idle, "a number of seconds, or None")
        checking.share("threshold", self.threshold, none=True)
        checking.whole("max_tokens", self.max_tokens, 1, none=True)
        checking.whole("max_messages", self.max_messages, 1, none=True)
        checking.switch("denied_is_error", self.denied_is_error)
        for name, what in (
            ("on_tools_success_threshold", "tool names"),
            ("on_tools_error_threshold", "tool names"),
            ("interaction_conditions", "expressions"),
        ):
            # The struct was made on the line above and nobody has seen it: a list from a file becomes a tuple.
            msgspec.structs.force_setattr(self, name, checking.texts(name, getattr(self, name), what))
        for i, text in enumerate(self.interaction_conditions):
            parse(text, f"interaction_conditions[{i}]")

    @property
    def enabled(self) -> tuple[str, ...]:
        """The names of the rules that are on."""
        on = [name for name in (*_COUNTS, "idle_seconds") if (getattr(self, name) or 0) > 0]
        on += [name for name in (*TOOL_RULES, "threshold") if getattr(self, name)]
        return tuple(on)

    @property
    def watches_tools(self) -> bool:
        """Whether a new tool result may fire a rule."""
        return bool(self.on_tools_success_threshold or self.on_tools_error_threshold)

    @property
    def counts_interactions(self) -> bool:
        """Whether a rule counts interactions, or their tokens."""
        return (self.interaction_threshold_qty or 0) > 0 or (self.interaction_threshold_tokens or 0) > 0

    @property
    def heeds_calls(self) -> bool:
        """Whether a rule looks at what a call took, so that it is to be remembered."""
        return (self.input_tokens_threshold or 0) > 0

    def heeds(self, input_tokens: int | None) -> bool:
        """Whether so many input tokens of a call may fire a rule."""
        limit = self.input_tokens_threshold or 0
        return 0 < limit < (input_tokens or 0)


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at.

    `meter` counts what conditions ask of messages; `session`, `entries` and `turns` are the session's id and how many
    entries and interactions it has had, for conditions. `input_tokens` is the provider's figure for the last call, or
    the count of the last context; None where there is none since the last compaction. `results` are the (tool name,
    status) of results appended since `snapshot.seen`; None takes those of the snapshot. `idle` are seconds since the
    last activity. `completed` says that an interaction has just completed, or a run has ended: only then all rules are
    looked at.
    """

    snapshot: Snapshot
    meter: Meter
    session: str = ""
    entries: int = 0
    turns: int = 0
    input_tokens: int | None = None
    results: Sequence[tuple[str | None, str | None]] | None = None
    idle: float = 0.0
    completed: bool = True


def decide(triggers: Triggers, activity: Activity, failures: dict[str, str] | None = None) -> TriggerDecision:
    """Return whether a rule fires, and which: the first of those that hold, in the order of the table above.

    A condition that cannot be evaluated counts its interaction; the error is put into `failures`, by expression.
    """
    quiet = []
    for reading in readings(triggers, activity, {} if failures is None else failures):
        if reading.fired:
            return _decision(reading)
        quiet.append(reading)
    if not quiet:
        return TriggerDecision(fired=False, rule="", observed=0, threshold=0, op=">=")
    return _decision(max(quiet, key=lambda reading: reading.observed / reading.threshold))


def _decision(reading: Reading) -> TriggerDecision:
    return TriggerDecision(reading.fired, reading.rule, reading.observed, reading.threshold, reading.op)


# --- how far away


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """How much may still be added before a rule can fire, so that an append need not read the window.

    Tokens, entries, messages and completed interactions; None: no rule asks for it. It holds until something is
    compacted. Rules about tools, input tokens and idle time are not in it: `Triggers.watches_tools` and `heeds`.
    """

    tokens: int | None = None
    entries: int | None = None
    messages: int | None = None
    interactions: int | None = None

    @property
    def open(self) -> bool:
        """Whether no rule can have fired; if not, look again."""
        return all(left is None or left >= 0 for left in (self.tokens, self.entries, self.messages, self.interactions))

    def spent(self, tokens: int = 0, entries: int = 0, messages: int = 0, interactions: int = 0) -> Margin:
        """Return what is left after so much was added; `tokens` may be an upper bound."""
        return Margin(
            tokens=_less(self.tokens, tokens),
            entries=_less(self.entries, entries),
            messages=_less(self.messages, messages),
            interactions=_less(self.interactions, interactions),
        )


def _less(left: int | None, taken: int) -> int | None:
    return None if left is None else left - taken


def margin(triggers: Triggers, snapshot: Snapshot) -> Margin:
    """Return how far every rule is from firing, for a session of which `decide` has just said that none does."""
    left: dict[str, int] = {}

    def note(unit: str, room: int) -> None:
        left[unit] = min(room, left.get(unit, room))

    quantity, tokens = triggers.interaction_threshold_qty or 0, triggers.interaction_threshold_tokens or 0
    done = countable(snapshot)
    if quantity > 0:
        note("interactions", max(quantity - 1 - len(done), 0))
    if tokens > 0:
        everything = sum(interaction.tokens for interaction in uncovered(snapshot))
        if not triggers.interaction_conditions:
            everything -= sum(i.tokens for i in done) - measured(done, snapshot.seen, tokens)
        note(*("tokens", tokens - everything) if everything <= tokens else ("interactions", 0))
    for reading in of_active_set(triggers, snapshot):
        room = int(reading.threshold) if reading.op == ">" else ceil(reading.threshold) - 1
        room -= int(reading.observed)
        if room >= 0:
            note(reading.unit, room)
            continue
        # It is quiet: until something may leave, which inside an open interaction only some rules wait for.
        note("interactions", 0)
        if reading.op == ">" or not (snapshot.interactions and snapshot.interactions[-1].open):
            note("entries", 0)
    most = triggers.max_tokens or snapshot.max_tokens
    if triggers.threshold is not None and most and most >= snapshot.tokens:
        note("tokens", most - snapshot.tokens)
    return Margin(**left)

"""Whether a rule fires now, and how far every rule is from firing. Pure."""

from __future__ import annotations

from math import ceil

import msgspec

from palimpsest.compaction import Snapshot, TriggerDecision
from palimpsest.compaction.rules import Activity, Observation, measured, of_active_set, readings
from palimpsest.compaction.selecting import countable, uncovered
from palimpsest.compaction.triggers import Triggers


def decide(triggers: Triggers, activity: Activity, failures: dict[str, str] | None = None) -> TriggerDecision:
    """Return whether a rule fires, and which: the first in the order of the table in `triggers` that holds.

    If a condition cannot be evaluated, its interaction counts; the error is added to `failures`, by expression.
    """
    quiet = []
    for reading in readings(triggers, activity, {} if failures is None else failures):
        if reading.fired:
            return _decision(reading)
        quiet.append(reading)
    if not quiet:
        return TriggerDecision(fired=False, rule="", observed=0, threshold=0, op=">=")
    return _decision(max(quiet, key=lambda reading: reading.observed / reading.threshold))


def _decision(reading: Observation) -> TriggerDecision:
    return TriggerDecision(reading.fired, reading.rule, reading.observed, reading.threshold, reading.op)


# --- how far away


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be added before a rule can fire, so that an append need not read the window.

    In tokens, entries, messages and completed interactions (None: no rule depends on it). It is valid until the next
    compaction. Rules about tools, input tokens and idle time are not included; see `Triggers.watches_tools` and
    `heeds`.
    """

    tokens: int | None = None
    entries: int | None = None
    messages: int | None = None
    interactions: int | None = None

    @property
    def open(self) -> bool:
        """Whether no rule can have fired yet. If False, `decide` has to look again."""
        return all(room is None or room >= 0 for room in (self.tokens, self.entries, self.messages, self.interactions))

    def spent(self, tokens: int = 0, entries: int = 0, messages: int = 0, interactions: int = 0) -> Margin:
        """Return the margin after so much was added; `tokens` may be an upper bound."""
        return Margin(
            tokens=_reduced(self.tokens, tokens),
            entries=_reduced(self.entries, entries),
            messages=_reduced(self.messages, messages),
            interactions=_reduced(self.interactions, interactions),
        )


def _reduced(room: int | None, taken: int) -> int | None:
    return None if room is None else room - taken


def margin(triggers: Triggers, snapshot: Snapshot) -> Margin:
    """Return the distance of every rule from firing, for a session of which `decide` has just said that none fires."""
    rooms: dict[str, int] = {}

    def note(unit: str, room: int) -> None:
        rooms[unit] = min(room, rooms.get(unit, room))

    quantity, tokens = triggers.interaction_threshold_qty or 0, triggers.interaction_threshold_tokens or 0
    counted = countable(snapshot)
    if quantity > 0:
        note("interactions", max(quantity - 1 - len(counted), 0))
    if tokens > 0:
        everything = sum(interaction.tokens for interaction in uncovered(snapshot))
        if not triggers.interaction_conditions:
            everything -= sum(i.tokens for i in counted) - measured(counted, snapshot.seen, tokens)
        note(*("tokens", tokens - everything) if everything <= tokens else ("interactions", 0))
    for reading in of_active_set(triggers, snapshot):
        room = int(reading.threshold) if reading.op == ">" else ceil(reading.threshold) - 1
        room -= int(reading.observed)
        if room >= 0:
            note(reading.unit, room)
            continue
        # The rule is quiet until something may leave. Inside an open interaction only some rules look for that.
        note("interactions", 0)
        if reading.op == ">" or not (snapshot.interactions and snapshot.interactions[-1].open):
            note("entries", 0)
    max_tokens = triggers.max_tokens or snapshot.max_tokens
    if triggers.threshold is not None and max_tokens and max_tokens >= snapshot.tokens:
        note("tokens", max_tokens - snapshot.tokens)
    return Margin(**rooms)

"""Whether a rule fires now, and how far every rule is from firing. Pure."""

from __future__ import annotations

from math import ceil

import msgspec

from palimpsest.compaction import Snapshot, TriggerDecision
from palimpsest.compaction.rules import Activity, Observation, measured, of_active_set, readings
from palimpsest.compaction.selecting import countable, uncovered
from palimpsest.compaction.triggers import Triggers


def decide(triggers: Triggers, activity: Activity, failures: dict[str, str] | None = None) -> TriggerDecision:
    """Return whether a rule fires, and which: the first of those that hold, in the order of `triggers`' table.

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


def _decision(reading: Observation) -> TriggerDecision:
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

"""What each rule of `palimpsest.compaction.triggers` observes of a session, and whether it may fire at all. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from palimpsest.compaction import InteractionGroups, Snapshot
from palimpsest.compaction.selecting import countable, is_free, uncovered
from palimpsest.context.conditions import Condition, parse
from palimpsest.context.groups import Meter
from palimpsest.context.short_term import AppliedCondition, interaction_values
from palimpsest.context.window import message_values
from palimpsest.log import values

if TYPE_CHECKING:
    from palimpsest.compaction.triggers import Triggers


class Observation(NamedTuple):
    """What a rule has observed, in which unit. One that is not `awake` stays quiet until there is something new."""

    rule: str
    observed: float
    threshold: float
    op: Literal[">", ">="]
    awake: bool
    unit: str = ""

    @property
    def fired(self) -> bool:
        """Whether the rule holds and is not to be quiet."""
        if not self.awake:
            return False
        return self.observed > self.threshold if self.op == ">" else self.observed >= self.threshold


def readings(triggers: Triggers, activity: Activity, failures: dict[str, str]) -> Iterator[Observation]:
    """Yield what each rule that is on observes now, in the order in which they are told."""
    if activity.completed:
        yield from _of_interactions(triggers, activity, failures)
        yield from _of_tools(triggers, activity)
    yield from of_active_set(triggers, activity.snapshot)
    idle = triggers.idle_seconds or 0
    if idle > 0:
        yield Observation("idle_seconds", activity.idle, idle, ">=", _completed_since(activity.snapshot))


def _of_interactions(triggers: Triggers, activity: Activity, failures: dict[str, str]) -> Iterator[Observation]:
    snapshot = activity.snapshot
    awake = _completed_since(snapshot)
    limit = triggers.input_tokens_threshold or 0
    if limit > 0:
        yield Observation("input_tokens_threshold", activity.input_tokens or 0, limit, ">", awake)
    quantity, tokens = triggers.interaction_threshold_qty or 0, triggers.interaction_threshold_tokens or 0
    if quantity <= 0 and tokens <= 0:
        return
    counted = _meeting(countable(snapshot), triggers, activity, failures)
    if quantity > 0:
        yield Observation("interaction_threshold_qty", len(counted), quantity, ">=", awake)
    if tokens > 0:
        yield Observation("interaction_threshold_tokens", measured(counted, snapshot.seen, tokens), tokens, ">", awake)


def _is_awake(snapshot: Snapshot) -> bool:
    """Whether a rule about tools may fire: it tells itself what is new, but for a run that has failed."""
    return not snapshot.tried or _completed_since(snapshot)


def _of_tools(triggers: Triggers, activity: Activity) -> Iterator[Observation]:
    failed = {"error", "denied"} if triggers.denied_is_error else {"error"}
    for rule, statuses in (("on_tools_success_threshold", {"success"}), ("on_tools_error_threshold", failed)):
        patterns: tuple[str, ...] = getattr(triggers, rule)
        if patterns:
            found = [
                name
                for name, status in _results(activity)
                if name and status in statuses and any(_matches(pattern, name) for pattern in patterns)
            ]
            yield Observation(rule, len(found), 1, ">=", awake=_is_awake(activity.snapshot))


def of_active_set(triggers: Triggers, snapshot: Snapshot) -> Iterator[Observation]:
    """Yield what the rules observe that are looked at after each append."""
    entries, tokens, messages = triggers.max_entries or 0, triggers.max_active_tokens or 0, triggers.message_count or 0
    anywhere, closed = _new_group(snapshot, anywhere=True), _new_group(snapshot, anywhere=False)
    if entries > 0:
        yield Observation("max_entries", snapshot.entries, entries, ">", anywhere, "entries")
    if tokens > 0:
        observed = snapshot.tokens if _kept(snapshot) <= tokens else _since(snapshot)
        yield Observation("max_active_tokens", observed, tokens, ">", anywhere, "tokens")
    if triggers.threshold is not None:
        if most := triggers.max_tokens or snapshot.max_tokens:
            limit = values.part(triggers.threshold, most)
            yield Observation("threshold", _filled(snapshot, limit, most), limit, ">=", closed, "tokens")
        if most := triggers.max_messages or snapshot.max_messages:
            limit = values.part(triggers.threshold, most)
            yield Observation("threshold", snapshot.messages, limit, ">=", closed, "messages")
    if messages > 0:
        yield Observation("message_count", snapshot.messages, messages, ">=", closed, "messages")


# --- what is new, and what was kept


def _since_when(snapshot: Snapshot) -> int:
    """From where on something is new to a rule that has fired: the last run, or the last that failed."""
    return max(snapshot.seen, snapshot.tried)


def _completed_since(snapshot: Snapshot) -> bool:
    """Whether an interaction has completed since the strategy ran last, or has failed."""
    since = _since_when(snapshot)
    return not since or any(_ended(i) >= since for i in countable(snapshot))


def _new_group(snapshot: Snapshot, *, anywhere: bool) -> bool:
    """Whether a group that may leave is new; `anywhere` takes those of open interactions, too."""
    since = _since_when(snapshot)
    return not since or any(
        group.entries[-1].seq >= since and is_free(group, snapshot)
        for interaction in snapshot.interactions
        if anywhere or not interaction.open
        for group in interaction.groups
    )


def _ended(interaction: InteractionGroups) -> int:
    return interaction.groups[-1].entries[-1].seq


def measured(counted: Sequence[InteractionGroups], seen: int, limit: int) -> int:
    """Tokens of these interactions; where those that the last run kept exceed the limit alone, of those since."""
    kept = sum(interaction.tokens for interaction in counted if _ended(interaction) < seen)
    since = sum(interaction.tokens for interaction in counted if _ended(interaction) >= seen)
    return since if kept > limit else kept + since


def _since(snapshot: Snapshot) -> int:
    return sum(group.cost for group in snapshot.groups if group.entries[-1].seq >= snapshot.seen)


def _kept(snapshot: Snapshot) -> int:
    """What of the active set was there when the strategy ran last."""
    return snapshot.tokens - _since(snapshot) if snapshot.seen else 0


def _filled(snapshot: Snapshot, limit: float, most: int) -> int:
    """Tokens that count against a share of the hard limit `most`, which itself is never given up for quiet."""
    is_soft = snapshot.tokens <= most and _kept(snapshot) >= limit
    return _since(snapshot) if is_soft else snapshot.tokens


# --- tools


def _results(activity: Activity) -> Sequence[tuple[str | None, str | None]]:
    if activity.results is not None:
        return activity.results
    snapshot = activity.snapshot
    return [
        (entry.name, entry.status)
        for interaction in (*snapshot.archived, *snapshot.interactions)
        for entry in interaction.entries
        if entry.kind == "tool_result" and entry.seq >= snapshot.seen
    ]


def _matches(pattern: str, name: str) -> bool:
    """Whether the name is the pattern, in which `*` stands for any text. Never looks at a character twice."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    last = rest.pop()
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in rest:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


# --- conditions


def _meeting(
    interactions: list[InteractionGroups], triggers: Triggers, activity: Activity, failures: dict[str, str]
) -> list[InteractionGroups]:
    """Those that meet all conditions. One that names a message is met where any message meets it."""
    if not triggers.interaction_conditions:
        return interactions
    rules = [AppliedCondition(_parsed(text), False, failures) for text in triggers.interaction_conditions]
    snapshot = activity.snapshot
    facts: dict[str, object] = {
        "id": activity.session,
        "message_count": activity.entries,
        "interaction_count": activity.turns,
        "tokens": sum(interaction.tokens for interaction in snapshot.interactions),
        "metadata": activity.metadata,
    }
    turns, met = {interaction.turn for interaction in interactions}, []
    for age, interaction in enumerate(reversed(uncovered(snapshot))):
        if interaction.turn in turns:
            index = activity.turns - 1 - age
            values = {"interaction": interaction_values(interaction.groups, index, age), "session": facts}
            if all(_is_met(rule, interaction, values, activity.meter, age) for rule in rules):
                met.append(interaction)
    return met[::-1]


def _is_met(
    rule: AppliedCondition, interaction: InteractionGroups, values: dict[str, dict[str, object]], meter: Meter, age: int
) -> bool:
    if not rule.condition.per_message:
        return rule.holds(values)
    members = interaction.entries
    for i, entry in enumerate(members):
        calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
        if rule.holds({**values, "message": message_values(entry, meter, calls, entry.seq - 1, age)}):
            return True
    return False


@lru_cache(maxsize=256)
def _parsed(text: str) -> Condition:
    return parse(text, "interaction_conditions")


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at.

    `meter` counts what conditions ask of messages; `session`, `metadata`, `entries` and `turns` are the session's id,
    what else is said of it, and how many entries and interactions it has had, for conditions. `input_tokens` is the
    provider's figure for the last call, or the count of the last context; None where there is none since the last
    compaction. `results` are the (tool name, status) of results appended since `snapshot.seen`; None takes those of
    the snapshot. `idle` are seconds since the last activity. `completed` says that an interaction has just completed,
    or a run has ended: only then all rules are looked at.
    """

    snapshot: Snapshot
    meter: Meter
    session: str = ""
    metadata: Mapping[str, Any] = {}
    entries: int = 0
    turns: int = 0
    input_tokens: int | None = None
    results: Sequence[tuple[str | None, str | None]] | None = None
    idle: float = 0.0
    completed: bool = True

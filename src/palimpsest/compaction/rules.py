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
    """What a rule has observed, and in which unit. A rule that is not `awake` stays quiet until something is new."""

    rule: str
    observed: float
    threshold: float
    op: Literal[">", ">="]
    awake: bool
    unit: str = ""

    @property
    def fired(self) -> bool:
        """Whether the rule holds and is awake."""
        if not self.awake:
            return False
        return self.observed > self.threshold if self.op == ">" else self.observed >= self.threshold


def readings(triggers: Triggers, activity: Activity, failures: dict[str, str]) -> Iterator[Observation]:
    """Yield what each enabled rule observes now, in the order in which decisions prefer them."""
    if activity.completed:
        yield from _interaction_readings(triggers, activity, failures)
        yield from _tool_readings(triggers, activity)
    yield from of_active_set(triggers, activity.snapshot)
    idle = triggers.idle_seconds or 0
    if idle > 0:
        yield Observation("idle_seconds", activity.idle, idle, ">=", _completed_since(activity.snapshot))


def _interaction_readings(triggers: Triggers, activity: Activity, failures: dict[str, str]) -> Iterator[Observation]:
    """Yield what the rules about calls and completed interactions observe."""
    snapshot = activity.snapshot
    awake = _completed_since(snapshot)
    limit = triggers.input_tokens_threshold or 0
    if limit > 0:
        yield Observation("input_tokens_threshold", activity.input_tokens or 0, limit, ">", awake)
    quantity, tokens = triggers.interaction_threshold_qty or 0, triggers.interaction_threshold_tokens or 0
    if quantity <= 0 and tokens <= 0:
        return
    counted = _passing(countable(snapshot), triggers, activity, failures)
    if quantity > 0:
        yield Observation("interaction_threshold_qty", len(counted), quantity, ">=", awake)
    if tokens > 0:
        yield Observation("interaction_threshold_tokens", measured(counted, snapshot.seen, tokens), tokens, ">", awake)


def _is_awake(snapshot: Snapshot) -> bool:
    """Whether a rule about tools may fire.

    These rules look only at new results anyway, so they have to be quiet only after a failed run.
    """
    return not snapshot.tried or _completed_since(snapshot)


def _tool_readings(triggers: Triggers, activity: Activity) -> Iterator[Observation]:
    """Yield what the rules about tools observe."""
    failure_statuses = {"error", "denied"} if triggers.denied_is_error else {"error"}
    for rule, statuses in (("on_tools_success_threshold", {"success"}), ("on_tools_error_threshold", failure_statuses)):
        patterns: tuple[str, ...] = getattr(triggers, rule)
        if patterns:
            matching = [
                name
                for name, status in _results(activity)
                if name and status in statuses and any(_matches(pattern, name) for pattern in patterns)
            ]
            yield Observation(rule, len(matching), 1, ">=", awake=_is_awake(activity.snapshot))


def of_active_set(triggers: Triggers, snapshot: Snapshot) -> Iterator[Observation]:
    """Yield what the rules observe that are checked after each append."""
    entries, tokens, messages = triggers.max_entries or 0, triggers.max_active_tokens or 0, triggers.message_count or 0
    has_new, has_new_completed = _new_group(snapshot, anywhere=True), _new_group(snapshot, anywhere=False)
    if entries > 0:
        yield Observation("max_entries", snapshot.entries, entries, ">", has_new, "entries")
    if tokens > 0:
        observed = snapshot.tokens if _old_tokens(snapshot) <= tokens else _new_tokens(snapshot)
        yield Observation("max_active_tokens", observed, tokens, ">", has_new, "tokens")
    if triggers.threshold is not None:
        if max_limit := triggers.max_tokens or snapshot.max_tokens:
            limit = values.part(triggers.threshold, max_limit)
            yield Observation(
                "threshold", _pressing_tokens(snapshot, limit, max_limit), limit, ">=", has_new_completed, "tokens"
            )
        if max_limit := triggers.max_messages or snapshot.max_messages:
            limit = values.part(triggers.threshold, max_limit)
            yield Observation("threshold", snapshot.messages, limit, ">=", has_new_completed, "messages")
    if messages > 0:
        yield Observation("message_count", snapshot.messages, messages, ">=", has_new_completed, "messages")


# --- what is new, and what was kept


def _quiet_since(snapshot: Snapshot) -> int:
    """Return from where on something is new to a rule that has fired: the last run, or the last failed one."""
    return max(snapshot.seen, snapshot.tried)


def _completed_since(snapshot: Snapshot) -> bool:
    """Whether an interaction has completed since the strategy last ran or failed."""
    since = _quiet_since(snapshot)
    return not since or any(_end_of(i) >= since for i in countable(snapshot))


def _new_group(snapshot: Snapshot, *, anywhere: bool) -> bool:
    """Whether a group that may leave is new; with `anywhere` also inside open interactions."""
    since = _quiet_since(snapshot)
    return not since or any(
        group.entries[-1].seq >= since and is_free(group, snapshot)
        for interaction in snapshot.interactions
        if anywhere or not interaction.open
        for group in interaction.groups
    )


def _end_of(interaction: InteractionGroups) -> int:
    return interaction.groups[-1].entries[-1].seq


def measured(counted: Sequence[InteractionGroups], seen: int, limit: int) -> int:
    """Return the tokens of these interactions, but only of new ones if the old ones exceed the limit alone.

    Old are those that the last run has seen, and kept.
    """
    kept = sum(interaction.tokens for interaction in counted if _end_of(interaction) < seen)
    newer = sum(interaction.tokens for interaction in counted if _end_of(interaction) >= seen)
    return newer if kept > limit else kept + newer


def _new_tokens(snapshot: Snapshot) -> int:
    return sum(group.cost for group in snapshot.groups if group.entries[-1].seq >= snapshot.seen)


def _old_tokens(snapshot: Snapshot) -> int:
    """Return the tokens of the active set that were there when the strategy last ran."""
    return snapshot.tokens - _new_tokens(snapshot) if snapshot.seen else 0


def _pressing_tokens(snapshot: Snapshot, limit: float, most: int) -> int:
    """Return the tokens that count against `limit`, a share of the hard limit `most`.

    If what the last run kept reaches the share alone, only new tokens count. Over the hard limit all of them count.
    """
    is_soft = snapshot.tokens <= most and _old_tokens(snapshot) >= limit
    return _new_tokens(snapshot) if is_soft else snapshot.tokens


# --- tools


def _results(activity: Activity) -> Sequence[tuple[str | None, str | None]]:
    """Return (tool name, status) of the results since the last run."""
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
    """Whether the name matches the pattern, in which `*` stands for any text. Compares each character at most once."""
    first, *middle_pieces = pattern.split("*")
    if not middle_pieces:
        return name == pattern
    last = middle_pieces.pop()
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in middle_pieces:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


# --- conditions


def _passing(
    interactions: list[InteractionGroups], triggers: Triggers, activity: Activity, failures: dict[str, str]
) -> list[InteractionGroups]:
    """Return the interactions that meet all conditions. A condition on messages is met if any message meets it."""
    if not triggers.interaction_conditions:
        return interactions
    rules = [AppliedCondition(_parsed(text), False, failures) for text in triggers.interaction_conditions]
    snapshot = activity.snapshot
    session_values: dict[str, object] = {
        "id": activity.session,
        "message_count": activity.entries,
        "interaction_count": activity.turns,
        "tokens": sum(interaction.tokens for interaction in snapshot.interactions),
        "metadata": activity.metadata,
    }
    turns, passing = {interaction.turn for interaction in interactions}, []
    for age, interaction in enumerate(reversed(uncovered(snapshot))):
        if interaction.turn in turns:
            index = activity.turns - 1 - age
            values = {"interaction": interaction_values(interaction.groups, index, age), "session": session_values}
            if all(_is_met(rule, interaction, values, activity.meter, age) for rule in rules):
                passing.append(interaction)
    return passing[::-1]


def _is_met(
    rule: AppliedCondition, interaction: InteractionGroups, values: dict[str, dict[str, object]], meter: Meter, age: int
) -> bool:
    """Whether an interaction, or any message of it, meets the condition."""
    if not rule.condition.per_message:
        return rule.holds(values)
    members = interaction.entries
    for i, entry in enumerate(members):
        has_calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
        if rule.holds({**values, "message": message_values(entry, meter, has_calls, entry.seq - 1, age)}):
            return True
    return False


@lru_cache(maxsize=256)
def _parsed(text: str) -> Condition:
    return parse(text, "interaction_conditions")


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at.

    `meter` counts tokens for conditions on messages. `session`, `metadata`, `entries` and `turns` are the session's id
    and metadata and how many entries and interactions it has had, for conditions. `input_tokens` is the provider's
    figure for the last call, or the count of the last context; None if there was none since the last compaction.
    `results` are the (tool name, status) of results appended since `snapshot.seen`; None: take those of the snapshot.
    `idle` is the seconds since the last activity. `completed` says that an interaction has just completed, or a run has
    ended: only then are all rules checked.
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

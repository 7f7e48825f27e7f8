"""The short-term strategy `max_tokens`: which interactions a context holds, and what its conditions drop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from palimpsest.context.conditions import Condition, parse
from palimpsest.context.cut import OVERSIZE, Oversize
from palimpsest.context.groups import Group, Meter, by_interaction
from palimpsest.context.window import message_values, without
from palimpsest.errors import ConditionFailed, ConfigError, nearest
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head

CUTS = ("exact", "low_water")
GAPS = ("stop", "skip")


class MaxTokens(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Keep the newest interactions whose tokens fit.

    Args:
        memory_strategy_id: always "max_tokens".
        memory_max_tokens: the budget in tokens, system text and tools included; -1 and 0: no interaction, None: no
            limit. 10,000 by default.
        conditions: expressions that entries must meet, all of them.
        gap: "stop" (default) at the first interaction that does not fit, or "skip" it.
        oversize: what becomes of a newest interaction that alone does not fit: "clamp" (default), "drop", "error" or
            "keep_newest".
        count_pinned: whether pinned entries take from this budget; True by default.
        cut: "exact" (default) walks anew at every call; "low_water" keeps the window until it is full and then cuts
            deep.
        strict: whether an error in a condition raises instead of keeping the message; False by default.
    """

    memory_strategy_id: Literal["max_tokens"] = "max_tokens"
    memory_max_tokens: int | None = 10_000
    conditions: tuple[str, ...] = ()
    gap: Literal["stop", "skip"] = "stop"
    oversize: Oversize = "clamp"
    count_pinned: bool = True
    cut: Literal["exact", "low_water"] = "exact"
    strict: bool = False


_FIELDS = MaxTokens.__struct_fields__


def load(block: MaxTokens | Mapping[str, Any], where: str) -> tuple[MaxTokens, list[str]]:
    """Check a block, and return the strategy that it describes, with warnings. Raises ConfigError naming the key."""
    if isinstance(block, MaxTokens):
        fields: dict[str, Any] = {name: getattr(block, name) for name in _FIELDS}
    elif isinstance(block, Mapping):
        fields = dict(block)
    else:
        raise ConfigError(where, block, "a MaxTokens or a mapping of its fields")
    if "long_term_memory_id" in fields:  # which summarises or erases, and limits no context
        allowed_place = "this block under long_term (in a file: long_term_memory_strategy)"
        raise ConfigError(f"{where}.long_term_memory_id", fields["long_term_memory_id"], allowed_place)
    for name in fields:
        if name not in _FIELDS:
            raise ConfigError(f"{where}.{name}", name, ", ".join(_FIELDS), nearest=nearest(name, _FIELDS))
    conditions = () if fields.get("conditions") is None else fields["conditions"]
    if isinstance(conditions, str) or not isinstance(conditions, Sequence):
        raise ConfigError(f"{where}.conditions", conditions, "a list of expressions")
    fields["conditions"] = tuple(conditions)
    for i, text in enumerate(fields["conditions"]):
        parse(text, f"{where}.conditions[{i}]")
    limit = fields.get("memory_max_tokens", 10_000)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < -1):
        raise ConfigError(f"{where}.memory_max_tokens", limit, "a whole number of at least -1, or None")
    for name, allowed in (
        ("gap", GAPS),
        ("oversize", OVERSIZE),
        ("cut", CUTS),
        ("memory_strategy_id", ("max_tokens",)),
    ):
        value = fields.get(name, getattr(MaxTokens(), name))
        if not isinstance(value, str) or value not in allowed:
            raise ConfigError(f"{where}.{name}", value, ", ".join(allowed), nearest=nearest(value, allowed))
    for name in ("count_pinned", "strict"):
        if not isinstance(fields.get(name, False), bool):
            raise ConfigError(f"{where}.{name}", fields[name], "True or False")
    if "memory_strategy_id" not in fields:
        raise ConfigError(f"{where}.memory_strategy_id", None, '"max_tokens", the kind of the block')
    warnings = [f"{where}: memory_max_tokens is 0, so no interaction is included"] if limit == 0 else []
    return MaxTokens(**fields), warnings


class AppliedCondition:
    """A condition as a session applies it: if it cannot be evaluated, the entry is kept and the failure is remembered.

    With `strict` the failure raises. `failures` maps the text of a failed condition to its first message.
    """

    def __init__(self, condition: Condition, strict: bool, failures: dict[str, str]) -> None:
        self.condition, self._strict, self._failures = condition, strict, failures

    def holds(self, values: Mapping[str, Mapping[str, object]]) -> bool:
        """Whether the entry meets the condition. True if it cannot be evaluated, unless `strict`."""
        try:
            return self.condition.holds(values)
        except ConditionFailed as failure:
            if self._strict:
                raise
            self._failures.setdefault(self.condition.text, str(failure))
            return True


def applied(conditions: Iterable[str], failures: dict[str, str], *, strict: bool = False) -> list[AppliedCondition]:
    """Parse conditions for use; `failures` collects those that cannot be evaluated."""
    return [AppliedCondition(parse(text), strict, failures) for text in conditions]


def sift(
    groups: Sequence[Group], rules: Iterable[AppliedCondition], head: Head, meter: Meter, session: str
) -> list[tuple[int, int]]:
    """Return the entries of these groups that the conditions drop, as ranges of `seq`.

    Conditions that name a message are evaluated for each message, the others for whole interactions. Exempt are system
    messages, groups with a pinned entry, and the human message of an open interaction.
    """
    rules = list(rules)
    if not rules:
        return []
    interactions = by_interaction(groups)
    session_values = {
        "id": session,
        "message_count": head.entries,
        "interaction_count": head.turns,
        "tokens": sum(group.cost for group in groups),
        "metadata": head.metadata,
    }
    dropped_seqs: set[int] = set()
    for age, interaction in enumerate(reversed(interactions)):
        index = head.turns - 1 - age if interaction[0].turn else -1
        values = {"interaction": interaction_values(interaction, index, age), "session": session_values}
        members = [entry for group in interaction for entry in group.entries]
        last = members[-1]
        is_open = not (last.kind == "message" and last.role == "assistant")
        pinned = {group.seq for group in interaction if any(_is_pinned(entry, head) for entry in group.entries)}
        interaction_holds = all(rule.holds(values) for rule in rules if not rule.condition.per_message)
        for i, entry in enumerate(members):
            if entry.group in pinned or (entry.is_human and is_open):
                continue
            has_calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
            values["message"] = message_values(entry, meter, has_calls, entry.seq - 1, age)
            if not interaction_holds or not all(rule.holds(values) for rule in rules if rule.condition.per_message):
                dropped_seqs.add(entry.seq)
    for group in groups:
        if not dropped_seqs.isdisjoint(entry.seq for entry in group.entries):
            dropped_entries: list[tuple[Entry, str]] = []
            without(group.entries, dropped_seqs, dropped_entries)
            dropped_seqs |= {entry.seq for entry, _ in dropped_entries}
    return list(spans.of(dropped_seqs))


def _is_pinned(entry: Entry, head: Head) -> bool:
    return entry.pinned or entry.seq in head.pinned or (entry.kind == "message" and entry.role == "system")


def interaction_values(groups: Sequence[Group], index: int, age: int) -> dict[str, object]:
    """Return what a condition may see of one interaction. `age` is 0 for the newest, `index` -1 for the preamble."""
    members = [entry for group in groups for entry in group.entries]
    results = [entry for entry in members if entry.kind == "tool_result"]
    calls = [entry for entry in members if entry.kind == "tool_call"]
    human = next((entry for entry in members if entry.is_human), members[0])
    return {
        "index": index,
        "age": age,
        "tokens": sum(group.cost for group in groups),
        "message_count": len(members),
        "tool_names": sorted({entry.name for entry in calls if entry.name}),
        "tool_errors": sum(entry.status == "error" for entry in results),
        "has_tools": bool(calls),
        "started_at": members[0].at / 1_000_000,
        "ended_at": members[-1].at / 1_000_000,
        "metadata": human.metadata or {},
    }


def chosen(short_term: Any, conditions: Sequence[str], oversize: str) -> tuple[tuple[MaxTokens, ...], list[str], bool]:
    """Return the strategies that a session's options select, their warnings, and whether contexts walk the log anew.

    Raises ConfigError, naming the option, for options that contradict each other or are invalid.
    """
    if short_term and conditions:
        raise ConfigError("conditions", conditions, "none beside short_term: give them inside of it")
    if not short_term:
        native = {"memory_strategy_id": "max_tokens", "memory_max_tokens": None, "cut": "low_water"}
        blocks: list[Any] = [{**native, "conditions": conditions, "oversize": oversize}]
        where = ""
    else:
        blocks = [short_term] if isinstance(short_term, MaxTokens | Mapping | str) else short_term
        if not isinstance(blocks, Sequence):
            raise ConfigError("short_term", short_term, "a strategy, a mapping, or a list of these")
        where = "short_term"
    loaded = [load(block, f"{where}[{i}]" if where else "session") for i, block in enumerate(blocks)]
    strategies = tuple(strategy for strategy, _ in loaded)
    cuts = {strategy.cut for strategy in strategies}
    if len(cuts) > 1:
        raise ConfigError("short_term", sorted(cuts), "the same kind of cut for all strategies")
    return strategies, [text for _, warnings in loaded for text in warnings], cuts == {"exact"}

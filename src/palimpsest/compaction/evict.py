"""Strategies that evict whole groups to the archive: simple_fifo, lru, token_aware_lru. Pure.

The last remaining group always stays. Evicted groups can still be recalled, and a summarizing strategy may cover them
later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import Triggered, check_keep, check_limits, low
from palimpsest.compaction.selecting import cost, count, has_news, is_fixed, outside, spans_of
from palimpsest.context.cut import Room
from palimpsest.context.groups import Group
from palimpsest.log import values


class _Evicting(Triggered, frozen=True, kw_only=True):
    """Evicts groups down to low water, in an order that subclasses define.

    `low_water` is a share of `max_tokens` and `max_messages`, which replace the session's limits if given. The newest
    `interaction_keep` completed interactions stay, reduced in whole groups to `recent_tokens`.
    """

    interaction_keep: int = 0
    recent_tokens: int | None = None
    low_water: float = 0.5
    max_tokens: int | None = None
    max_messages: int | None = None

    def __post_init__(self) -> None:
        Triggered.__post_init__(self)
        check_limits(self)
        check_keep(self.interaction_keep, self.triggers)
        values.whole("recent_tokens", self.recent_tokens, none=True)

    def leaving(self, snapshot: Snapshot) -> list[Group]:
        """Return the groups of the `snapshot` that may leave, oldest first."""
        return outside(snapshot, self.interaction_keep, self.recent_tokens)

    def down(self, snapshot: Snapshot, order: Iterable[Group], why: str, without_limit: int) -> Plan:
        """Evict groups of the `snapshot` in this `order` down to low water; `why` is reported.

        Without a limit `without_limit` messages stay, provided that something is new since the last run.
        """
        target = low(self, snapshot)
        if target == Room(None, None) and has_news(snapshot):
            target = Room(None, without_limit + len(snapshot.summaries))
        return evicting(down_to(snapshot, order, target), why, target)


class SimpleFifo(_Evicting, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict the oldest groups first, down to low water; if messages are not limited, at least a quarter of them.

    The quarter is evicted only if something is new since the last run.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 0 by default.
        recent_tokens: the most tokens of what stays, which shrinks in whole groups; None: any number.
        low_water: the share of the limits to go down to, over 0 and under 1; 0.5 by default.
        max_tokens: the limit of the active set in tokens; None: the session's limit.
        max_messages: the limit of the active set in messages; None: the session's limit.
        triggers: when the strategy runs by itself; by default no rule is on.
        name: its name in results and events; its last run is remembered by it, so each strategy of a session needs its
            own.
    """

    name: str = "simple_fifo"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which groups of the `snapshot` to evict."""
        target = low(self, snapshot)
        if target.messages is None and has_news(snapshot):
            target = Room(target.tokens, snapshot.messages - _messages(snapshot) // 4)
        return evicting(down_to(snapshot, self.leaving(snapshot), target), "the oldest first", target)


class Lru(_Evicting, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict first what was accessed longest ago. A group counts as its latest access; of equal groups the oldest goes.

    Without any limit half of the messages are evicted, if something is new since the last run.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 0 by default.
        recent_tokens: the most tokens of what stays, which shrinks in whole groups; None: any number.
        low_water: the share of the limits to go down to, over 0 and under 1; 0.5 by default.
        max_tokens: the limit of the active set in tokens; None: the session's limit.
        max_messages: the limit of the active set in messages; None: the session's limit.
        triggers: when the strategy runs by itself; by default no rule is on.
        name: its name in results and events; its last run is remembered by it, so each strategy of a session needs its
            own.
    """

    name: str = "lru"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which groups of the `snapshot` to evict."""
        order = sorted(self.leaving(snapshot), key=lambda group: _accessed(group, snapshot))
        return self.down(snapshot, order, "the least recently accessed first", _messages(snapshot) // 2)


class TokenAwareLru(_Evicting, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict first what has the largest product of staleness and tokens; of equal groups the oldest goes first.

    Staleness is one more than the ticks of the access clock since the last access. Without any limit half of the
    messages are evicted, if something is new since the last run.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 0 by default.
        recent_tokens: the most tokens of what stays, which shrinks in whole groups; None: any number.
        low_water: the share of the limits to go down to, over 0 and under 1; 0.5 by default.
        max_tokens: the limit of the active set in tokens; None: the session's limit.
        max_messages: the limit of the active set in messages; None: the session's limit.
        triggers: when the strategy runs by itself; by default no rule is on.
        name: its name in results and events; its last run is remembered by it, so each strategy of a session needs its
            own.
    """

    name: str = "token_aware_lru"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which groups of the `snapshot` to evict."""
        after = snapshot.clock + 1
        order = sorted(self.leaving(snapshot), key=lambda group: (_accessed(group, snapshot) - after) * group.cost)
        return self.down(snapshot, order, "the largest staleness x tokens first", _messages(snapshot) // 2)


def evicting(groups: Sequence[Group], why: str, target: Room) -> Plan:
    """Return the plan that evicts these groups."""
    if not groups:
        return Plan(reason="nothing_to_compact")
    step = Step("evict", count(groups), cost(groups), f"{why}, down to {described(target)}")
    return Plan(evict=spans_of(groups), steps=(step,))


def down_to(snapshot: Snapshot, order: Iterable[Group], target: Room) -> list[Group]:
    """Return the groups to evict, in this order, until the rest fits. At least one group that is not fixed remains."""
    tokens, messages = snapshot.tokens, snapshot.messages
    remaining = sum(not is_fixed(group, snapshot) for group in snapshot.groups)
    chosen: list[Group] = []
    for group in order:
        if remaining <= 1 or target.holds(tokens, messages):
            break
        chosen.append(group)
        tokens, messages, remaining = tokens - group.cost, messages - group.messages, remaining - 1
    return chosen


def described(room: Room) -> str:
    """Return the target as words."""
    limits = [
        f"{size} {unit}" for size, unit in ((room.messages, "messages"), (room.tokens, "tokens")) if size is not None
    ]
    return " and ".join(limits) or "what there is"


def _accessed(group: Group, snapshot: Snapshot) -> int:
    return max(snapshot.accessed.get(entry.seq, entry.seq) for entry in group.entries)


def _messages(snapshot: Snapshot) -> int:
    """Return how many messages are active, without summaries, which are not evicted."""
    return snapshot.messages - len(snapshot.summaries)

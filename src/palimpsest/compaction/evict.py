"""Strategies that evict whole groups to the archive: simple_fifo, lru, token_aware_lru. Pure.

The last remaining group always stays. What is evicted stays recallable, and a summarizing strategy may cover it later.
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
    """Evicts groups, in an order of its own, down to low water.

    `low_water` is a share of `max_tokens` and `max_messages`, which stand in for the session's limits where given. The
    newest `interaction_keep` completed interactions stay, shrunk in whole groups to `recent_tokens`.
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
        """Return the groups of `snapshot` that may leave, oldest first."""
        return outside(snapshot, self.interaction_keep, self.recent_tokens)

    def down(self, snapshot: Snapshot, order: Iterable[Group], why: str, unlimited: int) -> Plan:
        """Evict from `snapshot`, in this `order`, to low water; `why` is told.

        Without a limit `unlimited` messages stay, where anything is new.
        """
        target = low(self, snapshot)
        if target == Room(None, None) and has_news(snapshot):
            target = Room(None, unlimited + len(snapshot.summaries))
        return evicting(down_to(snapshot, order, target), why, target)


class SimpleFifo(_Evicting, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict the oldest first: down to low water, and where messages are not limited at least a quarter of them.

    The quarter goes only where something is new since the last run.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 0 by default.
        recent_tokens: tokens that what stays shrinks to, in whole groups; None: it does not.
        low_water: the share of the limits that it goes down to, over 0 and under 1; 0.5 by default.
        max_tokens: tokens of the active set in the place of the session's limit; None: that one.
        max_messages: messages of the active set in the place of the session's limit; None: that one.
        triggers: when it runs by itself; by default no rule is on.
        name: how results and events call it, and by what its last run is remembered: two of one session need two names.
    """

    name: str = "simple_fifo"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which groups go, of `snapshot`."""
        target = low(self, snapshot)
        if target.messages is None and has_news(snapshot):
            target = Room(target.tokens, snapshot.messages - _messages(snapshot) // 4)
        return evicting(down_to(snapshot, self.leaving(snapshot), target), "the oldest first", target)


class Lru(_Evicting, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict first what was accessed longest ago; a group is as fresh as its freshest member, ties go oldest first.

    Without any limit half of the messages go, where something is new since the last run.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 0 by default.
        recent_tokens: tokens that what stays shrinks to, in whole groups; None: it does not.
        low_water: the share of the limits that it goes down to, over 0 and under 1; 0.5 by default.
        max_tokens: tokens of the active set in the place of the session's limit; None: that one.
        max_messages: messages of the active set in the place of the session's limit; None: that one.
        triggers: when it runs by itself; by default no rule is on.
        name: how results and events call it, and by what its last run is remembered: two of one session need two names.
    """

    name: str = "lru"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which groups go, of `snapshot`."""
        order = sorted(self.leaving(snapshot), key=lambda group: _accessed(group, snapshot))
        return self.down(snapshot, order, "what was accessed longest ago first", _messages(snapshot) // 2)


class TokenAwareLru(_Evicting, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict first what has the largest product of staleness and tokens; ties go oldest first.

    Staleness is how far the access clock has moved on since the last access, and one more. Without any limit half of
    the messages go, where something is new since the last run.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 0 by default.
        recent_tokens: tokens that what stays shrinks to, in whole groups; None: it does not.
        low_water: the share of the limits that it goes down to, over 0 and under 1; 0.5 by default.
        max_tokens: tokens of the active set in the place of the session's limit; None: that one.
        max_messages: messages of the active set in the place of the session's limit; None: that one.
        triggers: when it runs by itself; by default no rule is on.
        name: how results and events call it, and by what its last run is remembered: two of one session need two names.
    """

    name: str = "token_aware_lru"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which groups go, of `snapshot`."""
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
    """Return the groups that leave, in this order, until what remains fits; one group that is not fixed remains."""
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
    """The target, in words."""
    said = [
        f"{size} {unit}" for size, unit in ((room.messages, "messages"), (room.tokens, "tokens")) if size is not None
    ]
    return " and ".join(said) or "what there is"


def _accessed(group: Group, snapshot: Snapshot) -> int:
    return max(snapshot.accessed.get(entry.seq, entry.seq) for entry in group.entries)


def _messages(snapshot: Snapshot) -> int:
    """How many messages are active, summaries apart, which are not evicted."""
    return snapshot.messages - len(snapshot.summaries)

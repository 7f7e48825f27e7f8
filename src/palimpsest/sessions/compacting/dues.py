"""Rules that decide from a loaded session whether a look or a compaction is due, and a look that waits. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from palimpsest.compaction import TriggerDecision
from palimpsest.compaction.selecting import uncovered
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.sessions.compacting.snapshot import Loaded, is_complete


class PendingLook:
    """A look that waits in the background. It serves all callers that asked for one before it begins."""

    def __init__(self) -> None:
        self.completed, self.since = False, 0
        self.then: Callable[[], Awaitable[object]] | None = None

    def add(self, completed: bool, since: int, then: Callable[[], Awaitable[object]] | None) -> None:
        """Add what one more caller wants."""
        self.completed |= completed
        self.since, self.then = self.since or since, self.then or then


def completes(head: Head, entries: Sequence[Entry]) -> bool:
    """Whether an append completed an interaction: it ends with a message of the assistant, and nothing is left open."""
    last = entries[-1]
    return last.kind == "message" and last.role == "assistant" and not (head.calls or head.reasoning or head.pauses)


def high_water(loaded: Loaded) -> TriggerDecision:
    """Return a decision that fires if the log exceeds its room, or was cut since the last compaction."""
    tokens, room = loaded.snapshot.tokens, loaded.snapshot.max_tokens
    fired = bool(loaded.archived) or (room is not None and tokens > room)
    return TriggerDecision(fired=fired, rule="high_water", observed=tokens, threshold=room or 0, op=">")


def overtaken(loaded: Loaded, since: int) -> bool:
    """Whether a human message at or after `since` (a `seq`; 0: none) ended an interaction that has no answer."""
    if not since:
        return False
    interactions = [interaction for interaction in uncovered(loaded.snapshot) if interaction.turn]
    return any(later.turn >= since and not is_complete(earlier.groups) for earlier, later in pairwise(interactions))


def idle_before(loaded: Loaded, since: int) -> float:
    """Return the seconds between the newest loaded entry before `since` and that at `since`; 0 if one is missing."""
    first, before = loaded.entries.get(since), [seq for seq in loaded.entries if seq < since]
    return max(first.at - loaded.entries[max(before)].at, 0) / 1e6 if first is not None and before else 0.0


def input_tokens_of(head: Head) -> int | None:
    """Return the input tokens that the provider reported for the last call, or the size of the last context if that is
    newer. None if there is neither since the last compaction."""
    usage, prompt = head.usage, head.prompt
    if usage is not None and not usage.stale and (prompt is None or usage.revision >= prompt.revision):
        return usage.input_tokens
    return prompt.tokens if prompt is not None else None

"""What a session, as it was loaded, says of whether something is due. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from palimpsest.compaction import TriggerDecision
from palimpsest.compaction.selecting import uncovered
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.sessions.compacting.snapshot import Loaded, is_complete


def completes(head: Head, entries: Sequence[Entry]) -> bool:
    """Whether an append has completed an interaction: its last entry is an answer, and nothing is still open."""
    last = entries[-1]
    return last.kind == "message" and last.role == "assistant" and not (head.calls or head.reasoning or head.pauses)


def high_water(loaded: Loaded) -> TriggerDecision:
    """Whether the session holds more than its room, or has been cut since it was compacted last."""
    tokens, room = loaded.snapshot.tokens, loaded.snapshot.max_tokens
    fired = bool(loaded.archived) or (room is not None and tokens > room)
    return TriggerDecision(fired=fired, rule="high_water", observed=tokens, threshold=room or 0, op=">")


def overtaken(loaded: Loaded, since: int) -> bool:
    """Whether a human message at or after `since` (a `seq`; 0: none) has completed an interaction without an answer."""
    if not since:
        return False
    told = [interaction for interaction in uncovered(loaded.snapshot) if interaction.turn]
    return any(later.turn >= since and not is_complete(one.groups) for one, later in pairwise(told))


def idle_before(loaded: Loaded, since: int) -> float:
    """Seconds that went by before the append at `since`, as far as what was read goes back."""
    first, before = loaded.entries.get(since), [seq for seq in loaded.entries if seq < since]
    return max(first.at - loaded.entries[max(before)].at, 0) / 1e6 if first is not None and before else 0.0


def input_tokens_of(head: Head) -> int | None:
    """The provider's figure for the last call, else what was counted for the last context; None where there is none
    since the last compaction."""
    usage, prompt = head.usage, head.prompt
    if usage is not None and not usage.stale and (prompt is None or usage.revision >= prompt.revision):
        return usage.input_tokens
    return prompt.tokens if prompt is not None else None

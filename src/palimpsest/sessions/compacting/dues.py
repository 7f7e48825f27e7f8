"""What a session, as it was loaded, says of whether something is due. Pure."""

from __future__ import annotations

from itertools import pairwise

from palimpsest.compaction import TriggerDecision
from palimpsest.compaction.selecting import uncovered
from palimpsest.sessions.compacting.snapshot import Loaded, is_complete


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

"""How an item that is too large is shortened: to which size, and where its text is cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.context.groups import Meter, clamp_text
from palimpsest.formats.fences import guard
from palimpsest.log.entry import Entry, Reasoning, Text
from palimpsest.log.head import Clamp

HEAD_SHARE = 0.7
"""Of a clamped text, the share of characters kept from its beginning: what something is stands there."""


def may_clamp(entry: Entry) -> bool:
    """Whether the entry may be shortened: not what a human or the system says, and no message with media."""
    if entry.is_human or (entry.kind == "message" and entry.role == "system"):
        return False
    if isinstance(entry.content, str) or entry.kind != "message":
        return True
    return all(isinstance(part, Text | Reasoning) for part in entry.content)


def level(costs: Sequence[int], free: int) -> int:
    """The most that each item may cost so that all fit into `free`: what small ones leave goes to the others."""
    for i, cost in enumerate(sorted(costs)):
        share = max(free, 0) // (len(costs) - i)
        if cost > share:
            return share
        free -= cost
    return max(costs, default=0)


def shortened(entry: Entry, limit: int, meter: Meter) -> Clamp | None:
    """Return the clamp that makes the entry cost at most `limit` tokens, or as near as its marker allows.

    None where that saves nothing.
    """
    count = meter.counter.count
    text = entry.text if entry.kind == "tool_call" else guard(entry.text)
    total = meter.texts(entry)
    name = count(entry.name) if entry.kind in ("message", "tool_call") and entry.name else 0
    room = max(limit - meter.overhead(entry) - name, 0)
    keep = len(text) * room // max(total, 1)
    while True:
        head = int(keep * HEAD_SHARE)
        tail = keep - head
        left_out = max(total - count(text[:head]) - (count(text[len(text) - tail :]) if tail else 0), 0)
        clamp = Clamp(entry.seq, head, tail, left_out, 0)
        cost = count(clamp_text(entry, clamp))
        if cost <= room or keep == 0:
            break
        keep = min(keep * room // cost, keep - 1)
    return Clamp(entry.seq, head, tail, left_out, cost + name) if cost + name < meter.cost(entry) else None

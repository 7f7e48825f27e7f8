"""Shorten an item that is too large: to which size, and which parts of its text are kept. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.context.groups import Meter
from palimpsest.formats.fences import guard
from palimpsest.formats.wording import clamp_name, clamp_text
from palimpsest.log.entry import Entry, Reasoning, Text
from palimpsest.log.head import Clamp

HEAD_SHARE = 0.7
"""Share of the kept characters that come from the beginning of a clamped text, which says what the text is."""


def may_clamp(entry: Entry) -> bool:
    """Whether the entry may be shortened: no human or system message, and no message with media."""
    if entry.is_human or (entry.kind == "message" and entry.role == "system"):
        return False
    if isinstance(entry.content, str) or entry.kind != "message":
        return True
    return all(isinstance(part, Text | Reasoning) for part in entry.content)


def level(costs: Sequence[int], free: int) -> int:
    """Return the largest cost per item with which all items fit into `free`.

    What items below that level leave unused goes to the larger ones.
    """
    for i, cost in enumerate(sorted(costs)):
        share = max(free, 0) // (len(costs) - i)
        if cost > share:
            return share
        free -= cost
    return max(costs, default=0)


def shortened(entry: Entry, limit: int, meter: Meter) -> Clamp | None:
    """Return the clamp with which the entry costs at most `limit` tokens, or as near as the marker allows.

    None if that saves nothing.
    """
    count = meter.counter.count
    text = entry.text if entry.kind == "tool_call" else guard(entry.text)
    total = meter.texts(entry)
    name = count(clamp_name(entry))
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
    fitted = Clamp(entry.seq, head, tail, left_out, cost + name, meter.counter.name)
    return fitted if cost + name < meter.cost(entry) else None

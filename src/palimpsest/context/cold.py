"""When a cut breaks no cached prefix: the provider has forgotten what it was sent. Pure.

A cache lives so long since the last call, and a call was made before its answer was written. So the newest answer says,
in whatever process it was added, how long ago the last call was at least; nothing else is kept for it. One cut is made
for a cold cache, and no other until the model has answered.
"""

from __future__ import annotations

from palimpsest.context.budget import Shares
from palimpsest.context.layout import Layout

COLD_WATER = 0.5
"""Share of the limit that a cut goes down to when the provider's cache is cold, unless `low_water` is more: it lowers
the bill by more than a tenth, and the model sees about as much dialogue as without, or more (`bench/cache_bill.py`)."""


def cold_share(layout: Layout, life: int | None, now: int, low: float) -> float | None:
    """The share of its limits that a context may take before it is cut, as the cache is cold; None: it is not.

    `life` is for how many microseconds the cache holds what it was sent (None: for ever), `low` the share that any cut
    goes down to.
    """
    if life is None or layout.budget is None:
        return None
    answer = layout.answer
    if answer is None or now - answer.at <= life or layout.cut.revision > answer.revision:
        return None
    return cold_level(low)


def cold_level(low: float) -> float:
    """The share of its limits that a context goes down to while the cache is cold."""
    return max(low, COLD_WATER)


def is_crowded(layout: Layout, shares: Shares) -> bool:
    """Whether entries with a tag take more than their share."""
    if not shares:
        return False
    from palimpsest.context.shares import is_over  # only for who has shares

    return is_over(layout, shares)


def holds(layout: Layout, share: float | None, shares: Shares) -> bool:
    """Whether what is shown fits, and is within this share of its limits (None: all of them), and within those of
    tags."""
    if is_crowded(layout, shares):
        return False
    if share is None or layout.budget is None or not layout.fits:
        return layout.fits
    return layout.within(*layout.budget.down_to(share))

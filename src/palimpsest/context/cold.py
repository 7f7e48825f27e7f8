"""Decide when the provider's prompt cache is cold, so that a cut breaks no cached prefix. Pure.

A cache entry lives for a fixed time after the last call, and a call is made before its answer is written. So the time
of the newest answer in the log bounds the age of the cache, whichever process added it, and nothing else has to be
stored. A cold cache is worth one cut; the next such cut waits until the model has answered again.
"""

from __future__ import annotations

from palimpsest.context.budget import Shares
from palimpsest.context.layout import Layout

COLD_WATER = 0.5
"""Share of the limit that a cut goes down to while the provider's cache is cold, unless `low_water` is larger. This
lowers the bill by more than a tenth, and the model sees about as much dialogue as without such cuts, or more
(`bench/cache_bill.py`)."""


def cold_share(layout: Layout, life: int | None, now: int, low: float) -> float | None:
    """Return the share of its limits that a context may take while the cache is cold (None: it is not cold).

    `life` is how long the cache keeps what it was sent, in microseconds (None: for ever). `low` is the share that any
    cut goes down to.
    """
    if life is None or layout.budget is None:
        return None
    answer = layout.answer
    if answer is None or now - answer.at <= life or layout.cut.revision > answer.revision:
        return None
    return cold_level(low)


def cold_level(low: float) -> float:
    """Return the share of its limits that a context goes down to while the cache is cold."""
    return max(low, COLD_WATER)


def is_crowded(layout: Layout, shares: Shares) -> bool:
    """Whether the entries of some tag take more than its share."""
    if not shares:
        return False
    from palimpsest.context.shares import is_over  # imported only for sessions with tag shares

    return is_over(layout, shares)


def holds(layout: Layout, share: float | None, shares: Shares) -> bool:
    """Whether what is shown fits its room, this share of its limits (None: all of them), and the shares of its tags."""
    if is_crowded(layout, shares):
        return False
    if share is None or layout.budget is None or not layout.fits:
        return layout.fits
    return layout.within(*layout.budget.down_to(share))

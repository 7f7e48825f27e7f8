"""Shares of the budget that entries with a tag may take, whatever else has room. Pure.

An entry has the tags that its metadata says: `tags`, a text or a list of texts. Its group counts for each of them. What
is pinned, and the human message of the newest interaction, are exempt.
"""

from __future__ import annotations

import msgspec

from palimpsest.context.budget import Shares
from palimpsest.context.groups import Group
from palimpsest.context.layout import Layout
from palimpsest.log import spans, values
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head


def is_over(layout: Layout, shares: Shares) -> bool:
    """Whether entries with one of these tags take more than its share."""
    return any(_over(layout, tag, share) for tag, share in shares)


def within_shares(layout: Layout, cut: Cut, shares: Shares, part: float) -> Cut:
    """The cut without the oldest groups of each tag that takes more than its share, down to this `part` of the share:
    else each further one would make a cut of its own."""
    gone = set[int]()
    for tag, share in shares:
        if not _over(layout, tag, share):
            continue
        groups = _tagged(layout, tag)
        left = sum(group.cost for group in groups)
        for group in groups:
            if left <= int(_most(layout, share) * part):
                break
            left -= group.cost
            gone.update(entry.seq for entry in group.entries)
    if not gone:
        return cut
    return msgspec.structs.replace(cut, gone=tuple(sorted({*cut.gone, *spans.of(gone)})))


def _most(layout: Layout, share: float) -> int:
    return int(values.part(share, layout.budget.counted_limit)) if layout.budget is not None else 0


def _over(layout: Layout, tag: str, share: float) -> bool:
    if layout.budget is None:
        return False
    return sum(group.cost for group in _tagged(layout, tag)) > _most(layout, share)


def _tagged(layout: Layout, tag: str) -> list[Group]:
    """The groups of the window that have this tag, and no right to stay, oldest first."""
    return [
        group
        for group in layout.window.groups
        if any(_has(entry, tag) for entry in group.entries)
        and not any(_stays(entry, layout.head) for entry in group.entries)
    ]


def _has(entry: Entry, tag: str) -> bool:
    given = (entry.metadata or {}).get("tags")
    return tag in given if isinstance(given, list) else given == tag


def _stays(entry: Entry, head: Head) -> bool:
    return entry.role == "system" or entry.seq in head.pinned or entry.seq == head.turn

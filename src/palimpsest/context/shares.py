"""Shares of the budget that entries with a tag may take, whatever else has room. Pure.

The tags of an entry are in its metadata under `tags`, as a text or a list of texts. A group counts for each tag of its
entries. Pinned entries, system messages and the human message of the newest interaction are exempt.
"""

from __future__ import annotations

import msgspec

from palimpsest.context.budget import Shares
from palimpsest.context.groups import Group
from palimpsest.context.layout import Layout
from palimpsest.context.leaving import has_tag
from palimpsest.log import spans, values
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head


def is_over(layout: Layout, shares: Shares) -> bool:
    """Whether the entries of any of these tags take more than its share."""
    return any(_is_tag_over(layout, tag, share) for tag, share in shares)


def within_shares(layout: Layout, cut: Cut, shares: Shares, part: float) -> Cut:
    """Leave out the oldest groups of each tag that exceeds its share, down to this `part` of the share.

    Stopping at the full share would let each further group make a cut.
    """
    gone = set[int]()
    for tag, share in shares:
        if not _is_tag_over(layout, tag, share):
            continue
        groups = _tagged(layout, tag)
        remaining = sum(group.cost for group in groups)
        for group in groups:
            if remaining <= int(_most_tokens(layout, share) * part):
                break
            remaining -= group.cost
            gone.update(entry.seq for entry in group.entries)
    if not gone:
        return cut
    return msgspec.structs.replace(cut, gone=spans.union(cut.gone, spans.of(gone)))


def _most_tokens(layout: Layout, share: float) -> int:
    return int(values.part(share, layout.budget.counted_limit)) if layout.budget is not None else 0


def _is_tag_over(layout: Layout, tag: str, share: float) -> bool:
    if layout.budget is None:
        return False
    return sum(group.cost for group in _tagged(layout, tag)) > _most_tokens(layout, share)


def _tagged(layout: Layout, tag: str) -> list[Group]:
    """Return the window's groups with this tag that are not exempt, oldest first."""
    return [
        group
        for group in layout.window.groups
        if any(has_tag(entry, tag) for entry in group.entries)
        and not any(_is_exempt(entry, layout.head) for entry in group.entries)
    ]


def _is_exempt(entry: Entry, head: Head) -> bool:
    return entry.role == "system" or entry.seq in head.pinned or entry.seq == head.turn

"""What stores share about records: which tell of a compaction, and what an erasure does to those. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from palimpsest.log import spans
from palimpsest.log.change import Change, Record
from palimpsest.log.head import Head
from palimpsest.log.withdrawal import forgotten

HELD = b'"compaction":{'
"""Stands in the JSON of every record that carries a compaction, so that others need not be read."""


def erasing(change: Change, records: Iterable[Record], head: Head) -> tuple[Change, list[Record]]:
    """Return an erasure with the state of compaction after it, and the records that it changes, as they are then.

    `records` are, oldest first, those of the session that carry a compaction or are to be silent; others may be among
    them.
    """
    gone = [*change.seqs, *spans.members(change.also)]
    changed, state = forgotten(records, head, gone, spare=change.spare, silence=change.silence)
    return (change if state is None else msgspec.structs.replace(change, compaction=state)), changed

"""What is said of entries beside what they came with: statuses, metadata, and that an answer was cut off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from palimpsest.log.entry import Entry, Status

MARK = "cut_off"
"""The key of an entry's metadata, true where the answer was cut off."""


def annotated(entry: Entry, statuses: Mapping[str, Status], metadata: dict[str, Any] | None) -> Entry:
    """The entry with the status of its call's id, if it is a result, and with this metadata; a mark stays."""
    status = statuses.get(entry.call_id or "", entry.status) if entry.kind == "tool_result" else None
    marked = entry.metadata is not None and MARK in entry.metadata
    made = msgspec.structs.replace(entry, status=status, metadata=metadata)
    return as_cut_off(made) if marked else made


def as_cut_off(entry: Entry) -> Entry:
    """The entry with the mark of an answer that was cut off."""
    return msgspec.structs.replace(entry, metadata={**(entry.metadata or {}), MARK: True})

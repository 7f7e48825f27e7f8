"""What operations on the keys of a declared memory return. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.entry import Entry

NEAR = 0.85
"""From this share of its limit on a key is near it."""


def is_flush(record: Record) -> bool:
    """Whether something left for the archive then: by a compaction, or a replacement that left something out."""
    if record.kind == "replace":
        return bool(record.detail.get("archived"))
    return record.kind == "compact" and record.reason != "restore"


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of what is active under a key: `entries`, oldest first, of `total` there are."""

    entries: tuple[Entry, ...]
    total: int


class KeyCleared(msgspec.Struct, frozen=True, kw_only=True):
    """What a clearing took: how many entries by key, and by key the ids of the sessions that hold the backups; and of
    which keys of a pattern it took nothing, with the reason (`failed`)."""

    entries: Mapping[str, int]
    backups: Mapping[str, str]
    failed: Mapping[str, str] = msgspec.field(default_factory=dict)


class KeyStats(msgspec.Struct, frozen=True, kw_only=True):
    """What is active under a key: `messages`, and how many of each role (`roles`), `tokens`, the `limit` in tokens
    (None: there is none), how much of its limits is used (`utilization`, from 0: the larger share, of tokens or of
    messages; None: there is none); how many entries are in the archive, and
    when something left for it last (None: never)."""

    messages: int
    tokens: int
    limit: int | None
    utilization: float | None
    roles: Mapping[str, int]
    archived: int
    last_flush: datetime | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether something was written, read and deleted (`works`), else why not (`error`), the keys whose use is near
    their limit (`near_limit`), and those that cannot be read, with the reason (`failed`)."""

    works: bool
    error: str | None
    near_limit: tuple[str, ...]
    failed: Mapping[str, str] = msgspec.field(default_factory=dict)

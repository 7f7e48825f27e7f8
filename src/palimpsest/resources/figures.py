"""The results of operations on the keys of a declared memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.entry import Entry

NEAR = 0.85
"""A key that uses this share of its limit is near it."""


def is_flush(record: Record) -> bool:
    """Whether entries went to the archive by this change: a compaction, or a replacement that left entries out."""
    if record.kind == "replace":
        return bool(record.detail.get("archived"))
    return record.kind == "compact" and record.reason != "restore"


class KeyList(list[str]):
    """Keys of a declared memory, in order. `more` says that the pattern matches more keys than it may."""

    more: bool = False


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the active entries of a key: `entries`, oldest first, and how many there are in all (`total`)."""

    entries: tuple[Entry, ...]
    total: int


class KeyCleared(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `clear`: how many entries were destroyed, by key, and the ids of the sessions that are the
    backups, by key; for keys of a pattern of which nothing was destroyed, the reason by key (`failed`)."""

    entries: Mapping[str, int]
    backups: Mapping[str, str]
    failed: Mapping[str, str] = msgspec.field(default_factory=dict)


class KeyStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the active entries of a key: how many (`messages`), how many of each role (`roles`), their `tokens`,
    the `limit` in tokens (None: none), and how much of the limits is used (`utilization`, from 0: the larger of the
    shares of tokens and of messages; None: no limit). Also how many entries are in the archive (`archived`), and when
    entries last went there (`last_flush`; None: never)."""

    messages: int
    tokens: int
    limit: int | None
    utilization: float | None
    roles: Mapping[str, int]
    archived: int
    last_flush: datetime | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a value could be written, read and deleted (`works`), else why not (`error`), the keys that are near
    their limit (`near_limit`), and the reason by key for those that cannot be read (`failed`)."""

    works: bool
    error: str | None
    near_limit: tuple[str, ...]
    failed: Mapping[str, str] = msgspec.field(default_factory=dict)

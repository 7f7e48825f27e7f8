"""What has happened to a session since it was looked at: whether what was found then still holds. Reads only.

A record tells of every change but appends, and what is remembered of usage, prompts, attempts and pseudonyms. All that
begin an epoch leave one, but for an import that takes a session's place and a redaction, whose record comes before it.
"""

from __future__ import annotations

from palimpsest.log import Head, Record, SessionKey
from palimpsest.stores import Store

_BEGINNING = frozenset(("cut", "compact", "replace", "erase", "clear", "rewind"))
"""Kinds of changes that begin an epoch."""


async def since(
    store: Store, key: SessionKey, before: Head, now: Head, *, redacted: bool = False
) -> list[Record] | None:
    """Return the records that came between two heads of a session, oldest first.

    None where they do not tell all: another session is in its place, it was cleared, or (unless `redacted` says that
    this is no matter) texts of it were redacted.
    """
    if (now.created, now.first_seq) != (before.created, before.first_seq) or now.revision < before.revision:
        return None
    if now.revision == before.revision:
        return []
    records = await store.records(key, after=before.revision, before=now.revision + 1)
    begun = sum(record.kind in _BEGINNING for record in records)
    most = begun + sum(record.kind == "redact" for record in records) if redacted else begun
    return records if begun <= now.epoch - before.epoch <= most else None


async def kinds_since(store: Store, key: SessionKey, before: Head, now: Head) -> set[str] | None:
    """Return the kinds of those records; None as `since` has it."""
    found = await since(store, key, before, now)
    return None if found is None else {record.kind for record in found}

"""How the SQLite store rewrites what it holds: a few hundred rows a transaction, so that writers go on."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.stores.rewriting import Rewrite
from palimpsest.stores.sqlite.branches import by_log, home
from palimpsest.stores.sqlite.heads import Known
from palimpsest.stores.sqlite.logs import Logs
from palimpsest.stores.sqlite.rows import place
from palimpsest.stores.sqlite.scrubbing import note

STRETCH = 256
"""Entries rewritten in one transaction."""


def rewrite(
    db: sqlite3.Connection, logs: Logs, key: SessionKey, how: Rewrite, after: int, seqs: Collection[int] | None
) -> tuple[int, int | None]:
    """Rewrite a stretch of a session, as `Rewritable.rewrite` says."""
    known = logs.heads.find(key)
    if known is None:
        return 0, None
    changed = _rewrite_records(logs, key, known, how) if after == 0 else 0
    if seqs is None:
        entries = logs.rows.read(key.tenant, known.spans(after), None, STRETCH, newest=False, uncounted=False)
    else:
        places = known.places(seq for seq in sorted(seqs) if seq > after).values()
        entries = logs.rows.at(key.tenant, places, None)
    for entry in entries:
        if entry.damaged:
            raise StoreCorrupt(
                logs.url, f"entry {entry.seq} of session {key.session!r} cannot be read: `repair` it first"
            )
    changed += _rewrite_entries(logs, key, known, how, entries)
    if changed or not how.keeps_texts:  # a head has texts, too
        note(db)
    if seqs is None and len(entries) == STRETCH:
        return changed, entries[-1].seq
    return changed, None


def _rewrite_records(logs: Logs, key: SessionKey, known: Known, how: Rewrite) -> int:
    """Rewrite the head and the records of a session."""
    head = how.head(known.head)  # first, for it may object
    records = logs.recorded.read(known.number, key.session, 0, None)
    changed = [new for old in records if (new := how.record(old)) is not old]
    logs.recorded.put(known.number, changed)
    if head is not known.head:
        logs.heads.save(key, known, head)
    return len(changed)


def _rewrite_entries(logs: Logs, key: SessionKey, known: Known, how: Rewrite, entries: list[Entry]) -> int:
    changed = [new for old in entries if (new := how.entry(old)) is not old]
    for entry in changed:
        log = home(known.number, known.shared, entry.seq)
        logs.rows.replace(key.tenant, place(log, entry.seq), entry, keep_counts=how.keeps_texts)
    if not how.keeps_texts:
        for log, seqs in by_log(known.number, known.shared, [entry.seq for entry in changed]).items():
            for other, branch, read in logs.readers(log, seqs, known.number):
                logs.heads.save(other, branch, how.branch(other, branch.head, read))
    return len(changed)

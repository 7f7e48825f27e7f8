"""`memory://`: a store in this process, gone with it. Also the model that every other store is tested against.

Entries are kept in their stored form, so that nothing handed out is what is kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from palimpsest.entries import Entry, pack, unpack
from palimpsest.errors import ConfigError, Conflict
from palimpsest.linking import link
from palimpsest.log import Change, Head, Record, SessionKey, apply, tombstone
from palimpsest.runners import Runner
from palimpsest.stores import (
    Appended,
    Dump,
    Item,
    SessionInfo,
    branching,
    expected,
    info,
    of_branch,
    replaced,
    unknown_only,
)
from palimpsest.stores.blocking import BlockingStore


class _Session:
    """One session: rows in order of seq, as (seq, id, body). Branches are of one family."""

    def __init__(self, family: object = None) -> None:
        self.family = family or object()
        self.head = Head()
        self.rows: list[tuple[int, str, bytes]] = []
        self.places: dict[str, int] = {}
        self.records: list[Record] = []
        self.counts: dict[str, dict[int, int]] = {}

    def index(self, seq: int) -> int:
        return bisect_left(self.rows, (seq,))

    def entry(self, row: tuple[int, str, bytes], counter: str | None = None) -> Entry:
        seq, id, body = row
        return unpack(body, id, seq, self.counts.get(counter, {}).get(seq) if counter else None)

    def by_seq(self, seq: int) -> tuple[int, str, bytes] | None:
        i = self.index(seq)
        return self.rows[i] if i < len(self.rows) and self.rows[i][0] == seq else None

    def put(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.rows.append((entry.seq, entry.id, pack(entry)))
            self.places[entry.id] = entry.seq

    def ids(self, seqs: Sequence[int]) -> dict[int, str]:
        """The ids of the entries at these places that are not tombstones."""
        rows = [row for seq in seqs if (row := self.by_seq(seq)) is not None]
        return {row[0]: row[1] for row in rows if not self.entry(row).erased}

    def bury(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            i = self.index(seq)
            _, id, _ = row = self.rows[i]
            self.rows[i] = (seq, id, pack(tombstone(self.entry(row))))
            for counts in self.counts.values():
                counts.pop(seq, None)


def open_memory(url: str, runner: Runner, **options: Any) -> MemoryStore:
    """Open an empty store. Raises ConfigError for any option but `clock`, or an address with a path."""
    if url not in ("memory:", "memory://"):
        raise ConfigError("store", url, "memory:// (it has no name: nobody else can open it)")
    unknown = set(options) - {"clock"}
    if unknown:
        raise ConfigError("option", min(unknown), "clock (the only option of memory://)")
    return MemoryStore(runner, **options)


class MemoryStore(BlockingStore):
    """Everything in dictionaries, under one lock."""

    url = "memory://"

    def __init__(self, runner: Runner, **options: Any) -> None:
        super().__init__(runner, **options)
        self._lock = threading.RLock()
        self._logs: dict[SessionKey, _Session] = {}
        self._items: dict[tuple[str, str], dict[str, Item]] = {}
        self._leases: dict[tuple[str, str], tuple[str, int, int]] = {}
        self._fence = 0

    def _head(self, key: SessionKey) -> Head | None:
        with self._lock:
            session = self._logs.get(key)
            return session.head if session else None

    def _append_now(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        with self._lock:
            session = self._logs.get(key) or _Session()
            expected(key, session.head, expect)
            fresh = list(entries)
            if check_ids:
                seqs = [session.places[entry.id] for entry in entries if entry.id in session.places]
                known = {entry.id: entry for entry in self._rows(session, seqs)}
                fresh = unknown_only(entries, known)
            if not fresh:
                return Appended(session.head, tuple(known[entry.id] for entry in entries), 0)
            head, linked = link(session.head, fresh, self._clock())
            session.put(linked)
            session.head = head
            self._logs[key] = session
            if len(linked) == len(entries):
                return Appended(head, tuple(linked), len(linked))
            new = {entry.id: entry for entry in linked}
            return Appended(head, tuple(new.get(e.id) or known[e.id] for e in entries), len(linked))

    def _rows(self, session: _Session, seqs: Sequence[int], counter: str | None = None) -> list[Entry]:
        return [session.entry(row, counter) for seq in sorted(set(seqs)) if (row := session.by_seq(seq)) is not None]

    def _read(
        self,
        key: SessionKey,
        after: int,
        before: int | None,
        limit: int | None,
        newest_first: bool,
        counter: str | None,
        uncounted: bool,
    ) -> list[Entry]:
        with self._lock:
            session = self._logs.get(key)
            if session is None:
                return []
            low = session.index(after + 1)
            high = len(session.rows) if before is None else session.index(before)
            counts = session.counts.get(counter or "", {})
            places = range(high - 1, low - 1, -1) if newest_first else range(low, high)
            found: list[Entry] = []
            for i in places:
                if limit is not None and len(found) >= limit:
                    break
                row = session.rows[i]
                if not uncounted or row[0] not in counts:
                    found.append(session.entry(row, counter))
            return found

    def _fetch(self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None) -> list[Entry]:
        with self._lock:
            session = self._logs.get(key)
            if session is None:
                return []
            named = [session.places[id] for id in ids if id in session.places]
            return self._rows(session, [*seqs, *named], counter)

    def _compact(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        with self._lock:
            session = self._logs.get(key) or _Session()
            expected(key, session.head, expect_revision, expect_epoch)
            self._logs[key] = session
            if change.kind == "erase":
                self._erase_elsewhere(key, session, change)
            return self._change(session, change)

    def _change(self, session: _Session, change: Change) -> Head:
        head, record = apply(session.head, change, self._clock())
        if change.kind == "clear":
            session.rows, session.places, session.counts, session.records = [], {}, {}, []
        elif change.kind == "erase":
            session.bury(change.seqs)
        if record is not None:
            session.records.append(record)
        session.head = head
        return head

    def _erase_elsewhere(self, key: SessionKey, session: _Session, change: Change) -> None:
        """Erase the entries in the other branches that have them."""
        gone = session.ids(change.seqs)
        for other in self._logs.values():
            if other.family is session.family and other is not session:
                shared = tuple(seq for seq, id in other.ids(change.seqs).items() if gone.get(seq) == id)
                if shared:
                    self._change(other, of_branch(change, key, shared))

    def _fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int) -> None:
        with self._lock:
            session = self._logs.get(key) or _Session()
            expected(key, session.head, None, expect_epoch)
            there = self._logs.get(SessionKey(key.tenant, into))
            branch = _Session(session.family)
            self._logs[branching(key, into, there.head if there else None)] = branch
            branch.head = head
            branch.rows = session.rows[: session.index(head.next_seq)]
            branch.places = {id: seq for seq, id, _ in branch.rows}
            branch.records = [record for record in session.records if record.revision <= head.revision]
            for counter, counts in session.counts.items():
                branch.counts[counter] = {seq: n for seq, n in counts.items() if seq < head.next_seq}

    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        with self._lock:
            session = self._logs.get(key)
            records = session.records if session else []
            return [r for r in records if r.revision > after and (before is None or r.revision < before)]

    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        with self._lock:
            session = self._logs.get(key)
            if session is not None:
                there = {entry.seq for entry in self._rows(session, list(counts)) if not entry.erased}
                session.counts.setdefault(counter, {}).update({seq: n for seq, n in counts.items() if seq in there})

    def _tally(self, key: SessionKey, counter: str, after: int, before: int | None) -> tuple[int, int]:
        with self._lock:
            session = self._logs.get(key)
            counts = session.counts.get(counter, {}) if session else {}
            later = [tokens for seq, tokens in counts.items() if seq > after and (before is None or seq < before)]
            return len(later), sum(later)

    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        with self._lock:
            before = self._logs.get(key)
            if before is not None and not replace:
                raise Conflict(
                    f"session {key.session!r}", "is there already; import with on_conflict='replace' or 'merge'"
                )
            session = _Session()
            session.put(dump.entries)
            session.head = replaced(before.head, dump.head) if before is not None else dump.head
            session.records = list(dump.records)
            self._logs[key] = session

    def _delete(self, key: SessionKey) -> bool:
        with self._lock:
            return self._logs.pop(key, None) is not None

    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        with self._lock:
            names = sorted(key.session for key in self._logs if key.tenant == tenant and key.session > after)
            return [info(name, self._logs[SessionKey(tenant, name)].head) for name in names[:limit]]

    # --- items and leases

    def _live(self, tenant: str, namespace: str) -> dict[str, Item]:
        now = self._clock()
        items = self._items.get((tenant, namespace), {})
        return {key: item for key, item in items.items() if item.expires is None or item.expires > now}

    def _get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        with self._lock:
            return self._live(tenant, namespace).get(key)

    def _put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item:
        with self._lock:
            items = self._items.setdefault((tenant, namespace), {})
            before = self._live(tenant, namespace).get(key)
            version = before.version if before else 0
            if expect is not None and expect != version:
                raise Conflict(f"item {namespace}/{key}", f"has version {version}, not {expect}: read it again")
            if before is None:
                items.pop(key, None)  # one that has expired: its key comes anew, at the end
            item = items[key] = Item(key=key, value=value, version=version + 1, expires=expires)
            return item

    def _delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        with self._lock:
            there = key in self._live(tenant, namespace)
            if there:
                del self._items[tenant, namespace][key]
            return there

    def _list_items(self, tenant: str, namespace: str) -> list[Item]:
        with self._lock:
            return list(self._live(tenant, namespace).values())

    def _lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        with self._lock:
            now = self._clock()
            held = self._leases.get((tenant, name))
            if held is not None and held[1] <= now:
                held = None
            if fence is not None:
                if held is None or held[0] != holder or held[2] != fence:
                    return None
            elif held is not None:
                return None
            else:
                self._fence += 1
                fence = self._fence
            self._leases[tenant, name] = (holder, now + int(seconds * 1e6), fence)
            return fence

    def _sweep(self, now: int) -> int:
        with self._lock:
            swept = 0
            for items in self._items.values():
                for item in [i for i in items.values() if i.expires is not None and i.expires <= now]:
                    del items[item.key]
                    swept += 1
            for key, session in self._logs.items():
                due = [
                    entry.seq
                    for entry in map(session.entry, session.rows)
                    if entry.expires_at is not None and not entry.erased and entry.expires_at.timestamp() * 1e6 <= now
                ]
                if due:
                    self._compact(key, Change(kind="erase", reason="expiry", seqs=tuple(due)), None, None)
                    swept += len(due)
            return swept

    def _close(self) -> None:
        self._logs.clear()
        self._items.clear()

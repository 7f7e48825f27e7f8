"""`memory://`: a store in this process, gone with it. Also the model that every other store is tested against."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from palimpsest.errors import ConfigError, Conflict
from palimpsest.log.change import Change, Record, still_meant
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Appended, Dump, Item, SessionInfo
from palimpsest.stores.common import branching, discreet_address, expected, info, loading, of_branch
from palimpsest.stores.memory_log import MemoryLog, shared, shares
from palimpsest.stores.rewriting import Rest, Rewrite, RewritingStore, Shared


def open_memory(url: str, runner: Runner, **options: Any) -> MemoryStore:
    """Open an empty store. Raises ConfigError for any option but `clock`, or an address with a path."""
    if url not in ("memory:", "memory://"):
        shown = discreet_address(url)
        raise ConfigError("store", shown, "memory:// (it has no name: nobody else can open it)")
    unknown = set(options) - {"clock"}
    if unknown:
        raise ConfigError("option", min(unknown), "clock (the only option of memory://)")
    return MemoryStore(runner, **options)


class MemoryStore(RewritingStore):
    """Everything in dictionaries, under one lock. A write makes its result aside; one assignment puts it in place."""

    url = "memory://"

    def __init__(self, runner: Runner, **options: Any) -> None:
        super().__init__(runner, **options)
        self._lock = threading.RLock()
        self._logs: dict[SessionKey, MemoryLog] = {}
        self._items: dict[tuple[str, str], dict[str, Item]] = {}
        self._leases: dict[tuple[str, str], tuple[str, int, int]] = {}
        self._fence = 0

    def _head(self, key: SessionKey) -> Head | None:
        with self._lock:
            session = self._logs.get(key)
            return session.head if session else None

    def _changing(self, key: SessionKey) -> MemoryLog:
        """A copy of the session's log, to be changed and put in its place."""
        log = self._logs.get(key)
        return log.copy() if log is not None else MemoryLog()

    def _append_now(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        with self._lock:
            log = self._changing(key)
            expected(key, log.head, expect)
            known = log.named(entry.id for entry in entries) if check_ids else None
            done = log.append(entries, known, self._clock(), key, self.witness)
            if done.added:
                self._logs[key] = log
            return done

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
            log = self._logs.get(key)
            return log.read(after, before, limit, newest_first, counter, uncounted) if log else []

    def _fetch(self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None) -> list[Entry]:
        with self._lock:
            log = self._logs.get(key)
            return log.at([*seqs, *log.seqs(ids)], counter) if log else []

    def _commit(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        with self._lock:
            log = self._changing(key)
            expected(key, log.head, expect_revision, expect_epoch, change.created)
            changed = {key: log}
            if change.kind == "erase":
                change = still_meant(log.head, change, log.ids(change.seqs))
                for name, other in self._logs.items():
                    if name != key and (seqs := shared(log, other, change.seqs)):
                        changed[name] = other.copy()
                        changed[name].change(of_branch(change, key, seqs), self._clock(), (), name, self.witness)
            head = log.change(change, self._clock(), (), key, self.witness)
            self._logs.update(changed)
            return head

    def _fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int, created: int) -> None:
        with self._lock:
            log = self._logs.get(key) or MemoryLog()
            expected(key, log.head, None, expect_epoch, created)
            there = self._logs.get(SessionKey(key.tenant, into))
            branch = branching(key, into, there.head if there else None)
            self._logs[branch] = log.branch(self.witness.head(branch, None, head))

    def _branches_of(self, key: SessionKey) -> list[str]:
        with self._lock:
            log = self._logs.get(key)
            others = ((other.session, found) for other, found in self._logs.items() if log is not None)
            return sorted(name for name, found in others if log is not None and shares(log, found))

    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        with self._lock:
            log = self._logs.get(key)
            records = log.records if log else []
            return [r for r in records if r.revision > after and (before is None or r.revision < before)]

    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        with self._lock:
            log = self._logs.get(key)
            if log is not None:
                log.count(counter, counts, log.at(counts))

    def _tally(self, key: SessionKey, counter: str, after: int, before: int | None) -> tuple[int, int]:
        with self._lock:
            log = self._logs.get(key)
            return log.tally(counter, after, before) if log else (0, 0)

    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        with self._lock:
            before = self._logs.get(key)
            head = loading(key, before.head if before else None, dump.head, replace)
            self._logs[key] = MemoryLog.of(dump, self.witness.head(key, None, head))

    def _delete(self, key: SessionKey, expect: int | None) -> bool:
        with self._lock:
            expected(key, self._logs[key].head if key in self._logs else Head(), expect)
            return self._logs.pop(key, None) is not None

    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        with self._lock:
            names = sorted(key.session for key in self._logs if key.tenant == tenant and key.session > after)
            return [info(name, self._logs[SessionKey(tenant, name)].head) for name in names[:limit]]

    # --- items and leases

    def take_items(self, tenant: str, namespace: str, items: Iterable[Item]) -> None:
        """Hold these items, in this order, in a namespace that nobody has written to."""
        with self._lock:
            self._items[tenant, namespace] = {item.key: item for item in items}

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

    def _clear_items(self, tenant: str, dry_run: bool) -> dict[str, int]:
        with self._lock:
            there = {place: items for place, items in self._items.items() if place[0] == tenant and items}
            if not dry_run:
                items = {place: items for place, items in self._items.items() if place[0] != tenant}
                leases = {held: lease for held, lease in self._leases.items() if held[0] != tenant}
                self._items, self._leases = items, leases
            return {namespace: len(items) for (_, namespace), items in sorted(there.items())}

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
                if held[0] != holder:
                    return None
                fence = held[2]
            else:
                self._fence += 1
                fence = self._fence
            self._leases[tenant, name] = (holder, now + int(seconds * 1e6), fence)
            return fence

    def _due(self, now: int, tenant: str | None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        with self._lock:
            meant = [(key, log) for key, log in self._logs.items() if tenant in (None, key.tenant)]
            return [(key, due) for key, log in meant if (due := log.due(now))]

    def _sweep(self, now: int, tenant: str | None) -> int:
        with self._lock:
            swept = 0
            for items in [items for (owner, _), items in self._items.items() if tenant in (None, owner)]:
                for item in [i for i in items.values() if i.expires is not None and i.expires <= now]:
                    del items[item.key]
                    swept += 1
            for key in [key for key in self._logs if tenant in (None, key.tenant)]:
                if due := self._logs[key].due(now):  # unless it went with another branch
                    self._commit(key, Change(kind="erase", reason="expiry", seqs=due), None, None)
                    swept += len(due)
            return swept

    # --- rewriting

    def _tenants(self) -> list[str]:
        with self._lock:
            owners = {tenant for (tenant, _), items in self._items.items() if items}
            return sorted({key.tenant for key in self._logs} | owners)

    def _rewrite(self, key: SessionKey, how: Rewrite, after: int, _: Collection[int] | None) -> tuple[int, int | None]:
        with self._lock:
            if key not in self._logs:
                return 0, None
            log = self._changing(key)
            how = Rest(how, after) if after else how
            changed = log.rewrite(how, key, self.witness)  # first, for it may object
            rewritten = {key: log}
            others = [(name, one) for name, one in self._logs.items() if name != key and one.family is log.family]
            anew = self._logs[key].rewritten(how) if others and not how.keeps_texts else []
            for other, branch in others:
                if seqs := shared(log, branch, anew):
                    rewritten[other] = branch.copy()
                    here = Shared(how, seqs, how.branch(other, branch.head, seqs))
                    rewritten[other].rewrite(here, other, self.witness)
            self._logs.update(rewritten)
            return changed, None

    def _rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        with self._lock:
            places = {place: items for place, items in self._items.items() if place[0] == tenant}
            new = {place: {key: how(place[1], item) for key, item in items.items()} for place, items in places.items()}
            self._items.update(new)
            return sum(item is not places[place][key] for place, items in new.items() for key, item in items.items())

    def _close(self) -> None:
        self._logs.clear()
        self._items.clear()

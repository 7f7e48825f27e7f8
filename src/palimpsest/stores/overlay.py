"""A store that reads through to another and keeps whatever is written to itself: nothing below it is ever changed.

Of a session that is there below, an overlay takes the head when the session is first used. From then on the session is
a branch of its own: what others append below is not seen, and what is written here is in memory, gone with the overlay.
Entries and records from before that moment are read below whenever they are asked for. So nothing is copied but what
changes, and what is erased, cleared or deleted below is gone here, too.

An erasure here reaches its session and the branches made here, and those below that `join` was told of; other branches
below are read as they are there. A sweep is of what was written here. Items are taken over, a namespace at a time, when
one of them is first written; leases are the overlay's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from palimpsest.log.change import Change, Record, still_meant
from palimpsest.log.entry import Entry, now_us
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Appended, Dump, Item, SessionInfo, Store
from palimpsest.stores.common import branching, expected, info, loading, of_branch
from palimpsest.stores.layer import Below, Layer, Meant, counted
from palimpsest.stores.memory import MemoryStore
from palimpsest.stores.memory_log import shared

T = TypeVar("T")


class Overlay(Store):
    """Writes over another store that never reach it, which may be read-only. Closing it leaves that store open."""

    def __init__(self, store: Store, clock: Callable[[], int] = now_us) -> None:
        self.url, self._below, self._clock = f"an overlay of {store.url}", store, clock
        self.blocking = store.blocking
        self._lock = threading.Lock()
        self._logs: dict[SessionKey, Layer] = {}
        self._side = MemoryStore(Inline(), clock=clock)
        self._side.url = self.url
        self._taken: set[tuple[str, str]] = set()

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await self._below.together(start, reads=reads)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._below.apart(function, *arguments)

    async def _log(self, key: SessionKey) -> Layer:
        """The session as it is here, from its first use on."""
        self._side.check()
        log = self._logs.get(key)
        if log is None:
            head, log = await self._below.head(key), Layer()
            if head is not None:
                log.there, log.head, log.below = True, head, Below(key, head.next_seq, head.revision)
            log = self._logs.setdefault(key, log)
        return log

    def _changing(self, key: SessionKey, was: Layer) -> Layer | None:
        """A copy of the session to be changed, as `palimpsest.stores.memory_log` says; None where there is another by
        now, over which what was read below says nothing."""
        log = self._logs.get(key)
        return log.copy() if log is not None and log.below == was.below and log.family is was.family else None

    # --- writing: what is below is read first, then all happens under the lock, unless the log is another by then

    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, expect: int | None = None
    ) -> Appended:
        ids = [entry.id for entry in entries] if check_ids else []
        while True:
            was = await self._log(key)
            old = await was.below.fetch(self._below, (), ids)
            with self._lock:
                log = self._changing(key, was)
                if log is None:
                    continue
                expected(key, log.head, expect)
                known = {entry.id: entry for entry in old if log.by_seq(entry.seq) is None} | log.named(ids)
                done = log.append(entries, known if check_ids else None, self._clock(), key, self.witness)
                if done.added:
                    log.there = True
                    self._logs[key] = log
                return done

    async def commit(
        self, key: SessionKey, change: Change, *, expect_revision: int | None = None, expect_epoch: int | None = None
    ) -> Head:
        while True:
            was = await self._log(key)
            found = dict[SessionKey, Meant]()
            if change.kind == "erase" and (change.silence or any(seq < was.below.next_seq for seq in change.seqs)):
                for name, other in {**self._family(was), key: was}.items():
                    found[name] = await other.below.meant(self._below, change.seqs)
            with self._lock:
                log = self._changing(key, was)
                if log is None or (found and not self._family(was).keys() <= found.keys()):
                    continue
                expected(key, log.head, expect_revision, expect_epoch, change.created)
                if change.kind == "erase":
                    old = found[key].entries if found else ()
                    below = {entry.seq: entry.id for entry in old if entry.damaged or not entry.erased}
                    there = {seq: id for seq, id in below.items() if log.by_seq(seq) is None} | log.ids(change.seqs)
                    change = still_meant(log.head, change, there)
                    meant = {seq: there[seq] for seq in change.seqs}
                    found = {name: one.only(meant) for name, one in found.items()}
                return self._change(key, log, change, found)

    def _family(self, log: Layer) -> dict[SessionKey, Layer]:
        return {key: other for key, other in list(self._logs.items()) if other.family is log.family}

    def _change(self, key: SessionKey, log: Layer, change: Change, below: Mapping[SessionKey, Meant]) -> Head:
        """Apply a change to a session, of which `log` is a copy, an erasure to its branches, too.

        `below` is what an erasure means of each, as it is there.
        """

        def change_in(log: Layer, change: Change, name: SessionKey) -> Head:
            old = below.get(name, Meant())
            there = log.tombstones(old.graves) if old.graves is not None else None
            return log.change(change, at, old.records, name, self.witness, there)

        at, changed = self._clock(), {key: log}
        if change.kind == "erase":
            changed = {name: other.copy() for name, other in self._family(log).items()} | changed
            for name, each in changed.items():
                each.take(below.get(name, Meant()).entries)
            for name, other in changed.items():
                if seqs := shared(log, other, change.seqs):
                    change_in(other, of_branch(change, key, seqs), name)
        head = change_in(log, change, key)
        self._logs.update(changed)
        return head

    async def join(self, keys: Iterable[SessionKey]) -> None:
        """Know of sessions below, of which nothing was written here yet, that they share entries."""
        family = object()
        for key in keys:
            log = (await self._log(key)).copy()
            log.family = family
            self._logs[key] = log

    async def fork(self, key: SessionKey, into: str, head: Head, *, expect_epoch: int, created: int = 0) -> None:
        target = SessionKey(key.tenant, into)
        await self._log(key)
        await self._log(target)
        with self._lock:
            log, there = self._logs[key], self._logs[target]
            expected(key, log.head, None, expect_epoch, created)
            branch = branching(key, into, there.head if there.there else None)
            self._logs[branch] = log.branch(self.witness.head(branch, None, head))

    async def load(self, key: SessionKey, dump: Dump, *, replace: bool = False) -> None:
        await self._log(key)
        with self._lock:
            before = self._logs[key]
            head = loading(key, before.head if before.there else None, dump.head, replace)
            log = Layer.of(dump, self.witness.head(key, None, head))
            log.there = True
            self._logs[key] = log

    async def delete(self, key: SessionKey, *, expect: int | None = None) -> bool:
        await self._log(key)
        with self._lock:
            expected(key, self._logs[key].head, expect)
            there, self._logs[key] = self._logs[key].there, Layer()
            return there

    async def count(self, key: SessionKey, counter: str, counts: Mapping[int, int]) -> None:
        log = await self._log(key)
        old = await log.below.fetch(self._below, counts, ())
        with self._lock:
            log = self._logs.get(key, log)
            there = [*log.at(counts), *(entry for entry in old if log.by_seq(entry.seq) is None)]
            log.count(counter, counts, there)

    async def due(self, now: int, *, tenant: str | None = None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        with self._lock:
            meant = [(key, log) for key, log in self._logs.items() if tenant in (None, key.tenant)]
            return [(key, due) for key, log in meant if (due := log.due(now))]

    async def sweep(self, now: int, *, tenant: str | None = None) -> int:
        swept = await self._side.sweep(now, tenant=tenant)
        with self._lock:
            for key in [key for key in self._logs if tenant in (None, key.tenant)]:
                if due := self._logs[key].due(now):  # unless it went with another branch
                    self._change(key, self._logs[key].copy(), Change(kind="erase", reason="expiry", seqs=due), {})
                    swept += len(due)
        return swept

    # --- reading: what is here, and what is below beside that

    async def head(self, key: SessionKey) -> Head | None:
        log = await self._log(key)
        return log.head if log.there else None

    async def read(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        counter: str | None = None,
        uncounted: bool = False,
    ) -> list[Entry]:
        log = await self._log(key)
        with self._lock:
            below, here = log.below, log.read(after, before, limit, newest_first, counter, uncounted)
            graves, counts = log.graves(after, before), log.counts.get(counter or "", {})
        end = below.next_seq if before is None else min(before, below.next_seq)
        old: list[Entry] = []
        if here and len(here) == limit:  # of what is below, nothing beyond the last of these is wanted
            after, end = (max(after, here[-1].seq), end) if newest_first else (after, min(end, here[-1].seq))
        while after + 1 < end:
            batch = await self._below.read(
                below.key,
                after=after,
                before=end,
                limit=limit,
                newest_first=newest_first,
                counter=counter,
                uncounted=uncounted,
            )
            old += [entry for entry in batch if entry.seq not in graves and not (uncounted and entry.seq in counts)]
            if limit is None or len(batch) < limit or len(old) >= limit:
                break
            after, end = (after, batch[-1].seq) if newest_first else (batch[-1].seq, end)
        found = [*here, *counted(old, counts)]
        return sorted(found, key=lambda entry: entry.seq, reverse=newest_first)[:limit]

    async def fetch(
        self, key: SessionKey, seqs: Iterable[int] = (), ids: Iterable[str] = (), *, counter: str | None = None
    ) -> list[Entry]:
        seqs, ids = tuple(seqs), tuple(ids)
        log = await self._log(key)
        with self._lock:
            below, here = log.below, log.at([*seqs, *log.seqs(ids)], counter)
            graves, counts = log.graves(0, None), log.counts.get(counter or "", {})
        old = await below.fetch(self._below, seqs, ids, counter)
        found = {entry.seq: entry for entry in counted([e for e in old if e.seq not in graves], counts)}
        found |= {entry.seq: entry for entry in here}
        return [found[seq] for seq in sorted(found)]

    async def records(self, key: SessionKey, *, after: int = 0, before: int | None = None) -> list[Record]:
        log = await self._log(key)
        with self._lock:
            below, here = log.below, {record.revision: record for record in log.records}
        end = below.revision + 1 if before is None else min(before, below.revision + 1)
        old = await self._below.records(below.key, after=after, before=end) if after + 1 < end else []
        found = {record.revision: record for record in old} | here
        return [found[n] for n in sorted(found) if n > after and (before is None or n < before)]

    async def branches(self, key: SessionKey) -> list[str]:
        log = await self._log(key)
        with self._lock:
            return sorted(other.session for other, found in self._logs.items() if log.shares(found))

    async def tally(
        self, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
    ) -> tuple[int, int]:
        log = await self._log(key)
        with self._lock:
            below, (number, tokens) = log.below, log.tally(counter, after, before)
            other = log.graves(after, before) | log.counts.get(counter, {}).keys()
        end = below.next_seq if before is None else min(before, below.next_seq)
        if after + 1 < end:
            there = await self._below.tally(below.key, counter, after=after, before=end)
            old = await below.fetch(self._below, [seq for seq in other if after < seq < end], (), counter)
            twice = [entry.tokens for entry in old if entry.tokens is not None]
            number, tokens = number + there[0] - len(twice), tokens + there[1] - sum(twice)
        return number, tokens

    async def sessions(self, tenant: str, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        self._side.check()
        with self._lock:
            here = {key.session: log for key, log in self._logs.items() if key.tenant == tenant}
            found = [info(name, log.head) for name, log in here.items() if log.there and name > after]
        last = after
        while sum(one.session <= last for one in found) < limit:
            page = await self._below.sessions(tenant, after=last, limit=limit)
            found += [one for one in page if one.session not in here]
            if len(page) < limit:
                break
            last = page[-1].session
        return sorted(found, key=lambda one: one.session)[:limit]

    # --- items and leases

    async def _items(self, tenant: str, namespace: str, *, write: bool) -> Store:
        """The store that has the items of a namespace; to be written to they are taken over."""
        self._side.check()
        if (tenant, namespace) in self._taken:
            return self._side
        if not write:
            return self._below
        items = await self._below.list_items(tenant, namespace)
        with self._lock:
            if (tenant, namespace) not in self._taken:
                drive(self._side.take_items(tenant, namespace, items))
                self._taken.add((tenant, namespace))
        return self._side

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        return await (await self._items(tenant, namespace, write=False)).get_item(tenant, namespace, key)

    async def put_item(
        self,
        tenant: str,
        namespace: str,
        key: str,
        value: bytes,
        *,
        expires: int | None = None,
        expect: int | None = None,
    ) -> Item:
        items = await self._items(tenant, namespace, write=True)
        return await items.put_item(tenant, namespace, key, value, expires=expires, expect=expect)

    async def delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        return await (await self._items(tenant, namespace, write=True)).delete_item(tenant, namespace, key)

    async def list_items(self, tenant: str, namespace: str) -> list[Item]:
        return await (await self._items(tenant, namespace, write=False)).list_items(tenant, namespace)

    async def clear_items(self, tenant: str, *, dry_run: bool = False) -> dict[str, int]:
        below = await self._below.clear_items(tenant, dry_run=True)
        found = {name: number for name, number in below.items() if (tenant, name) not in self._taken}
        if not dry_run:
            for name in found:
                await self._items(tenant, name, write=True)  # then all go in one step
        return dict(sorted((await self._side.clear_items(tenant, dry_run=dry_run) | found).items()))

    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        return await self._side.lease(tenant, name, holder, seconds, fence=fence)

    async def close(self) -> None:
        await self._side.close()
        self._logs.clear()

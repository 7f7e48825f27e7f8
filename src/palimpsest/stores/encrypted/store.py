"""The store around another: what goes in is sealed, what comes out is opened.

Every write is a compare-and-set of the session's revision, so that each text is bound to the place that it will have,
and nothing is written under a key that was retired meanwhile. Writers of one process wait for each other; whoever
loses against another process begins again. Keyed additions are compared here, by what they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.change import Change, Record, fitted
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, Seal, SessionKey
from palimpsest.log.linking import link
from palimpsest.log.resuming import committed
from palimpsest.stores import Appended, Dump, Item, SessionInfo
from palimpsest.stores.common import expected, info, unknown_only
from palimpsest.stores.encrypted import forms, telling
from palimpsest.stores.encrypted.base import SealingStore
from palimpsest.stores.encrypted.completeness import Wanted
from palimpsest.stores.encrypted.forms import Lineage, Names
from palimpsest.stores.encrypted.ledger import Ledger
from palimpsest.stores.encrypted.notary import new_log
from palimpsest.stores.encrypted.sealing import Box, nonces
from palimpsest.stores.encrypted.seen import Seen

_replace = msgspec.structs.replace


class EncryptedStore(SealingStore):
    """`below` with everything in it that is text sealed. Closing it closes that store."""

    # --- writing sessions

    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, expect: int | None = None
    ) -> Appended:
        async def write() -> Appended:
            with self._alone(key):
                return await self._first_or_again(key, lambda: self._append(key, entries, check_ids, expect))

        return await self.together(write)

    async def _append(
        self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None
    ) -> Appended | None:
        """Append, unless somebody else writes meanwhile (None)."""
        seen = await self.reader.head(key)
        head = seen.plain if seen is not None else Head()
        expected(key, head, expect)
        known: dict[str, Entry] = {}
        fresh: Sequence[Entry] = entries
        if check_ids:
            known = {entry.id: entry for entry in await self.fetch_now(key, ids=[entry.id for entry in entries])}
            fresh = unknown_only(entries, known)
        if not fresh:
            return Appended(head, tuple(known[entry.id] for entry in entries), 0)
        box = await self._box(key, head if head.revision else None)
        log = seen.seal.log if seen is not None else self.notary.begin(key)
        after, linked = link(head, fresh, self._clock())
        try:
            done = await self.below.append(key, _sealed_entries(fresh, linked, seen, box, log), expect=head.revision)
        except Conflict:
            return None
        if not head.revision:
            await self._settle([key], box)
        self._note(key, done.head)
        self.reader.note_digests(key, done.head, linked)
        new = {entry.id: entry for entry in linked}
        given = linked if len(linked) == len(entries) else [new.get(e.id) or known[e.id] for e in entries]
        named = {call.seq for call in done.head.calls}  # perhaps not all: tokens are longer than names
        calls = tuple(call for call in after.calls if call.seq in named)
        after = _replace(after, calls=calls, created=done.head.created, updated=done.head.updated)
        return Appended(await self.reader.took(key, done.head, after), tuple(given), len(linked))

    async def commit(
        self, key: SessionKey, change: Change, *, expect_revision: int | None = None, expect_epoch: int | None = None
    ) -> Head:
        async def write() -> Head:
            with self._alone(key):
                return await self._first_or_again(key, lambda: self._commit(key, change, expect_revision, expect_epoch))

        return await self.together(write)

    async def _commit(
        self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None
    ) -> Head | None:
        """Commit the change, unless somebody else writes meanwhile (None)."""
        seen = await self.reader.head(key)
        head = seen.plain if seen is not None else Head()
        expected(key, head, expect_revision, expect_epoch, change.created)
        others = await self.below.branches(key) if change.kind == "erase" else []
        there = await self.fetch_now(key, change.seqs) if change.kind == "erase" else ()
        damaged = [entry for entry in there if entry.damaged]
        box = await self._box(key, head if head.revision else None)
        sealed, linked = _sealed(fitted(head, change), head.revision + 1, box), list[Entry]()
        if change.entries:
            log = seen.seal.log if seen is not None else self.notary.begin(key)
            _, _, linked = committed(head, change, self._clock())
            sealed = _replace(sealed, entries=tuple(_sealed_entries(change.entries, linked, seen, box, log)))
        try:
            with self.notary.burying(damaged):
                after = await self.below.commit(
                    key,
                    sealed,
                    expect_revision=head.revision,
                    expect_epoch=expect_epoch,
                )
        except Conflict:
            if await self.reader.head(key) is seen:  # nobody was first: it is the change that does not fit
                raise
            return None
        if not head.revision or others:  # their heads and records are under the same key now
            await self._settle([key, *(key._replace(session=name) for name in others)], box)
        self._note(key, after)
        self.reader.note_digests(key, after, linked)
        return await self.reader.took(key, after)

    async def fork(self, key: SessionKey, into: str, head: Head, *, expect_epoch: int, created: int = 0) -> None:
        async def write() -> None:
            seen = await self.reader.head(key)
            branch = key._replace(session=into)
            box = await self._box(branch, None)
            seal, lineage = Seal(log=new_log()), Lineage()
            if seen is not None:
                records = await self.reader.records(key, 0, head.revision + 1)
                lineage = forms.shared(seen.lineage, key.session, seen.seal.log, head)
                ledger = seen.ledger.up_to(head.next_seq, head.revision)
                seal = ledger.put_into(seal, last=records[-1].revision if records else 0)
            sealed = forms.seal_head(head, box, lineage, seal)
            await self.below.fork(key, into, sealed, expect_epoch=expect_epoch, created=created)
            await self._settle([branch], box)

        await self.together(write)

    async def load(self, key: SessionKey, dump: Dump, *, replace: bool = False) -> None:
        async def write() -> None:
            box = await self._box(key, None)
            await self.below.load(key, self._sealed_dump(key, dump, box), replace=replace)
            await self._settle([key], box)

        await self.together(write)

    def _sealed_dump(self, key: SessionKey, dump: Dump, box: Box) -> Dump:
        ledger, log, last, records = Ledger(), new_log(), 0, []
        ledger.bury([entry.seq for entry in dump.entries if entry.erased])
        for record in sorted(dump.records, key=attrgetter("revision")):
            told = decoded(encoded(telling.seal_record(_replace(record, before=last), box)), Record)
            records.append(self.notary.sealed_record(key, told, log, ledger))
            last = record.revision
        entries = [
            self.notary.grave(entry) if entry.erased else forms.seal_entry(entry, box, log) for entry in dump.entries
        ]
        head = forms.seal_head(dump.head, box, seal=ledger.put_into(Seal(log=log), last=last))
        return Dump(head=head, entries=tuple(entries), records=tuple(records))

    async def count(self, key: SessionKey, counter: str, counts: Mapping[int, int]) -> None:
        await self.below.count(key, counter, counts)

    async def delete(self, key: SessionKey, *, expect: int | None = None) -> bool:
        return await self.below.delete(key, expect=expect)

    async def due(self, now: int, *, tenant: str | None = None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        return await self.below.due(now, tenant=tenant)

    async def sweep(self, now: int, *, tenant: str | None = None) -> int:
        await self.markings.refresh()
        writing, due = self.markings.writing, await self.below.due(now, tenant=tenant)
        swept = await self.below.sweep(now, tenant=tenant)
        for key in sorted({key for key, _ in due}):  # what it makes of their heads and records is under a key, too
            await self._settle([key], self.reader.box(key, writing))
        return swept

    async def scrub(self, *, whole: bool = True) -> tuple[str, ...]:
        return await self.below.scrub(whole=whole)

    # --- reading sessions

    async def head(self, key: SessionKey) -> Head | None:
        async def read() -> Head | None:
            found = await self.reader.head(key)
            return found.plain if found is not None else None

        return await self.together(read, reads=True)

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
        wanted = Wanted(after, before, limit, newest_first)

        async def stored(upto: int | None) -> list[Entry]:
            return await self.below.read(
                key,
                after=after,
                before=before if upto is None or (before is not None and before < upto) else upto,
                limit=limit,
                newest_first=newest_first,
                counter=counter,
                uncounted=uncounted,
            )

        return await self.together(lambda: self.reader.entries(key, wanted, stored, part=uncounted), reads=True)

    async def fetch(
        self, key: SessionKey, seqs: Iterable[int] = (), ids: Iterable[str] = (), *, counter: str | None = None
    ) -> list[Entry]:
        return await self.together(lambda: self.fetch_now(key, tuple(seqs), tuple(ids), counter), reads=True)

    async def fetch_now(
        self, key: SessionKey, seqs: tuple[int, ...] = (), ids: Sequence[str] = (), counter: str | None = None
    ) -> list[Entry]:
        """What `fetch` returns, from where it runs."""

        async def stored(upto: int | None) -> list[Entry]:
            found = await self.below.fetch(key, seqs, ids, counter=counter)
            return found if upto is None else [entry for entry in found if entry.seq < upto]

        return await self.reader.entries(key, Wanted(some=True, seqs=seqs), stored)

    async def records(self, key: SessionKey, *, after: int = 0, before: int | None = None) -> list[Record]:
        return await self.together(lambda: self.reader.records(key, after, before), reads=True)

    async def branches(self, key: SessionKey) -> list[str]:
        return await self.below.branches(key)

    async def tally(
        self, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
    ) -> tuple[int, int]:
        return await self.below.tally(key, counter, after=after, before=before)

    async def sessions(self, tenant: str, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        async def read() -> list[SessionInfo]:
            found = []
            for one in await self.below.sessions(tenant, after=after, limit=limit):
                seen = await self.reader.head(SessionKey(tenant, one.session))
                if seen is not None:
                    found.append(info(one.session, seen.plain))
            return found

        return await self.together(read, reads=True)

    # --- items and leases

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        item = await self.below.get_item(tenant, namespace, self.items.name(tenant, namespace, key))
        return None if item is None else self.items.opened(tenant, namespace, item)

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
        await self.markings.refresh()
        box, name = self.items.box(tenant), self.items.name(tenant, namespace, key)
        while True:
            before = await self.below.get_item(tenant, namespace, name)
            version = before.version if before is not None else 0  # the next one is bound to the value
            new = Item(key=key, value=value, version=version + 1, expires=expires)
            sealed = self.items.sealed(box, namespace, name, new)
            wanted = version if expect is None else expect
            try:
                item = await self.below.put_item(tenant, namespace, name, sealed, expires=expires, expect=wanted)
                break
            except Conflict as fault:
                if expect is not None and expect != version:
                    raise Conflict(f"item {namespace}/{key}", fault.reason) from None
        await self._settle_items(tenant, box)
        return _replace(item, key=key, value=value)

    async def delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        return await self.below.delete_item(tenant, namespace, self.items.name(tenant, namespace, key))

    async def list_items(self, tenant: str, namespace: str) -> list[Item]:
        found = await self.below.list_items(tenant, namespace)
        return [self.items.opened(tenant, namespace, item) for item in found]

    async def clear_items(self, tenant: str, *, dry_run: bool = False) -> dict[str, int]:
        return await self.below.clear_items(tenant, dry_run=dry_run)

    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        return await self.below.lease(tenant, name, holder, seconds, fence=fence)


def _sealed_entries(
    given: Sequence[Entry], linked: Sequence[Entry], seen: Seen | None, box: Box, log: str
) -> list[Entry]:
    """The entries, as they were given and as they are linked, as they are stored in a log of this mark."""
    names = Names(box, forms.known_names(seen.stored, seen.plain) if seen is not None else ())
    together = zip(given, linked, nonces(len(linked)), strict=True)
    sealed = [names.on(one, forms.seal_entry(entry, box, log, "", nonce)) for one, entry, nonce in together]
    return [_replace(entry, seq=0) for entry in sealed]  # a result names its call by its place here


def _sealed(change: Change, revision: int, box: Box) -> Change:
    """The change as it is stored; it will make this revision."""
    summary = change.compaction.summary if change.compaction is not None else None
    told = telling.Told(change.kind, revision, change.reason, change.detail, change.cut, summary)
    sealed = telling.seal_told(told, box)
    compaction = change.compaction
    if compaction is not None and sealed.summary is not None:
        compaction = _replace(compaction, summary=sealed.summary)
    back = forms.seal_head(change.back, box) if change.back is not None else None
    return _replace(
        change,
        reason=sealed.reason,
        detail=sealed.detail,
        cut=sealed.cut,
        compaction=compaction,
        back=back,
        pseudonyms=forms.seal_pseudonyms(change.pseudonyms, box),
    )

"""Scanning stored sessions and facts for what a policy would have redacted, and redacting it in the store.

A session is scanned from its first entry to its last, in whatever state they are, with its records and its head. The
redacted rows are computed outside of the store and written in one step, which begins a new epoch:

    look      scan entries and records until a portion of them has to change, or to the end of the log
    note      commit a record of the kind "redact" with figures and new pseudonyms, before any text changes
    rewrite   replace head, records and entries together, in every branch that shares them. Rows that others have
              changed meanwhile are left as they are and scanned again
    repeat    with the next portion, until a look finds nothing new; then erase entries that the policy withholds

After a kill the same call continues with what is left: what is already redacted scans as clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from palimpsest.errors import ConfigError, Conflict, EntryNotFound, SessionNotFound, StoreCorrupt
from palimpsest.log import values
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.ids import check_id
from palimpsest.log.values import check_progress
from palimpsest.privacy.gate import Gate, gate_of
from palimpsest.privacy.removed import Removed
from palimpsest.privacy.retroactive import REASON, Findings, Redaction, Sample, Unchecked
from palimpsest.sessions.derived import Unmaking
from palimpsest.sessions.erasing.damaged import UNREAD
from palimpsest.sessions.erasing.facts import UNREADABLE, FactScan
from palimpsest.sessions.erasing.scanned import Scanned, chosen
from palimpsest.sessions.erasing.sweep import destroy_unsearched
from palimpsest.sessions.erasing.verbs import Erasing
from palimpsest.sessions.fact_scopes import Owner
from palimpsest.sessions.history import since
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import sessions_of
from palimpsest.sessions.scope import MemoryScope, SessionScope

if TYPE_CHECKING:
    from palimpsest.privacy.redaction import Redactor

BATCH = 256
"""How many entries to read at once. More are read where a provider's message would be split otherwise."""

PORTION = 4096
"""About how many entries and records are rewritten in one step. All of them are in memory together."""

SMALLEST = 16
"""The portion that is shrunk to while others give out pseudonyms faster than a portion is scanned."""

LOOKS = 8
"""How often a session is looked at while others write to it. Looks after the first read only what is new."""

PASSES = 10
"""How often to list the sessions again for those that others make meanwhile."""

BUSY = "other writers kept making sessions during the scan: scan again when they have ended"

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of sessions done, and the number of all."""


async def scan(
    scope: MemoryScope,
    privacy: object,
    *,
    session: str | None,
    apply: bool,
    sample: int,
    progress: Progress | None,
) -> Scanned:
    """Implement `AsyncMemory.scan`."""
    redactor = scope.gate.redactor if privacy is None else gate_of(privacy).redactor
    if redactor is None:
        raise ConfigError("privacy", None, "a policy to scan with: the memory was opened without one")
    values.whole("sample", sample)
    check_progress(progress)
    values.switch("apply", apply)
    if session is not None:
        check_id(session, "session")
        if await scope.store.head(scope.key(session)) is None:
            raise SessionNotFound(session)
    if apply and not scope.store.writable:
        raise ConfigError("apply", True, f"False: {scope.store.url} was opened with readonly=True")
    scanner = _Scanner(scope, redactor.afresh(), apply=apply, sample=sample)
    done: set[str] = set()
    busy: tuple[str, ...] = ()
    for _ in range(PASSES):
        remaining = [session] if session is not None and not done else await _sessions_left(scope, session, done, apply)
        if not remaining:
            break
        total = len(done) + len(remaining)  # sessions that are made meanwhile are found by the next pass
        for name in remaining:
            await scanner.session(name)
            if apply:
                scope.views.clear()
            done.add(name)
            if progress is not None:
                progress(len(done), total)
    else:
        busy = (BUSY,) if await _sessions_left(scope, session, done, apply) else ()
    if session is None:
        await scanner.items()
    else:
        await scanner.items("session", session)
    if apply:
        await destroy_unsearched(scope)
    unread = tuple(map(UNREAD.format, await scope.out_of_reach(session)))
    return scanner.result(len(done), busy + unread + (await scope.scrub(scope.store) if apply else ()))


async def _sessions_left(scope: MemoryScope, only: str | None, done: set[str], apply: bool) -> list[str]:
    """Return the sessions still to be scanned: all, or the branches of `only`, which copy its head and records."""
    if only is not None:
        branches = await scope.store.branches(scope.key(only)) if apply else []
        return [name for name in branches if name not in done]
    return [info.session async for info in sessions_of(scope.store, scope.tenant) if info.session not in done]


class _Seen(NamedTuple):
    """How far a session was scanned: as of which head, up to which `seq` and revision, and whether that is all."""

    head: Head
    entries: int
    records: int = 0
    whole: bool = False


class _Scanner:
    """Scans sessions one by one and sums up the findings."""

    def __init__(self, scope: MemoryScope, redactor: Redactor, *, apply: bool, sample: int) -> None:
        self._scope, self._store, self._redactor = scope, scope.store, redactor
        self._applies, self._most = apply, sample
        self._portion = PORTION
        self._entries = self._summaries = self._facts = self._withheld = self._redacted = 0
        self._findings: Counter[tuple[str, str]] = Counter()
        self._samples: dict[tuple[str, str], list[Sample]] = {}
        self._refused: dict[tuple[str, str], Unchecked] = {}
        self._gone: dict[str, frozenset[str]] = {}

    def result(self, sessions: int, remains: tuple[str, ...]) -> Scanned:
        """Return the report."""
        return Scanned(
            sessions=sessions,
            entries=self._entries,
            summaries=self._summaries,
            facts=self._facts,
            findings=dict(self._findings.most_common()),
            samples=chosen(self._samples, self._most),
            withheld=self._withheld,
            redacted=self._redacted,
            refused=tuple(self._refused.values()),
            remains=remains,
        )

    async def items(self, owner: Owner | None = None, id: str = "") -> None:
        """Scan all facts and items of the tenant, or the facts of one owner."""
        facts = FactScan(self._scope, self._redactor.afresh(), apply=self._applies)
        async for findings in facts.all(owner, id):
            self._sum(findings)
        self._facts, self._redacted = facts.facts, self._redacted + facts.redacted

    async def session(self, name: str) -> None:
        """Scan a session until nothing new was added while it was scanned. One that cannot be read is refused."""
        try:
            await self._scan(self._scope.key(name))
        except StoreCorrupt:
            self._refused[name, ""] = Unchecked(name, "session", UNREADABLE)

    async def _scan(self, key: SessionKey) -> None:
        """Scan all of a session, then what is new in it while looks find something. Without `apply` scan it once."""
        scanned, withheld, looks, finds = None, set[str](), 0, True
        while (head := await self._store.head(key)) is not None:
            if scanned is None or await since(self._store, key, scanned.head, head, redacted=True) is None:
                scanned, withheld = _Seen(head, head.first_seq - 1), set()
                removed = Removed(self._gone, has_summaries=head.compaction > 0)
            settled = head.revision == scanned.head.revision or looks >= LOOKS or (looks > 1 and not finds)
            if scanned.whole and (settled or not self._applies):
                if not (withheld and self._applies):
                    break
                await self._erase(key, withheld)
                withheld, finds = set(), True
                continue
            findings, scanned_further = await self._looked(key, head, scanned, removed)
            if self._applies and findings.changes:
                if not await self._put(key, head, findings):
                    self._portion = max(self._portion // 4, SMALLEST)
                    continue  # others gave out pseudonyms first: look again, at a smaller portion
                self._portion = PORTION
            scanned = scanned_further
            withheld.update(findings.withheld)
            looks, finds = looks + scanned.whole, bool(findings.changes or findings.withheld)
            self._sum(findings)
            await self._scope.runner.read(findings.entries.clear)  # megabytes are freed in a thread, not on the loop
        if scanned is not None:
            await self._scope.runner.read(removed.clear)
        self._withheld += 0 if self._applies else len(withheld)

    # --- looking

    async def _looked(self, key: SessionKey, head: Head, seen: _Seen, removed: Removed) -> tuple[Findings, _Seen]:
        """Scan entries until a portion of them has to change, or all that remain, with records and head.

        Returns the findings, and how far the session is scanned now.
        """
        branch_pseudonyms = await self._numbers_of_branches(key)
        findings = Findings(key.session, self._redactor, head.pseudonyms, branch_pseudonyms, removed)
        run = self._scope.runner.run
        after = max(seen.entries, head.first_seq - 1)
        while after + 1 < head.next_seq:
            look_at = partial(self._look_at, key, after, head.next_seq, findings)
            after = await self._store.together(look_at, reads=True)
            if findings.changes >= self._portion:
                return findings, seen._replace(head=head, entries=after, whole=False)
        record_after = seen.records
        while record_after < head.revision:
            record_upto = min(record_after + PORTION, head.revision)
            for record in await self._records(key, record_after, record_upto, findings):
                await run(findings.look_at_record, record)
            record_after = record_upto
        await run(findings.look_at_head, head)
        return findings, _Seen(head, after, head.revision, whole=True)

    async def _numbers_of_branches(self, key: SessionKey) -> list[dict[str, int]]:
        """Return the pseudonyms that each branch has given out, since branches may share entries."""
        branches = await self._store.branches(key) if self._redactor.numbers else ()
        heads = [await self._store.head(key._replace(session=branch)) for branch in branches]
        return [head.pseudonyms for head in heads if head is not None]

    async def _look_at(self, key: SessionKey, after: int, before: int, found: Findings) -> int:
        """Scan the next batch of entries and return its last `seq`. It is freed in the thread that read it."""
        batch, last = await self._batch(key, after, before, found)
        await self._scope.runner.run(found.look_at_entries, batch)
        return last

    async def _batch(self, key: SessionKey, after: int, before: int, findings: Findings) -> tuple[list[Entry], int]:
        """Return the next entries, up to the end of a provider's message, and the last `seq` of their range."""
        limit = BATCH
        while True:
            try:
                batch = await self._store.read(key, after=after, before=before, limit=limit)
            except StoreCorrupt:
                return await self._singly(key, range(after + 1, min(after + 1 + limit, before)), findings)
            if any(entry.damaged for entry in batch):
                return await self._singly(key, range(after + 1, min(after + 1 + limit, before)), findings)
            if len(batch) < limit:
                return batch, before - 1
            end = next((i for i in range(limit - 1, 0, -1) if not batch[i].continues), 0)
            if end:
                return batch[:end], batch[end - 1].seq
            limit *= 2

    async def _singly(self, key: SessionKey, seqs: range, findings: Findings) -> tuple[list[Entry], int]:
        """Read these entries one by one. Return the readable ones and the last `seq`; refuse the others."""
        entries: list[Entry] = []
        for seq in seqs:
            try:
                fetched = await self._store.fetch(key, [seq])
                damaged = any(entry.damaged for entry in fetched)
            except StoreCorrupt:
                fetched, damaged = [], True
            if damaged:
                findings.refused.append(Unchecked(key.session, f"entry {seq}", UNREADABLE))
            else:
                entries += fetched
        return entries, seqs[-1]

    async def _records(self, key: SessionKey, after: int, upto: int, found: Findings) -> Sequence[Record]:
        try:
            return await self._store.records(key, after=after, before=upto + 1)
        except StoreCorrupt:
            found.refused.append(Unchecked(key.session, f"records {after + 1} to {upto}", UNREADABLE))
            return ()

    # --- doing

    async def _put(self, key: SessionKey, head: Head, findings: Findings) -> bool:
        """Write the redacted rows over those that have not changed since `head`. What came since is scanned next.

        Returns False if that is not possible: another session took its place, or others gave out pseudonyms.
        """
        figures = {"entries": len(findings.entries), "summaries": findings.summaries}
        figures["found"] = findings.findings.total()
        async with Unmaking(self._scope.derivations, self._store, key, sorted(findings.entries)):
            is_written = await self._noted(key, head, findings, figures) and await self._rewritten(key, head, findings)
        if is_written:
            if findings.summaries:  # a summary's text may change without any entry that it covers
                await self._scope.derivations.summarised(key.session)
            await self._scope.tell("redacted", key.session, **figures)
        return is_written

    async def _rewritten(self, key: SessionKey, head: Head, findings: Findings) -> bool:
        """Rewrite what was found. Return False if the session that was scanned is gone or the store refuses."""
        tried_epoch = -1
        while (current := await self._same(key, head)) is not None and current.epoch != tried_epoch:
            tried_epoch = current.epoch
            try:
                await self._store.rewrite(key, Redaction(key, current.epoch, findings), seqs=findings.entries.keys())
            except Conflict:  # a new epoch began: try again in it. In the same epoch a branch objects: give up
                continue
            return True
        return False

    async def _noted(self, key: SessionKey, head: Head, findings: Findings, figures: dict[str, int]) -> bool:
        """Commit the record of the rewrite, with its pseudonyms. Return False if others have given out some since."""
        numbers = findings.numbers if self._redactor.numbers else {}
        reason = Gate(self._redactor.afresh()).redact(REASON)  # the policy may redact even the reason
        change = Change(kind="redact", reason=reason, created=head.created, pseudonyms=numbers, detail=figures)
        while (now := await self._same(key, head)) is not None and not (numbers and now.pseudonyms != head.pseudonyms):
            try:
                await self._store.commit(key, change, expect_revision=now.revision if numbers else None)
            except Conflict:
                continue
            return True
        return False

    async def _same(self, key: SessionKey, looked: Head) -> Head | None:
        """Return the session's head as it is now, or None if another session has taken the place of the scanned one."""
        current = await self._store.head(key)
        if current is None or await since(self._store, key, looked, current, redacted=True) is None:
            return None
        return current

    async def _erase(self, key: SessionKey, ids: set[str]) -> None:
        """Erase the entries that the policy withholds, in every branch, with what summaries say of them."""
        try:
            await Erasing(SessionScope(self._scope, Options(key))).erase(sorted(ids), "withheld")
        except EntryNotFound:  # the session was cleared meanwhile, or another took its place
            return
        self._withheld += len(ids)
        self._redacted += len(ids)

    def _sum(self, findings: Findings) -> None:
        self._entries += len(findings.entries) - findings.stubs
        self._withheld += findings.stubs
        self._summaries += findings.summaries
        self._redacted += len(findings.entries) + len(findings.records) if self._applies else 0
        self._findings.update(findings.findings)
        self._refused |= {(unchecked.session, unchecked.place): unchecked for unchecked in findings.refused}
        for name, samples in findings.samples.items():
            session_samples = self._samples.setdefault(name, [])
            session_samples += samples[: self._most - len(session_samples)]

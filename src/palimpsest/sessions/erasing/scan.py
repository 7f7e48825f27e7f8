"""Scanning what is stored for what a policy would have redacted, and redacting it there.

A session is looked at from its first entry to its last, whatever became of them, with its records and its head. What
changes is computed beside the store and put in place in one step, which begins a new epoch:

    look      a portion of entries and records, until so many of them change or there are no more
    note      a record of the kind "redact" with figures, and new pseudonyms: nothing says anything else yet
    rewrite   head, records and entries together, in every branch that shares them; what others have changed meanwhile
              is left as it is, and looked at again
    on        to what comes next, until a look finds nothing new; then what is withheld is erased

After a kill the same again goes on with what is left: what is redacted already is found to be clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from palimpsest.errors import ConfigError, Conflict, EntryNotFound, SessionNotFound, StoreCorrupt
from palimpsest.log import values
from palimpsest.log.change import Change, Record
from palimpsest.log.checks import check_progress, check_whole
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.ids import check_id
from palimpsest.privacy.gate import Gate, gate_of
from palimpsest.privacy.removed import Removed
from palimpsest.privacy.retroactive import REASON, Findings, Redaction, Sample, Unchecked
from palimpsest.sessions.derived import Unmaking
from palimpsest.sessions.erasing.damaged import UNREAD
from palimpsest.sessions.erasing.facts import UNREADABLE, FactScan
from palimpsest.sessions.erasing.scanned import Scanned, chosen
from palimpsest.sessions.erasing.sweep import end_those_over
from palimpsest.sessions.erasing.verbs import Erasing
from palimpsest.sessions.history import since
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import sessions_of
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.sessions.scopes import Owner

if TYPE_CHECKING:
    from palimpsest.privacy.redaction import Redactor

BATCH = 256
"""Entries that are read at once, or more: up to where a message of a provider ends."""

PORTION = 4096
"""Entries and records that are rewritten in one step, about: they are in memory together."""

SMALLEST = 16
"""What a portion shrinks to while others give out pseudonyms faster than it is looked at."""

LOOKS = 8
"""How often a session is looked at that others write to meanwhile: all but the first time only at what is new."""

PASSES = 10
"""How often sessions are looked for that others make meanwhile."""

BUSY = "others kept making sessions while it was looked at them: scan again when they have ended"

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of sessions that are done, and of all."""


async def scan(
    scope: MemoryScope,
    privacy: object,
    *,
    session: str | None,
    apply: bool,
    sample: int,
    progress: Progress | None,
) -> Scanned:
    """Scan a memory; see `AsyncMemory.scan`."""
    redactor = scope.gate.redactor if privacy is None else gate_of(privacy).redactor
    if redactor is None:
        raise ConfigError("privacy", None, "a policy to scan with, since the memory was opened without one")
    check_whole(sample, "sample")
    check_progress(progress)
    values.switch("apply", apply)
    if session is not None:
        check_id(session, "session")
        if await scope.store.head(scope.key(session)) is None:
            raise SessionNotFound(session)
    if apply and not scope.store.writable:
        raise ConfigError("apply", True, f"False, since {scope.store.url} was opened to read only")
    scanner = _Scanner(scope, redactor.afresh(), apply=apply, sample=sample)
    done: set[str] = set()
    busy: tuple[str, ...] = ()
    for _ in range(PASSES):
        left = [session] if session is not None and not done else await _left(scope, session, done, apply)
        if not left:
            break
        total = len(done) + len(left)  # those that come into being meanwhile are found when these are done
        for name in left:
            await scanner.session(name)
            if apply:
                scope.views.clear()
            done.add(name)
            if progress is not None:
                progress(len(done), total)
    else:
        busy = (BUSY,) if await _left(scope, session, done, apply) else ()
    if session is None:
        await scanner.items()
    else:
        await scanner.items("session", session)
    if apply:
        await end_those_over(scope)  # in which nobody finds anything
    unread = tuple(map(UNREAD.format, await scope.out_of_reach(session)))
    return scanner.result(len(done), busy + unread + (await scope.scrub(scope.store) if apply else ()))


async def _left(scope: MemoryScope, only: str | None, done: set[str], apply: bool) -> list[str]:
    """The sessions that are still to be looked at: all, or the branches of one, which have copies of what it has."""
    if only is not None:
        branches = await scope.store.branches(scope.key(only)) if apply else []
        return [name for name in branches if name not in done]
    return [one.session async for one in sessions_of(scope.store, scope.tenant) if one.session not in done]


class _Seen(NamedTuple):
    """How far a session was looked at: as of which head, up to which entry and record; whether that was all of it."""

    head: Head
    entries: int
    records: int = 0
    whole: bool = False


class _Scanner:
    """Scans sessions and sums up what is found."""

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
        """What there is to report."""
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
        async for found in facts.all(owner, id):
            self._sum(found)
        self._facts, self._redacted = facts.facts, self._redacted + facts.redacted

    async def session(self, name: str) -> None:
        """Scan a session until nothing has been added to it while it was looked at."""
        try:
            await self._scan(self._scope.key(name))
        except StoreCorrupt:
            self._refused[name, ""] = Unchecked(name, "session", UNREADABLE)

    async def _scan(self, key: SessionKey) -> None:
        """Look at all of it, then at what is new, as long as a look finds something, and there is something new."""
        seen, withheld, looks, finds = None, set[str](), 0, True
        while (head := await self._store.head(key)) is not None:
            if seen is None or await since(self._store, key, seen.head, head, redacted=True) is None:
                seen, withheld = _Seen(head, head.first_seq - 1), set()
                removed = Removed(self._gone, has_summaries=head.compaction > 0)
            rests = head.revision == seen.head.revision or looks >= LOOKS or (looks > 1 and not finds)
            if seen.whole and (rests or not self._applies):
                if not (withheld and self._applies):
                    break
                await self._erase(key, withheld)
                withheld, finds = set(), True
                continue
            found, further = await self._looked(key, head, seen, removed)
            if self._applies and found.changes:
                if not await self._put(key, head, found):
                    self._portion = max(self._portion // 4, SMALLEST)
                    continue  # somebody was first: look again, at less
                self._portion = PORTION
            seen = further
            withheld.update(found.withheld)
            looks, finds = looks + seen.whole, bool(found.changes or found.withheld)
            self._sum(found)
            await self._scope.runner.read(found.entries.clear)  # a thread lets go of megabytes
        if seen is not None:
            await self._scope.runner.read(removed.clear)
        self._withheld += 0 if self._applies else len(withheld)

    # --- looking

    async def _looked(self, key: SessionKey, head: Head, seen: _Seen, removed: Removed) -> tuple[Findings, _Seen]:
        """Look at what comes next: a portion of the entries, or the rest of them with records and head."""
        others = await self._numbers_of_branches(key)
        found = Findings(key.session, self._redactor, head.pseudonyms, others, removed)
        run = self._scope.runner.run
        after = max(seen.entries, head.first_seq - 1)
        while after + 1 < head.next_seq:
            look_at = partial(self._look_at, key, after, head.next_seq, found)
            after = await self._store.together(look_at, reads=True)
            if found.changes >= self._portion:
                return found, seen._replace(head=head, entries=after, whole=False)
        since = seen.records
        while since < head.revision:
            upto = min(since + PORTION, head.revision)
            for record in await self._records(key, since, upto, found):
                await run(found.look_at_record, record)
            since = upto
        await run(found.look_at_head, head)
        return found, _Seen(head, after, head.revision, whole=True)

    async def _numbers_of_branches(self, key: SessionKey) -> list[dict[str, int]]:
        """The pseudonyms that branches which may share entries have given out."""
        branches = await self._store.branches(key) if self._redactor.numbers else ()
        heads = [await self._store.head(key._replace(session=branch)) for branch in branches]
        return [head.pseudonyms for head in heads if head is not None]

    async def _look_at(self, key: SessionKey, after: int, before: int, found: Findings) -> int:
        """Look at the next entries, and return the last place of them. They end where they are read, not on a loop."""
        batch, last = await self._batch(key, after, before, found)
        await self._scope.runner.run(found.look_at_entries, batch)
        return last

    async def _batch(self, key: SessionKey, after: int, before: int, found: Findings) -> tuple[list[Entry], int]:
        """Return the next entries, which end where a message of a provider ends, and the last place of them."""
        limit = BATCH
        while True:
            try:
                batch = await self._store.read(key, after=after, before=before, limit=limit)
            except StoreCorrupt:
                return await self._singly(key, range(after + 1, min(after + 1 + limit, before)), found)
            if any(entry.damaged for entry in batch):
                return await self._singly(key, range(after + 1, min(after + 1 + limit, before)), found)
            if len(batch) < limit:
                return batch, before - 1
            end = next((i for i in range(limit - 1, 0, -1) if not batch[i].continues), 0)
            if end:
                return batch[:end], batch[end - 1].seq
            limit *= 2

    async def _singly(self, key: SessionKey, seqs: range, found: Findings) -> tuple[list[Entry], int]:
        """Return those of these entries that can be read."""
        entries: list[Entry] = []
        for seq in seqs:
            try:
                there = await self._store.fetch(key, [seq])
                damaged = any(entry.damaged for entry in there)
            except StoreCorrupt:
                there, damaged = [], True
            if damaged:
                found.refused.append(Unchecked(key.session, f"entry {seq}", UNREADABLE))
            else:
                entries += there
        return entries, seqs[-1]

    async def _records(self, key: SessionKey, after: int, upto: int, found: Findings) -> Sequence[Record]:
        try:
            return await self._store.records(key, after=after, before=upto + 1)
        except StoreCorrupt:
            found.refused.append(Unchecked(key.session, f"records {after + 1} to {upto}", UNREADABLE))
            return ()

    # --- doing

    async def _put(self, key: SessionKey, head: Head, found: Findings) -> bool:
        """Put what was found in place, where it is as it was; what came since `head` is looked at next.

        Returns whether that could be done: not where another session is in its place, or others gave out pseudonyms.
        """
        figures = {"entries": len(found.entries), "summaries": found.summaries, "found": found.findings.total()}
        async with Unmaking(self._scope.derivations, self._store, key, sorted(found.entries)):
            done = await self._noted(key, head, found, figures) and await self._rewritten(key, head, found)
        if done:
            if found.summaries:  # of which no entry need have changed
                await self._scope.derivations.summarised(key.session)
            await self._scope.tell("redacted", key.session, **figures)
        return done

    async def _rewritten(self, key: SessionKey, head: Head, found: Findings) -> bool:
        """Rewrite what was found; return whether the session that was looked at is still there."""
        tried = -1
        while (now := await self._same(key, head)) is not None and now.epoch != tried:
            tried = now.epoch
            try:
                await self._store.rewrite(key, Redaction(key, now.epoch, found), seqs=found.entries.keys())
            except Conflict:  # somebody has begun an epoch, and what was found is still there; or a branch objects
                continue
            return True
        return False

    async def _noted(self, key: SessionKey, head: Head, found: Findings, figures: dict[str, int]) -> bool:
        """Keep a record of what comes next, and its pseudonyms; return whether nobody has given out any since."""
        numbers = found.numbers if self._redactor.numbers else {}
        reason = Gate(self._redactor.afresh()).redact(REASON)  # which the policy may redact, too
        change = Change(kind="redact", reason=reason, created=head.created, pseudonyms=numbers, detail=figures)
        while (now := await self._same(key, head)) is not None and not (numbers and now.pseudonyms != head.pseudonyms):
            try:
                await self._store.commit(key, change, expect_revision=now.revision if numbers else None)
            except Conflict:
                continue
            return True
        return False

    async def _same(self, key: SessionKey, looked: Head) -> Head | None:
        """The head of the session as it is now; None where that is not the session that was looked at."""
        now = await self._store.head(key)
        if now is None or await since(self._store, key, looked, now, redacted=True) is None:
            return None
        return now

    async def _erase(self, key: SessionKey, ids: set[str]) -> None:
        """Erase what is withheld, in every branch, with what summaries tell of it."""
        try:
            await Erasing(SessionScope(self._scope, Options(key))).erase(sorted(ids), "withheld")
        except EntryNotFound:  # the session was cleared meanwhile, or another is in its place
            return
        self._withheld += len(ids)
        self._redacted += len(ids)

    def _sum(self, found: Findings) -> None:
        self._entries += len(found.entries) - found.stubs
        self._withheld += found.stubs
        self._summaries += found.summaries
        self._redacted += len(found.entries) + len(found.records) if self._applies else 0
        self._findings.update(found.findings)
        self._refused |= {(one.session, one.place): one for one in found.refused}
        for name, samples in found.samples.items():
            kept = self._samples.setdefault(name, [])
            kept += samples[: self._most - len(kept)]

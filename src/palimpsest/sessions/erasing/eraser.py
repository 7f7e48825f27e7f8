"""The eraser of one session: entries go, here and in every branch, with whatever is made from them.

look       what is meant, in the log as it is now, and which records tell of it
unmake     what is made from these entries goes first: a kill in between leaves nothing behind that nobody knows of
commit     tombstones, records and summaries without words, in one step, of what is still there: nobody is in its way
unmake on  whoever has joined meanwhile, and may have made something of them, is told, too
look on    from where the last look ended, until one finds nothing new
hush       records of branches that tell of the text, each branch a step of its own
rebuild    summaries that were shown are made anew from what is left of what they covered
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from palimpsest.compaction.rebuild import Rebuild
from palimpsest.errors import ConfigError, Conflict
from palimpsest.log.change import BY_REQUEST, Change
from palimpsest.log.checks import unfit
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.summary import Summary
from palimpsest.privacy.gate import Gate
from palimpsest.privacy.mentions import Mentions, about_mentions
from palimpsest.sessions.compacting.auto import AutoCompaction
from palimpsest.sessions.compacting.compactor import Compactor
from palimpsest.sessions.compacting.result import CompactionResult
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.erased import Erased, media_in
from palimpsest.sessions.erasing.selection import Selection, records_mentioning
from palimpsest.sessions.history import since
from palimpsest.sessions.scope import SessionScope

Lost = dict[str, list[Summary]]
"""The summaries that an erasure took along, by session."""

LOOKS = 8
"""How often a session is looked at that others write to meanwhile: all but the first time only at what is new."""


def checked_reason(gate: Gate, reason: object, mentions: Mentions | None) -> str:
    """Return the reason as it is kept. Raises ConfigError where it is no text, or says what is to be erased."""
    if not isinstance(reason, str) or unfit(reason) is not None:
        raise ConfigError("reason", reason, "text without lone surrogates")
    if mentions is not None and mentions(reason):
        if reason == BY_REQUEST:
            return ""
        raise ConfigError("reason", "a reason that holds the text", "one that does not: it is kept in the log")
    return gate.text(reason)


class Eraser:
    """Erases in one session, as its options say, and in the branches that share what is erased."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._options, self._store = scope, scope.options, scope.store

    async def erase(
        self, selection: Selection, reason: str, *, detail: Mapping[str, Any] | None = None, seen: Head | None = None
    ) -> tuple[Erased, Lost]:
        """Erase what is chosen and return what that took; summaries are lost by it, and not made anew yet.

        What was there when it was called is gone, and so is all that was meant when it last looked, however many write
        meanwhile. Nothing is erased in a session that is deleted meanwhile. With `seen` what the choice found up to
        that head was erased before.
        """
        done, lost = Erased(), Lost()
        again = selection.sees_all or selection.mentions is not None
        async for look in self._looks(self._scope.key, again=again, seen=seen):
            find = partial(selection.find, self._store, self._options, look.head, look.seen)
            found = await self._store.together(find, reads=True)
            silence = await self._telling(look, selection.mentions)
            said = self._said(look, selection.mentions)
            if found or silence or said:
                more, gone = await self._committed(look, found, silence, said, reason, detail)
                done, lost = done + more, _merged(lost, gone)
        return _with(done, _merged(lost, await self._hush_branches(selection.mentions, reason)))

    async def _looks(self, key: SessionKey, *, again: bool, seen: Head | None = None) -> AsyncIterator[_Look]:
        """Yield the session as it is; then, `again`, what is new, as long as the last look has found something."""
        for number in range(LOOKS):
            head = await self._store.head(key)
            if head is None or (seen is not None and head.revision == seen.revision):
                return
            if seen is not None and await since(self._store, key, seen, head) is None:
                seen = None  # another log is in its place, or its texts are others
            look = _Look(key, head, seen)
            yield look
            if not again or (number and not look.found):
                return
            seen = look.after

    async def _telling(self, look: _Look, mentions: Mentions | None) -> tuple[int, ...]:
        options = self._options.of(look.key.session)
        if mentions is None:
            return ()
        tell = partial(records_mentioning, self._store, options, look.head, mentions, look.seen)
        return await self._store.together(tell, reads=True)

    def _said(self, look: _Look, mentions: Mentions | None) -> tuple[str, ...]:
        """What of that which is said of the session tells of it."""
        return about_mentions(look.head.about, mentions) if mentions is not None else ()

    async def _committed(
        self,
        look: _Look,
        found: Sequence[Entry],
        silence: tuple[int, ...],
        said: tuple[str, ...],
        reason: str,
        detail: Mapping[str, Any] | None = None,
    ) -> tuple[Erased, Lost]:
        """Erase what a look has found, in one step, and return what that took."""
        key, seqs = look.key, tuple(entry.seq for entry in found)
        branches = list(await self._store.sharing(key, seqs))
        change = Change(
            kind="erase",
            reason=reason,
            created=look.head.created,
            seqs=seqs,
            ids=tuple(entry.id for entry in found),
            silence=silence,
            said=said,
            detail=dict(detail or {}),
        )
        async with self._scope.drop_derived(seqs) as unmade:
            before = await self.standing([key.session, *branches])
            look.found = True
            try:
                after = await self._store.commit(key, change)
            except Conflict:  # it was deleted, with all that was found; another may be in its place
                return unmade.done, Lost()
        if after.revision == look.head.revision + 1:  # nobody was in between
            look.after = after
        told = await self._store.records(key, after=after.revision - 1, before=after.revision + 1)
        gone = set(told[0].seqs) if told else set()  # else it was cleared since
        if gone:
            facts = {"seqs": tuple(sorted(gone)), "reason": reason, "branches": tuple(branches)}
            await self._scope.memory.tell("erased", key.session, **facts)
        media = sum(media_in(entry) for entry in found if entry.seq in gone)
        done = Erased(entries=len(gone), branches=tuple(branches), media=media)
        return done + unmade.done, await self.lost(before)

    async def _hush_branches(self, mentions: Mentions | None, reason: str) -> Lost:
        """Take the words of whatever tells of a text in the branches, and return which summaries that were.

        A branch that others make meanwhile has what the one had that it comes from: so, when all are done, those are
        looked at that have come.
        """
        lost, done = Lost(), set[str]()
        for _ in range(LOOKS if mentions is not None else 0):
            new = set(await self._store.branches(self._scope.key)) - done
            if not new:
                break
            for branch in sorted(new):
                lost = _merged(lost, await self._hushed(branch, mentions, reason))
            done |= new
        return lost

    async def _hushed(self, branch: str, mentions: Mentions | None, reason: str) -> Lost:
        lost = Lost()
        async for look in self._looks(self._scope.key._replace(session=branch), again=True):
            silence, said = await self._telling(look, mentions), self._said(look, mentions)
            if silence or said:
                lost = _merged(lost, (await self._committed(look, (), silence, said, reason))[1])
        return lost

    # --- summaries

    async def summaries(self, session: str) -> list[Summary]:
        """Return the summaries that contexts of this session, or a branch, show."""
        scope = self._scope.of(session)
        snapshots = SnapshotReader.of(scope)
        seen = scope.store.seen(scope.key) if scope.key == self._scope.key else None  # who erases has just looked
        return await snapshots.summaries(await snapshots.state(seen.head if seen else await scope.head()))

    async def standing(self, sessions: Iterable[str]) -> Lost:
        """Return the summaries that contexts of these sessions show."""
        return {name: await self.summaries(name) for name in sessions}

    async def lost(self, before: Lost) -> Lost:
        """Return those among the summaries of before that are shown no longer."""
        lost: Lost = {}
        for name, summaries in before.items():
            there = {made.id for made in await self.summaries(name)} if summaries else set()
            if gone := [made for made in summaries if made.id not in there]:
                lost[name] = gone
        return lost

    async def finished(self, done: Erased, lost: Lost, mentions: Mentions | None) -> Erased:
        """Make anew what was lost, and see what remains; return the whole report."""
        done += Erased(rebuilt=await self.rebuild(lost, mentions))
        return done + Erased(remains=await self._scope.memory.scrub(self._store))

    async def rebuild(self, lost: Lost, mentions: Mentions | None) -> int:
        """Make lost summaries anew from what is left of what they covered; return how many came of it.

        None of them holds what `mentions` looks for, whatever a summarizer answers.
        """
        if not lost:
            return 0
        rebuilt, style = 0, self._options.chosen(None).style
        fields = {**msgspec.structs.asdict(style), "on_failure": "heuristic"}
        for name, summaries in lost.items():
            scope = self._scope.of(name)
            for made in summaries:
                compactor = Compactor.of(scope, without=mentions)
                strategy = Rebuild(where=made.covers, summary_tokens=made.tokens, **fields)
                result = await compactor.released(_run(scope, compactor, strategy))
                rebuilt += result.done
            await self._scope.memory.derivations.summarised(name)
        return rebuilt


async def _run(scope: SessionScope, compactor: Compactor, strategy: Rebuild) -> CompactionResult:
    result = await compactor.run(strategy)
    await AutoCompaction(scope).tell(compactor, result)
    return result


class _Look:
    """A session as it is looked at: its head now, and up to which head it was looked at before (None: it was not)."""

    def __init__(self, key: SessionKey, head: Head, seen: Head | None) -> None:
        self.key, self.head, self.seen = key, head, seen
        self.found = False
        """Whether something was found, and so there may be more."""
        self.after = head
        """The head up to which nothing is left to be looked at."""


def _with(done: Erased, lost: Lost) -> tuple[Erased, Lost]:
    """The report with the summaries that were lost."""
    return done + Erased(withdrawn=sum(map(len, lost.values()))), lost


def _merged(one: Lost, other: Lost) -> Lost:
    return {name: [*one.get(name, ()), *other.get(name, ())] for name in {**one, **other}}

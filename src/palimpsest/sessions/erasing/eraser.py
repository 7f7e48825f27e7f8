"""The eraser of one session: destroys entries in it and in every branch, with everything derived from them.

An erasure takes these steps:

look         find the entries that are meant, in the log as it is now, and the records whose words mention the text
unmake       have indexes and the like remove what they derived from these entries, before the entries go: if the
             process is killed in between, no derived copy is left that nothing knows of
commit       write tombstones and strip records and summaries of their words, in one step. The change names what it is
             about and applies to what still exists, so concurrent writers do not conflict with it
unmake late  do the same for deriving parts that joined meanwhile and may have read these entries
look again   continue where the last look ended, until a look finds nothing new
silence      strip records of branches that mention the text, each branch in a step of its own
rebuild      make summaries that contexts showed anew, from what remains of the entries that they covered
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
"""Summaries that contexts showed and that lost their words by an erasure, by session."""

LOOKS = 8
"""How often a session is looked at while others write to it. Looks after the first read only what is new."""


def checked_reason(gate: Gate, reason: object, mentions: Mentions | None) -> str:
    """Return the reason as it is stored, redacted by the gate.

    Raises ConfigError if it is no valid text, or contains the text that is to be erased.
    """
    if not isinstance(reason, str) or unfit(reason) is not None:
        raise ConfigError("reason", reason, "text without lone surrogates")
    if mentions is not None and mentions(reason):
        if reason == BY_REQUEST:
            return ""
        raise ConfigError("reason", "a reason with the erased text", "one without it: the log keeps the reason")
    return gate.text(reason)


class Eraser:
    """Erases in one session and in the branches that share what is erased."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._options, self._store = scope, scope.options, scope.store

    async def erase(
        self, selection: Selection, reason: str, *, detail: Mapping[str, Any] | None = None
    ) -> tuple[Erased, Lost]:
        """Erase what `selection` finds. Return the report and the lost summaries, which are not made anew yet.

        Everything meant that existed when this was called is gone afterwards, and so is everything meant that the last
        look found, however many others write meanwhile. If the session is deleted meanwhile, nothing more is erased.

        Args:
            selection: finds the entries.
            reason: kept in the records, as `checked_reason` returns it.
            detail: kept in the records.
        """
        total, lost_summaries = Erased(), Lost()
        again = selection.sees_all or selection.mentions is not None
        async for look in self._looks(self._scope.key, again=again):
            find = partial(selection.find, self._store, self._options, look.head, look.seen)
            entries = await self._store.together(find, reads=True)
            silenced = await self._mentioning_records(look, selection.mentions)
            silenced_about = _mentioning_about(look, selection.mentions)
            if entries or silenced or silenced_about:
                report, newly_lost = await self._commit(look, entries, silenced, silenced_about, reason, detail)
                total, lost_summaries = total + report, _merged(lost_summaries, newly_lost)
        lost_summaries = _merged(lost_summaries, await self._silence_branches(selection.mentions, reason))
        return total + Erased(withdrawn=sum(map(len, lost_summaries.values()))), lost_summaries

    async def _looks(self, key: SessionKey, *, again: bool) -> AsyncIterator[_Look]:
        """Yield a look at the session as it is now; then, with `again`, at what is new while looks find something.

        The caller sets `found` and `after` of each look before the next one is made.
        """
        seen_head: Head | None = None
        for number in range(LOOKS):
            head = await self._store.head(key)
            if head is None or (seen_head is not None and head.revision == seen_head.revision):
                return
            if seen_head is not None and await since(self._store, key, seen_head, head) is None:
                seen_head = None  # another session took its place, or its texts were redacted: look at all of it
            look = _Look(key, head, seen_head)
            yield look
            if not again or (number and not look.found):
                return
            seen_head = look.after

    async def _mentioning_records(self, look: _Look, mentions: Mentions | None) -> tuple[int, ...]:
        """Return the revisions of the records whose words mention the text."""
        options = self._options.of(look.key.session)
        if mentions is None:
            return ()
        find = partial(records_mentioning, self._store, options, look.head, mentions, look.seen)
        return await self._store.together(find, reads=True)

    async def _commit(
        self,
        look: _Look,
        entries: Sequence[Entry],
        silence: tuple[int, ...],
        silenced_about: tuple[str, ...],
        reason: str,
        detail: Mapping[str, Any] | None = None,
    ) -> tuple[Erased, Lost]:
        """Erase what a look has found, in one step. Return the report and the summaries lost by it."""
        key, seqs = look.key, tuple(entry.seq for entry in entries)
        branches = list(await self._store.sharing(key, seqs))
        change = Change(
            kind="erase",
            reason=reason,
            created=look.head.created,
            seqs=seqs,
            ids=tuple(entry.id for entry in entries),
            silence=silence,
            said=silenced_about,
            detail=dict(detail or {}),
        )
        async with self._scope.drop_derived(seqs) as unmaking:
            before = await self.shown_summaries([key.session, *branches])
            look.found = True
            try:
                after = await self._store.commit(key, change)
            except Conflict:  # the session was deleted, with all that was found; a new one may be in its place
                return unmaking.done, Lost()
        if after.revision == look.head.revision + 1:  # nobody else has written since the look
            look.after = after
        records = await self._store.records(key, after=after.revision - 1, before=after.revision + 1)
        erased_seqs = set(records[0].seqs) if records else set()  # the session was cleared since if there is no record
        if erased_seqs:
            facts = {"seqs": tuple(sorted(erased_seqs)), "reason": reason, "branches": tuple(branches)}
            await self._scope.memory.tell("erased", key.session, **facts)
        media = sum(media_in(entry) for entry in entries if entry.seq in erased_seqs)
        report = Erased(entries=len(erased_seqs), branches=tuple(branches), media=media)
        return report + unmaking.done, await self.lost(before)

    async def _silence_branches(self, mentions: Mentions | None, reason: str) -> Lost:
        """Strip records of branches that mention the text of their words. Return the summaries lost by it.

        A branch that is forked meanwhile copies the records of its parent, perhaps before they were stripped. So the
        branches are listed again, until all of them are done.
        """
        lost_summaries, silenced_branches = Lost(), set[str]()
        for _ in range(LOOKS if mentions is not None else 0):
            new_branches = set(await self._store.branches(self._scope.key)) - silenced_branches
            if not new_branches:
                break
            for branch in sorted(new_branches):
                lost_summaries = _merged(lost_summaries, await self._silence_branch(branch, mentions, reason))
            silenced_branches |= new_branches
        return lost_summaries

    async def _silence_branch(self, branch: str, mentions: Mentions | None, reason: str) -> Lost:
        lost_summaries = Lost()
        async for look in self._looks(self._scope.key._replace(session=branch), again=True):
            silenced = await self._mentioning_records(look, mentions)
            silenced_about = _mentioning_about(look, mentions)
            if silenced or silenced_about:
                _, newly_lost = await self._commit(look, (), silenced, silenced_about, reason)
                lost_summaries = _merged(lost_summaries, newly_lost)
        return lost_summaries

    # --- summaries

    async def summaries(self, session: str) -> list[Summary]:
        """Return the summaries that contexts of `session` (this session or one of its branches) show."""
        scope = self._scope.of(session)
        snapshots = SnapshotReader.of(scope)
        remembered = scope.store.seen(scope.key) if scope.key == self._scope.key else None  # this session was just read
        return await snapshots.summaries(await snapshots.state(remembered.head if remembered else await scope.head()))

    async def shown_summaries(self, sessions: Iterable[str]) -> Lost:
        """Return the summaries that contexts of these sessions show, by session."""
        return {name: await self.summaries(name) for name in sessions}

    async def lost(self, before: Lost) -> Lost:
        """Return those of the summaries in `before` that contexts do not show any more."""
        lost: Lost = {}
        for name, summaries in before.items():
            shown_ids = {summary.id for summary in await self.summaries(name)} if summaries else set()
            if missing := [summary for summary in summaries if summary.id not in shown_ids]:
                lost[name] = missing
        return lost

    async def finish(self, done: Erased, lost: Lost, mentions: Mentions | None) -> Erased:
        """Rebuild the lost summaries and scrub the store. Return the report completed by both."""
        done += Erased(rebuilt=await self.rebuild(lost, mentions))
        return done + Erased(remains=await self._scope.memory.scrub(self._store))

    async def rebuild(self, lost: Lost, mentions: Mentions | None) -> int:
        """Make lost summaries anew from what remains of the entries that they covered. Return how many were made.

        No new summary holds a text that `mentions` matches, whatever a summarizer answers.
        """
        if not lost:
            return 0
        rebuilt, style = 0, self._options.chosen(None).style
        fields = {**msgspec.structs.asdict(style), "on_failure": "heuristic"}
        for name, summaries in lost.items():
            scope = self._scope.of(name)
            for summary in summaries:
                compactor = Compactor.of(scope, without=mentions)
                strategy = Rebuild(where=summary.covers, summary_tokens=summary.tokens, **fields)
                result = await compactor.free_after(_run(scope, compactor, strategy))
                rebuilt += result.done
            await self._scope.memory.derivations.summarised(name)
        return rebuilt


async def _run(scope: SessionScope, compactor: Compactor, strategy: Rebuild) -> CompactionResult:
    result = await compactor.run(strategy)
    await AutoCompaction(scope).tell(compactor, result)
    return result


class _Look:
    """One look at a session: its head now, and the head up to which it was looked at before (None: never)."""

    def __init__(self, key: SessionKey, head: Head, seen: Head | None) -> None:
        self.key, self.head, self.seen = key, head, seen
        self.found = False
        """Whether this look found something to erase, so that another look is needed."""
        self.after = head
        """The head behind which the next look begins."""


def _mentioning_about(look: _Look, mentions: Mentions | None) -> tuple[str, ...]:
    """Return which of the session's own attributes ("title", "metadata") mention the text."""
    return about_mentions(look.head.about, mentions) if mentions is not None else ()


def _merged(one: Lost, other: Lost) -> Lost:
    return {name: [*one.get(name, ()), *other.get(name, ())] for name in {**one, **other}}

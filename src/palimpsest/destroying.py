"""The eraser of one session: entries go, here and in every branch, with whatever is made from them.

choose     what is meant, as the session is now, and which records tell of it
unmake     what is made from these entries goes first: a kill in between leaves nothing behind that nobody knows of
commit     tombstones, records and summaries without words, in one step, unless somebody was first: then choose again
hush       records of branches that tell of the text, each branch a step of its own
rebuild    summaries that were shown are made anew from what is left of what they covered
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.checks import unfit
from palimpsest.choosing import Choice, telling
from palimpsest.compaction.rebuild import Rebuild
from palimpsest.compactor import Compactor
from palimpsest.entries import Entry
from palimpsest.erasing import Erased, media_in, unmake
from palimpsest.errors import ConfigError, Conflict
from palimpsest.folding import Folder
from palimpsest.log import BY_REQUEST, Change, Head
from palimpsest.matching import Says
from palimpsest.options import Options
from palimpsest.stores import Store
from palimpsest.summary import Summary
from palimpsest.survey import Surveyor
from palimpsest.unsaying import Unsaying
from palimpsest.watching import Watch

if TYPE_CHECKING:
    from palimpsest.memory import AsyncMemory

Lost = dict[str, list[Summary]]
"""The summaries that an erasure took along, by session."""


def checked_reason(memory: AsyncMemory, reason: object, says: Says | None) -> str:
    """Return the reason as it is kept. Raises ConfigError where it is no text, or says what is to be erased."""
    if not isinstance(reason, str) or unfit(reason) is not None:
        raise ConfigError("reason", reason, "text without lone surrogates")
    if says is not None and says(reason):
        if reason == BY_REQUEST:
            return ""
        raise ConfigError("reason", "a reason that holds the text", "one that does not: it is kept in the log")
    return memory.privacy.text(reason)


class Eraser:
    """Erases in one session, as its options say, and in the branches that share what is erased."""

    def __init__(self, memory: AsyncMemory, options: Options, store: Store) -> None:
        self._memory, self._options, self._store = memory, options, store

    async def erase(
        self, choice: Choice, reason: str, *, detail: Mapping[str, Any] | None = None
    ) -> tuple[Erased, Lost]:
        """Erase what is chosen and return what that took; summaries are lost by it, and not made anew yet."""
        store, key, options = self._store, self._options.key, self._options
        while True:
            head = await store.head(key) or Head()
            found = await choice.find(store, options, head)
            silence = await telling(store, options, head, choice.says) if choice.says is not None else ()
            if not (found or silence):
                return _with(Erased(), await self._hush_branches(choice.says, reason))
            seqs = tuple(entry.seq for entry in found)
            branches = await self.sharing(found)
            derived = await unmake(self._memory, options, store, seqs)
            before = await self.standing([key.session, *branches])
            change = Change(kind="erase", reason=reason, seqs=seqs, silence=silence, detail=dict(detail or {}))
            revision, epoch = (head.revision, None) if choice.sees_all else (None, head.epoch)
            try:
                await store.compact(key, change, expect_revision=revision, expect_epoch=epoch)
                break
            except Conflict:  # somebody was first: what was added may be meant, too, what was meant may be gone
                continue
        if found:
            facts = {"seqs": seqs, "reason": reason, "branches": tuple(branches)}
            await self._memory.observers.emit("erased", key.session, facts, self._memory.runner.wait)
        lost = _merged(await self.lost(before), await self._hush_branches(choice.says, reason))
        media = sum(map(media_in, found))
        done = Erased(entries=len(found), branches=tuple(branches), derived=derived, media=media)
        return _with(done, lost)

    async def sharing(self, found: Sequence[Entry]) -> list[str]:
        """Return the other sessions that share some of these entries."""
        ids, sharing = {entry.seq: entry.id for entry in found}, []
        for branch in await self._store.branches(self._options.key) if ids else ():
            there = await self._store.fetch(self._options.key._replace(session=branch), ids)
            if any(one.id == ids[one.seq] for one in there):
                sharing.append(branch)
        return sharing

    async def _hush_branches(self, says: Says | None, reason: str) -> Lost:
        """Take the words of whatever tells of a text in the branches, and return which summaries that were."""
        lost: Lost = {}
        for branch in await self._store.branches(self._options.key) if says is not None else ():
            key, options = self._options.key._replace(session=branch), self._options.of(branch)
            while says is not None:
                head = await self._store.head(key) or Head()
                silence = await telling(self._store, options, head, says)
                if not silence:
                    break
                before = await self.standing([branch])
                change = Change(kind="erase", reason=reason, silence=silence)
                try:
                    await self._store.compact(key, change, expect_revision=head.revision)
                except Conflict:
                    continue
                lost = _merged(lost, await self.lost(before))
                break
        return lost

    # --- summaries

    async def summaries(self, session: str) -> list[Summary]:
        """Return the summaries that contexts of this session, or a branch, show."""
        options = self._options.of(session)
        surveyor = Surveyor(self._store, options)
        return await surveyor.summaries(await surveyor.state(await self._store.head(options.key) or Head()))

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

    async def finished(self, done: Erased, lost: Lost, says: Says | None) -> Erased:
        """Make anew what was lost, and see what remains; return the whole report."""
        done += Erased(rebuilt=await self.rebuild(lost, says))
        return done + Erased(remains=await self._store.scrub(whole=False))

    async def rebuild(self, lost: Lost, says: Says | None) -> int:
        """Make lost summaries anew from what is left of what they covered; return how many came of it.

        None of them holds what `says` looks for, whatever a summarizer answers.
        """
        rebuilt, style = 0, self._options.chosen(None).style
        fields = {**msgspec.structs.asdict(style), "on_failure": "heuristic"}
        for name, summaries in lost.items():
            options = self._options.of(name)
            for made in summaries:
                compactor = self._compactor(options, says)
                result = await compactor.run(Rebuild(where=made.covers, summary_tokens=made.tokens, **fields))
                await self._watch(options, compactor).tell(compactor, result)
                rebuilt += result.done
        return rebuilt

    def _watch(self, options: Options, compactor: Compactor) -> Watch:
        return Watch(self._memory, options, lambda: compactor, lambda _: None)

    def _compactor(self, options: Options, says: Says | None) -> Compactor:
        memory, surveyor = self._memory, Surveyor(self._store, options)
        made = (surveyor, options, memory.clock, memory.summarizer(options.summarizer), memory.privacy)
        folder = Folder(*made) if says is None else Unsaying(*made, says)
        return Compactor(self._store, memory.runner, options, memory.clock, surveyor, folder)


def _with(done: Erased, lost: Lost) -> tuple[Erased, Lost]:
    """The report with the summaries that were lost."""
    return done + Erased(withdrawn=sum(map(len, lost.values()))), lost


def _merged(one: Lost, other: Lost) -> Lost:
    return {name: [*one.get(name, ()), *other.get(name, ())] for name in {**one, **other}}

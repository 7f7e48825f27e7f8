"""What was given at an earlier time: shown as it was stored, or computed anew as it was then. Reads only.

A call that stores its cuts was given what the newest cut of then shows. A call that stores none (another budget than
its view's, a dry run, an exact walk) was given what came of the log, the head and the time of then, and does again.
Where neither says it, PastUnknown does: nothing else is given in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.context.groups import Meter
from palimpsest.context.result import Context
from palimpsest.context.window import Window
from palimpsest.errors import BudgetImpossible, PastUnknown
from palimpsest.log import spans
from palimpsest.log.entry import Entry, microseconds_of
from palimpsest.log.head import Cut, Head, SessionKey
from palimpsest.sessions.contexts.builder import ContextBuilder, is_unshown
from palimpsest.sessions.contexts.layout import Layout
from palimpsest.sessions.contexts.load import WindowReader
from palimpsest.sessions.contexts.request import ContextRequest, is_another, limits_of
from palimpsest.sessions.history import History, Point
from palimpsest.sessions.options import Options
from palimpsest.stores import Store

ANEW = "no cut of then shows it: it was computed anew"


class EarlierContext(ContextBuilder):
    """One context of the revision that its call names. `now` is the time of the call."""

    def __init__(self, store: Store, options: Options, call: ContextRequest, now: int) -> None:
        assert call.at is not None, "a revision is asked for"
        super().__init__(store, options, call, 0)  # what a stored cut shows had not expired
        self._at, self._now = call.at, now
        self._past = History(store, options.key)

    async def context(self) -> Context:
        """Return the context of then. Raises PastUnknown where nothing says it, ConfigError where there was none."""
        head = await self._head()
        then = await self._past.view(head, self.view, self._at)
        another = is_another(self.options, limits_of(self.options, self.call))
        if self.options.exact or self.call.dry_run or another:
            return await self._anew(head, then)
        state = await self._stored(then)
        if state.cut.revision == self._at:  # it was made for the call of then
            return self._context(state, None, None, then, None)
        if _was_due(then, state):
            return await self._anew(head, then)
        if state.fits:
            return self._context(state, None, None, then, None)
        raise self._unknown(
            "this budget does not hold what the cut stored by then shows; bring the budget of then, or ask with "
            "dry_run=True what this one would have been given"
        )

    async def _stored(self, then: Head) -> Layout:
        """What the newest cut of then shows: all of it, whatever fits."""
        state = await self.layout_reader.view(then, self._present_cut(then))
        if state.fits or state.budget is None or state.budget.room < 0:
            return state
        self.layout_reader.meter.exact = True  # bounds left it open
        return await self.layout_reader.view(then, state.cut, state.entries)

    async def _anew(self, head: Head, then: Head) -> Context:
        """What the same call computes from what there was then."""
        early, late = await self._past.between(head, self._at)
        whole = await self._past.head(head, Point(self._at, then.next_seq))
        whole = msgspec.structs.replace(whole, epoch_reason=then.epoch_reason)
        call = msgspec.structs.replace(self.call, at=None, dry_run=True)
        anew = _Anew(self.store, self.options, call, early)
        self.layout_reader = anew.layout_reader
        late = self._now if late is None else late
        try:
            context = await anew.given(whole)
        except BudgetImpossible:
            await self._check(head, anew, early, late)
            raise
        if context.budget is not None or self.layout_reader.rules:  # else nothing was chosen by what it costs or says
            await self._check(head, anew, early, late)
        return context

    async def _check(self, head: Head, anew: _Anew, early: int, late: int) -> None:
        """Raise PastUnknown where something that the context was computed from was another then, or may have been."""
        read = anew.read
        if any(early < moment <= late for moment in read.expiring):
            raise self._unknown("an entry expired between this revision and the next, before or after it was given")
        erased, redacted = await self._past.changed(self._at)
        if redacted:
            raise self._unknown("texts of the session were redacted since, and what fitted then depends on them")
        if erased and (self.layout_reader.rules or await self._mattered(erased, read)):
            raise self._unknown("entries that it was computed from were erased since")
        estimates = anew.recut and self.options.default_factor() != 1.0
        if estimates and head.usage is not None and self._at < head.revision:
            raise self._unknown(
                "what the provider had reported by then, by which its tokens are estimated, is not kept"
            )

    async def _mattered(self, erased: Iterable[int], read: _Noting) -> bool:
        """Whether something that was erased since was looked at when the context of then was made."""
        gone = await self.store.fetch(self.options.key, erased)
        records = await self.store.records(self.options.key, before=self._at + 1)
        pins = {seq for record in records if record.kind == "pin" for seq in record.seqs}
        if any(entry.seq in pins or entry.pinned or entry.role == "system" for entry in gone):
            return True
        if any(entry.seq in read.seqs or entry.group in read.groups for entry in gone):
            return True
        made = [record.compaction.summary for record in records if record.compaction is not None]
        covered = [summary.covers for summary in made if summary is not None and summary.withdrawn]
        return bool(spans.common(spans.union(*covered), spans.of(erased)))

    def _unknown(self, reason: str) -> PastUnknown:
        return PastUnknown(self.options.key.session, self._at, reason)


def _was_due(then: Head, state: Layout) -> bool:
    """Whether the next context of a call that stores its cuts made another one, whatever fitted."""
    return state.cut.compaction != then.compaction or is_unshown(then, state) or bool(state.window.stale)


class _Anew(ContextBuilder):
    """A context as a dry run makes it of any head."""

    def __init__(self, store: Store, options: Options, call: ContextRequest, now: int) -> None:
        super().__init__(store, options, call, now)
        self.layout_reader.window_reader = self.read = _Noting(
            store, options.key, self.layout_reader.meter, masks=options.mask
        )
        self.recut = not options.exact

    async def given(self, head: Head) -> Context:
        """Return the context."""
        state, reason, plan = await self._settle(head)
        self.recut &= reason is not None
        return self._context(state, reason, plan, head, None, *(() if reason is None else (ANEW,)))


class _Noting(WindowReader):
    """Notes what is read: places, groups, and when entries expire."""

    def __init__(self, store: Store, key: SessionKey, meter: Meter, *, masks: bool) -> None:
        super().__init__(store, key, meter, masks=masks)
        self.seqs: set[int] = set()
        self.groups: set[int] = set()
        self.expiring: list[int] = []

    async def window(self, head: Head, cut: Cut, room: int | None) -> tuple[list[Entry], bool]:
        entries, more = await super().window(head, cut, room)
        self._note(entries)
        return entries, more

    async def ahead(
        self,
        head: Head,
        seqs: Iterable[int],
        cut: Cut,
        known: Sequence[Entry],
        now: int,
        newest: dict[str, int],
        *,
        whole: bool,
    ) -> Window:
        seqs = set(seqs)
        window = await super().ahead(head, seqs, cut, known, now, newest, whole=whole)
        self.seqs |= seqs
        self._note(entry for group in (*window.groups, *window.pending) for entry in group.entries)
        return window

    def _note(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.seqs.add(entry.seq)
            self.groups.add(entry.group)
            if entry.expires_at is not None and not entry.erased:
                self.expiring.append(microseconds_of(entry.expires_at))

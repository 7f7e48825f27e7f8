"""What was given at an earlier time: shown as it was stored, or computed anew as it was then. Reads only.

A call that stores its cuts was given what the newest cut of then shows. A call that stores none (another budget than
its view's, a dry run, an exact walk) was given what came of the log, the head and the time of then, and does again.
Where neither says it, PastUnknown does: nothing else is given in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from palimpsest.context.asks import Long, Steps
from palimpsest.context.groups import Meter
from palimpsest.context.layout import Layout, is_unshown
from palimpsest.context.reading import WindowReader
from palimpsest.context.result import Context
from palimpsest.context.settle import Settler
from palimpsest.context.window import Rule, Window
from palimpsest.errors import BudgetImpossible, PastUnknown
from palimpsest.log import spans
from palimpsest.log.entry import Entry, microseconds_of
from palimpsest.log.head import Cut, Head
from palimpsest.sessions.answers import answered
from palimpsest.sessions.contexts.request import ContextRequest, is_another, terms_of
from palimpsest.sessions.history import History, Point
from palimpsest.sessions.options import Options
from palimpsest.stores import Store

T = TypeVar("T")

ANEW = "no cut of then shows it: it was computed anew"


class EarlierContext:
    """One context of the revision that its call names. `now` is the time of the call."""

    changed = overflow = None  # no cut is made of then

    def __init__(self, store: Store, options: Options, call: ContextRequest, now: int) -> None:
        assert call.at is not None, "a revision is asked for"
        self._store, self._options, self._call, self._at, self._now = store, options, call, call.at, now
        self.terms = terms_of(options, call)
        self._past = History(store, options.key)

    async def context(self) -> Context:
        """Return the context of then. Raises PastUnknown where nothing says it, ConfigError where there was none."""
        head = await self._store.head(self._options.key) or Head()
        then = await self._past.view(head, self.terms.view, self._at)
        if self._options.exact or self._call.dry_run or is_another(self._options, self.terms):
            return await self._anew(head, then)
        settler = Settler(self.terms, 0)  # what a stored cut shows had not expired
        settled = await self._answered(settler.stored(then))
        made_for_it = settled.layout.cut.revision == self._at
        if settled.layout.more and _may_be_due(settled.layout, head):
            settled = await self._answered(Settler(self.terms, 0).stored(then, whole=True))
        exceeds = self.terms.keeps_newest and not settled.layout.fits  # on purpose, with no cut of its own, or one more
        if not made_for_it and (exceeds or _was_due(settled.layout)):
            return await self._anew(head, then)
        if made_for_it or settled.layout.fits:
            return await self._store.apart(settled.given, then, None)
        raise self._unknown(
            "this budget does not hold what the cut stored by then shows; bring the budget of then, or ask with "
            "dry_run=True what this one would have been given"
        )

    async def _anew(self, head: Head, then: Head) -> Context:
        """What the same call computes from what there was then, as a dry run does of any head."""
        point = Point(self._at, then.next_seq)
        early, late = await self._past.between(head, point)
        counts = self.terms.exact or self.terms.strategies  # conditions may ask how many entries there were
        whole = await (self._past.head(head, point) if counts else self._past.shown(head, then))
        whole = msgspec.structs.replace(whole, epoch_reason=then.epoch_reason)
        late = self._now if late is None else late
        terms = msgspec.structs.replace(self.terms, past=False)
        settler = Settler(terms, early, _Noting)
        read = settler.reader
        assert isinstance(read, _Noting)
        try:
            settled = await self._answered(settler.settle(whole))
        except BudgetImpossible:
            await self._check(head, read, early, late, estimates=not terms.exact)
            raise
        notes = () if settled.reason is None else (ANEW,)
        context = await self._store.apart(settled.given, whole, None, notes)
        if context.is_bounded or terms.strategies:  # else nothing was chosen by what it costs or says
            recut = settled.reason is not None and not terms.exact
            await self._check(head, read, early, late, estimates=recut)
        return context

    async def _check(self, head: Head, read: _Noting, early: int, late: int, *, estimates: bool) -> None:
        """Raise PastUnknown where something that the context was computed from was another then, or may have been.

        `estimates` says that its cut was made by what the provider had reported, where tokens are estimated.
        """
        if any(early < moment <= late for moment in read.expiring):
            raise self._unknown("an entry expired between this revision and the next, before or after it was given")
        erased, redacted = await self._past.changed(self._at)
        if redacted:
            raise self._unknown("texts of the session were redacted since, and what fitted then depends on them")
        if erased and (self.terms.strategies or await self._mattered(erased, read)):
            raise self._unknown("entries that it was computed from were erased since")
        if estimates and self.terms.margin != 1.0 and head.usage is not None and self._at < head.revision:
            raise self._unknown(
                "what the provider had reported by then, by which its tokens are estimated, is not kept"
            )

    async def _mattered(self, erased: Iterable[int], read: _Noting) -> bool:
        """Whether something that was erased since was looked at when the context of then was made."""
        gone = await self._store.fetch(self._options.key, erased)
        records = await self._store.records(self._options.key, before=self._at + 1)
        pins = {seq for record in records if record.kind == "pin" for seq in record.seqs}
        if any(entry.seq in pins or entry.pinned or entry.role == "system" for entry in gone):
            return True
        if any(entry.seq in read.seqs or entry.group in read.groups for entry in gone):
            return True
        made = [record.compaction.summary for record in records if record.compaction is not None]
        covered = [summary.covers for summary in made if summary is not None and summary.withdrawn]
        return bool(spans.common(spans.union(*covered), spans.of(erased)))

    async def _answered(self, steps: Steps[T]) -> T:
        def begin() -> Steps[T]:
            yield Long()  # what was shown then is laid out by terms of then, which may have to be read first
            return (yield from steps)

        return await answered(self._store, self._options.key, self._options.counter.name, begin)

    def _unknown(self, reason: str) -> PastUnknown:
        return PastUnknown(self._options.key.session, self._at, reason)


def _was_due(layout: Layout) -> bool:
    """Whether the next context of a call that stores its cuts made another one, whatever fitted."""
    return layout.cut.compaction != layout.head.compaction or is_unshown(layout) or bool(layout.window.stale)


def _may_be_due(layout: Layout, head: Head) -> bool:
    """Whether what was left unread may say that another one was: a name that was given twice, or what is pinned."""
    unread = {seq for seq in layout.head.pinned if layout.cut.start <= seq < layout.entries[0].seq}
    return bool(head.contexts or head.rewound or unread.difference(layout.cut.pins))


class _Noting(WindowReader):
    """Notes what is read: places, groups, and when entries expire."""

    def __init__(self, meter: Meter, *, masks: bool, whole: bool = False) -> None:
        super().__init__(meter, masks=masks, whole=whole)
        self.seqs: set[int] = set()
        self.groups: set[int] = set()
        self.expiring: list[int] = []

    def window(
        self, head: Head, cut: Cut, room_of: Callable[[], Steps[int | None]], rules: Sequence[Rule] = ()
    ) -> Steps[tuple[list[Entry], bool]]:
        entries, more = yield from super().window(head, cut, room_of, rules)
        self._note(entries)
        return entries, more

    def ahead(
        self,
        head: Head,
        seqs: Iterable[int],
        cut: Cut,
        known: Sequence[Entry],
        now: int,
        newest: dict[str, int],
        *,
        whole: bool,
    ) -> Steps[Window]:
        seqs = set(seqs)
        window = yield from super().ahead(head, seqs, cut, known, now, newest, whole=whole)
        self.seqs |= seqs
        self._note(entry for group in (*window.groups, *window.pending) for entry in group.entries)
        return window

    def _note(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.seqs.add(entry.seq)
            self.groups.add(entry.group)
            if entry.expires_at is not None and not entry.erased:
                self.expiring.append(microseconds_of(entry.expires_at))

"""Rebuilding the context that a call returned at an earlier revision (`context(at=…)`). Reads only.

A call that stores its cuts returned what the newest cut of that time shows, so this is shown again. A call that stores
none (another budget than its view's, a dry run, an exact walk) returned what was computed from the log, the head and
the time of that moment, so this is computed again. If neither can be known any more, PastUnknown is raised; nothing
else is returned in its place.
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
from palimpsest.sessions.answers import run_steps
from palimpsest.sessions.contexts.request import ContextRequest, is_another, terms_of
from palimpsest.sessions.history import History, Point
from palimpsest.sessions.options import Options
from palimpsest.stores import Store

T = TypeVar("T")

ANEW = "no cut stored by then shows this context: it was computed anew"


class EarlierContext:
    """One context of the revision that its call names. `now` is the time of the call.

    `then` is the head as it was at that revision.
    """

    changed = None  # as of a ContextBuilder: no cut is made

    def __init__(self, store: Store, options: Options, call: ContextRequest, now: int) -> None:
        assert call.at is not None, "a revision is asked for"
        self._store, self._options, self._call, self._at, self._now = store, options, call, call.at, now
        self.terms = terms_of(options, call)
        self._past = History(store, options.key)

    async def context(self) -> Context:
        """Return the context. Raises PastUnknown if it cannot be rebuilt, ConfigError if there is no such revision."""
        head = await self._store.head(self._options.key) or Head()
        past_head = await self._past.view(head, self.terms.view, self._at)
        if self._options.exact or self._call.dry_run or is_another(self._options, self.terms):
            return await self._recomputed(head, past_head)
        settler = Settler(self.terms, 0)  # time 0: nothing that a stored cut shows had expired
        settled = await self._answered(settler.stored(past_head))
        is_own_cut = settled.layout.cut.revision == self._at
        if settled.layout.more and _may_be_due(settled.layout, head):
            settled = await self._answered(Settler(self.terms, 0).stored(past_head, whole=True))
        exceeds = self.terms.keeps_newest and not settled.layout.fits  # `keep_newest` may exceed the budget on purpose
        if not is_own_cut and (exceeds or _was_due(settled.layout)):
            return await self._recomputed(head, past_head)
        if is_own_cut or settled.layout.fits:
            return await self._store.apart(settled.build_context, past_head, None)
        raise self._unknown(
            "the cut stored by then does not fit into this budget; give the budget of that time, or pass dry_run=True "
            "to see what this budget would have shown"
        )

    async def _recomputed(self, head: Head, past_head: Head) -> Context:
        """Compute the context from the log as it was then, as a dry run does from any head.

        The call was made at some time between the revision (`early`) and the next one (`late`).
        """
        point = Point(self._at, past_head.next_seq)
        early, late = await self._past.between(head, point, self._now)
        counts = self.terms.exact or self.terms.strategies  # conditions may depend on the number of entries
        complete_head = await (self._past.head(head, point) if counts else self._past.shown(head, past_head))
        complete_head = msgspec.structs.replace(complete_head, epoch_reason=past_head.epoch_reason)
        terms = msgspec.structs.replace(self.terms, past=False)
        settler = Settler(terms, early, _RecordingReader)
        reader = settler.reader
        assert isinstance(reader, _RecordingReader)
        try:
            settled = await self._answered(settler.settle(complete_head))
        except BudgetImpossible:
            await self._check(head, reader, early, late, estimates=not terms.exact)
            raise
        notes = () if settled.reason is None else (ANEW,)
        context = await self._store.apart(settled.build_context, complete_head, None, notes)
        if context.is_bounded or terms.strategies:  # otherwise no entry was chosen by its cost or content
            recut = settled.reason is not None and not terms.exact
            await self._check(head, reader, early, late, estimates=recut)
        return context

    async def _check(self, head: Head, reader: _RecordingReader, early: int, late: int, *, estimates: bool) -> None:
        """Raise PastUnknown if something that the context was computed from may have been different then.

        `estimates` says that a cut was computed, which depends on the usage that the provider had reported by then if
        tokens are only estimated.
        """
        if any(early < moment <= late for moment in reader.expiring):
            raise self._unknown(
                "an entry expired between this revision and the next, before or after the context was given: it is not "
                "known which"
            )
        erased, redacted = await self._past.changed(self._at)
        if redacted:
            raise self._unknown("texts of the session were redacted since, so what fitted then is not known any more")
        if erased and (self.terms.strategies or await self._depended_on(erased, reader)):
            raise self._unknown("entries that it depended on were erased since")
        if estimates and self.terms.margin != 1.0 and head.usage is not None and self._at < head.revision:
            raise self._unknown(
                "its tokens were estimated from the provider's usage reports, and those of that time are not kept"
            )

    async def _depended_on(self, erased: Iterable[int], reader: _RecordingReader) -> bool:
        """Whether the context depended on an entry that was erased since: pinned, read, or in a summary's text."""
        tombstones = await self._store.fetch(self._options.key, erased)
        records = await self._store.records(self._options.key, before=self._at + 1)
        pins = {seq for record in records if record.kind == "pin" for seq in record.seqs}
        if any(entry.seq in pins or entry.pinned or entry.role == "system" for entry in tombstones):
            return True
        if any(entry.seq in reader.seqs or entry.group in reader.groups for entry in tombstones):
            return True
        summaries = [record.compaction.summary for record in records if record.compaction is not None]
        covered = [summary.covers for summary in summaries if summary is not None and summary.withdrawn]
        return bool(spans.common(spans.union(*covered), spans.of(erased)))

    async def _answered(self, steps: Steps[T]) -> T:
        def begin() -> Steps[T]:
            yield Long()  # so that laying out an old context does not block an event loop
            return (yield from steps)

        return await run_steps(self._store, self._options.key, self._options.counter.name, begin)

    def _unknown(self, reason: str) -> PastUnknown:
        return PastUnknown(self._options.key.session, self._at, reason)


def _was_due(layout: Layout) -> bool:
    """Whether a call that stores its cuts would have made a new cut at that revision, even though everything fitted."""
    return layout.cut.compaction != layout.head.compaction or is_unshown(layout) or bool(layout.window.stale)


def _may_be_due(layout: Layout, head: Head) -> bool:
    """Whether the unread older part may hold a reason for a new cut: a superseded context, or a pinned entry."""
    unread = {seq for seq in layout.head.pinned if layout.cut.start <= seq < layout.entries[0].seq}
    return bool(head.contexts or head.rewound or unread.difference(layout.cut.pins))


class _RecordingReader(WindowReader):
    """Records what is read: seqs, groups, and the times at which entries expire."""

    def __init__(self, meter: Meter, *, masks: bool, whole: bool = False) -> None:
        super().__init__(meter, masks=masks, whole=whole)
        self.seqs: set[int] = set()
        self.groups: set[int] = set()
        self.expiring: list[int] = []

    def window(
        self,
        head: Head,
        cut: Cut,
        room_of: Callable[[], Steps[int | None]],
        rules: Sequence[Rule] = (),
        staying: Callable[[Sequence[Entry]], Sequence[Entry]] | None = None,
    ) -> Steps[tuple[list[Entry], bool]]:
        entries, more = yield from super().window(head, cut, room_of, rules, staying)
        self._record(entries)
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
        self._record(entry for group in (*window.groups, *window.pending) for entry in group.entries)
        return window

    def _record(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.seqs.add(entry.seq)
            self.groups.add(entry.group)
            if entry.expires_at is not None and not entry.erased:
                self.expiring.append(microseconds_of(entry.expires_at))

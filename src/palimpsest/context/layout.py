"""A view of a session: what a cut shows, what that costs, and whether it fits. Pure: it asks for what it needs.

Whoever makes a context lays it out as the present cut shows it, and again for every cut that is considered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.asks import Steps
from palimpsest.context.budget import Budget, Fixed, learned, measure, refuse_fixed, resolve
from palimpsest.context.groups import Group, Meter, opening
from palimpsest.context.reading import WindowReader
from palimpsest.context.result import ahead
from palimpsest.context.terms import Terms
from palimpsest.context.window import Window, look
from palimpsest.formats import Format
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head
from palimpsest.log.summary import Summary

if TYPE_CHECKING:
    from palimpsest.context.cut import Room
    from palimpsest.context.short_term import AppliedCondition


class Layout(msgspec.Struct, frozen=True):
    """What was read under one cut, and what it shows."""

    head: Head
    cut: Cut
    budget: Budget | None
    fixed: Fixed
    entries: Sequence[Entry]
    more: bool
    """Whether entries older than those read may still be shown: the window is larger than its room."""
    before: list[Group]
    window: Window
    format: Format
    summaries: list[tuple[Summary, Group]]

    @property
    def ahead(self) -> Sequence[Group]:
        """What comes before the window."""
        return ahead(self.before, self.summaries, self.cut)

    @property
    def gone(self) -> tuple[tuple[int, int], ...]:
        """What the cut leaves out, and what has expired or was superseded under it."""
        return tuple(sorted({*self.cut.gone, *((seq, seq) for seq, _ in self.window.stale)}))

    def beside_summaries(self, room: Room) -> Room:
        """What of this room the summaries leave."""
        taken = sum(group.cost for _, group in self.summaries)
        tokens = None if room.tokens is None else room.tokens - taken
        return type(room)(tokens, None if room.messages is None else room.messages - len(self.summaries))

    @property
    def tokens(self) -> int:
        """What all of it costs under this cut."""
        return sum(group.cost for group in self.ahead) + sum(group.cost for group in self.window.groups)

    @property
    def fits(self) -> bool:
        """Whether all of it was read and is within the room."""
        if self.budget is None:
            return True
        return not self.more and self.within(self.budget.room, self.budget.max_messages)

    def within(self, tokens: int, messages: int | None) -> bool:
        """Whether what was read is no more than so many tokens and messages (None: any number)."""
        if messages is not None:
            shown = [*self.ahead, *self.window.groups]
            count = sum(group.messages for group in shown)
            if count > messages or (shown and count + opening(shown[0], self.format) > messages):
                return False
        return self.tokens <= tokens


class LayoutReader:
    """Lays out views of one session for one call; `now` is the time of expiry, in microseconds since 1970."""

    def __init__(self, terms: Terms, now: int, reader: type[WindowReader] = WindowReader) -> None:
        self._terms, self._now = terms, now
        self.meter = Meter(terms.counter, terms.format, terms.model)
        self.reader = reader(self.meter, masks=terms.masks)

    def view(
        self,
        head: Head,
        cut: Cut,
        known: Sequence[Entry] | None = None,
        *,
        planning: bool = False,
        more: bool = False,
    ) -> Steps[Layout]:
        """Lay out what the cut shows, newest first, until the room is full; `known` entries need no reading.

        `more` says that older ones than those known were left unread. With `planning`, pinned entries and the open
        human message from before are read, too, whether or not the present cut shows them.
        """
        terms = self._terms
        budget, fixed = self._budget(cut)
        rules = [] if terms.exact else self._static_rules(cut)
        if known is None:
            # What was given at a past revision is given whole: it fitted then.
            everything = terms.past or (self.meter.exact and terms.walks_all)
            room = None if budget is None or everything else budget.room
            entries, more = yield from self.reader.window(head, cut, room, rules)
        else:
            entries = [entry for entry in known if entry.seq >= cut.start]
        seqs = cut.passed((*cut.pins, *cut.anchors))
        if planning:
            first = entries[0] if entries else None
            oldest = first.seq if first else cut.start
            seqs |= {seq for seq in head.pinned if seq < oldest or spans.within(cut.skipped, seq)}
            if first is not None and 0 < first.turn < oldest:
                seqs.add(first.turn)
        newest: dict[str, int] = {}
        before = yield from self.reader.ahead(head, seqs, cut, known or (), self._now, newest, whole=planning)
        if planning and before.groups:  # reading may have stopped within a group that comes first, whole
            ahead = {group.seq for group in before.groups}
            entries = [entry for entry in entries if entry.group not in ahead]
        window = look(entries, cut, self.meter, now=self._now, conditions=rules, newest=newest)
        window = msgspec.structs.replace(window, stale=[*before.stale, *window.stale])
        summaries = (yield from self.reader.summaries(cut.summaries)) if cut.summaries else []
        return Layout(head, cut, budget, fixed, entries, more, before.groups, window, self.meter.format, summaries)

    def _static_rules(self, cut: Cut) -> list[AppliedCondition]:
        """The conditions that depend on one message alone: those of today, or those that a cut of then recorded."""
        terms = self._terms
        rules = [rule for _, found in terms.strategies for rule in found]
        if terms.past and cut.revision and cut.conditions != terms.conditions:
            from palimpsest.context.short_term import applied  # with conditions, four milliseconds

            rules = applied(cut.conditions, terms.failures)
        return [rule for rule in rules if not rule.condition.dynamic]

    def factor(self, head: Head) -> float:
        """The provider's tokens for one counted token, from reported usage where there is any."""
        return learned(head.usage, self._terms.margin)

    def _budget(self, cut: Cut) -> tuple[Budget | None, Fixed]:
        terms = self._terms
        fixed = measure(terms.system, terms.tools, self.meter, exact=self.meter.exact)
        budget = resolve(terms.bounds, terms.limits, fixed, cut.factor or terms.margin, terms.low_water)
        if budget is not None and self.meter.exact:
            refuse_fixed(budget.room, budget.reserve, fixed)
        return budget, fixed

"""Lay out a view of a session: what a cut shows, what it costs, and whether it fits. Pure; it asks for what it needs.

A context is laid out once as the present cut shows it, and again for every cut that is considered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.asks import Long, Page, Steps
from palimpsest.context.budget import Allowance, Budget, Fixed, Reckoned, learned, measure, refuse_fixed
from palimpsest.context.groups import Group, Meter, counted_anew, fill, is_plain
from palimpsest.context.reading import CHUNK, WindowReader, waiting_in
from palimpsest.context.rendering import Ready
from palimpsest.context.result import ahead
from palimpsest.context.terms import Terms
from palimpsest.context.window import BY_CONDITION, BY_CUT, Window, extend_window, opening, show_entries
from palimpsest.formats import Format
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head
from palimpsest.log.summary import Summary

if TYPE_CHECKING:
    from palimpsest.context.cut import Room
    from palimpsest.context.short_term import AppliedCondition


class Layout(msgspec.Struct, frozen=True):
    """What was read under one cut, and what the cut shows of it."""

    head: Head
    cut: Cut
    reckoned: Reckoned
    entries: Sequence[Entry]
    more: bool
    """Whether older entries than those read may still be shown: then the window is larger than its room."""
    before: list[Group]
    window: Window
    format: Format
    summaries: list[tuple[Summary, Group]]
    answer: Entry | None
    """The newest entry from the model among those that were read."""

    @property
    def budget(self) -> Budget | None:
        """The budget, from exact figures or from bounds, as in `reckoned`."""
        return self.reckoned.budget

    @property
    def ahead(self) -> Sequence[Group]:
        """The groups that come before the window."""
        return ahead(self.before, self.summaries, self.cut)

    @property
    def gone(self) -> tuple[tuple[int, int], ...]:
        """What the cut leaves out, and what has expired or was superseded since."""
        return spans.union(self.cut.gone, ((seq, seq) for seq, _ in self.window.stale))

    @property
    def beginning(self) -> int:
        """Where the first group begins whose beginning was read, or the end of the log if there is none."""
        return next((entry.seq for entry in self.entries if entry.seq == entry.group), self.head.next_seq)

    def beside_summaries(self, room: Room) -> Room:
        """Return what the summaries leave of this room."""
        taken = sum(group.cost for _, group in self.summaries)
        tokens = None if room.tokens is None else room.tokens - taken
        return type(room)(tokens, None if room.messages is None else room.messages - len(self.summaries))

    @property
    def tokens(self) -> int:
        """What everything shown under this cut costs."""
        return sum([group.cost for group in self.ahead]) + sum([group.cost for group in self.window.groups])

    @property
    def fits(self) -> bool:
        """Whether everything was read and is within the room."""
        if self.budget is None:
            return True
        return not self.more and self.within(self.budget.room, self.budget.max_messages)

    def within(self, tokens: int, messages: int | None) -> bool:
        """Whether what was read takes at most so many tokens and messages (None: any number)."""
        if messages is not None:
            shown = [*self.ahead, *self.window.groups]
            count = sum(group.messages for group in shown)
            if count > messages or (shown and count + opening(shown[0], self.format) > messages):
                return False
        return self.tokens <= tokens


def is_unshown(layout: Layout) -> bool:
    """Whether an entry is pinned that the cut neither shows nor knows of.

    Either the cut has passed it, or the cut or a condition leaves its group out.
    """
    window, unknown = layout.window, set(layout.head.pinned).difference(layout.cut.pins)
    if not unknown or layout.cut.passed(unknown):
        return bool(unknown)
    groups = {entry.group for entry, why in window.left_out if why in (BY_CUT, BY_CONDITION)}
    members = [entry for group in (*window.groups, *window.pending) for entry in group.entries]
    members += [entry for entry, _ in window.left_out]  # left out for any reason: the pin makes its group shown
    return any(entry.seq in unknown and entry.group in groups for entry in members)


class View(msgspec.Struct, frozen=True):
    """A layout that fitted, with what is prepared once for all later contexts that continue it.

    `terms` are those it was laid out by, `waiting` the group that might wait for more entries then. A view is
    immutable, except that anyone may add counts to `memo`.
    """

    terms: Terms
    layout: Layout
    waiting: int
    guessed: int
    """How many of the costs are upper bounds."""
    ready: Ready
    memo: dict[int, int]

    def stored_as(self, cut: Cut) -> View:
        """Return this view with its cut as it was stored, without counts of entries that the cut has passed."""
        memo = {seq: count for seq, count in self.memo.copy().items() if seq >= cut.start}
        return msgspec.structs.replace(self, layout=msgspec.structs.replace(self.layout, cut=cut), memo=memo)

    def serves(self, terms: Terms, head: Head, cut: Cut) -> bool:
        """Whether this cut of the same log shows, by these terms, what the view shows, as far as the view goes."""
        old, old_head = self.terms, self.layout.head
        same_terms = (old.view, old.conditions, old.model) == (terms.view, terms.conditions, terms.model)
        if not same_terms or old.format is not terms.format or old.counter.name != terms.counter.name:
            return False
        if old.keeps_thoughts != terms.keeps_thoughts:
            return False
        if self.layout.cut != cut or not 0 <= head.next_seq - old_head.next_seq <= CHUNK:
            return False
        waiting, ahead = waiting_in(head), {entry.group for group in self.layout.before for entry in group.entries}
        return waiting == self.waiting or not ahead.intersection((waiting, self.waiting))


class CachedContext(msgspec.Struct, frozen=True):
    """What is remembered of a session: its view, and counts by `seq` that were stored after its entries were read."""

    stored: Mapping[int, int] = {}
    view: View | None = None


class LayoutReader:
    """Lays out views of one session for one call.

    Entries expire by `now`, in microseconds since 1970. `stored` are counts that were stored after the entries were
    read.
    """

    def __init__(
        self,
        terms: Terms,
        now: int,
        reader: type[WindowReader] = WindowReader,
        stored: Mapping[int, int] | None = None,
    ) -> None:
        self._terms, self._now, self._long = terms, now, terms.is_long
        self._fixed: dict[bool, Fixed] = {}
        self._goes_on = stored is not None
        self.meter = Meter(terms.counter, terms.format, terms.model, stored)
        self.meter.keeps_thoughts = terms.keeps_thoughts
        self.reader = reader(self.meter, masks=terms.masks, whole=terms.keeps_newest)

    def extend(self, head: Head, cut: Cut, view: View) -> Steps[Layout | None]:
        """Lay out the same cut as `view` by adding the entries that have come since.

        None if that is not possible, and everything has to be laid out anew.
        """
        if not view.serves(self._terms, head, cut):
            return None
        first, new_entries = view.layout.head.next_seq, list[Entry]()
        if head.next_seq > first:
            new_entries = (yield Page(first - 1, head.next_seq, CHUNK, newest_first=True))[::-1]
            if len(new_entries) != head.next_seq - first:
                return None
        if self._long:
            yield Long()
        self.meter.guessed, self.meter.memo = view.guessed, view.memo
        rules = self._static_rules(cut)
        window = extend_window(view.layout.window, new_entries, cut, self.meter, now=self._now, conditions=rules)
        if window is None:
            return None
        reckoned = self._reckoned(cut)
        answer = _newest_answer(new_entries) or view.layout.answer
        return msgspec.structs.replace(
            view.layout, head=head, cut=cut, reckoned=reckoned, entries=(), window=window, answer=answer
        )

    def counted(self, layout: Layout) -> Layout:
        """Return the layout with every figure counted exactly."""
        self.meter.exact = True
        reckoned = self._reckoned(layout.cut)
        before, groups = [
            counted_anew(shown, layout.cut, self.meter) for shown in (layout.before, layout.window.groups)
        ]
        window = msgspec.structs.replace(layout.window, groups=groups)
        return msgspec.structs.replace(layout, reckoned=reckoned, before=before, window=window)

    def remembered(self, layout: Layout, before: View | None) -> View:
        """Return the view to remember of a layout that fits.

        Messages are prepared only if something was remembered before: a session's first context renders them for its
        caller alone.
        """
        ready = before.ready if before is not None else Ready()
        if self._goes_on:
            ready = ready.extended(layout.window.groups[: layout.window.end.groups], layout.format)
        guessed = 0 if self.meter.exact else self.meter.guessed
        memo = before.memo if before is not None else self.meter.memo
        terms = self._terms
        if terms.lead is not None or terms.tail:
            terms = msgspec.structs.replace(terms, lead=None, tail=())
        return View(terms, layout, waiting_in(layout.head), guessed, ready, memo)

    def view(
        self,
        head: Head,
        cut: Cut,
        known: Sequence[Entry] | None = None,
        *,
        planning: bool = False,
        more: bool = False,
        whole: bool = False,
    ) -> Steps[Layout]:
        """Lay out what the cut shows, newest first, until the room is full, or all of it with `whole`.

        `known` entries are not read again; `more` says that older ones were left unread. With `planning`, pinned
        entries and the open human message from before the window (unless it was hidden) are included, whether or not
        the present cut shows them.
        """
        terms = self._terms
        rules = [] if terms.exact else self._static_rules(cut)
        if known is None:
            entries, more = yield from self._read(head, cut, rules, whole=whole)
        else:
            entries = [entry for entry in known if entry.seq >= cut.start]
        reckoned = self._reckoned(cut)
        seqs = cut.passed((*cut.pins, *cut.anchors))
        if planning:
            first = entries[0] if entries else None
            oldest = first.seq if first else cut.start
            seqs |= {seq for seq in head.pinned if seq < oldest or spans.within(cut.skipped, seq)}
            if first is not None and 0 < first.turn < oldest and not spans.within(cut.hidden, first.turn):
                seqs.add(first.turn)
        newest: dict[str, int] = {}
        before = yield from self.reader.ahead(head, seqs, cut, known or (), self._now, newest, whole=planning)
        if planning and before.groups:  # reading may have stopped inside a group that now comes first, whole
            ahead = {group.seq for group in before.groups}
            entries = [entry for entry in entries if entry.group not in ahead]
        window = show_entries(entries, cut, self.meter, now=self._now, conditions=rules, newest=newest)
        expires = min(before.expires, window.expires)
        window = msgspec.structs.replace(window, stale=[*before.stale, *window.stale], expires=expires)
        summaries = (yield from self.reader.summaries(cut.summaries)) if cut.summaries else []
        fmt, answer = self.meter.format, _newest_answer(entries)
        return Layout(head, cut, reckoned, entries, more, before.groups, window, fmt, summaries, answer)

    def to_plan(self, layout: Layout, cut: Cut) -> Steps[Layout]:
        """Lay out what a cut shows, to plan the next cut from. All figures are exact.

        If this layout already holds all that the cut shows, only the groups are copied.
        """
        head, present, groups = layout.head, layout.cut, layout.window.groups
        alone = not (layout.more or layout.before or head.pinned or cut.pins or cut.anchors or cut.summaries)
        begins_at_start = bool(groups) and groups[0].seq == cut.start and groups[0].turn in (0, cut.start)
        free = ("reason", "factor", "margin", "facts", "thoughts")
        same_cut = present == msgspec.structs.replace(cut, **{name: getattr(present, name) for name in free})
        if not (alone and begins_at_start and same_cut and self.reader.is_one_page(head, cut)):
            return (yield from self.view(head, cut, planning=True))
        reckoned = self._reckoned(cut)
        copies = [group.copy() for group in groups]  # planning changes groups, and these may be remembered
        for group in copies:
            if not is_plain(group.entries[0]):  # planning fills other groups than whole messages by itself
                fill(group, cut.mask, {clamp.seq: clamp for clamp in cut.clamps}, self.meter, thoughts=cut.thoughts)
        window = msgspec.structs.replace(layout.window, groups=copies)
        return msgspec.structs.replace(layout, cut=cut, reckoned=reckoned, window=window)

    def read(self, head: Head, cut: Cut) -> Steps[tuple[list[Entry], bool]]:
        """Return the entries that `view` would read for this cut, and whether it would leave older ones unread."""
        rules = [] if self._terms.exact else self._static_rules(cut)
        return (yield from self._read(head, cut, rules))

    def _read(
        self, head: Head, cut: Cut, rules: list[AppliedCondition], *, whole: bool = False
    ) -> Steps[tuple[list[Entry], bool]]:
        # A context of the past whose cut was made at that revision is read whole: it fitted then.
        is_given = self._terms.past and cut.revision == head.revision
        everything = is_given or whole or (self.meter.exact and self._terms.walks_all)
        static, tags, staying = self._static_rules(cut), [tag for tag, _ in self._terms.tag_shares], None
        if self.meter.exact and (static or tags):
            from palimpsest.context.leaving import staying_in  # only needed with conditions or shares

            staying = partial(staying_in, rules=static, tags=tags, meter=self.meter)

        def room_of() -> Steps[int | None]:
            if self._long:
                yield Long()
            budget, walked = self._reckoned(cut).budget, self._terms.most_walked
            if everything:
                return None
            return walked if budget is None else budget.room if walked is None else min(budget.room, walked)

        read = yield from self.reader.window(head, cut, room_of, rules, staying)
        if self._long:  # `room_of` does not run if there was nothing to read
            yield Long()
        return read

    def _static_rules(self, cut: Cut) -> list[AppliedCondition]:
        """Return the conditions that depend on one message alone.

        For a context of the past they are those that its cut has recorded, else those of the session's options.
        """
        terms = self._terms
        rules = [rule for _, applied_rules in terms.strategies for rule in applied_rules]
        if terms.past and cut.revision and cut.conditions != terms.conditions:
            from palimpsest.context.short_term import applied  # takes 4 ms, so only with conditions

            rules = applied(cut.conditions, terms.failures)
        return [rule for rule in rules if not rule.condition.dynamic]

    def factor(self, head: Head) -> float:
        """Return the provider's tokens for one counted token, from reported usage if there is any."""
        return learned(head.usage, self._terms.margin)

    def _reckoned(self, cut: Cut) -> Reckoned:
        """Return the budget under this cut. Raises BudgetImpossible if exact figures leave no room."""
        terms, exact = self._terms, self.meter.exact
        if exact not in self._fixed:
            self._fixed[exact] = measure(terms.system, terms.tools, terms.counter, terms.format, exact=exact)
        factor = cut.factor if cut.margin == terms.margin else terms.margin  # another model may have made the cut
        allowance = Allowance(terms.bounds, terms.limits, factor, terms.low_water, terms.tail_share)
        reckoned = allowance.beside(self._fixed[exact])
        if terms.stands_beside and reckoned.budget is not None:  # what fits there is shown and stored with the cut
            reckoned = reckoned.exactly()
        if exact and (budget := reckoned.budget) is not None:
            refuse_fixed(budget.room, budget.reserve, reckoned.fixed)
        return reckoned


def _newest_answer(entries: Sequence[Entry]) -> Entry | None:
    return next((entry for entry in reversed(entries) if entry.role == "assistant"), None)

"""Read the entries that a cut shows: newest first until the room is full, and pins. Pure; it asks for what it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from palimpsest.context.asks import BySeqs, Compacted, Page, Steps
from palimpsest.context.groups import CostedEntry, Group, Meter
from palimpsest.context.window import NEWER_VERSION, Rule, Window, show_entries
from palimpsest.formats.wording import is_maskable, summary_entry, summary_entry_tokens
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head, ShownSummary
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Summary
from palimpsest.log.withdrawal import bare

CHUNK = 256
"""Entries read at once. Most windows are a single read."""

GAP = 4
"""Hidden ranges of up to so many entries are read along with their neighbours, which is faster than one more read."""

FEW = 8
"""Entries that the first read of a group asks for. Most groups are smaller."""

_SENTENCE = r"[.!?](?=\s)|\n"
"""Where a text may be cut: after a sentence or a line."""


class WindowReader:
    """Asks for the entries of one session for one context.

    `masks` says that old results may still become notes. `whole` says that the newest interaction is shown even if it
    exceeds the room.
    """

    def __init__(self, meter: Meter, *, masks: bool, whole: bool = False) -> None:
        self._meter, self._masks, self._whole = meter, masks, whole

    def is_one_page(self, head: Head, cut: Cut) -> bool:
        """Whether `window` reads everything that this cut shows in a single page, whatever room there is."""
        hidden = _hidden(head, cut)
        visible = spans.visible(hidden, cut.start - 1, head.next_seq)
        return head.next_seq - cut.start <= CHUNK and visible == [(cut.start, head.next_seq - 1)]

    def window(
        self,
        head: Head,
        cut: Cut,
        room_of: Callable[[], Steps[int | None]],
        rules: Sequence[Rule] = (),
        staying: Callable[[Sequence[Entry]], Sequence[Entry]] | None = None,
    ) -> Steps[tuple[list[Entry], bool]]:
        """Return the entries from the cut's start on, oldest first, and whether some were left unread.

        Reading stops once the entries read cost more than the room (None: read all), as this cut and these conditions
        show them, and as a next cut might, which may leave out all but those that `staying` returns. So whatever is
        left unread does not fit. Computing the room may take long, so `room_of` is called only after the first page was
        read.
        """
        entries: list[Entry] = []
        room: int | None = None
        hidden = _hidden(head, cut)
        gaps = [(low, high) for low, high in hidden if high - low < GAP]
        wide_gaps = spans.minus(hidden, gaps) if gaps else hidden
        open_spans, total = spans.visible(wide_gaps, cut.start - 1, head.next_seq), 0
        waiting = head.group or head.next_seq  # entries from here on wait for results of calls, and take no room
        for first, last in reversed(open_spans):
            before = last + 1
            while before > first:
                page: list[Entry] = yield Page(first - 1, before, CHUNK, newest_first=True)
                if not page:
                    break
                before = page[-1].seq
                page = [entry for entry in reversed(page) if not spans.within(gaps, entry.seq)] if gaps else page[::-1]
                if not page:
                    continue
                if not entries:
                    room = yield from room_of()
                entries = page + entries if entries else page
                if room is None or before <= open_spans[0][0]:
                    continue
                counted = [entry for entry in page if not entry.erased and entry.seq < waiting]
                total += sum(self._least_cost(entry, cut) for entry in counted)
                # The cheap lower bound comes first: `_shown_cost` lays out all that was read.
                if total > max(room, 0) and not (self._whole and _newest_began_earlier(entries)):
                    total = self._shown_cost(entries, cut, rules)
                    if total > max(room, 0) and staying is not None:
                        total = self._shown_cost(staying(entries), cut, rules)
                    if total > max(room, 0):
                        return entries, True
        return entries, False

    def _shown_cost(self, entries: Sequence[Entry], cut: Cut, rules: Sequence[Rule]) -> int:
        """Return what these newest entries cost as the cut shows them, or as a cut that masks results would, if less.

        If the first group is incomplete, since its beginning was not read, nothing of it is shown.
        """
        if not entries:
            return 0
        first = entries[0]
        first_whole = (
            0
            if first.seq == first.group
            else next((i for i, e in enumerate(entries) if e.group != first.group), len(entries))
        )
        end = entries[-1].seq + 1
        cuts = [cut, replace(cut, mask=end, thoughts=end)] if self._meter.exact and self._masks else [cut]
        whole_groups, last = entries[first_whole:], entries[-1].group
        shown = [
            show_entries(whole_groups, candidate, self._meter, now=0, conditions=rules, open_group=last).groups
            for candidate in cuts
        ]
        return min(sum(group.cost for group in groups) for groups in shown)

    def first(self, where: Iterable[Span]) -> Steps[int | None]:
        """Return the `seq` of the first entry in these ranges that is no tombstone, or None."""
        for low, high in where:
            after, limit = low - 1, FEW
            while after < high:
                page: list[Entry] = yield Page(after, high + 1, limit)
                first_living = next((entry.seq for entry in page if not entry.erased), None)
                if first_living is not None:
                    return first_living
                if not page:
                    break
                after, limit = page[-1].seq, CHUNK
        return None

    def compaction(self, head: Head) -> Steps[Compaction]:
        """Return the session's newest compaction: what is covered and evicted, and the summaries in its place."""
        compaction: Compaction = yield Compacted(head.compaction)
        return compaction

    def summaries(self, shown: Sequence[ShownSummary]) -> Steps[list[tuple[Summary, Group]]]:
        """Return the summaries that a cut shows, with their groups. Summaries withdrawn by an erasure are left out."""
        groups = []
        for shown_summary in shown:
            summary = (yield Compacted(shown_summary.revision)).summary
            if summary is not None and not summary.withdrawn:
                groups.append((summary, self._group(summary, shown_summary)))
        return groups

    def _group(self, summary: Summary, shown: ShownSummary) -> Group:
        """Return the summary as the cut shows it, as a group of one entry."""
        same_counter = shown.counter == self._meter.counter.name
        tokens = shown.tokens if same_counter else self._shown_tokens(summary, shown.characters)
        entry = summary_entry(summary, shown.characters, tokens)
        group = Group(0, 0, [entry])
        group.show([CostedEntry(entry, data=True, cost=self._meter.cost(entry), form="data")], self._meter.format, 1)
        return group

    def shown_summaries(
        self, revisions: Sequence[int], limit: int | None, most: int | None = None
    ) -> Steps[tuple[ShownSummary, ...]]:
        """Return how a cut shows these summaries: at most `most`, in at most `limit` tokens (None: any number).

        The newest summary gets its room first. The result is in the order of `revisions`.
        """
        shown: list[ShownSummary] = []
        remaining = limit
        for revision in reversed(revisions):
            summary = (yield Compacted(revision)).summary
            if summary is None or summary.withdrawn:
                continue
            fitted = self._shortened(summary, remaining)
            if fitted is None or (most is not None and len(shown) >= most):
                break
            shown.append(fitted)
            if remaining is not None:
                remaining -= self._group(summary, fitted).cost
        return tuple(reversed(shown))

    def _shortened(self, summary: Summary, limit: int | None) -> ShownSummary | None:
        """Shorten a summary to `limit` tokens, at the end of a sentence if possible. None if nothing fits."""

        def shown(characters: int) -> ShownSummary:
            tokens = self._shown_tokens(summary, characters)
            return ShownSummary(summary.revision, characters, tokens, self._meter.counter.name)

        whole = shown(-1)
        if limit is None or self._group(summary, whole).cost <= limit:
            return whole
        low, high = 0, len(summary.text) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._group(summary, shown(middle)).cost <= limit else (low, middle - 1)
        for characters in sentence_ends(summary.text, low):  # checked again: a shorter text may cost a token more
            part = shown(characters)
            if self._group(summary, part).cost <= limit:
                return part
        return shown(low) if low else None

    def _shown_tokens(self, summary: Summary, characters: int) -> int:
        counter = self._meter.counter
        if characters < 0 and summary.counter == counter.name:
            return summary.shown_tokens
        return summary_entry_tokens(summary, counter.count, characters)

    def _least_cost(self, entry: Entry, cut: Cut) -> int:
        """Return a lower bound of what the entry costs.

        This cut may clamp or drop it, and the next cut may turn an old result into a note.
        """
        if cut.clamps and any(clamp.seq == entry.seq for clamp in cut.clamps):
            return self._meter.overhead(entry)
        may_mask = entry.seq < cut.mask or (self._meter.exact and self._masks)
        if may_mask and entry.kind == "tool_result" and is_maskable(entry):
            return self._meter.overhead(entry)
        if cut.gone and any(low <= entry.seq <= high for low, high in cut.gone):  # ranges may overlap: no bisection
            return 0
        return self._meter.cost(entry)

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
        """Show pinned entries and open human messages from before the window; `newest` as in `show_entries`.

        With `whole` their whole groups are shown, else only the entries that the cut names. An older version of a named
        context is stale, wherever the newer version is.
        """
        seqs = set(seqs)
        if not seqs:
            return Window([], [], [], [])
        by_seq = {entry.seq: entry for entry in known if entry.seq in seqs}
        missing = seqs - by_seq.keys()
        if missing:
            fetched: list[Entry] = yield BySeqs(missing)
            by_seq.update({entry.seq: entry for entry in fetched})
        if whole:
            groups = {entry.group: entry for entry in by_seq.values() if not entry.is_human and entry.role != "system"}
            for entry in groups.values():
                group = yield from whole_group(head, entry)
                by_seq.update({other.seq: other for other in group})
        members = [by_seq[seq] for seq in sorted(by_seq)]
        window = show_entries(members, cut, self._meter, now=now, newest=newest, open_group=waiting_in(head))
        shown = [entry for group in window.groups for entry in group.entries if entry.kind == "context"]
        outdated = [(entry.seq, NEWER_VERSION) for entry in shown if head.has_newer(entry.name, entry.seq)]
        return replace(window, stale=[*window.stale, *outdated]) if outdated else window


def _hidden(head: Head, cut: Cut) -> tuple[Span, ...]:
    """Return the ranges of the log of which the cut shows nothing."""
    hidden = bare(head)
    return spans.union(hidden, cut.skipped) if cut.skipped else hidden


def _newest_began_earlier(entries: Sequence[Entry]) -> bool:
    """Whether the newest interaction of these entries began before the first of them."""
    newest = next((entry for entry in reversed(entries) if not entry.erased), entries[-1])
    return newest.turn < entries[0].seq


def waiting_in(head: Head) -> int:
    """Return the group that may wait for more entries, by the session's head (0: none)."""
    return head.group or (head.tail if head.reasoning or head.pauses else 0)


def whole_group(head: Head, entry: Entry) -> Steps[list[Entry]]:
    """Return all entries of this entry's group, except for rewound ones."""
    members: list[Entry] = []
    limit = FEW
    for first, last in spans.visible(head.rewound, entry.group - 1, head.next_seq):
        after = first - 1
        while after < last:
            page: list[Entry] = yield Page(after, last + 1, limit)
            members += [other for other in page if other.group == entry.group]
            if not page or page[-1].group != entry.group:
                return members
            after, limit = page[-1].seq, CHUNK
    return members


def sentence_ends(text: str, limit: int) -> list[int]:
    """Return where sentences and lines end within the first `limit` characters, last first."""
    return [match.end() for match in re.finditer(_SENTENCE, text[:limit])][::-1]

"""What of the log a cut shows: newest first until the room is full, pins included. Pure: it asks for what it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from palimpsest.context.asks import Compacted, Page, Places, Steps
from palimpsest.context.groups import CostedEntry, Group, Meter
from palimpsest.context.window import NEWER_VERSION, Rule, Window, look
from palimpsest.formats.wording import is_maskable, summary_entry, summary_entry_tokens
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head, ShownSummary
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Summary

CHUNK = 256
"""Entries read at once: most windows are one read."""

GAP = 4
"""Hidden entries that are read along with those beside them: to ask once more takes longer."""

FEW = 8
"""Entries read at first where a group is wanted: most groups are smaller."""

_SENTENCE = r"[.!?](?=\s)|\n"
"""Where a text may be cut: behind a sentence or a line."""


class WindowReader:
    """Asks for one session's entries for a context.

    `masks` says that old results may yet become notes, `whole` that the newest interaction is shown even where it has
    no room.
    """

    def __init__(self, meter: Meter, *, masks: bool, whole: bool = False) -> None:
        self._meter, self._masks, self._whole = meter, masks, whole

    def is_one_page(self, head: Head, cut: Cut) -> bool:
        """Whether `window` reads all that it may read of a cut at once, whatever room there is."""
        hidden = spans.union(head.rewound, cut.skipped) if cut.skipped else head.rewound
        found = spans.visible(hidden, cut.start - 1, head.next_seq)
        return head.next_seq - cut.start <= CHUNK and found == [(cut.start, head.next_seq - 1)]

    def window(
        self, head: Head, cut: Cut, room_of: Callable[[], Steps[int | None]], rules: Sequence[Rule] = ()
    ) -> Steps[tuple[list[Entry], bool]]:
        """Return the entries from the cut's start on, oldest first, and whether some were left unread.

        Reading stops when what was read comes to more than so many tokens as there is room for (None: read all), as the
        cut and these conditions show it, and as a next cut might. So what is left unread does not fit, whatever it is.
        How much room there is may take long to say: it is asked for when something has been read.
        """
        entries: list[Entry] = []
        room: int | None = None
        hidden = spans.union(head.rewound, cut.skipped) if cut.skipped else head.rewound
        gaps = [(low, high) for low, high in hidden if high - low < GAP]
        wide = spans.minus(hidden, gaps) if gaps else hidden
        open_spans, total = spans.visible(wide, cut.start - 1, head.next_seq), 0
        waiting = head.group or head.next_seq  # what is held back, until its calls are answered, takes no room
        for first, last in reversed(open_spans):
            before = last + 1
            while before > first:
                chunk: list[Entry] = yield Page(first - 1, before, CHUNK, newest_first=True)
                if not chunk:
                    break
                before = chunk[-1].seq
                chunk = (
                    [entry for entry in reversed(chunk) if not spans.within(gaps, entry.seq)] if gaps else chunk[::-1]
                )
                if not chunk:
                    continue
                if not entries:
                    room = yield from room_of()
                entries = chunk + entries if entries else chunk
                if room is None or before <= open_spans[0][0]:
                    continue
                meant = [entry for entry in chunk if not entry.erased and entry.seq < waiting]
                total += sum(self._least(entry, cut) for entry in meant)
                if total > max(room, 0) and not (self._whole and _begins_before(entries)):  # by what costs little
                    total = self._shown(entries, cut, rules)
                    if total > max(room, 0):
                        return entries, True
        return entries, False

    def _shown(self, entries: Sequence[Entry], cut: Cut, rules: Sequence[Rule]) -> int:
        """What these entries, the newest, come to: as the cut shows them, or as one might that makes notes of results.

        Of a group whose beginning is not among them nothing is shown.
        """
        first = entries[0]
        whole = (
            0
            if first.seq == first.group
            else next((i for i, e in enumerate(entries) if e.group != first.group), len(entries))
        )
        cuts = [cut, replace(cut, mask=entries[-1].seq + 1)] if self._meter.exact and self._masks else [cut]
        part, last = entries[whole:], entries[-1].group
        shown = [look(part, one, self._meter, now=0, conditions=rules, open_group=last).groups for one in cuts]
        return min(sum(group.cost for group in groups) for groups in shown)

    def first(self, where: Iterable[Span]) -> Steps[int | None]:
        """Return the first place there that is no tombstone, which may be of a group that is not there; None: none."""
        for low, high in where:
            after, limit = low - 1, FEW
            while after < high:
                found: list[Entry] = yield Page(after, high + 1, limit)
                living = next((entry.seq for entry in found if not entry.erased), None)
                if living is not None:
                    return living
                if not found:
                    break
                after, limit = found[-1].seq, CHUNK
        return None

    def compaction(self, head: Head) -> Steps[Compaction]:
        """Return what is covered and evicted, and what stands for it."""
        found: Compaction = yield Compacted(head.compaction)
        return found

    def summaries(self, shown: Sequence[ShownSummary]) -> Steps[list[tuple[Summary, Group]]]:
        """Return the summaries that a cut shows, as groups; one that an erasure has taken along is left out."""
        found = []
        for one in shown:
            made = (yield Compacted(one.revision)).summary
            if made is not None and not made.withdrawn:
                found.append((made, self._group(made, one)))
        return found

    def _group(self, summary: Summary, shown: ShownSummary) -> Group:
        same = shown.counter == self._meter.counter.name
        tokens = shown.tokens if same else self._shown_tokens(summary, shown.characters)
        entry = summary_entry(summary, shown.characters, tokens)
        group = Group(0, 0, [entry])
        group.show([CostedEntry(entry, data=True, cost=self._meter.cost(entry), form="data")], self._meter.format, 1)
        return group

    def shown_summaries(
        self, revisions: Sequence[int], limit: int | None, most: int | None = None
    ) -> Steps[tuple[ShownSummary, ...]]:
        """Return how a cut shows these summaries: at most `most`, in at most `limit` tokens (None: whole).

        The newest is served first.
        """
        shown: list[ShownSummary] = []
        left = limit
        for revision in reversed(revisions):
            made = (yield Compacted(revision)).summary
            if made is None or made.withdrawn:
                continue
            one = self._within(made, left)
            if one is None or (most is not None and len(shown) >= most):
                break
            shown.append(one)
            if left is not None:
                left -= self._group(made, one).cost
        return tuple(reversed(shown))

    def _within(self, summary: Summary, limit: int | None) -> ShownSummary | None:
        """As much of a summary as `limit` tokens hold, up to the end of a sentence; None where that is nothing."""

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
        for characters in sentence_ends(summary.text, low):  # a shorter text may, by a token, cost more
            part = shown(characters)
            if self._group(summary, part).cost <= limit:
                return part
        return shown(low) if low else None

    def _shown_tokens(self, summary: Summary, characters: int) -> int:
        counter = self._meter.counter
        if characters < 0 and summary.counter == counter.name:
            return summary.shown_tokens
        return summary_entry_tokens(summary, counter.count, characters)

    def _least(self, entry: Entry, cut: Cut) -> int:
        """What the entry costs at least: it may be clamped by this cut, and an old result become a note in the next."""
        if cut.clamps and any(clamp.seq == entry.seq for clamp in cut.clamps):
            return self._meter.overhead(entry)
        may_mask = entry.seq < cut.mask or (self._meter.exact and self._masks)
        if may_mask and entry.kind == "tool_result" and is_maskable(entry):
            return self._meter.overhead(entry)
        if cut.gone and any(low <= entry.seq <= high for low, high in cut.gone):  # they may overlap
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
        """Show pinned entries and open human messages from before the window; `newest` as in `look`.

        With `whole` their groups are shown with them, else what the cut names. An older version of a named context is
        stale wherever the newer one is now.
        """
        seqs = set(seqs)
        if not seqs:
            return Window([], [], [], [])
        found = {entry.seq: entry for entry in known if entry.seq in seqs}
        missing = seqs - found.keys()
        if missing:
            fetched: list[Entry] = yield Places(missing)
            found.update({entry.seq: entry for entry in fetched})
        if whole:
            groups = {entry.group: entry for entry in found.values() if not entry.is_human and entry.role != "system"}
            for entry in groups.values():
                group = yield from whole_group(head, entry)
                found.update({other.seq: other for other in group})
        members = [found[seq] for seq in sorted(found)]
        seen = look(members, cut, self._meter, now=now, newest=newest, open_group=waiting_in(head))
        shown = [entry for group in seen.groups for entry in group.entries if entry.kind == "context"]
        old = [(entry.seq, NEWER_VERSION) for entry in shown if head.has_newer(entry.name, entry.seq)]
        return replace(seen, stale=[*seen.stale, *old]) if old else seen


def _begins_before(entries: Sequence[Entry]) -> bool:
    """Whether the newest interaction of these entries began before the first of them."""
    newest = next((entry for entry in reversed(entries) if not entry.erased), entries[-1])
    return newest.turn < entries[0].seq


def waiting_in(head: Head) -> int:
    """The group that may wait for more, by its head; 0: none."""
    return head.group or (head.tail if head.reasoning or head.pauses else 0)


def whole_group(head: Head, entry: Entry) -> Steps[list[Entry]]:
    """Return the group of this entry, whole; what was rewound is not in it."""
    members: list[Entry] = []
    limit = FEW
    for first, last in spans.visible(head.rewound, entry.group - 1, head.next_seq):
        after = first - 1
        while after < last:
            near: list[Entry] = yield Page(after, last + 1, limit)
            members += [other for other in near if other.group == entry.group]
            if not near or near[-1].group != entry.group:
                return members
            after, limit = near[-1].seq, CHUNK
    return members


def sentence_ends(text: str, limit: int) -> list[int]:
    """Return where sentences and lines within the first `limit` characters end, the last first."""
    return [found.end() for found in re.finditer(_SENTENCE, text[:limit])][::-1]

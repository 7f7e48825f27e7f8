"""Where stored entries are in a branch of their session that holds further entries between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction


class Places:
    """Maps the seqs of stored entries to those in the branch. Up to the seq `last` they are the same."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._by_stored: dict[int, int] = {}
        self._groups: dict[int, int] = {}

    def add(self, stored: int, entry: Entry) -> None:
        """Note an entry that was added to the branch, and its seq in the store (0: it is not stored)."""
        self._groups[entry.seq] = entry.group
        if stored:
            self._by_stored[stored] = entry.seq

    def seqs(self, stored: Iterable[int]) -> tuple[int, ...]:
        """Return the seqs in the branch; those that it does not have are left out."""
        places = (seq if seq <= self._last else self._by_stored.get(seq) for seq in stored)
        return tuple(seq for seq in places if seq is not None)

    def spans(self, stored: Sequence[Span]) -> tuple[Span, ...]:
        """Return the spans in the branch, with everything that belongs to the same groups there.

        A group of the branch may hold entries of several stored groups, as where a withheld call has stored results.
        """
        shared = spans.common(stored, [(1, self._last)])
        own = {seq for place, seq in self._by_stored.items() if spans.within(stored, place)}
        groups = {self._groups[seq] for seq in own}
        members = [seq for seq, group in self._groups.items() if group in groups or spans.within(shared, group)]
        return spans.union(shared, spans.of(sorted({*own, *members})))

    def state(self, stored: Compaction, revisions: Mapping[int, int]) -> Compaction:
        """Return a state after a compaction as it is in the branch.

        `revisions` maps the revisions of compactions to those of the same ones in the branch, where they differ (0: the
        one to be committed). A summary still names the stored entries that it covers, as `expand` takes them.
        """
        summary = stored.summary
        return Compaction(
            summary=msgspec.structs.replace(summary, revision=0) if summary is not None else None,
            current=tuple(revisions.get(revision, revision) for revision in stored.current),
            covered=self.spans(stored.covered),
            evicted=self.spans(stored.evicted),
            hidden=self.spans(stored.hidden),
            mask=self._bound(stored.mask),
            released=self.spans(stored.released),
        )

    def _bound(self, stored: int) -> int:
        """Return the seq in the branch before which the entries before this stored seq are."""
        if stored <= self._last + 1:
            return stored
        return max((self._last, *(seq for place, seq in self._by_stored.items() if place < stored))) + 1

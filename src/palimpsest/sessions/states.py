"""Which state each entry of a session is in: one of `STATES`, by the first rule that holds. Reads only.

An entry that a current summary names is covered, also where a context shows it beside the summary: as the question of
an interaction whose later half is in the window, or because it is pinned. Everything else that is pinned is active,
with its group. What a full context, a strategy or `hide` has left out is evicted, and so is an older version of a named
context, of which contexts show the newest, and a result whose call was erased, which no context shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

import msgspec

from palimpsest.context.reading import whole_group
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction
from palimpsest.sessions.answers import answered
from palimpsest.sessions.options import Options
from palimpsest.stores import Store, compaction_of

STATES = ("erased", "rewound", "covered", "evicted", "expired", "active")


class States(msgspec.Struct, frozen=True):
    """The states of a session's entries, as its head and the cut of one view have them.

    `compaction` is what is covered, and what stands for it. `evicted` has left the contexts, `gone` a cut leaves out
    though it lies behind its start; of both nothing that is `shown` all the same.
    """

    head: Head
    compaction: Compaction
    evicted: tuple[Span, ...]
    gone: tuple[Span, ...]

    def of(self, entry: Entry, now: int) -> str:
        """The state of an entry at this time, in microseconds since 1970, whatever comes after it."""
        if entry.erased:
            return "erased"
        if spans.within(self.head.rewound, entry.seq):
            return "rewound"
        if spans.within(self.compaction.covered, entry.seq):
            return "covered"
        if spans.within(self.evicted, entry.seq):
            return "evicted"
        if entry.expired(now):
            return "expired"
        return "evicted" if spans.within(self.gone, entry.seq) else "active"

    @property
    def inactive(self) -> tuple[Span, ...]:
        """Where nothing is active, whatever it is."""
        return spans.union(self.compaction.covered, self.evicted, self.head.rewound)


class Walk:
    """The states of a session's entries, followed one by one, oldest first, and how many there are of each.

    `erased` are calls that were erased, of those that it is not led over.
    """

    def __init__(self, states: States, now: int, erased: Iterable[int] = ()) -> None:
        self._states, self._now = states, now
        self._newest: dict[str, tuple[int, str]] = {}
        self._erased_calls = set(erased)
        self.counts = dict.fromkeys(STATES, 0)
        self.superseded: set[int] = set()
        """Those that were active until a newer version of the same name came: they are evicted."""

    def follow(self, entry: Entry) -> str:
        """Go on to the next entry, and return its state, as far as one can say without those that come."""
        state = self._states.of(entry, self._now)
        if state == "active" and entry.kind == "context" and self._states.head.has_newer(entry.name, entry.seq):
            state = "evicted"  # wherever the newer version is now
        if entry.erased and entry.kind == "tool_call":
            self._erased_calls.add(entry.seq)
        if state == "active" and not entry.late and entry.answers in self._erased_calls:
            state = "evicted"
        self.counts[state] += 1
        if state in ("active", "expired") and entry.kind == "context" and entry.name:
            before, was = self._newest.get(entry.name, (0, ""))
            if was == "active":
                self.counts["active"] -= 1
                self.counts["evicted"] += 1
                self.superseded.add(before)
            self._newest[entry.name] = (entry.seq, state)
        return state


async def states_of(store: Store, options: Options, head: Head) -> States:
    """The states of a session's entries, by its head."""
    compaction = await compaction_of(store, options.key, head.compaction)
    cut, shown = head.views.get(options.view), await pinned_groups(store, options, head, head.pinned)
    gone = spans.minus(cut.gone, spans.of(shown)) if cut is not None else ()
    passed: tuple[Span, ...] = ()
    if cut is not None and cut.compaction == head.compaction:  # else the view begins anew
        shown |= {*cut.pins, *cut.anchors}
        passed = ((head.first_seq, cut.start - 1),) if cut.start > head.first_seq else ()
    evicted = spans.minus(spans.union(compaction.evicted, compaction.hidden, passed), spans.of(shown))
    return States(head, compaction, spans.minus(evicted, compaction.covered), gone)


async def active_entries(store: Store, options: Options, head: Head, now: int) -> list[Entry]:
    """Return the entries that are active, oldest first; only what may be is read."""
    states, read = await states_of(store, options, head), list[Entry]()
    for first, last in spans.visible(states.inactive, head.first_seq - 1, head.next_seq):
        read += await store.read(options.key, after=first - 1, before=last + 1, counter=options.counter.name)
    elsewhere = {entry.answers for entry in read if entry.answers}.difference(entry.seq for entry in read)
    calls = await store.fetch(options.key, elsewhere) if elsewhere else ()
    walk = Walk(states, now, [call.seq for call in calls if call.erased])
    found = [entry for entry in read if walk.follow(entry) == "active"]
    return [entry for entry in found if entry.seq not in walk.superseded]


async def evicted_by_cut(store: Store, options: Options, head: Head, state: Compaction) -> tuple[Span, ...]:
    """Return what cuts of the session's view have evicted since its last compaction: nothing that is pinned, or of a
    group in which something is."""
    cut = head.views.get(options.view)
    if cut is None or cut.compaction != head.compaction or cut.start <= head.first_seq:
        return ()
    shown = await pinned_groups(store, options, head, [seq for seq in head.pinned if seq < cut.start])
    shown |= {*cut.pins, *cut.anchors, *head.pinned}
    return spans.minus([(head.first_seq, cut.start - 1)], [*state.inactive, *spans.of(shown), *head.rewound])


async def pinned_groups(store: Store, options: Options, head: Head, seqs: Collection[int]) -> set[int]:
    """These pinned entries, each with its whole group."""
    found = set(seqs)
    for entry in await store.fetch(options.key, found) if found else ():
        if not entry.is_human and entry.role != "system":  # they are groups of their own
            group = partial(whole_group, head, entry)
            found.update(other.seq for other in await answered(store, options.key, options.counter.name, group))
    return found

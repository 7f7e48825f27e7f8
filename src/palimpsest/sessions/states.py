"""The state of each entry of a session: the first of `STATES` that applies. Reads only.

- covered: named by a current summary, even if a context shows the entry beside the summary, because it is pinned, or
  because it is the question of an interaction whose later half is in the window.
- evicted: left out by a cut, a strategy or `hide`, unless the entry or one of its group is pinned. Also a named context
  of which there is a newer version, and a result whose call was erased, since no context shows these.
- active: everything else that is not erased, rewound or expired, and everything pinned with its group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from math import inf

import msgspec

from palimpsest.context.reading import whole_group
from palimpsest.log import spans
from palimpsest.log.entry import Entry, microseconds_of
from palimpsest.log.head import Head
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction
from palimpsest.log.withdrawal import bare
from palimpsest.sessions.answers import run_steps
from palimpsest.sessions.options import Options
from palimpsest.stores import Store, compaction_of

STATES = ("erased", "rewound", "covered", "evicted", "expired", "active")


class States(msgspec.Struct, frozen=True):
    """The states of a session's entries, by its head and the cut of one view.

    `compaction` has the covered spans. `evicted` are the spans that contexts have left behind; `gone` are entries after
    the start of the cut that it leaves out. Neither has entries that contexts show nevertheless.
    """

    head: Head
    compaction: Compaction
    evicted: tuple[Span, ...]
    gone: tuple[Span, ...]

    def of(self, entry: Entry, now: int) -> str:
        """Return the state of an entry at this time (microseconds since 1970), regardless of later entries."""
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
        """The spans in which no entry is active."""
        return spans.union(self.compaction.covered, self.evicted, self.head.rewound)


class Walk:
    """Goes through entries one by one, oldest first, and tells their states and how many there are of each.

    `erased` are the seqs of erased calls among the entries that are not passed to `follow`.
    """

    def __init__(self, states: States, now: int, erased: Iterable[int] = ()) -> None:
        self._states, self._now = states, now
        self._newest: dict[str, tuple[int, str]] = {}
        self._erased_calls = set(erased)
        self.counts = dict.fromkeys(STATES, 0)
        self.superseded: set[int] = set()
        """Contexts reported as active before a newer version of the same name was followed: they are evicted."""

    def follow(self, entry: Entry) -> str:
        """Go on to the next entry and return its state, as far as it is known without later entries."""
        state = self._states.of(entry, self._now)
        if state == "active" and entry.kind == "context" and self._states.head.has_newer(entry.name, entry.seq):
            state = "evicted"  # even if the newer version is not active itself
        if entry.erased and entry.kind == "tool_call":
            self._erased_calls.add(entry.seq)
        if state == "active" and not entry.late and entry.answers in self._erased_calls:
            state = "evicted"
        self.counts[state] += 1
        if state in ("active", "expired") and entry.kind == "context" and entry.name:
            older, older_state = self._newest.get(entry.name, (0, ""))
            if older_state == "active":
                self.counts["active"] -= 1
                self.counts["evicted"] += 1
                self.superseded.add(older)
            self._newest[entry.name] = (entry.seq, state)
        return state


async def states_of(store: Store, options: Options, head: Head) -> States:
    """Return the states of a session's entries at this head."""
    compaction = await compaction_of(store, options.key, head.compaction)
    cut, shown_seqs = head.views.get(options.view), await pinned_groups(store, options, head, head.pinned)
    gone_spans = spans.minus(cut.gone, spans.of(shown_seqs)) if cut is not None else ()
    passed_spans: tuple[Span, ...] = ()
    if cut is not None and cut.compaction == head.compaction:  # otherwise the view starts anew after a compaction
        shown_seqs |= {*cut.pins, *cut.anchors}
        passed_spans = ((head.first_seq, cut.start - 1),) if cut.start > head.first_seq else ()
    evicted = spans.minus(spans.union(compaction.evicted, compaction.hidden, passed_spans), spans.of(shown_seqs))
    return States(head, compaction, spans.minus(evicted, compaction.covered), gone_spans)


async def active_entries(store: Store, options: Options, head: Head, now: int) -> list[Entry]:
    """Return the active entries, oldest first. Reads only the spans that may have any, and calls answered in them."""
    states, read = await states_of(store, options, head), list[Entry]()
    for first, last in spans.visible(spans.union(states.inactive, bare(head)), head.first_seq - 1, head.next_seq):
        read += await store.read(options.key, after=first - 1, before=last + 1, counter=options.counter.name)
    elsewhere = {entry.answers for entry in read if entry.answers}.difference(entry.seq for entry in read)
    calls = await store.fetch(options.key, elsewhere) if elsewhere else ()
    walk = Walk(states, now, [call.seq for call in calls if call.erased])
    active = [entry for entry in read if walk.follow(entry) == "active"]
    return [entry for entry in active if entry.seq not in walk.superseded]


class Tally(msgspec.Struct, frozen=True):
    """How many entries of a session are `active` before `next_seq`, from one time until another one (microseconds since
    1970), and while the session has this `mark`, so that only appends have changed it."""

    mark: object = None
    next_seq: int = 1
    active: int = 0
    since: int = 0
    until: float = 0


MOST_NEW = 256
"""The most entries that are added to a tally. If there are more, it is made anew."""


async def tallied(store: Store, options: Options, now: int, before: Tally) -> Tally:
    """Return the tally of a session as it is now; if the one `before` still holds, only what is new is read."""
    if before.mark is not None and before.since <= now < before.until:
        standing, new, _ = await store.page(
            options.key,
            after=before.next_seq - 1,
            before=before.next_seq + MOST_NEW,
            limit=MOST_NEW,
            newest_first=False,
            counter=options.counter.name,
            revision=0,
        )
        whole = before.next_seq + len(new) == standing.head.next_seq
        alone = not any(entry.erased or entry.kind == "context" for entry in new)  # else it may change another's state
        if standing.mark == before.mark and whole and alone:
            active = [entry for entry in new if not entry.expired(now)]
            next_seq, until = standing.head.next_seq, min(before.until, _ends(active))
            return Tally(before.mark, next_seq, before.active + len(active), now, until)
    standing = await store.standing(options.key)
    active = await active_entries(store, options, standing.head, now)
    return Tally(standing.mark, standing.head.next_seq, len(active), now, _ends(active))


def _ends(entries: Iterable[Entry]) -> float:
    """Return when the first of these entries expires, in microseconds since 1970."""
    return min((microseconds_of(entry.expires_at) for entry in entries if entry.expires_at is not None), default=inf)


async def evicted_by_cut(store: Store, options: Options, head: Head, state: Compaction) -> tuple[Span, ...]:
    """Return the spans that cuts of the session's view have evicted since its last compaction, without groups of which
    an entry is pinned."""
    cut = head.views.get(options.view)
    if cut is None or cut.compaction != head.compaction or cut.start <= head.first_seq:
        return ()
    shown_seqs = await pinned_groups(store, options, head, [seq for seq in head.pinned if seq < cut.start])
    shown_seqs |= {*cut.pins, *cut.anchors, *head.pinned}
    return spans.minus([(head.first_seq, cut.start - 1)], [*state.inactive, *spans.of(shown_seqs), *head.rewound])


async def pinned_groups(store: Store, options: Options, head: Head, seqs: Collection[int]) -> set[int]:
    """Return the seqs of these pinned entries and of all other entries of their groups."""
    members = set(seqs)
    for entry in await store.fetch(options.key, members) if members else ():
        if not entry.is_human and entry.role != "system":  # these two are always groups of one entry
            group = partial(whole_group, head, entry)
            members.update(other.seq for other in await run_steps(store, options.key, options.counter.name, group))
    return members

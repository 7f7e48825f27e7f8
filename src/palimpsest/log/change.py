"""Changes of a log other than appends: their records, and what each kind of change does to a head. Pure.

Stores call `palimpsest.log.linking.link` and `palimpsest.log.resuming.committed` inside their transaction (or
compare-and-set loop) and store the results.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log import spans, summary
from palimpsest.log.codec import ready
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import About, Attempts, Cut, Head, PromptSize, Usage
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction

MOST_GRAVES = 16
"""How many ranges of tombstones a head names."""

BY_REQUEST = "by request"
"""The reason of an erasure if none is given."""


ChangeKind = Literal[
    "cut",
    "compact",
    "replace",
    "erase",
    "clear",
    "pin",
    "usage",
    "prompt",
    "attempt",
    "pseudonyms",
    "about",
    "rewind",
    "redact",
]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step that is not an append, committed whole: a cut, a compaction, a replacement, an erasure, a clear, pins.

    `seqs` are the entries to erase, to pin, or (with `unpin`) to unpin. `detail` goes into the record: the window
    before and after, the trigger. `attempts` is what to remember of compactions from then on, `pseudonyms` are all
    pseudonyms given out so far. `said` names the fields of `about` that are set: an erasure clears them, a cut sets
    another definition, and a replacement describes the session that it makes.

    In an erasure, `ids` are the ids of `seqs` in the same order; entries that have another id by now are left alone
    (empty: any id). `unpinned` leaves pinned entries alone. `graves` are entries that a flush destroyed before, which
    heads count as erased already. `also` are places erased before that no summary may tell of any more. `silence` are
    revisions whose records lose their words, whatever they are: summary, details, reason and conditions. `evicted` is
    what contexts have left out; it stays in the archive if the erasure withdraws summaries. With `spare` current
    summaries stay, even if they are made from erased entries. That is a flush, which also lets go of what is
    `released`, and with `unshared` takes nothing that another session has not let go of.

    `compaction` is the state after a compaction, a replacement, or an erasure that withdraws summaries.

    A replacement adds `entries` like an append, and is committed by `palimpsest.log.resuming`; `turn` is the newest
    human message known to stay active. A rewind goes back to the head `back`, whose `rewound` and `hidden` say which
    entries before its `next_seq` are hidden from then on; all later entries are hidden, too.
    """

    kind: ChangeKind
    reason: str
    created: int = 0
    view: str = ""
    cut: Cut | None = None
    entries: tuple[Entry, ...] = ()
    turn: int = 0
    seqs: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    unpin: bool = False
    unpinned: bool = False
    graves: tuple[int, ...] = ()
    usage: Usage | None = None
    prompt: PromptSize | None = None
    compaction: Compaction | None = None
    spare: bool = False
    unshared: bool = False
    released: tuple[Span, ...] = ()
    evicted: tuple[Span, ...] = ()
    also: tuple[Span, ...] = ()
    silence: tuple[int, ...] = ()
    attempts: Attempts | None = None
    pseudonyms: dict[str, int] = {}
    about: About | None = None
    said: tuple[str, ...] = ()
    back: Head | None = None
    detail: dict[str, Any] = {}


class Record(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """A change as the log remembers it.

    `revision` is the one that the change made, `at` its time (microseconds, UTC), `kind` and `reason` say what it was,
    and `detail` holds figures. A cut has its `view` and the `cut` itself. Of a pin, `unpin` is set if it lets go. Of a
    rewind, `to` is the revision that it went back to, and `rewound` are all ranges hidden after it. Of a replacement,
    `seqs` are the entries that it added, and its `compaction` lists as evicted what it left out.

    Appends have no record of their own: a history makes one from the entries (`seqs`) that a revision added.
    """

    revision: int
    kind: ChangeKind | Literal["add"]
    reason: str
    at: int
    view: str = ""
    cut: Cut | None = None
    seqs: tuple[int, ...] = ()
    unpin: bool = False
    to: int = 0
    rewound: tuple[Span, ...] = ()
    compaction: Compaction | None = None
    detail: dict[str, Any] = {}

    @property
    def created_at(self) -> datetime:
        """When the change was made, UTC."""
        return moment(self.at)


ready(Record)


def still_meant(head: Head, change: Change, present: Mapping[int, str]) -> Change:
    """Restrict an erasure to entries that are unchanged since they were looked up, so that it need not be redone.

    `present` maps the places of the change that hold no tombstone to the ids there.
    """
    spared = set(head.pinned) if change.unpinned else ()
    names = change.ids or [None] * len(change.seqs)
    seqs = tuple(
        seq
        for seq, name in zip(change.seqs, names, strict=True)
        if head.first_seq <= seq < head.next_seq
        and seq in present
        and name in (None, present[seq])
        and seq not in spared
    )
    return msgspec.structs.replace(change, seqs=seqs, ids=())


def fitted(head: Head, change: Change) -> Change:
    """Include what was added since the change was made: a rewind hides it, a clear counts it."""
    if change.kind == "clear" and "entries" in change.detail:
        return msgspec.structs.replace(change, detail={**change.detail, "entries": head.entries})
    back = change.back
    added = head.next_seq - back.next_seq if back is not None else 0
    if back is None or not added:
        return change
    rewound = spans.hiding(back.rewound, back.next_seq, head.next_seq - 1)
    back = msgspec.structs.replace(back, next_seq=head.next_seq, rewound=rewound, hidden=back.hidden + added)
    detail = {**change.detail, "entries": change.detail.get("entries", 0) + added}
    return msgspec.structs.replace(change, back=back, detail=detail)


def recounted(head: Head, graves: Collection[int]) -> Head:
    """Return the head with its counts made anew, given the places of all tombstones in the log.

    Needed to erase damaged entries: whether they were counted as erased before is not known.
    """
    erased_seqs = [seq for seq in graves if head.first_seq <= seq < head.next_seq]
    hidden = spans.size(head.rewound) - sum(spans.within(head.rewound, seq) for seq in erased_seqs)
    return msgspec.structs.replace(head, erased=len(erased_seqs), hidden=hidden)


def apply(head: Head, change: Change, at: int) -> tuple[Head, Record | None]:
    """Return the head after `change`, and its record (None for a kind that leaves no record)."""
    change = fitted(head, change)
    after = _EFFECTS[change.kind](head, change)
    after = msgspec.structs.replace(after, revision=head.revision + 1, updated=at, created=head.created or at)
    if change.attempts is not None:
        after = msgspec.structs.replace(after, attempts=change.attempts)
    if change.kind in ("usage", "prompt", "attempt", "pseudonyms", "about"):
        return after, None
    compaction = change.compaction
    if compaction is not None:
        compaction = summary.stamped(compaction, after.revision, at)
        after = msgspec.structs.replace(after, compaction=after.revision)
    record = Record(
        revision=after.revision,
        kind=change.kind,
        reason=change.reason,
        at=at,
        view=change.view,
        cut=after.views[change.view] if change.kind == "cut" else None,
        seqs=change.seqs,
        unpin=change.unpin,
        to=change.back.revision if change.back is not None else 0,
        rewound=after.rewound if change.kind == "rewind" else (),
        compaction=compaction,
        detail=change.detail,
    )
    return after, record


def _cut(head: Head, change: Change) -> Head:
    assert change.cut is not None, "a change of kind cut carries its cut"
    if change.cut.compaction not in (0, head.compaction) or change.cut.start > head.next_seq:
        # A deleted session starts over at revision 0, so another session of that name may be at the expected one.
        raise Conflict("the session", "was deleted or replaced since the cut was made: read it again")
    cut = msgspec.structs.replace(change.cut, epoch=head.epoch + 1, revision=head.revision + 1)
    return _new_epoch(head, change.reason, views={**head.views, change.view: cut}, about=_about_after(head, change))


def _compact(head: Head, change: Change) -> Head:
    return _new_epoch(head, change.reason, usage=outdated(head.usage), prompt=None, about=_about_after(head, change))


def _about_after(head: Head, change: Change) -> About | None:
    """Return the session's `about` after a change that may set fields of it."""
    return _about(head, change).about if change.said else head.about


def _erase(head: Head, change: Change) -> Head:
    """Take the erased entries out of everything that the head remembers."""
    erased = set(change.seqs)
    newly_erased = erased.difference(change.graves)
    calls = tuple(call for call in head.calls if call.seq not in erased)
    visible = spans.visible(head.rewound, head.first_seq - 1, head.next_seq)
    newest_stays = not visible or visible[-1][1] not in erased  # otherwise the entry that was to be continued is gone
    return _new_epoch(
        head,
        "expiry" if change.reason == "expiry" else "erasure",
        usage=outdated(head.usage),
        prompt=None,
        erased=head.erased + len(newly_erased),
        graves=spans.longest(spans.union(head.graves, spans.of(erased)), MOST_GRAVES),
        thoughts=head.next_seq,
        hidden=head.hidden - sum(spans.within(head.rewound, seq) for seq in newly_erased) if head.rewound else 0,
        pinned=tuple(seq for seq in head.pinned if seq not in erased),
        calls=calls,
        group=head.group if any(call.group == head.group for call in calls) else 0,
        reasoning=head.reasoning and newest_stays,
        pauses=head.pauses and newest_stays,
        contexts={name: version for name, version in head.contexts.items() if version[0] not in erased},
        views=_unconditional(head.views, change.silence) if change.silence else head.views,
        about=_about_after(head, change),
    )


def _unconditional(views: dict[str, Cut], revisions: Sequence[int]) -> dict[str, Cut]:
    """Return the views without the conditions of cuts made at these revisions."""
    return {
        view: msgspec.structs.replace(cut, conditions=()) if cut.revision in revisions else cut
        for view, cut in views.items()
    }


def _clear(head: Head, _: Change) -> Head:
    kept = {name: getattr(head, name) for name in ("forked_from", "epoch", "about", "expires")}
    empty = Head(first_seq=head.next_seq, next_seq=head.next_seq, **kept)
    return _new_epoch(empty, "clear")


def _rewind(head: Head, change: Change) -> Head:
    """Return the earlier head, with what a rewind does not take back."""
    back = change.back
    assert back is not None, "a rewind knows where it goes back to"
    session = ("forked_from", "epoch", "attempts", "pseudonyms", "about", "expires")
    kept = ("next_seq", "erased", "graves", "thoughts", "usage", "first_seq", *session)
    return _new_epoch(
        msgspec.structs.replace(back, prompt=None, **{name: getattr(head, name) for name in kept}), "rewind"
    )


def _pin(head: Head, change: Change) -> Head:
    """Pin or unpin the entries."""
    others = [seq for seq in head.pinned if seq not in change.seqs]
    return msgspec.structs.replace(head, pinned=tuple(others if change.unpin else sorted([*others, *change.seqs])))


def _usage(head: Head, change: Change) -> Head:
    """Add the usage that a change reports to the totals, unless the same response has reported it already."""
    used, before = change.usage, head.usage or Usage(input_tokens=0)
    assert used is not None, "a change of kind usage carries what was used"
    if used.response and used.response == before.response:
        return head
    usage = msgspec.structs.replace(
        used,
        stale=used.revision < head.compaction,
        calls=before.calls + used.calls,
        total_input=before.total_input + used.total_input,
        total_output=before.total_output + used.total_output,
        total_cached=before.total_cached + used.total_cached,
    )
    return msgspec.structs.replace(head, usage=usage)


def _prompt(head: Head, change: Change) -> Head:
    before, prompt = head.prompt, change.prompt
    assert prompt is not None, "a change of kind prompt carries what a context came to"
    newest = max(head.compaction, before.revision if before is not None else 0)
    return head if prompt.revision < newest else msgspec.structs.replace(head, prompt=prompt)


def _about(head: Head, change: Change) -> Head:
    """Set the named fields of `about`."""
    given = change.about or About()
    fields = {name: getattr(given, name) for name in change.said}
    numbers = change.pseudonyms or head.pseudonyms
    return msgspec.structs.replace(
        head, about=msgspec.structs.replace(head.about or About(), **fields), pseudonyms=numbers
    )


def outdated(usage: Usage | None) -> Usage | None:
    """Return the usage marked stale: the texts that it was reported for have changed."""
    return None if usage is None else msgspec.structs.replace(usage, stale=True)


def _new_epoch(head: Head, reason: str, **changes: Any) -> Head:
    """Return the head with these changes, in a new epoch."""
    return msgspec.structs.replace(head, epoch=head.epoch + 1, epoch_reason=reason, **changes)


_EFFECTS: dict[ChangeKind, Callable[[Head, Change], Head]] = {
    "cut": _cut,
    "compact": _compact,
    "replace": _compact,
    "erase": _erase,
    "clear": _clear,
    "rewind": _rewind,
    "pin": _pin,
    "usage": _usage,
    "prompt": _prompt,
    "attempt": lambda head, _: head,
    "pseudonyms": lambda head, change: msgspec.structs.replace(head, pseudonyms=change.pseudonyms),
    "about": _about,
    # The texts are changed by the rewriting that follows, which begins an epoch.
    "redact": lambda head, change: msgspec.structs.replace(head, pseudonyms=change.pseudonyms or head.pseudonyms),
}
"""What each kind of change does to a head, apart from its revision and times."""

"""What changes a log beside appends, the records of it, and what each kind of change does to a head. Pure.

Stores call `palimpsest.log.linking.link` and `palimpsest.log.resuming.committed` inside their transaction (or compare-
and-set loop) and store what these return.
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

BY_REQUEST = "by request"
"""Why something was erased, where nobody says."""


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

    `seqs` are the entries to erase, to pin, or (with `unpin`) to unpin. Of an erasure `ids` are what these are called,
    in the same order (none: whatever is there), with `unpinned` it leaves those alone that are pinned, and `graves` are
    those that a flush has destroyed before, so that heads count them already. A rewind
    goes back to what was open in `back`, whose `rewound` and `hidden` say what is hidden from then on of the entries
    before its `next_seq`; later ones are hidden, too. A replacement adds `entries`, as an append does, and is committed
    by `palimpsest.log.resuming`; `turn` is the newest human message that it leaves active, of those that it knows.
    `compaction` is the state after a compaction, a replacement, or an erasure that took summaries along. With `spare`
    an erasure leaves the current summaries alone, though it takes what they are from: a flush, which also lets go of
    what is `released`, and, `unshared`, takes nothing that another session has not let go of. `evicted` is what
    contexts have left out, which stays in the archive where an erasure takes summaries along. `also` are places erased
    before, of which no summary is to tell any more. `silence` are revisions whose records lose their words
    with an erasure, whatever they are of: their summary, details, reason and conditions. `attempts` is what is
    remembered of compactions from then on, `pseudonyms` are all that are given out by then, of `about` what is named
    in `said` is said of the session from then on; an erasure takes that away, a cut says another definition, a
    replacement what a session is that it makes.
    `detail` goes into the record: the window before and after, the trigger.
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
    """A change as the log remembers it: the `revision` that it made, `at` what time (microseconds, UTC), its `kind` and
    `reason`; of a cut the `view` that it is for, and `cut` itself; `detail` are figures.

    Additions have no record of their own: a history makes one of the entries (`seqs`) that one revision added. Of a
    replacement `seqs` are the entries that it added, and what its `compaction` calls evicted is what it left out.
    Of a pin that lets go `unpin` is set; of a rewind `to` is the revision that it went back to, and `rewound` are
    all ranges that are hidden after it.
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


def still_meant(head: Head, change: Change, there: Mapping[int, str]) -> Change:
    """Return an erasure of what is still as it was when it was looked for: so it need not be made anew.

    `there` are the ids of those entries at its places that are no tombstones.
    """
    spared = set(head.pinned) if change.unpinned else ()
    names = change.ids or [None] * len(change.seqs)
    seqs = tuple(
        seq
        for seq, name in zip(change.seqs, names, strict=True)
        if head.first_seq <= seq < head.next_seq and seq in there and name in (None, there[seq]) and seq not in spared
    )
    return msgspec.structs.replace(change, seqs=seqs, ids=())


def fitted(head: Head, change: Change) -> Change:
    """Return a change with what has been added since it was made: a rewind hides that, a clear counts it."""
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
    """Return the head of a log in which these are the places of all tombstones, with what it counts made anew.

    For an erasure of what is damaged: nobody knows whether that was counted before.
    """
    there = [seq for seq in graves if head.first_seq <= seq < head.next_seq]
    hidden = spans.size(head.rewound) - sum(spans.within(head.rewound, seq) for seq in there)
    return msgspec.structs.replace(head, erased=len(there), hidden=hidden)


def apply(head: Head, change: Change, at: int) -> tuple[Head, Record | None]:
    """Return the head after `change` and the record of it (None for one that leaves no record)."""
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
        # Numbers begin anew where a session was deleted: its revision may be the expected one again.
        raise Conflict("the session", "is another one since the cut was made: read it again")
    cut = msgspec.structs.replace(change.cut, epoch=head.epoch + 1, revision=head.revision + 1)
    return _begun(head, change.reason, views={**head.views, change.view: cut}, about=_said(head, change))


def _compact(head: Head, change: Change) -> Head:
    return _begun(head, change.reason, usage=outdated(head.usage), prompt=None, about=_said(head, change))


def _said(head: Head, change: Change) -> About | None:
    """What is said of the session after a change that may say something else."""
    return _about(head, change).about if change.said else head.about


def _erase(head: Head, change: Change) -> Head:
    gone = set(change.seqs)
    new = gone.difference(change.graves)
    calls = tuple(call for call in head.calls if call.seq not in gone)
    seen = spans.visible(head.rewound, head.first_seq - 1, head.next_seq)
    left = not seen or seen[-1][1] not in gone  # else nothing says any more that the newest entry was half a message
    return _begun(
        head,
        "expiry" if change.reason == "expiry" else "erasure",
        usage=outdated(head.usage),
        prompt=None,
        erased=head.erased + len(new),
        hidden=head.hidden - sum(spans.within(head.rewound, seq) for seq in new) if head.rewound else 0,
        pinned=tuple(seq for seq in head.pinned if seq not in gone),
        calls=calls,
        group=head.group if any(call.group == head.group for call in calls) else 0,
        reasoning=head.reasoning and left,
        pauses=head.pauses and left,
        contexts={name: known for name, known in head.contexts.items() if known[0] not in gone},
        views=_unconditional(head.views, change.silence) if change.silence else head.views,
        about=_said(head, change),
    )


def _unconditional(views: dict[str, Cut], revisions: Sequence[int]) -> dict[str, Cut]:
    """The cuts without the conditions of those that these revisions made."""
    return {
        view: msgspec.structs.replace(cut, conditions=()) if cut.revision in revisions else cut
        for view, cut in views.items()
    }


def _clear(head: Head, _: Change) -> Head:
    kept = {name: getattr(head, name) for name in ("forked_from", "epoch", "about", "expires")}
    empty = Head(first_seq=head.next_seq, next_seq=head.next_seq, **kept)
    return _begun(empty, "clear")


def _rewind(head: Head, change: Change) -> Head:
    back = change.back
    assert back is not None, "a rewind knows where it goes back to"
    session = ("forked_from", "epoch", "attempts", "pseudonyms", "about", "expires")
    kept = ("next_seq", "erased", "usage", "first_seq", *session)
    return _begun(msgspec.structs.replace(back, prompt=None, **{name: getattr(head, name) for name in kept}), "rewind")


def _pin(head: Head, change: Change) -> Head:
    rest = [seq for seq in head.pinned if seq not in change.seqs]
    return msgspec.structs.replace(head, pinned=tuple(rest if change.unpin else sorted([*rest, *change.seqs])))


def _usage(head: Head, change: Change) -> Head:
    """What a change says was used is added to what was before, unless that was told by the same response."""
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
    new = change.about or About()
    about = {name: getattr(new, name) for name in change.said}
    numbers = change.pseudonyms or head.pseudonyms
    return msgspec.structs.replace(
        head, about=msgspec.structs.replace(head.about or About(), **about), pseudonyms=numbers
    )


def outdated(usage: Usage | None) -> Usage | None:
    """The usage, as of texts that are others now."""
    return None if usage is None else msgspec.structs.replace(usage, stale=True)


def _begun(head: Head, reason: str, **changes: Any) -> Head:
    """The head with these changes, which begin an epoch."""
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
    # What it says of texts is done by the rewriting that comes next, which begins an epoch.
    "redact": lambda head, change: msgspec.structs.replace(head, pseudonyms=change.pseudonyms or head.pseudonyms),
}
"""What each kind of change does to a head, its revision and times apart."""

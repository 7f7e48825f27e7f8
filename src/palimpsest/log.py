"""The log's mutable rim: head, cuts, records, and how new entries are linked. Pure.

A store keeps entries, records and one head per session. One compare-and-set of the head is the commit of
every write; entries at or beyond `head.next_seq` do not exist yet. Stores call `link` and `apply` inside
their transaction (or compare-and-set loop) and store what these return.

How an entry is linked, by what the head says is open:

    tool_call    joins the open group, or the provider message it continues; else it opens a group
    tool_result  answers the nearest earlier unanswered call of its id, in the open group first; without an
                 id the oldest open call of its tool's name. In the open group it joins it; a result of a
                 call whose group is closed is `late`, one without a call is an orphan (`answers` 0)
    reasoning    opens a group that the next assistant entry joins
    anything else closes the open group and is its own group; a human message starts an interaction

The open group closes when its last call is answered.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from palimpsest.entries import Entry, placed_ids

OPEN_CALLS = 256
"""Unanswered calls that a head remembers; a result that comes later than that is an orphan. Bounds the head."""

CONTEXT_NAMES = 256
"""Named contexts whose newest version a head remembers, so that adding the same text again adds nothing."""

RENDERER = 1
"""Version of how a cut and entries become a context. A cut of another version is made anew."""


class SessionKey(NamedTuple):
    """Who a log belongs to and which it is. Part of every call to a store."""

    tenant: str
    session: str


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An unanswered call: its place, its id and tool as they came, and its group."""

    seq: int
    call_id: str | None
    name: str | None
    group: int


class Clamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One oversized entry shown as its first `head` and last `tail` characters.

    `left_out` are the tokens not shown, `tokens` what the shortened text costs, marker included.
    """

    seq: int
    head: int
    tail: int
    left_out: int
    tokens: int


class Cut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a view is rendered until the next cut: with the entries from `start` on it fixes every byte.

    `start` is the first `seq` shown in place. Tool results below `mask` are shown as a note. `pins` and
    `anchors` (human messages still open) lie before `start` and come first. `clamps` are shortened, `gone`
    are ranges (first and last `seq`) at or after `start` that are left out, `conditions` the expressions
    that entries must meet, `factor` the provider's tokens for one counted token where its tokenizer is not
    public. `epoch` and `revision` are those that the cut made.
    """

    epoch: int = 0
    revision: int = 0
    start: int = 1
    mask: int = 0
    pins: tuple[int, ...] = ()
    anchors: tuple[int, ...] = ()
    clamps: tuple[Clamp, ...] = ()
    gone: tuple[tuple[int, int], ...] = ()
    conditions: tuple[str, ...] = ()
    factor: float = 0.0
    renderer: int = RENDERER
    reason: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the provider reported for the last call, in tokens, and what was counted for the same call."""

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    counted: int = 0
    epoch: int = 0
    calls: int = 0
    total_input: int = 0
    total_output: int = 0
    total_cached: int = 0


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session's small mutable record.

    `revision` moves with every write, `epoch` with whatever changes how something is rendered, for
    `epoch_reason`. `first_seq` is where the log begins (later than 1 after a clear). `turn` is the open
    interaction's human message, `group` the open group (0: none), `tail` the group of the newest entry,
    `calls` the unanswered calls, `pinned` the seqs that every context keeps, `contexts` the newest version of
    each named context, `turns` how many interactions there were.
    """

    revision: int = 0
    epoch: int = 0
    epoch_reason: str = ""
    first_seq: int = 1
    next_seq: int = 1
    turn: int = 0
    group: int = 0
    tail: int = 0
    reasoning: bool = False
    calls: tuple[Call, ...] = ()
    pinned: tuple[int, ...] = ()
    contexts: dict[str, tuple[int, str]] = {}
    erased: int = 0
    views: dict[str, Cut] = {}
    usage: Usage | None = None
    turns: int = 0
    created: int = 0
    updated: int = 0

    @property
    def entries(self) -> int:
        """How many entries the log holds, tombstones not counted."""
        return self.next_seq - self.first_seq - self.erased

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of the calls without a result, oldest first."""
        return tuple(call.call_id or str(call.seq) for call in self.calls)


ChangeKind = Literal["cut", "erase", "clear", "pin", "usage"]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step that is not an append, committed whole: a cut, an erasure, a clear, pins, usage.

    `seqs` are the entries to erase, to pin, or (with `unpin`) to unpin. `detail` goes into the record:
    what it covered, the window before and after, the trigger.
    """

    kind: ChangeKind
    reason: str
    view: str = ""
    cut: Cut | None = None
    seqs: tuple[int, ...] = ()
    unpin: bool = False
    usage: Usage | None = None
    detail: dict[str, Any] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change as the log remembers it: the revision that it made, when (microseconds, UTC), what and why."""

    revision: int
    kind: ChangeKind
    reason: str
    at: int
    view: str = ""
    cut: Cut | None = None
    seqs: tuple[int, ...] = ()
    detail: dict[str, Any] = {}


def link(
    head: Head,
    batch: Sequence[Entry],
    at: int,
    new_ids: Callable[[Iterable[int], int], list[str]] = placed_ids,
) -> tuple[Head, list[Entry]]:
    """Return the head after `batch` is appended and the batch's entries with place and links.

    Entries keep an `at` and an id of their own (an import, a key) and get `at` and a new id otherwise.
    """
    seqs = range(head.next_seq, head.next_seq + len(batch))
    ids = new_ids(seqs, at // 1000) if not all(entry.id for entry in batch) else [entry.id for entry in batch]
    linker = _Linker(head)
    linked = [
        linker.add(entry, seq, entry.id or id, entry.at or at) for entry, seq, id in zip(batch, seqs, ids, strict=True)
    ]
    return linker.head_after(seqs.stop, at), linked


class _Linker:
    """What a head says is open, moved on entry by entry."""

    __slots__ = ("calls", "contexts", "group", "head", "pinned", "reasoning", "tail", "turn", "turns")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.turn, self.group, self.tail, self.reasoning = head.turn, head.group, head.tail, head.reasoning
        self.calls, self.pinned, self.contexts, self.turns = list(head.calls), head.pinned, head.contexts, head.turns

    def add(self, entry: Entry, seq: int, id: str, at: int) -> Entry:
        """Link one entry."""
        kind, role, name, call_id = entry.kind, entry.role, entry.name, entry.call_id
        own, answers, late = seq, 0, False
        if kind == "tool_call":
            if self.group or entry.continues or self.reasoning:
                own = self.group or self.tail
            self.group = own
            self.calls.append(Call(seq, call_id, name, own))
        elif kind == "tool_result":
            call = self.answered(entry)
            own = self.group or seq
            if call is not None:
                answers, late = call.seq, not self.group or call.group != self.group
                name, call_id = name or call.name, call_id or call.call_id
                self.close(call)
        else:
            own = self.say(entry, seq)
        self.reasoning = kind == "message" and role == "assistant" and entry.is_reasoning
        if entry.pinned or (role == "system" and kind == "message"):
            self.pinned = (*self.pinned, seq)
        self.tail = own
        return msgspec.structs.replace(
            entry,
            id=id,
            seq=seq,
            at=at,
            turn=self.turn,
            group=own,
            answers=answers,
            late=late,
            revision=self.head.revision + 1,
            name=name,
            call_id=call_id,
        )

    def say(self, entry: Entry, seq: int) -> int:
        """Link what is neither call nor result and return its group: it overtakes open calls, whose group closes."""
        if (
            entry.kind == "message"
            and entry.role == "assistant"
            and (self.reasoning or (entry.continues and self.tail))
        ):
            return self.tail
        self.group = 0
        if entry.is_human:
            self.turn = seq
            self.turns += 1
        elif entry.kind == "context" and entry.name:
            self.contexts = {**self.contexts, entry.name: (seq, digest(entry.text))}
        return seq

    def answered(self, result: Entry) -> Call | None:
        """The call that a result answers, or None for an orphan."""
        if result.call_id is None:
            named = (call for call in self.calls if call.name == result.name and result.name is not None)
            return next(named, None)
        same = [call for call in self.calls if call.call_id == result.call_id]
        inside = [call for call in same if call.group == self.group] if self.group else ()
        return (inside or same)[-1] if same else None

    def close(self, call: Call) -> None:
        """Take a call as answered; the open group closes with its last one."""
        self.calls.remove(call)
        if not any(other.group == self.group for other in self.calls):
            self.group = 0

    def head_after(self, next_seq: int, at: int) -> Head:
        """The head that says what is open now."""
        contexts = self.contexts
        if len(contexts) > CONTEXT_NAMES:
            contexts = dict(sorted(contexts.items(), key=lambda item: item[1][0])[-CONTEXT_NAMES:])
        return msgspec.structs.replace(
            self.head,
            revision=self.head.revision + 1,
            next_seq=next_seq,
            turn=self.turn,
            group=self.group,
            tail=self.tail,
            reasoning=self.reasoning,
            calls=tuple(self.calls[-OPEN_CALLS:]),
            pinned=self.pinned,
            contexts=contexts,
            turns=self.turns,
            created=self.head.created or at,
            updated=at,
        )


def apply(head: Head, change: Change, at: int) -> tuple[Head, Record | None]:
    """Return the head after `change` and the record of it (None for one that leaves no record)."""
    revision = head.revision + 1
    replace = msgspec.structs.replace
    after = replace(head, revision=revision, updated=at, created=head.created or at)
    cut = None
    if change.kind == "cut":
        assert change.cut is not None, "a change of kind cut carries its cut"
        cut = replace(change.cut, epoch=head.epoch + 1, revision=revision)
        after = replace(after, epoch=head.epoch + 1, epoch_reason=change.reason, views={**head.views, change.view: cut})
    elif change.kind == "erase":
        gone = set(change.seqs)
        after = replace(
            after,
            epoch=head.epoch + 1,
            epoch_reason="expiry" if change.reason == "expiry" else "erasure",
            erased=head.erased + len(gone),
            pinned=tuple(seq for seq in head.pinned if seq not in gone),
            calls=tuple(call for call in head.calls if call.seq not in gone),
            contexts={name: at_ for name, at_ in head.contexts.items() if at_[0] not in gone},
        )
        if after.group and not any(call.group == after.group for call in after.calls):
            after = replace(after, group=0)
    elif change.kind == "clear":
        after = Head(
            revision=revision,
            epoch=head.epoch + 1,
            epoch_reason="clear",
            first_seq=head.next_seq,
            next_seq=head.next_seq,
            created=after.created,
            updated=at,
        )
    elif change.kind == "pin":
        rest = [seq for seq in head.pinned if seq not in change.seqs]
        after = replace(after, pinned=tuple(rest if change.unpin else sorted([*rest, *change.seqs])))
    else:
        return replace(after, usage=change.usage), None
    record = Record(
        revision=revision,
        kind=change.kind,
        reason=change.reason,
        at=at,
        view=change.view,
        cut=cut,
        seqs=change.seqs,
        detail=change.detail,
    )
    return after, record


def tombstone(entry: Entry) -> Entry:
    """Return what stays of an erased entry: its id, place, kind, time and links, and nothing of its content."""
    return msgspec.structs.replace(
        entry, content="", name=None, call_id=None, metadata=None, native=None, status=None, tokens=None, erased=True
    )


def digest(text: str) -> str:
    """A short fingerprint of a text (64 bits of SHA-256), to tell whether a named context has changed."""
    from hashlib import sha256

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

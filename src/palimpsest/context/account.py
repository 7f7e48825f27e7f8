"""The account of a context: what each part costs, what is in it, what was left out and why. Pure.

Imported only when a report is asked for: most programs send a context and look at its tokens at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from palimpsest.context.groups import CostedEntry, Group
from palimpsest.context.rendering import rendered
from palimpsest.context.window import Window
from palimpsest.formats import Adapted, Format
from palimpsest.formats.common import is_own
from palimpsest.log import spans
from palimpsest.log.head import Cut, Head
from palimpsest.log.summary import Summary
from palimpsest.tokens.media import is_unsized


class Parts(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Counted tokens of a context by part; their sum is `Context.counted`.

    `system` is the system text, `tools` are the schemas, and `overhead` is what the provider adds to every request.
    `head` is what comes before the log: pinned entries and open human messages that a cut has passed, and facts in the
    prefix. `summaries` includes their fences. `log` is what is shown in place, and `tail` what comes behind it.
    """

    system: int
    tools: int
    overhead: int
    head: int
    summaries: int
    log: int
    tail: int = 0


class LeftOut(NamedTuple):
    """A run of entries that the context does not hold.

    `first` and `last` are its bounds by `seq`, `entries` says how many entries it has, and `reason` why they are left
    out.
    """

    first: int
    last: int
    entries: int
    reason: str


class Report(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What is in a context, what is not, and why.

    `entries`, `messages` and `interactions` count what the context holds; `parts` says what it costs. `first_seq` and
    `last_seq` bound the entries shown in place; `pinned`, `summaries` (by id) and `anchors` come before them. `masked`,
    `clamped` and `repaired` list the entries shown in another form (repaired: calls given a stand-in result). `pending`
    are the calls of the open group, which is held back until they are answered. `adapted` names what this format cannot
    express, and what was sent instead. `epoch_reason` says why the epoch of this context began (None: it is the first).
    `new_cut` says whether this call made the cut; then `rungs` are the steps of the ladder that it took, and
    `tokens_before_cut` is the size before it. `left_out` are the runs of entries that the context does not hold.
    `warnings` are things that a user should know, and `notes` say why a cut was not stored. `lead` names the scopes
    whose facts come before the log, `tail` names what comes behind it.
    """

    entries: int
    messages: int
    interactions: int
    first_seq: int
    last_seq: int
    pinned: tuple[int, ...] = ()
    summaries: tuple[str, ...] = ()
    anchors: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()
    clamped: tuple[int, ...] = ()
    repaired: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    adapted: tuple[Adapted, ...] = ()
    epoch_reason: str | None = None
    new_cut: bool = False
    rungs: tuple[str, ...] = ()
    tokens_before_cut: int | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parts: Parts | None = None
    lead: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()


class Prefix(NamedTuple):
    """The part of a context that the next contexts of its epoch repeat byte for byte.

    `messages` counts system, head and log messages, `tokens` is what they and the tools cost, and `hash` is SHA-256
    over their canonical JSON.
    """

    messages: int
    tokens: int
    hash: str


def report_of(
    window: Window,
    ahead: Sequence[Group],
    summaries: Sequence[tuple[Summary, Group]],
    fmt: Format,
    cut: Cut,
    head: Head,
    **fields: Any,
) -> Report:
    """Return the report of a window and of the groups `ahead` of it.

    `fields` are the fields of the report that cannot be derived from the other arguments.
    """
    everything = [*ahead, *window.groups]
    items = [item for group in everything for item in group.items]
    left_out = _archived(cut, head, ahead, [summary for summary, _ in summaries])
    left_out += [LeftOut(entry.seq, entry.seq, 1, reason) for entry, reason in window.left_out]
    left_out.extend(LeftOut(held.seq, held.entries[-1].seq, len(held.entries), "open calls") for held in window.pending)
    forms: dict[str, list[CostedEntry]] = {}
    for item in items:
        forms.setdefault(item.form, []).append(item)
    adapted: list[Adapted] = []
    for group in everything:
        rendered(group, fmt, adapted)
        adapted += [Adapted(item.entry.seq, "reasoning left out") for item in group.items if item.unthought]
    unsized = [
        item.entry.seq
        for item in forms.get("whole", ())
        if is_unsized(item.entry) and is_own(item.entry, fmt.name)  # other formats show such an item as a line of text
    ]
    if unsized:
        fields["warnings"] = (*fields.get("warnings", ()), _not_counted(spans.of(unsized)))
    return Report(
        entries=sum(item.form != "placeholder" for item in items),
        interactions=len({group.turn for group in everything if group.turn}),
        first_seq=window.groups[0].seq if window.groups else 0,
        last_seq=window.groups[-1].entries[-1].seq if window.groups else 0,
        pinned=tuple(sorted({*cut.pins}.intersection(entry.seq for group in ahead for entry in group.entries))),
        summaries=tuple(summary.id for summary, _ in summaries),
        anchors=cut.anchors,
        masked=tuple(item.entry.seq for item in forms.get("masked", ())),
        clamped=tuple(item.entry.seq for item in forms.get("clamped", ())),
        repaired=tuple(item.entry.call_id or str(item.entry.answers) for item in forms.get("placeholder", ())),
        left_out=tuple(left_out),
        adapted=tuple(adapted),
        **fields,
    )


def _not_counted(ranges: Sequence[spans.Span]) -> str:
    entries = "entry {} holds" if spans.size(ranges) == 1 else "entries {} hold"
    reason = "documents, sound or films of which only an address or an id is known: their tokens are not counted"
    return f"{entries.format(spans.in_words(ranges))} {reason}"


def _archived(cut: Cut, head: Head, ahead: Sequence[Group], summaries: Sequence[Summary]) -> list[LeftOut]:
    """Return what lies in the archive: entries covered by the summaries, hidden, or evicted without either."""
    shown = spans.of(entry.seq for group in ahead for entry in group.entries)
    before = spans.visible(head.rewound, head.first_seq - 1, cut.start)
    archived = spans.minus(spans.union(before, cut.skipped), shown)
    covered = spans.common(archived, spans.union(*(summary.covers for summary in summaries)))
    runs = []
    hidden = spans.common(spans.minus(archived, covered), cut.hidden)
    for ranges, reason in (
        (covered, "covered by a summary"),
        (hidden, "hidden"),
        (spans.minus(archived, spans.union(covered, hidden)), "evicted to the archive"),
    ):
        if ranges:
            runs.append(LeftOut(ranges[0][0], ranges[-1][1], spans.size(ranges), reason))
    return sorted(runs)

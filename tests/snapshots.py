"""Snapshots in a short notation, and the result of applying a plan to one.

`u10 a90` is a human message of ten tokens and an answer of ninety; a token is a word. `s` is a system message,
`c5:find` a call of a tool, `r40:find` its result, `x20:notes.md` a named context. A final `!` pins an entry, as in
`u10!`, and a final `?` makes a result an error. A letter without a number costs one token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from palimpsest.compaction import InteractionGroups, Plan, Snapshot
from palimpsest.context.groups import Group, Meter, fill
from palimpsest.formats import find_format
from palimpsest.log import spans
from palimpsest.log.entry import Entry, Kind, Role, Status
from palimpsest.log.head import Head
from palimpsest.log.linking import link
from palimpsest.log.summary import Summary
from strategies import WORDS

KINDS: dict[str, tuple[Kind, Role]] = {
    "s": ("message", "system"),
    "u": ("message", "user"),
    "a": ("message", "assistant"),
    "c": ("tool_call", "assistant"),
    "r": ("tool_result", "tool"),
    "x": ("context", "user"),
}


def meter() -> Meter:
    """Return a meter that counts one token for each word and nothing for a message itself."""
    exact_meter = Meter(WORDS, find_format("openai"), None)
    exact_meter.exact = True
    return exact_meter


def entries(text: str) -> list[Entry]:
    """Return the entries of the notation, without links."""
    return [_entry(word) for word in text.split()]


def _entry(word: str) -> Entry:
    match = re.fullmatch(r"([suacrx])(\d*)(?::([^!?]+))?([!?]*)", word)
    assert match is not None, f"{word} is not valid in this notation"
    letter, size, name, marks = match.groups()
    kind, role = KINDS[letter]
    tokens = int(size or 1) - (letter == "c")  # the name of a call costs one
    status: Status | None = None if kind != "tool_result" else "error" if "?" in marks else "success"
    name = (name or "find") if kind in ("tool_call", "tool_result") else name
    return Entry(
        kind=kind, role=role, content=" ".join(["word"] * tokens), name=name, status=status, pinned="!" in marks
    )


def turns(count: int, human: int = 1, answer: int = 1) -> str:
    """Return so many completed interactions in the notation."""
    return " ".join([f"u{human} a{answer}"] * count)


def snapshot(
    text: str | Sequence[Entry],
    *,
    archived: Iterable[int] = (),
    covered: Sequence[Summary] = (),
    mask: int = 0,
    **facts: Any,
) -> Snapshot:
    """Return the snapshot of a log. `archived` are the groups, by seq, in the archive that no summary covers."""
    head, linked = link(Head(), entries(text) if isinstance(text, str) else text, 1_000_000)
    gone = spans.union(*(summary.covers for summary in covered))
    everything = _interactions(linked, head, mask)
    archived = set(archived)
    active = [_only(one, [g for g in one.groups if g.seq not in archived and not _lies(g, gone)]) for one in everything]
    old = [_only(one, [g for g in one.groups if g.seq in archived and not _lies(g, gone)]) for one in everything]
    facts.setdefault("clock", head.next_seq - 1)
    return Snapshot(
        interactions=[one for one in active if one.groups],
        archived=[msgspec.structs.replace(one, open=False) for one in old if one.groups],
        summaries=tuple(covered),
        pinned=frozenset(head.pinned),
        mask=mask,
        **facts,
    )


def summary(covers: Iterable[int], tokens: int, *, revision: int = 1, source: int = 1000) -> Summary:
    """Return a current summary of the entries at these seqs."""
    return Summary(
        id=f"summary {revision}",
        text="word " * tokens,
        covers=spans.of(covers),
        revision=revision,
        tokens=tokens,
        shown_tokens=tokens,
        source_tokens=source,
    )


def _interactions(linked: Sequence[Entry], head: Head, mask: int) -> list[InteractionGroups]:
    by_turn: dict[int, list[Group]] = {}
    for entry in linked:
        groups = by_turn.setdefault(entry.turn, [])
        if groups and groups[-1].seq == entry.group:
            groups[-1].entries.append(entry)
        else:
            groups.append(Group(entry.group, entry.turn, [entry]))
    waiting = {call.group for call in head.calls}
    for groups in by_turn.values():
        for group in groups:
            group.pending = group.seq in waiting
            group.pinned = any(entry.seq in head.pinned for entry in group.entries)
            fill(group, mask, {}, meter())
    found: list[InteractionGroups] = []
    for turn, groups in by_turn.items():
        last = groups[-1].entries[-1]
        ended = last.kind == "message" and last.role == "assistant" and not any(group.pending for group in groups)
        found.append(InteractionGroups(turn, tuple(groups), 0 < turn == head.turn and not ended))
    return found


def _only(interaction: InteractionGroups, groups: Iterable[Group]) -> InteractionGroups:
    return msgspec.structs.replace(interaction, groups=tuple(groups))


def _lies(group: Group, where: Sequence[spans.Span]) -> bool:
    return spans.within(where, group.entries[0].seq)


# --- applying a plan


def applied(before: Snapshot, plan: Plan) -> Snapshot:
    """Return the snapshot after the plan, with a summary of exactly the planned length and no new entries."""
    mask = max(before.mask, plan.mask)
    gone = spans.union(plan.cover, plan.evict, plan.erase)
    active = [_only(one, _refilled(one.groups, gone, mask)) for one in before.interactions]
    evicted = [_only(one, [g for g in one.groups if _lies(g, plan.evict)]) for one in before.interactions]
    old = [_only(one, [g for g in one.groups if not _lies(g, gone)]) for one in before.archived]
    return msgspec.structs.replace(
        before,
        interactions=[one for one in active if one.groups],
        archived=[msgspec.structs.replace(one, open=False) for one in _merged([*old, *evicted])],
        summaries=_summaries(before, plan),
        mask=mask,
        seen=next_seq(before),
    )


def next_seq(before: Snapshot) -> int:
    """Return the seq of the next entry of this log."""
    last = [one.groups[-1].entries[-1].seq for one in (*before.interactions, *before.archived)]
    return max([*last, *(summary.covers[-1][1] for summary in before.summaries)], default=0) + 1


def _refilled(groups: Iterable[Group], gone: Sequence[spans.Span], mask: int) -> list[Group]:
    kept = []
    for group in groups:
        if not _lies(group, gone):
            again = Group(group.seq, group.turn, group.entries)
            again.pending, again.pinned = group.pending, group.pinned
            fill(again, mask, {}, meter())
            kept.append(again)
    return kept


def _merged(parts: Iterable[InteractionGroups]) -> list[InteractionGroups]:
    by_turn: dict[int, list[Group]] = {}
    for one in parts:
        by_turn.setdefault(one.turn, []).extend(one.groups)
    whole = [(turn, sorted(groups, key=lambda group: group.seq)) for turn, groups in sorted(by_turn.items())]
    return [InteractionGroups(turn, tuple(groups), open=False) for turn, groups in whole if groups]


def _summaries(before: Snapshot, plan: Plan) -> tuple[Summary, ...]:
    remaining = [summary for summary in before.summaries if not spans.common(summary.covers, plan.erase)]
    folded = [summary for summary in remaining if summary.revision in plan.fold]
    rest = [summary for summary in remaining if summary not in folded]
    if not (plan.cover or plan.fold):
        return tuple(rest)
    everything = [group for one in (*before.archived, *before.interactions) for group in one.groups]
    new = Summary(
        id="new",
        text="word " * plan.summary_tokens,
        covers=spans.union(plan.cover, *(summary.covers for summary in folded)),
        parents=plan.fold,
        revision=1 + max((summary.revision for summary in before.summaries), default=0),
        tokens=plan.summary_tokens,
        shown_tokens=plan.summary_tokens + before.fence,
        source_tokens=sum(group.cost for group in everything if _lies(group, plan.cover))
        + sum(summary.source_tokens for summary in folded),
    )
    return (new, *rest) if folded and not plan.cover else (*rest, new)

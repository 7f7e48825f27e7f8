"""Strategies that lose nothing of a conversation: mask old results, and evict old versions of contexts. Pure."""

from __future__ import annotations

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import Triggered, check_keep
from palimpsest.compaction.selecting import Recent, cost, is_fixed, loose, recent, spans_of
from palimpsest.context.groups import Group
from palimpsest.formats.wording import is_maskable, mask_tokens
from palimpsest.log import values


class MaskResults(Triggered, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Show a note instead of tool results older than the recent window. The calls and the newest group stay.

    Args:
        interaction_keep: how many of the newest completed interactions are the window, beside what is open; 1 by
            default.
        recent_entries: how many of the last entries are the window instead; None: whole interactions are counted.
        recent_tokens: the most tokens of the window, which shrinks in whole groups, also inside an open interaction;
            None: any number.
        triggers: when the strategy runs by itself; by default no rule is on.
        name: its name in results and events; its last run is remembered by it, so each strategy of a session needs its
            own.
    """

    interaction_keep: int = 1
    recent_entries: int | None = None
    recent_tokens: int | None = None
    name: str = "mask_results"

    def __post_init__(self) -> None:
        Triggered.__post_init__(self)
        check_keep(self.interaction_keep, self.triggers)
        values.whole("recent_entries", self.recent_entries, none=True)
        values.whole("recent_tokens", self.recent_tokens, none=True)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return up to which `seq` results of the `snapshot` are masked."""
        window = recent(snapshot, keep=self.interaction_keep, entries=self.recent_entries, tokens=self.recent_tokens)
        mask = watermark(snapshot, window)
        saved = masked(snapshot, mask)
        if not saved:
            return Plan(reason="nothing_to_compact")
        return Plan(mask=mask, steps=(mask_step(saved),))


class SupersededContexts(Triggered, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict versions of a named context that a newer version has replaced.

    Args:
        triggers: when the strategy runs by itself; by default no rule is on.
        name: its name in results and events; its last run is remembered by it, so each strategy of a session needs its
            own.
    """

    name: str = "superseded_contexts"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which versions in the `snapshot` to evict."""
        old = superseded(snapshot)
        if not old:
            return Plan(reason="nothing_to_compact")
        return Plan(evict=spans_of(old), steps=(superseded_step(old),))


def watermark(snapshot: Snapshot, window: Recent) -> int:
    """Return the `seq` before which results may be masked: where the window begins, or the newest group."""
    groups = snapshot.groups
    return min(window.start, groups[-1].seq) if groups else 0


def masked(snapshot: Snapshot, mask: int) -> dict[int, int]:
    """Return the tokens saved by masking up to `mask`, by the `seq` of each result that becomes a note."""
    saved = {}
    for group in snapshot.groups:
        if snapshot.mask >= mask or is_fixed(group, snapshot):
            continue
        for item in group.items:
            entry = item.entry
            old = snapshot.mask <= entry.seq < mask and entry.kind == "tool_result" and item.form == "whole"
            note = snapshot.notes.get(entry.seq, mask_tokens(entry.seq))
            if old and is_maskable(entry) and item.cost > note:
                saved[entry.seq] = item.cost - note
    return saved


def superseded(snapshot: Snapshot) -> list[Group]:
    """Return the groups that are older versions of a named context, oldest first."""
    newest = {entry.name: entry.seq for group in snapshot.groups for entry in group.entries if entry.kind == "context"}
    return [
        group
        for group in loose(snapshot)
        if len(group.entries) == 1
        and (entry := group.entries[0]).kind == "context"
        and entry.name
        and entry.seq < newest[entry.name]
    ]


def mask_step(saved: dict[int, int]) -> Step:
    """Return the step that masks these results."""
    return Step("mask_results", len(saved), sum(saved.values()), "old tool results become notes")


def superseded_step(old: list[Group]) -> Step:
    """Return the step that evicts these versions."""
    return Step("superseded_contexts", len(old), cost(old), "a newer version of the same context follows")

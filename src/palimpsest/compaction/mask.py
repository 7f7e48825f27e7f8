"""Strategies that lose nothing of a conversation: old results become notes, old versions of contexts go. Pure."""

from __future__ import annotations

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import Triggered, check_keep
from palimpsest.compaction.selecting import Recent, cost, is_fixed, loose, recent, spans_of
from palimpsest.context.groups import Group
from palimpsest.formats.wording import is_maskable, mask_tokens
from palimpsest.log import values


class MaskResults(Triggered, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Show a note in place of tool results older than the recent window; the calls stay, and so does the newest group.

    Args:
        interaction_keep: how many of the newest completed interactions are the window, with what is open; 1 by default.
        recent_entries: how many of the last entries are the window instead; None: interactions are.
        recent_tokens: tokens that the window shrinks to, in whole groups, inside an open interaction, too; None: it
            does not.
        triggers: when it runs by itself; by default no rule is on.
        name: how results and events call it, and by what its last run is remembered: two of one session need two names.
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
        """Return up to where results are masked, of `snapshot`."""
        window = recent(snapshot, keep=self.interaction_keep, entries=self.recent_entries, tokens=self.recent_tokens)
        mask = watermark(snapshot, window)
        saved = masked(snapshot, mask)
        if not saved:
            return Plan(reason="nothing_to_compact")
        return Plan(mask=mask, steps=(mask_step(saved),))


class SupersededContexts(Triggered, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Evict the versions of a named context that a newer one has replaced.

    Args:
        triggers: when it runs by itself; by default no rule is on.
        name: how results and events call it, and by what its last run is remembered: two of one session need two names.
    """

    name: str = "superseded_contexts"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which versions go, of `snapshot`."""
        old = superseded(snapshot)
        if not old:
            return Plan(reason="nothing_to_compact")
        return Plan(evict=spans_of(old), steps=(superseded_step(old),))


def watermark(snapshot: Snapshot, window: Recent) -> int:
    """The `seq` before which results may be masked: where the window begins, or the newest group."""
    groups = snapshot.groups
    return min(window.start, groups[-1].seq) if groups else 0


def masked(snapshot: Snapshot, mask: int) -> dict[int, int]:
    """Return what masking up to `mask` saves: tokens by the `seq` of each result that becomes a note by it."""
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
    """What masking these results does."""
    return Step("mask_results", len(saved), sum(saved.values()), "old tool results become notes")


def superseded_step(old: list[Group]) -> Step:
    """What evicting these versions does."""
    return Step("superseded_contexts", len(old), cost(old), "a newer version of the same context follows")

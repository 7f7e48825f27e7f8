"""Check a plan before it is carried out: a strategy written by a user may return anything. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

from palimpsest.compaction import Plan, Reason, Snapshot, Step, Strategy
from palimpsest.compaction.selecting import is_free
from palimpsest.context.groups import Group
from palimpsest.errors import ConfigError
from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.log.values import MOST, is_whole

_TAKING = ("cover", "evict", "erase")


def checked_plan(strategy: Strategy, snapshot: Snapshot) -> Plan:
    """Return the strategy's plan. Raises ConfigError, naming the strategy, if it raises or breaks a rule."""
    where = f"strategy {strategy.name}"
    try:
        plan = strategy.plan(snapshot)
    except Exception as fault:  # user code may raise anything; nothing has happened yet
        raise ConfigError(f"{where}: plan", repr(fault), "a Plan for every snapshot, and no exception") from fault
    if not isinstance(plan, Plan):
        raise ConfigError(f"{where}: plan", plan, "a Plan")
    for field, allowed in _faults(strategy, plan, snapshot):
        raise ConfigError(f"{where}: plan.{field}", getattr(plan, field), allowed)
    return plan


def _faults(strategy: Strategy, plan: Plan, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the fields of a plan with forbidden values, and what they may hold."""
    for field in _TAKING:
        if not _are_spans(getattr(plan, field)):
            yield field, "pairs of first and last seq, ascending and apart from each other"
    yield from _figure_faults(plan, snapshot)
    if (plan.cover or plan.fold) and not strategy.summarizes:
        yield "cover" if plan.cover else "fold", "nothing: the strategy's `summarizes` is false"
    if plan.erase and not strategy.erases:
        yield "erase", "nothing: the strategy's `erases` is false"
    if plan.erase and (plan.cover or plan.fold or plan.evict or plan.mask):
        yield "erase", "nothing in a plan that also covers, folds, evicts or masks"
    if spans.common(plan.cover, plan.evict):
        yield "evict", "nothing that the plan covers, too"
    yield from _group_faults(plan, snapshot)


def _are_spans(value: object) -> bool:
    """Whether this is a list of pairs of whole numbers, ascending and disjoint."""
    if not isinstance(value, tuple | list):
        return False
    pairs: list[Span] = []
    for pair in value:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(is_whole, pair)):
            return False
        pairs.append((pair[0], pair[1]))
    return spans.astray(pairs, 1, 2**63) is None


def _are_steps(steps: object) -> bool:
    return isinstance(steps, tuple | list) and all(
        isinstance(step, Step)
        and isinstance(step.name, str)
        and isinstance(step.why, str)
        and is_whole(step.entries)
        and is_whole(step.tokens, -MOST)
        for step in steps
    )


def _figure_faults(plan: Plan, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the faults of the fields that hold numbers, steps and a reason."""
    current = [summary.revision for summary in snapshot.summaries]
    fold = plan.fold
    if not isinstance(fold, tuple | list) or len(set(fold)) != len(fold) or not set(fold) <= set(current):
        yield "fold", f"revisions of current summaries, each once: {current}"
    for field, least in (("summary_tokens", int(bool(plan.cover or fold))), ("summary_most", 0)):
        if not is_whole(getattr(plan, field), least):
            yield field, f"a whole number of at least {least}"
    if not _are_steps(plan.steps):
        yield "steps", "a tuple of `Step`, each with texts and whole numbers"
    if plan.reason is not None and plan.reason not in get_args(Reason):
        yield "reason", ", ".join(get_args(Reason))
    newest = snapshot.groups[-1].seq if snapshot.groups else 0
    if not is_whole(plan.mask) or not 0 <= plan.mask <= newest:
        yield "mask", f"a seq up to that of the newest active group, {newest}"


def _group_faults(plan: Plan, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the fields that take entries that do not exist, may not leave, or are part of a group."""
    last = snapshot.interactions[-1] if snapshot.interactions else None
    open_turn = last.turn if last is not None and last.open else 0
    active = [
        group for group in snapshot.groups if is_free(group, snapshot) and (not open_turn or group.seq != open_turn)
    ]
    archive = [group for i in snapshot.archived for group in i.groups if is_free(group, snapshot)]
    covered = spans.minus(spans.union(*(summary.covers for summary in snapshot.summaries)), spans.of(snapshot.pinned))
    for field, groups, others in (
        ("evict", active, ()),
        ("cover", [*archive, *active], ()),
        ("erase", [*archive, *active], covered),
    ):
        taken: tuple[Span, ...] = getattr(plan, field)
        if not taken:
            continue
        whole = _whole_groups(groups, taken)
        if whole is None:
            yield field, "whole groups: all entries of a group leave together"
        elif spans.minus(taken, spans.union(whole, others)):
            kind = "active groups" if field == "evict" else "active groups, or archived ones without a summary,"
            yield field, f"{kind} that are neither pinned, nor of the system, nor open"


def _whole_groups(groups: Iterable[Group], taken: Iterable[Span]) -> tuple[Span, ...] | None:
    """Return the spans of the taken groups, or None if one is taken only in part. Spans may reach beyond the log."""
    groups = list(groups)
    places = [entry.seq for group in groups for entry in group.entries]
    taken_places = spans.common(tuple(taken), [(min(places), max(places))]) if places else ()
    taken_seqs, whole_seqs = set(spans.members(taken_places)), list[int]()
    for group in groups:
        seqs = {entry.seq for entry in group.entries}
        if seqs & taken_seqs:
            if not seqs <= taken_seqs:
                return None
            whole_seqs += seqs
    return spans.of(whole_seqs)

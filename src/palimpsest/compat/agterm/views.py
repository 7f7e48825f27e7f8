"""What a memory answers, as the records of the door. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.compat.agterm.records import (
    CompressionResult,
    ContextParts,
    Cost,
    MemoryEntry,
    MemoryStats,
    MemorySummary,
    SessionState,
    TimeRange,
)

if TYPE_CHECKING:
    from palimpsest import AsyncSession, Context, Entry, Session
    from palimpsest.compat.agterm.config import MemoryConfig
    from palimpsest.types import CompactionResult, Stats, Summary


class Originals:
    """The entries that a summary stands for: their ids, and what they cost. One that was erased costs nothing."""

    def __init__(self, entries: Sequence[Entry], cost: Cost) -> None:
        self.ids = tuple(entry.id for entry in entries)
        self.tokens = sum(cost(entry) for entry in entries if not entry.erased)


def summary_of(summary: Summary, originals: Originals, session: AsyncSession | Session) -> MemorySummary:
    """A summary, with what it is from."""
    tokens = summary.tokens
    if summary.counter != (counter := session.options.counter).name:
        tokens = counter.count(summary.text)
    start, end = summary.time_range
    return MemorySummary(
        id=summary.id,
        content=summary.text,
        original_entry_ids=originals.ids,
        token_count=tokens,
        original_token_count=originals.tokens,
        compression_ratio=originals.tokens / tokens if tokens else 0.0,
        created_at=summary.created_at,
        time_range=TimeRange(start=start, end=end),
        level=summary.level,
        method=summary.method,
    )


def parts_of(context: Context, summaries: Sequence[MemorySummary], session: AsyncSession | Session) -> ContextParts:
    """A context in its parts, as they stand in it."""
    count, parts = session.options.counter.count, context.parts
    stand = [
        one if text == one.content else msgspec.structs.replace(one, content=text, token_count=count(text))
        for one, text in zip(summaries, context.summary_texts, strict=True)
    ]
    return ContextParts(
        summaries=tuple(stand),
        entries=tuple(MemoryEntry(entry, session.cost) for entry in context.entries),
        summary_tokens=parts.summaries,
        entry_tokens=parts.head + parts.log,
        tokens=context.tokens,
        text=context.text,
    )


def stats_of(stats: Stats) -> MemoryStats:
    """The documented figures."""
    same = {name: getattr(stats, name) for name in MemoryStats.__struct_fields__ if name != "compressed_entries"}
    return MemoryStats(compressed_entries=stats.archived_entries, **same)


def compression_of(result: CompactionResult, ids: Iterable[str]) -> CompressionResult:
    """What a compression did."""
    made = result.summary
    return CompressionResult(
        summary_id=made.id if made is not None else None,
        entry_ids=tuple(ids),
        tokens_saved=result.tokens_saved,
        method=made.method if made is not None else None,
        reason=result.reason,
        why=result.why,
    )


def state_of(
    session: AsyncSession | Session,
    entries: Sequence[Entry],
    active: Iterable[Entry],
    summaries: Sequence[MemorySummary],
    stats: Stats,
    config: MemoryConfig,
) -> SessionState:
    """A session's state: its entries with what became of each."""
    shown = {entry.id for entry in active}
    within = {id: one.id for one in summaries for id in one.original_entry_ids}
    living: list[MemoryEntry] = []
    erased: list[tuple[int, str]] = []
    for entry in entries:
        if entry.erased:
            erased.append((len(living), entry.id))
        else:
            living.append(MemoryEntry(entry, session.cost, entry.id not in shown, within.get(entry.id)))
    return SessionState(
        session_id=session.id,
        entries=tuple(living),
        summaries=tuple(summaries),
        total_tokens=stats.total_tokens,
        config=config,
        erased=tuple(erased),
    )

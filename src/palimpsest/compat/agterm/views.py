"""Conversions of what a memory returns into the documented records. Pure."""

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
    """The entries that a summary stands for: their ids, and their tokens. An erased entry has none."""

    def __init__(self, entries: Sequence[Entry], cost: Cost) -> None:
        self.ids = tuple(entry.id for entry in entries)
        self.tokens = sum(cost(entry) for entry in entries if not entry.erased)


def summary_of(summary: Summary, originals: Originals, session: AsyncSession | Session) -> MemorySummary:
    """Return a summary as a record, with the entries that it stands for."""
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
    """Return a context in its parts, with each text as it is in the context."""
    count, parts = session.options.counter.count, context.parts
    shown_summaries = [
        summary if text == summary.content else msgspec.structs.replace(summary, content=text, token_count=count(text))
        for summary, text in zip(summaries, context.summary_texts, strict=True)
    ]
    return ContextParts(
        summaries=tuple(shown_summaries),
        entries=tuple(MemoryEntry(entry, session.cost) for entry in context.entries),
        summary_tokens=parts.summaries,
        entry_tokens=parts.head + parts.log,
        tokens=context.tokens,
        text=context.text,
    )


def stats_of(stats: Stats) -> MemoryStats:
    """Return the documented figures."""
    shared_fields = {
        name: getattr(stats, name) for name in MemoryStats.__struct_fields__ if name != "compressed_entries"
    }
    return MemoryStats(compressed_entries=stats.archived_entries, **shared_fields)


def compression_of(result: CompactionResult, ids: Iterable[str]) -> CompressionResult:
    """Return the result of a compaction that covered the entries `ids`."""
    summary = result.summary
    return CompressionResult(
        summary_id=summary.id if summary is not None else None,
        entry_ids=tuple(ids),
        tokens_saved=result.tokens_saved,
        method=summary.method if summary is not None else None,
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
    """Return the exported state of a session. `active` are the entries that are not compressed."""
    active_ids = {entry.id for entry in active}
    summary_ids = {id: summary.id for summary in summaries for id in summary.original_entry_ids}
    living: list[MemoryEntry] = []
    erased: list[tuple[int, str]] = []
    for entry in entries:
        if entry.erased:
            erased.append((len(living), entry.id))
        else:
            living.append(MemoryEntry(entry, session.cost, entry.id not in active_ids, summary_ids.get(entry.id)))
    return SessionState(
        session_id=session.id,
        entries=tuple(living),
        summaries=tuple(summaries),
        total_tokens=stats.total_tokens,
        config=config,
        erased=tuple(erased),
    )

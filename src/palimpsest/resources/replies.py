"""What the service and `palimpsest memory --json` answer: the results of operations by key, as JSON values. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from palimpsest.log.entry_json import entry_json
from palimpsest.resources.figures import Health, KeyPage, KeyStats
from palimpsest.sessions.compacting.result import CompactionResult

Reply = dict[str, Any]
"""The data object of an answer."""

FAILED = frozenset(("failed", "empty", "conflict", "pending"))
"""Why nothing was flushed, where that is a failure."""

UNWRITTEN = KeyStats(messages=0, tokens=0, limit=None, utilization=None, roles={}, archived=0, last_flush=None)
"""The figures of a key that nothing was written to."""


def page_reply(key: str, page: KeyPage, offset: int, limit: int | None) -> Reply:
    """Return the answer of `read`."""
    return {
        "key": key,
        "messages": [{"metadata": None, **entry_json(entry)} for entry in page.entries],
        "total_count": page.total,
        "has_more": offset + len(page.entries) < page.total,
        "limit": limit,
        "offset": offset,
    }


def append_reply(key: str, appended: int, total: int | None) -> Reply:
    """Return the answer of `append`: how many messages it added, and how many are active now.

    The total is None if the store failed when it was counted: the messages are stored all the same.
    """
    return {"success": True, "key": key, "appended": appended, "total_count": total}


def write_reply(key: str, count: int) -> Reply:
    """Return the answer of `write`."""
    return {"success": True, "key": key, "count": count}


def delete_reply(key: str, deleted: int) -> Reply:
    """Return the answer of `delete`: how many keys it destroyed."""
    return {"success": True, "key": key, "deleted": deleted}


def clear_reply(key: str, cleared: int, backup: str | None) -> Reply:
    """Return the answer of `clear`: how many messages it destroyed, and the session that is their backup."""
    return {
        "success": True,
        "key": key,
        "messages_cleared": cleared,
        "backup_created": backup is not None,
        "backup_id": backup,
    }


def flush_reply(key: str, result: CompactionResult | None, strategy: str | None) -> Reply:
    """Return the answer of `flush`. None stands for a key that nothing was written to; `strategy` is the declared one.

    `message_count` and `token_count` are those after the flush, or those that it would leave.
    """
    result = result or CompactionResult(strategy=strategy or "", reason="nothing_to_compact", why="nothing is there")
    return {
        "success": result.reason not in FAILED,
        "key": key,
        "flushed": result.done and not result.dry_run,
        "would_flush": result.done and result.dry_run,
        "dry_run": result.dry_run,
        "reason": result.reason,
        "why": result.why or None,
        "actual_strategy": result.strategy or None,
        "summary_generated": result.summary is not None,
        "messages_before": result.messages_before,
        "tokens_before": result.tokens_before,
        "message_count": result.messages_after,
        "token_count": result.tokens_after,
        "tokens_saved": result.tokens_saved,
    }


def stats_reply(key: str, stats: KeyStats | None) -> Reply:
    """Return the answer of `stats`; None stands for a key that nothing was written to."""
    stats = stats or UNWRITTEN
    return {
        "key": key,
        "message_count": stats.messages,
        "token_count": stats.tokens,
        "token_limit": stats.limit,
        "token_utilization": None if stats.limit is None else stats.tokens / stats.limit,
        "utilization": stats.utilization,
        "context_window_used": stats.tokens,
        "role_distribution": dict(stats.roles),
        "archived_count": stats.archived,
        "avg_tokens_per_message": stats.tokens / stats.messages if stats.messages else 0,
        "last_flush": _time(stats.last_flush),
    }


def health_reply(key: str, health: Health, stats: KeyStats | None, strategy: str | None) -> Reply:
    """Return the answer of `health` for a key. `stats` None leaves the figures of the key out."""
    reply: Reply = {
        "healthy": health.works and not health.failed,
        "key": key,
        "checks": [check("store", error=health.error), *(check(k, error=why) for k, why in health.failed.items())],
        "actual_strategy": strategy,
        "near_limit": list(health.near_limit),
    }
    if stats is not None:
        reply |= {
            "token_count": stats.tokens,
            "message_count": stats.messages,
            "last_flush": _time(stats.last_flush),
        }
    return reply


def check(name: str, *, error: str | None) -> Reply:
    """Return the outcome of one check: what was checked, and why it failed (None: it did not)."""
    return {"name": name, "healthy": error is None, "error": error}


def pattern_reply(pattern: str, results: Iterable[Reply], *, more: bool) -> Reply:
    """Return the answer for a pattern: that of each key, in order, and whether the pattern matches further keys."""
    results = list(results)
    return {
        "success": all(result.get("success", True) for result in results),
        "key": pattern,
        "results": results,
        "max_keys_reached": more,
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()

"""Clean every place of a record that can hold text: reasons, details, conditions, summaries. Pure.

`Clean` decides what becomes of a text. Numbers are left as they are. Names of strategies and models are cleaned, too,
because an import may hold anything there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.head import About, Attempts, Cut
from palimpsest.log.summary import Summary

Clean = Callable[[str, str], str]
"""From a text and the name of its place to the text without what is private."""

IDENTIFIERS = ("session", "summary")
"""Keys of a record's details whose values are ids, which stay as they are."""

_replace = msgspec.structs.replace


def cleaned_record(record: Record, clean: Clean) -> Record:
    """Return the record with its texts cleaned."""
    compaction = record.compaction
    if compaction is not None and compaction.summary is not None:
        compaction = _replace(compaction, summary=cleaned_summary(compaction.summary, clean))
    return _replace(
        record,
        reason=clean(record.reason, "reason"),
        view=clean(record.view, "view"),
        detail=_leaves(record.detail, clean),
        cut=record.cut and cleaned_cut(record.cut, clean),
        compaction=compaction,
    )


def cleaned_summary(summary: Summary, clean: Clean) -> Summary:
    """Return the summary with its texts cleaned."""

    def optional(text: str | None) -> str | None:
        return text and clean(text, "summary")

    text = clean(summary.text, "summary")
    items = [_replace(item, text=clean(item.text, "summary"), status=optional(item.status)) for item in summary.items]
    names = {name: optional(getattr(summary, name)) for name in ("model", "prompt", "fallback")}
    cleaned = _replace(summary, text=text, items=tuple(items), counter=clean(summary.counter, "summary"), **names)
    return recounted(summary, cleaned)


def recounted(before: Summary, after: Summary) -> Summary:
    """Return the new summary; if its text has changed, its token counts are estimated, and it names no counter."""
    if after.text == before.text:
        return after
    share = len(after.text) / len(before.text)
    tokens, shown = (max(round(count * share), 1) for count in (before.tokens, before.shown_tokens))
    return _replace(after, tokens=tokens, shown_tokens=shown, counter="")


def cleaned_cut(cut: Cut, clean: Clean) -> Cut:
    """Return the cut with its reason, its conditions and the names of counters cleaned."""
    shown = tuple(_replace(summary, counter=clean(summary.counter, "counter")) for summary in cut.summaries)
    conditions = tuple(clean(text, "condition") for text in cut.conditions)
    return _replace(cut, reason=clean(cut.reason, "reason"), conditions=conditions, summaries=shown)


def cleaned_attempts(attempts: Attempts | None, clean: Clean) -> Attempts | None:
    """Return what is remembered of compactions, with names cleaned."""
    if attempts is None:
        return None
    cursors = {clean(name, "strategy"): cursor for name, cursor in attempts.cursors.items()}
    return _replace(attempts, cursors=cursors, fingerprint=clean(attempts.fingerprint, "strategy"))


def _leaves(value: Any, clean: Clean) -> Any:
    """Return the details of a record with their texts cleaned."""
    if isinstance(value, str):
        return clean(value, "detail")
    if isinstance(value, dict):
        return {
            clean(name, "detail"): inner if name in IDENTIFIERS and isinstance(inner, str) else _leaves(inner, clean)
            for name, inner in value.items()
        }
    return [_leaves(inner, clean) for inner in value] if isinstance(value, list | tuple) else value


def cleaned_about(about: About, clean: Clean, value: Callable[[Any, str], Any]) -> About:
    """Return what is said of a session with its title cleaned by `clean`, and its metadata by `value`.

    The metadata are given to `value` as a whole, since the name of a key may say that its value is private. User ids
    stay as they are.
    """
    title = about.title and clean(about.title, "title")
    return _replace(about, title=title, metadata=value(about.metadata, "metadata"))

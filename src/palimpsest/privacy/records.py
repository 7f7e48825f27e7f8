"""Every place of a record, and of what hangs on it, where text can be: reasons, details, conditions, summaries. Pure.

`Clean` says what becomes of the text at a place. Numbers of records stay what they are; names of strategies and models
are looked at, too, because an import may hold anything there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.head import About, Attempts, Cut
from palimpsest.log.summary import Summary

Clean = Callable[[str, str], str]
"""From a text and the place that it is at to the text without what is private."""

IDENTIFIERS = ("session", "summary")
"""Keys of a record's details that hold ids, which stay as they are."""

_replace = msgspec.structs.replace


def cleaned_record(record: Record, clean: Clean) -> Record:
    """Return the record with what `clean` makes of its texts."""
    held = record.compaction
    if held is not None and held.summary is not None:
        held = _replace(held, summary=cleaned_summary(held.summary, clean))
    return _replace(
        record,
        reason=clean(record.reason, "reason"),
        detail=_leaves(record.detail, clean),
        cut=record.cut and cleaned_cut(record.cut, clean),
        compaction=held,
    )


def cleaned_summary(summary: Summary, clean: Clean) -> Summary:
    """The summary with what `clean` makes of its texts."""

    def optional(text: str | None) -> str | None:
        return text and clean(text, "summary")

    text = clean(summary.text, "summary")
    items = [_replace(one, text=clean(one.text, "summary"), status=optional(one.status)) for one in summary.items]
    told = {name: optional(getattr(summary, name)) for name in ("model", "prompt", "fallback")}
    now = _replace(summary, text=text, items=tuple(items), counter=clean(summary.counter, "summary"), **told)
    return recounted(summary, now)


def recounted(was: Summary, now: Summary) -> Summary:
    """The summary as it is now; where its words are others, its counts are reckoned, and no counter has them."""
    if now.text == was.text:
        return now
    share = len(now.text) / len(was.text)
    tokens, shown = (max(round(count * share), 1) for count in (was.tokens, was.shown_tokens))
    return _replace(now, tokens=tokens, shown_tokens=shown, counter="")


def cleaned_cut(cut: Cut, clean: Clean) -> Cut:
    """The cut with what `clean` makes of its reason, its conditions and the names of counters."""
    shown = tuple(_replace(one, counter=clean(one.counter, "counter")) for one in cut.summaries)
    conditions = tuple(clean(text, "condition") for text in cut.conditions)
    return _replace(cut, reason=clean(cut.reason, "reason"), conditions=conditions, summaries=shown)


def cleaned_attempts(attempts: Attempts | None, clean: Clean) -> Attempts | None:
    """What is remembered of compactions, with what `clean` makes of names."""
    if attempts is None:
        return None
    cursors = {clean(name, "strategy"): cursor for name, cursor in attempts.cursors.items()}
    return _replace(attempts, cursors=cursors, fingerprint=clean(attempts.fingerprint, "strategy"))


def _leaves(value: Any, clean: Clean) -> Any:
    """The details of a record: figures, and texts beside them."""
    if isinstance(value, str):
        return clean(value, "detail")
    if isinstance(value, dict):
        return {
            clean(name, "detail"): one if name in IDENTIFIERS and isinstance(one, str) else _leaves(one, clean)
            for name, one in value.items()
        }
    return [_leaves(one, clean) for one in value] if isinstance(value, list | tuple) else value


def cleaned_about(about: About, clean: Clean, value: Callable[[Any, str], Any]) -> About:
    """What is said of a session with what `clean` makes of its title, and `value` of its metadata, whole: of these a
    name may say that a value is private. Ids of users stay as they are."""
    title = about.title and clean(about.title, "title")
    return _replace(about, title=title, metadata=value(about.metadata, "metadata"))

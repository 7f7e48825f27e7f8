"""Samples of what a redaction changes: the new text around the first difference. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from palimpsest.log.entry import Entry

SAMPLE = 60
"""Roughly the characters of a sample."""


def texts_at(before: Entry, after: Entry, place: str) -> tuple[str, str]:
    """Return the texts of an entry at a place, before and after the redaction."""
    if place in ("content", "arguments"):
        return as_text(before.content), as_text(after.content)
    return as_text(getattr(before, place)), as_text(getattr(after, place))


def as_text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def sample_text(before: str, after: str) -> str:
    """Return the new text around the first difference, cut short. No old text is in it."""
    least = min(len(before), len(after))
    at = next((i for i in range(least) if before[i] != after[i]), least)
    begin = max(at - SAMPLE // 3, 0)
    end = min(begin + SAMPLE, len(after))
    return f"{'…' if begin else ''}{after[begin:end]}{'…' if end < len(after) else ''}"

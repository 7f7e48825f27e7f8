"""Calls that wait for their results. No context shows them, but agents may go on with them."""

from __future__ import annotations

from typing import Any

from palimpsest import Entry
from palimpsest.integrations.streams import ready


async def open_group(session: Any) -> list[Entry]:
    """Return what there is of the last group of the log: calls, what was said with them, and the results so far."""
    newest = await ready(session.entries(last=1))
    if not newest:
        return []
    entries = await ready(session.entries(after=newest[-1].group - 1))
    group = [entry for entry in entries if entry.group == newest[-1].group and not entry.erased]
    calls = {entry.seq for entry in group if entry.kind == "tool_call"}
    return [entry for entry in group if entry.kind != "tool_result" or entry.answers in calls]


async def names_of_open_calls(session: Any) -> list[str]:
    """Return what a caller knows the calls by that the last group still waits for: their ids, or else their tools."""
    group = await open_group(session)
    answered = {entry.answers for entry in group}
    return [
        entry.call_id or entry.name or str(entry.seq)
        for entry in group
        if entry.kind == "tool_call" and entry.seq not in answered
    ]

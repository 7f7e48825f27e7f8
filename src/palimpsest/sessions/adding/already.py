"""What is to be added and is there already: in the log, or gathered by the atomic turn that is open. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.log.entry import Entry, digest
from palimpsest.sessions.adding.appender import Appender
from palimpsest.sessions.paging import newest_active
from palimpsest.sessions.scope import SessionScope


async def known_context(scope: SessionScope, appender: Appender, entry: Entry) -> Entry | None:
    """The newest version of a context, where it says what this one would say."""
    kept = (await appender.admitted([entry]))[0].kept
    if kept is None:
        return None
    for one in reversed(_gathered(appender)):
        if (one.kind, one.name) == (kept.kind, kept.name):  # whatever the log has is an older version
            return one if one.text == kept.text else None
    head = await scope.store.head(scope.key)
    known = head.contexts.get(kept.name or "") if head is not None else None
    if known is None or known[1] != digest(kept.text):
        return None
    there = await scope.store.fetch(scope.key, [known[0]])
    return there[0] if there and there[0].text == kept.text else None


async def last_said(scope: SessionScope, appender: Appender, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The newest entries, where they say what these would say, and contexts show them, or will when the turn ends."""
    there, many = _gathered(appender)[-len(entries) :], len(entries)
    if len(there) < many:
        there = [*await newest_active(scope.store, scope.key, scope.clock(), many - len(there)), *there]
    if [(one.kind, one.role) for one in there] != [(one.kind, one.role) for one in entries]:
        return ()
    slots = await appender.admitted(entries)
    same = [_says(old, slot.kept) for old, slot in zip(there, slots, strict=True)]
    return tuple(there) if all(same) else ()


def _gathered(appender: Appender) -> list[Entry]:
    """What the open turn will add, oldest first."""
    buffer = appender.turn.buffer
    return [slot.kept for slot in buffer.slots if slot.kept is not None] if buffer is not None else []


def _says(old: Entry, new: Entry | None) -> bool:
    """Whether an entry of the log, which is told more than was given of a result, says what a new one would say."""
    if new is None or old.content != new.content:
        return False
    return new.name in (None, old.name) and new.call_id in (None, old.call_id)

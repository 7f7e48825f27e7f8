"""Entries as JSON values, as the command line and the service give them out. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from palimpsest.log.entry import Entry


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON values, without fields that are not set."""
    values = {
        "seq": entry.seq,
        "id": entry.id,
        "kind": entry.kind,
        "role": entry.role,
        "name": entry.name,
        "call_id": entry.call_id,
        "answers": entry.answers or None,
        "status": entry.status,
        "content": msgspec.to_builtins(entry.content),
        "created_at": entry.created_at.isoformat(),
        "revision": entry.revision,
        "turn": entry.turn,
        "group": entry.group,
        "tokens": entry.tokens,
        "importance": entry.importance,
        "pinned": entry.pinned or None,
        "erased": entry.erased or None,
        "damaged": entry.damaged or None,
        "expires_at": entry.expires_at.isoformat() if entry.expires_at else None,
        "metadata": entry.metadata,
    }
    return {name: value for name, value in values.items() if value is not None}

"""Importing a session that `export()` returned."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from palimpsest.errors import Conflict, ImportFailed, shorten
from palimpsest.log import values
from palimpsest.log.ids import check_id, is_id
from palimpsest.sessions.accesses import restore_accesses
from palimpsest.sessions.copied_facts import carried, load_facts
from palimpsest.sessions.scope import MemoryScope
from palimpsest.transfer.reading import accesses_of, imported
from palimpsest.transfer.relinking import joining


class Taken(NamedTuple):
    """The session that an export was imported into, how many entries were added, and how many it had already."""

    session: str
    added: int
    already_there: int


async def import_session(
    scope: MemoryScope, data: Mapping[str, Any], *, session_id: str | None, on_conflict: str
) -> Taken:
    """Implement `AsyncMemory.import_session`."""
    values.choice("on_conflict", on_conflict, ("error", "replace", "merge"))
    apart = scope.store.apart
    exported_id, dump = await apart(imported, data, "data", None if on_conflict == "merge" else scope.gate)
    key, accesses = scope.key(exported_id if session_id is None else session_id), await apart(accesses_of, data, dump)
    if session_id is not None:
        check_id(session_id, "session")
    elif not is_id(exported_id):
        raise ImportFailed(
            "data.session_id", f"{shorten(exported_id)} is not a valid session id; give another as `session_id`"
        )
    facts = await apart(carried, data, scope.gate)
    ids = [entry.id for entry in dump.entries if not entry.erased]
    merges = on_conflict == "merge" and await scope.store.head(key) is not None
    if not merges:
        if on_conflict == "merge":
            _, admitted = await apart(imported, data, "data", scope.gate)
        else:
            admitted = dump
        try:
            async with scope.drop_derived(key) if on_conflict == "replace" else nullcontext():
                await scope.store.load(key, admitted, replace=on_conflict == "replace")
        except Conflict:
            if on_conflict != "merge":
                raise
            merges = True  # another program has imported the session since it was looked for
    if merges:
        stored = {entry.id: entry for entry in await scope.store.fetch(key, ids=ids)}
        living = joining(dump.entries, dump.head.rewound, stored)
        slots = await scope.gate.entries(scope.store, key, living) if living else []
        kept = [slot.kept for slot in slots if slot.kept is not None]
        added, already_there = (await scope.store.append(key, kept, check_ids=True)).added, len(stored)
    else:
        added, already_there = len(ids), 0
        await restore_accesses(scope.store, key, accesses)
        scope.let_go(key)
    await load_facts(scope.store, *key, facts, replace=on_conflict == "replace", merge=on_conflict == "merge")
    if not merges:
        await scope.scrub(scope.store)  # also removes the bytes of facts that were replaced
    await scope.tell("session:imported", key.session, entries=len(dump.entries))
    return Taken(key.session, added, already_there)

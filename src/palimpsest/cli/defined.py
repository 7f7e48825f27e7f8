"""What changes for sessions that are under another definition than the one that is declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from palimpsest import Memory
from palimpsest.cli.failing import Missing
from palimpsest.cli.opening import expect_store
from palimpsest.cli.output import console, line, note, print_json, table, to_json
from palimpsest.errors import nearest, shorten
from palimpsest.resources import Resource, Resources
from palimpsest.resources.definition import plain
from palimpsest.resources.opening import opened_with
from palimpsest.types import DefinitionInfo

NOTHING = "-"


class Row(NamedTuple):
    """A setting that differs, and both values."""

    option: str
    old: Any
    new: Any


def expect_memory(resources: Resources, id: str, source: str) -> None:
    """Raise Missing, with the nearest name, where no memory of this id is declared."""
    if id in resources:
        return
    near = nearest(id, resources)
    hint = f"did you mean {near!r}?" if near else f"it declares {', '.join(map(line, resources)) or 'none'}"
    raise Missing(f"{source} declares no memory {shorten(id)}; {hint}", suggestions=[near] if near else ())


def text_of(value: object) -> str:
    """A value in a table."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else to_json(plain(value), indent=None)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Row]:
    """What differs between the settings of two definitions."""
    options = dict.fromkeys((*before, *after))
    return [Row(one, before.get(one), after.get(one)) for one in options if before.get(one) != after.get(one)]


def listed(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [{"option": option, "old": was, "new": now} for option, was, now in rows]


class _Under(NamedTuple):
    """A definition that sessions of a memory are under, and what changes for them; None: nobody knows."""

    info: DefinitionInfo
    declared: bool
    rows: list[Row] | None


def print_changes(resources: Resources, store: str | None, tenant: str, *, as_json: bool) -> None:
    """Print which definitions the sessions of declared memories are under, and what changes for them."""
    found = {id: _under(resources[id], infos) for id, infos in _infos(resources, store, tenant).items()}
    if as_json:
        print_json({id: [_as_json(one) for one in some] for id, some in found.items()})
        return
    counts = table("memory", "version", "digest", "sessions", "is", right=("sessions",))
    differs = table("memory", "digest", "setting", "old", "new")
    for id, some in found.items():
        for one in some:
            of = one.info.definition
            told = "declared" if one.declared else "from before" if one.rows is not None else "not known here"
            counts.add_row(line(id), line(of.version or NOTHING), of.digest[:8], f"{one.info.sessions:,}", told)
            for option, was, now in one.rows or ():
                differs.add_row(line(id), of.digest[:8], option, line(text_of(was)), line(text_of(now)))
    if counts.row_count:
        console().print(counts)
    if differs.row_count:
        console().print(differs)
    else:
        note("Nothing changes for any session.")


def _infos(resources: Resources, store: str | None, tenant: str) -> dict[str, list[DefinitionInfo]]:
    """What the sessions of each memory are under. A store is opened once, and only to be read."""
    found, opened = dict[str, list[DefinitionInfo]](), dict[str, list[DefinitionInfo]]()
    with ExitStack() as stack:
        for id in resources:
            given = opened_with(resources[id])
            where = given["where"] if store is None else store if ":" in store else Path(store)
            if str(where) not in opened:
                expect_store(where)
                reads = {"privacy": None, "encryption": given["encryption"], "tenant": tenant}
                if not str(where).startswith("memory:"):
                    reads["readonly"] = True
                memory = stack.enter_context(Memory.open(where, **reads))
                opened[str(where)] = memory.definitions()
            found[id] = opened[str(where)]
    return found


def _under(resource: Resource, infos: Iterable[DefinitionInfo]) -> list[_Under]:
    name, digest = f"{resource.project}/{resource.id}", resource.digest[:32]
    after = {one.option: plain(one.value) for one in resource.effective()}
    found = list[_Under]()
    for info in infos:
        if info.definition.memory != name:
            continue
        declared = info.definition.digest == digest
        rows = [] if declared else None if info.settings is None else changes(info.settings, after)
        found.append(_Under(info, declared, rows))
    return found


def _as_json(one: _Under) -> dict[str, Any]:
    named = msgspec.to_builtins(one.info.definition)
    rows = None if one.rows is None else listed(one.rows)
    return {**named, "sessions": one.info.sessions, "declared": one.declared, "changes": rows}

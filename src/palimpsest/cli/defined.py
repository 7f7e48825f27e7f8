"""Comparison of a declared memory with the definitions that its sessions in a store use (`config diff NEW`)."""

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
    """A setting that differs, with its old and new value."""

    option: str
    old: Any
    new: Any


def expect_memory(resources: Resources, id: str, source: str) -> None:
    """Raise Missing, with the nearest id, if no memory with this id is declared."""
    if id in resources:
        return
    near = nearest(id, resources)
    hint = f"did you mean {near!r}?" if near else f"it declares {', '.join(map(line, resources)) or 'none'}"
    raise Missing(f"{source} declares no memory {shorten(id)}; {hint}", suggestions=[near] if near else ())


def text_of(value: object) -> str:
    """Return a setting's value as text for a table."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else to_json(plain(value), indent=None)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Row]:
    """Return the settings that differ between two definitions."""
    options = dict.fromkeys((*before, *after))
    return [Row(name, before.get(name), after.get(name)) for name in options if before.get(name) != after.get(name)]


def listed(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows as JSON values."""
    return [{"option": option, "old": was, "new": now} for option, was, now in rows]


class _Comparison(NamedTuple):
    """A definition that sessions of a memory use, whether it is the declared one, and what changes for them.

    `rows` is None if the store does not know the definition's settings.
    """

    info: DefinitionInfo
    declared: bool
    rows: list[Row] | None


def print_changes(resources: Resources, store: str | None, tenant: str, *, as_json: bool) -> None:
    """Print which definitions the sessions of declared memories use, and what changes for them."""
    compared = {id: _compared(resources[id], infos) for id, infos in _infos(resources, store, tenant).items()}
    if as_json:
        print_json({id: [_as_json(one) for one in comparisons] for id, comparisons in compared.items()})
        return
    counts = table("memory", "version", "digest", "sessions", "is", right=("sessions",))
    differs = table("memory", "digest", "setting", "old", "new")
    for id, comparisons in compared.items():
        for one in comparisons:
            used = one.info.definition
            state = "declared" if one.declared else "from before" if one.rows is not None else "not known here"
            counts.add_row(line(id), line(used.version or NOTHING), used.digest[:8], f"{one.info.sessions:,}", state)
            for option, was, now in one.rows or ():
                differs.add_row(line(id), used.digest[:8], option, line(text_of(was)), line(text_of(now)))
    if counts.row_count:
        console().print(counts)
    if differs.row_count:
        console().print(differs)
    else:
        note("Nothing changes for any session.")


def _infos(resources: Resources, store: str | None, tenant: str) -> dict[str, list[DefinitionInfo]]:
    """Return the definitions in each memory's store. Each store is opened once, and only read."""
    infos, by_store = dict[str, list[DefinitionInfo]](), dict[str, list[DefinitionInfo]]()
    with ExitStack() as stack:
        for id in resources:
            declared = opened_with(resources[id])
            where = declared["where"] if store is None else store if ":" in store else Path(store)
            if str(where) not in by_store:
                expect_store(where)
                options = {"privacy": None, "encryption": declared["encryption"], "tenant": tenant}
                if not str(where).startswith("memory:"):
                    options["readonly"] = True
                memory = stack.enter_context(Memory.open(where, **options))
                by_store[str(where)] = memory.definitions()
            infos[id] = by_store[str(where)]
    return infos


def _compared(resource: Resource, infos: Iterable[DefinitionInfo]) -> list[_Comparison]:
    """Return a comparison for each definition of this memory among those of its store."""
    name, digest = f"{resource.project}/{resource.id}", resource.digest[:32]
    after = {setting.option: plain(setting.value) for setting in resource.effective()}
    comparisons = list[_Comparison]()
    for info in infos:
        if info.definition.memory != name:
            continue
        declared = info.definition.digest == digest
        rows = [] if declared else None if info.settings is None else changes(info.settings, after)
        comparisons.append(_Comparison(info, declared, rows))
    return comparisons


def _as_json(comparison: _Comparison) -> dict[str, Any]:
    definition = msgspec.to_builtins(comparison.info.definition)
    rows = None if comparison.rows is None else listed(comparison.rows)
    sessions = comparison.info.sessions
    return {**definition, "sessions": sessions, "declared": comparison.declared, "changes": rows}

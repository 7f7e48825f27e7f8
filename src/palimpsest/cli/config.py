"""`palimpsest config`: check declaration files, show the values of declared memories, and compare two versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from palimpsest.cli.app import CommandGroup, examples, json_option
from palimpsest.cli.defined import NOTHING, Row, changes, expect_memory, listed, print_changes, text_of
from palimpsest.cli.failing import Missing
from palimpsest.cli.output import console, counted, line, note, print_json, table, to_json, warn
from palimpsest.resources import Resource, Resources
from palimpsest.resources.definition import plain

if TYPE_CHECKING:
    from rich.table import Table


@click.group(
    "config",
    cls=CommandGroup,
    epilog=examples(
        "palimpsest config check memory/",
        "palimpsest config show memory/chat.yaml --json",
        "palimpsest config schema > memory.schema.json",
        "palimpsest config diff old.yaml new.yaml",
    ),
)
def config_command() -> None:
    """Check and show memories that are declared in files.

    A file is YAML or JSON: a resource of Compozy, a profile of Alquimia, or keys of Palimpsest's own. These commands
    open no store, except `diff` with a single file or folder, which only reads.
    """


@config_command.command(
    "check", epilog=examples("palimpsest config check chat.yaml", "palimpsest config check memory/ --json")
)
@click.argument("source", metavar="FILE|FOLDER")
@json_option
def check_command(source: str, as_json: bool) -> None:
    """Check the memories declared in FILE, or in each file of FOLDER that says `resource: memory`.

    All mistakes are listed at once, each with its file, line and column.
    """
    resources = _loaded(source)
    if as_json:
        print_json({"memories": list(resources), "warnings": list(resources.warnings)})
        return
    for text in resources.warnings:
        warn(line(text))
    click.echo(f"No mistakes in {counted(len(resources), 'memory')}: {', '.join(map(line, resources))}.")


@config_command.command(
    "show", epilog=examples("palimpsest config show chat.yaml", "palimpsest config show memory/ chat --json")
)
@click.argument("source", metavar="FILE|FOLDER")
@click.argument("id", required=False, metavar="[ID]")
@json_option
def show_command(source: str, id: str | None, as_json: bool) -> None:
    """Show the settings of the memories in FILE or FOLDER, or of the one with this ID.

    Each setting is listed with its value, where the value comes from, and the key that sets it.
    """
    resources = _loaded(source)
    if id is not None:
        expect_memory(resources, id, source)
    chosen = [resources[memory] for memory in ([id] if id is not None else resources)]
    if as_json:
        print_json([_as_json(resource) for resource in chosen])
        return
    for i, resource in enumerate(chosen):
        file = f", {line(resource.file)}" if resource.file else ""
        console().print("\n" * bool(i) + f"memory {line(resource.id)} of project {line(resource.project)}{file}")
        _print(resource)


def _print(resource: Resource) -> None:
    """Print a memory's settings: one table of its own settings, then one for each strategy's options."""
    tables: dict[str, Table] = {}
    for setting in resource.effective():
        section, _, name = setting.option.rpartition(".")
        if section not in tables:
            tables[section] = table(section or "setting", "value", "origin", "key")
        tables[section].add_row(name, line(text_of(setting.value)), setting.origin, line(setting.key) or NOTHING)
    for rows in tables.values():
        console().print(rows)


@config_command.command(
    "schema", epilog=examples("palimpsest config schema > memory.schema.json", "palimpsest config schema --json")
)
@click.option("--json", is_flag=True, expose_value=False, help="Accepted for uniformity: the output is always JSON.")
def schema_command() -> None:
    """Print the JSON Schema of these files. Editors use it to complete and check them while you write."""
    from palimpsest.resources.schema import published  # late: it loads every strategy

    click.echo(to_json(published(), indent=None))


@config_command.command(
    "diff",
    epilog=examples(
        "palimpsest config diff old.yaml new.yaml",
        "palimpsest config diff memory/",
        "palimpsest config diff memory/ --store chat.db --json",
    ),
)
@click.argument("old", metavar="[OLD]")
@click.argument("new", required=False, metavar="NEW")
@click.option("--store", metavar="PATH|URL", help="Store of the sessions. [default: the one that NEW declares]")
@click.option("--tenant", metavar="NAME", default="default", show_default=True, help="Tenant of the sessions.")
@json_option
def diff_command(old: str, new: str | None, store: str | None, tenant: str, as_json: bool) -> None:
    """Show what changes from OLD to NEW, files or folders: added and removed memories, and every value that differs.

    Without OLD, compare NEW with the definitions that sessions in its stores use: show each definition's version, how
    many sessions use it, and what changes for them at their next cut. The stores are only read.
    """
    if new is None:
        print_changes(_loaded(old), store, tenant, as_json=as_json)
        return
    if store is not None:
        raise click.UsageError("--store is only for comparing NEW with stored sessions: leave OLD out")
    before, after = Resources.load(old), Resources.load(new)
    added = [id for id in after if id not in before]
    removed = [id for id in before if id not in after]
    changed = {id: rows for id in after if id in before and (rows := list(_changes(before[id], after[id])))}
    if as_json:
        print_json({"added": added, "removed": removed, "changed": {id: listed(rows) for id, rows in changed.items()}})
        return
    if not (added or removed or changed):
        note("Nothing changes.")
        return
    shown = table("memory", "setting", "old", "new")
    for id in removed:
        shown.add_row(line(id), "the memory", "declared", NOTHING)
    for id in added:
        shown.add_row(line(id), "the memory", NOTHING, "declared")
    for id, rows in changed.items():
        for option, was, now in rows:
            shown.add_row(line(id), option, line(text_of(was)), line(text_of(now)))
    console().print(shown)


def _loaded(source: str) -> Resources:
    """Load the memories that a file or folder declares. Raises Missing if it declares none."""
    resources = Resources.load(source)
    if not len(resources):
        raise Missing(f"{source} declares no memory: a file declares one if it says `resource: memory`")
    return resources


def _changes(old: Resource, new: Resource) -> Iterable[Row]:
    """Return the settings that differ. Of a store's address only the shown form is compared, which has no credentials:
    if just these differ, the new address says so."""
    before, after = (
        {setting.option: plain(setting.value) for setting in resource.effective()} for resource in (old, new)
    )
    if before["store"] == after["store"] and old.place.address != new.place.address:
        after["store"] = f"{after['store']} (other credentials)"
    return changes(before, after)


def _as_json(resource: Resource) -> dict[str, Any]:
    return {
        "id": resource.id,
        "project": resource.project,
        "description": resource.description,
        "file": resource.file,
        "digest": resource.digest,
        "settings": [
            {"option": setting.option, "value": plain(setting.value), "origin": setting.origin, "key": setting.key}
            for setting in resource.effective()
        ],
        "warnings": list(resource.warnings),
    }

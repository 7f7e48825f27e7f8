"""`palimpsest derived`: list what is derived from entries, as the store knows it, and forget what was dropped."""

from __future__ import annotations

from difflib import get_close_matches

import click

from palimpsest.cli.app import confirm, examples, json_option, require_interactive, store_options
from palimpsest.cli.failing import Missing
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import line, note, print_json


@click.command(
    "derived", epilog=examples("palimpsest derived list", "palimpsest derived forget old-index --yes --tenant acme")
)
@click.argument("action", type=click.Choice(["list", "forget"]), metavar="[list|forget]", default="list")
@click.argument("name", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@store_options
def derived_command(
    store: str | None, tenant: str | None, as_json: bool, action: str, name: str | None, yes: bool
) -> None:
    """List or forget indexes that programs derive from entries.

    Programs can derive search indexes and the like from a tenant's entries. The store knows their names. If an erasure
    cannot reach an index, it notes in the store what has to be removed there, and reports that. After you have dropped
    an index for good, forget its NAME: the store then deletes the name and these notes.
    """
    if (action == "forget") != (name is not None):
        raise click.UsageError("`forget` takes the NAME of an index that you have dropped, `list` takes none")
    with open_memory(store, tenant, write=name is not None) as memory:
        names = memory.derivers()
        if name is None:
            _print(names, as_json)
            return
        if name not in names:
            raise Missing(_unknown(name, names, memory.tenant))
        if not yes:
            require_interactive(as_json, instead="--yes")
            note(f"If {line(name)!r} still exists, it will not learn what was erased while it could not be reached.")
            confirm("Forget it?")
        memory.underive(name)
    if as_json:
        print_json({"forgotten": name})
    else:
        note(f"Forgot {line(name)!r}.")


def _print(names: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json({"derived": list(names)})
    elif not names:
        note("The store knows of no index that is derived from entries.")
    else:
        click.echo("\n".join(map(line, names)))


def _unknown(name: str, names: tuple[str, ...], tenant: str) -> str:
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; `palimpsest derived list` lists the indexes"
    return f"there is no derived index {name!r} of tenant {tenant!r} in this store{hint}"

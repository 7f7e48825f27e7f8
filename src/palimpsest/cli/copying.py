"""`palimpsest copy`: what one store has, into another one."""

from __future__ import annotations

import os

import click

from palimpsest.cli.app import examples, json_option
from palimpsest.cli.opening import expect_store, resolve
from palimpsest.cli.output import counted, note, print_json, session_progress
from palimpsest.cli.privacy import ENVIRONMENT
from palimpsest.stores.copying import copy_store


@click.command(
    "copy",
    epilog=examples(
        "palimpsest copy agent.db file:agent-logs",
        "palimpsest copy sqlite:///agent.db sqlite:///acme.db --tenant acme",
    ),
)
@click.argument("source")
@click.argument("target")
@click.option("--tenant", "tenants", multiple=True, metavar="NAME", help="Copy this tenant alone. May be repeated.")
@click.option("--replace", is_flag=True, help="Replace sessions and items of the same names that the target has.")
@click.option(
    "--counter", "counters", multiple=True, metavar="NAME", help="Copy the token counts of your own counter, too."
)
@json_option
def copy_command(
    source: str, target: str, tenants: tuple[str, ...], replace: bool, counters: tuple[str, ...], as_json: bool
) -> None:
    """Copy all that the store SOURCE has into the store TARGET: sessions with their branches and token counts, items,
    and the order in which they were used. Both are addresses or paths, as --store takes them.

    The copy is compared with what was copied. An encrypted store is copied as it is: this needs no key, and the copy
    is opened with the same keys. After an interruption run the same command again: it goes on with what is left. SOURCE
    is not changed.
    """
    (one, _), (other, _) = resolve(source, None), resolve(target, None)
    expect_store(one, "SOURCE names the store to copy")
    alone = (click.get_current_context().find_root().obj or (None, None))[1]
    tenants = tenants or ((alone,) if alone is not None else ())
    if os.environ.get(ENVIRONMENT):
        note(f"{ENVIRONMENT} takes nothing out of a copy; `palimpsest scan --apply` does so in the store that it is in")
    with session_progress() as progress:
        done = copy_store(one, other, tenants=tenants or None, replace=replace, counters=counters, progress=progress)
    if as_json:
        print_json({name: getattr(done, name) for name in done.__struct_fields__})
        return
    what = f"{counted(done.sessions, 'session')} and {counted(done.items, 'item')} of {counted(done.tenants, 'tenant')}"
    were = "was" if done.already == 1 else "were"
    already = f" {done.already:,} of them {were} there already." if done.already else ""
    click.echo(f"Copied {what}.{already}")

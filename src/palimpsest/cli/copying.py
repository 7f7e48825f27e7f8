"""`palimpsest copy`: copy everything in one store into another."""

from __future__ import annotations

import os

import click

from palimpsest.cli.app import examples, json_option
from palimpsest.cli.opening import expect_store, resolve
from palimpsest.cli.output import counted, note, print_json, session_progress
from palimpsest.cli.privacy import ENVIRONMENT
from palimpsest.stores.copying import copy_store
from palimpsest.stores.encrypted.keys import ENVIRONMENT as KEYS


@click.command(
    "copy",
    epilog=examples(
        "palimpsest copy agent.db file:agent-logs",
        "palimpsest copy sqlite:///agent.db sqlite:///acme.db --tenant acme",
    ),
)
@click.argument("source")
@click.argument("target")
@click.option("--tenant", "tenants", multiple=True, metavar="NAME", help="Copy only this tenant. Repeatable.")
@click.option("--replace", is_flag=True, help="Replace sessions and items of the same names in TARGET.")
@click.option(
    "--counter",
    "counters",
    multiple=True,
    metavar="NAME",
    help="Copy the token counts of this counter of your own, too. Repeatable.",
)
@json_option
def copy_command(
    source: str, target: str, tenants: tuple[str, ...], replace: bool, counters: tuple[str, ...], as_json: bool
) -> None:
    """Copy everything in the store SOURCE into the store TARGET.

    That is sessions with their branches and token counts, items such as facts, and the order in which they were used.
    SOURCE and TARGET are addresses or paths, as for --store. SOURCE is not changed, and the copy is compared with it.

    An encrypted store is copied as it is: that needs no key, and the copy is opened with the same keys. If the command
    is interrupted, run it again: it goes on with what is left.
    """
    (source_store, _), (target_store, _) = resolve(source, None), resolve(target, None)
    expect_store(source_store, "or name another store as SOURCE")
    root_tenant = (click.get_current_context().find_root().obj or (None, None))[1]
    tenants = tenants or ((root_tenant,) if root_tenant is not None else ())
    if os.environ.get(ENVIRONMENT):
        note(f"{ENVIRONMENT} does not redact a copy; run `palimpsest scan --apply` on TARGET to redact it")
    if os.environ.get(KEYS):
        note(f"{KEYS} does not encrypt a copy: TARGET is encrypted if SOURCE is, with the same keys")
    with session_progress() as progress:
        done = copy_store(
            source_store,
            target_store,
            tenants=tenants or None,
            replace=replace,
            counters=counters,
            progress=progress,
        )
    if as_json:
        print_json({name: getattr(done, name) for name in done.__struct_fields__})
        return
    what = f"{counted(done.sessions, 'session')} and {counted(done.items, 'item')} of {counted(done.tenants, 'tenant')}"
    were = "was" if done.already == 1 else "were"
    already = f" {done.already:,} of them {were} there already." if done.already else ""
    click.echo(f"Copied {what}.{already}")

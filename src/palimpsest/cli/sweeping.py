"""`palimpsest sweep`: destroy what has expired, and sessions that are not used any more."""

from __future__ import annotations

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import print_json, session_progress


@click.command(
    "sweep",
    epilog=examples("palimpsest sweep --dry-run", "palimpsest sweep --untouched-for 90d"),
)
@click.option(
    "--untouched-for",
    metavar="LENGTH",
    help="Delete sessions that were not written to for so long, too, such as 90d, 12h or 2w.",
)
@click.option("--dry-run", is_flag=True, help="Print how much would be destroyed, and change nothing.")
@json_option
@store_options
def sweep_command(
    untouched_for: str | None, dry_run: bool, store: str | None, tenant: str | None, as_json: bool
) -> None:
    """Destroy what has expired.

    That is entries, items such as facts, and sessions of one tenant whose lifetime is over. Expired data is invisible
    already, but stays in the store until it is swept. Run this command regularly, for example from cron.
    """
    with open_memory(store, tenant, write=not dry_run) as memory, session_progress() as progress:
        swept = memory.sweep(untouched_for=untouched_for, dry_run=dry_run, progress=progress)
    if as_json:
        print_json({"swept": swept, "dry_run": dry_run})
    else:
        noun = "entry, item or session" if swept == 1 else "entries, items and sessions"
        verb = "would be destroyed" if dry_run else "destroyed"
        click.echo(f"{swept:,} {noun} {verb}.")

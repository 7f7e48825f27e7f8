"""`palimpsest sweep`: destroys what has expired, and sessions that nobody uses any more."""

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
    help="Delete sessions to which nobody has written for so long, too: 90d, 12h, 2w.",
)
@click.option("--dry-run", is_flag=True, help="Say how much it would be, and destroy nothing.")
@json_option
@store_options
def sweep_command(
    untouched_for: str | None, dry_run: bool, store: str | None, tenant: str | None, as_json: bool
) -> None:
    """Destroy what has expired: entries, items, and sessions whose lifetime is over. Of this tenant alone.

    Nobody sees any of it before, either. Run it now and then, from cron for example.
    """
    with open_memory(store, tenant, write=not dry_run) as memory, session_progress() as progress:
        swept = memory.sweep(untouched_for=untouched_for, dry_run=dry_run, progress=progress)
    if as_json:
        print_json({"swept": swept, "dry_run": dry_run})
    else:
        what = "entry, item or session" if swept == 1 else "entries, items and sessions"
        goes = "would go" if dry_run else "is gone" if swept == 1 else "are gone"
        click.echo(f"{swept:,} {what} {goes}.")

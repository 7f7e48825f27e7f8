"""`palimpsest repair`: remove the entries of a session that cannot be read."""

from __future__ import annotations

import click

from palimpsest.cli.app import confirm, examples, json_option, require_interactive, store_options
from palimpsest.cli.forget import print_erased
from palimpsest.cli.opening import open_memory, read_records, require, session_argument
from palimpsest.cli.output import counted, note, print_json


@click.command("repair", epilog=examples("palimpsest repair support-7 --dry-run", "palimpsest repair support-7 --yes"))
@session_argument
@click.option("--dry-run", is_flag=True, help="List what is damaged, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@store_options
def repair_command(
    store: str | None, tenant: str | None, as_json: bool, session: str, dry_run: bool, yes: bool
) -> None:
    """Remove for good the entries of a session that cannot be read. If you have a backup, restore that first.

    Until you repair a session, damaged entries are set aside, and the rest of the session goes on without them. A
    damaged record of a change, such as a cut, cannot be removed: it is reported as an error.
    """
    asks = not (yes or dry_run)
    with open_memory(store, tenant, write=not dry_run) as memory:
        info = require(memory, session, whole=yes)
        session = info.session
        if asks:
            require_interactive(as_json)
        chat = memory.session(session)
        damaged = [entry.seq for entry in chat.entries(rewound=True) if entry.damaged]
        if asks and damaged:
            note(f"{counted(len(damaged), 'entry')} cannot be read: {', '.join(map(str, damaged))}")
            confirm("Remove what cannot be read? It cannot be undone.")
        done = chat.repair() if damaged and not dry_run else None
        if not damaged:
            read_records(chat, info.revision)
    if as_json:
        print_json({"session": session, "damaged": damaged, "taken_out": done.entries if done is not None else 0})
    elif done is not None:
        print_erased(done)
    elif damaged:
        note(f"{counted(len(damaged), 'entry')} cannot be read: {', '.join(map(str, damaged))}")
    else:
        note("Nothing is damaged.")

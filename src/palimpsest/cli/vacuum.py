"""`palimpsest vacuum`: rewrite a store so that no byte of erased data is left, and free unused space."""

from __future__ import annotations

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import note, print_json, session_progress


@click.command("vacuum", epilog=examples("palimpsest vacuum", "palimpsest vacuum --store chats.db --json"))
@json_option
@store_options
def vacuum_command(store: str | None, tenant: str | None, as_json: bool) -> None:
    """Remove the last bytes of erased data, and free unused space.

    The parts of the store where something was erased are rewritten, for every tenant. Run it when the report of an
    erasure asks for it, which happens with large files. Other processes go on reading and writing meanwhile. An SQLite
    file needs free space for a second copy of its largest table. If the command is interrupted, run it again: it goes
    on with what is left.
    """
    with open_memory(store, tenant, write=True) as memory, session_progress("bytes") as progress:
        done = memory.vacuum(progress=progress)
    if as_json:
        print_json({"freed": done.freed, "remains": list(done.remains)})
    else:
        note(f"Freed {done.freed:,} bytes." if done.freed else "There was no unused space to free.")
        for remainder in done.remains:
            note(f"Remains: {remainder}")

"""`palimpsest vacuum`: writing a store anew, so that no byte of what was erased is left, and giving back its room."""

from __future__ import annotations

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import note, print_json, session_progress


@click.command("vacuum", epilog=examples("palimpsest vacuum", "palimpsest vacuum --store chats.db --json"))
@json_option
@store_options
def vacuum_command(store: str | None, tenant: str | None, as_json: bool) -> None:
    """Write anew what a store holds, of every tenant, where something was erased, and give back what it does not use.

    It is what is left to do after an erasure in a large file, whose report says so. Other processes go on reading and
    writing. An SQLite file needs room for a second copy of its largest table meanwhile. Interrupted, the same again
    goes on with what is left.
    """
    with open_memory(store, tenant, write=True) as memory, session_progress("bytes") as progress:
        done = memory.vacuum(progress=progress)
    if as_json:
        print_json({"freed": done.freed, "remains": list(done.remains)})
    else:
        note(f"{done.freed:,} bytes given back." if done.freed else "Nothing to give back.")
        for told in done.remains:
            note(f"Remains: {told}")

"""`palimpsest rotate-keys`: everything in an encrypted store under the current key, while others go on."""

from __future__ import annotations

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import counted, note, print_json, session_progress


@click.command(
    "rotate-keys",
    epilog=examples("PALIMPSEST_KEY=2027:NEW,2026:OLD palimpsest rotate-keys", "palimpsest rotate-keys --json"),
)
@json_option
@store_options
def rotate_keys_command(store: str | None, tenant: str | None, as_json: bool) -> None:
    """Bring all that the store holds, of every tenant, under the current key.

    PALIMPSEST_KEY has the keys, as ID:KEY with commas between them; the first one is the current one. Other
    processes go on reading and writing, as long as they have both keys. When it is done, the older keys are not
    needed any more. Interrupted, the same again goes on with what is left.
    """
    from palimpsest.stores.encrypted.rotation import rotate_keys  # late: it needs an extra, which `--help` does not

    with open_memory(store, tenant, write=True) as memory, session_progress() as progress:
        done = rotate_keys(memory, progress=progress)
    if as_json:
        names = ("key_id", "sessions", "texts", "items", "remains")
        print_json({name.removesuffix("_id"): getattr(done, name) for name in names})
    elif done.texts or done.items:
        what = f"{counted(done.texts, 'text')} of {counted(done.sessions, 'session')} and {counted(done.items, 'item')}"
        click.echo(f"Sealed {what} anew: all is under the key {done.key_id!r}, no other is needed any more.")
    else:
        click.echo(f"All is under the key {done.key_id!r} already.")
    for sentence in done.remains:
        note(sentence)

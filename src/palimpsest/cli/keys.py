"""`palimpsest rotate-keys`: re-encrypt everything in an encrypted store under the current key."""

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
    """Re-encrypt a store under the current key.

    Everything in the store is re-encrypted, of every tenant. PALIMPSEST_KEY holds the keys as ID:KEY, separated by
    commas. The first one is the current key. Other processes go on reading and writing, as long as they have both keys.
    Afterwards the older keys are not needed any more. If the command is interrupted, run it again: it goes on with what
    is left.
    """
    from palimpsest.stores.encrypted.rotation import rotate_keys  # late: it needs an extra, and `--help` must not

    with open_memory(store, tenant, write=True) as memory, session_progress() as progress:
        done = rotate_keys(memory, progress=progress)
    if as_json:
        names = ("key_id", "sessions", "texts", "items", "remains")
        print_json({name.removesuffix("_id"): getattr(done, name) for name in names})
    elif done.texts or done.items:
        what = f"{counted(done.texts, 'text')} of {counted(done.sessions, 'session')} and {counted(done.items, 'item')}"
        click.echo(
            f"Re-encrypted {what}. Everything is under the key {done.key_id!r} now; other keys are not needed any more."
        )
    else:
        click.echo(f"Everything is under the key {done.key_id!r} already.")
    for sentence in done.remains:
        note(sentence)

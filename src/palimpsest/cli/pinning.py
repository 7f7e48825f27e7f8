"""`palimpsest pin` and `unpin`: entries that every context keeps."""

from __future__ import annotations

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import entries_argument, named_entries, open_memory, require, session_argument
from palimpsest.cli.output import counted, line, print_json


@click.command("pin", epilog=examples("palimpsest pin support-7 3", "palimpsest pin support-7 3-5 9 --json"))
@session_argument
@entries_argument
@json_option
@store_options
def pin_command(store: str | None, tenant: str | None, as_json: bool, session: str, entries: tuple[str, ...]) -> None:
    """Keep entries in every context of SESSION.

    They stay there however old they are, and count towards the budget. ENTRY is the number that `show` prints, a range
    of numbers such as 3-5, or an id.
    """
    _pin(store, tenant, session, entries, as_json=as_json, pinned=True)


@click.command("unpin", epilog=examples("palimpsest unpin support-7 3", "palimpsest unpin support-7 3-5 9 --json"))
@session_argument
@entries_argument
@json_option
@store_options
def unpin_command(store: str | None, tenant: str | None, as_json: bool, session: str, entries: tuple[str, ...]) -> None:
    """Unpin entries of SESSION. From the next cut on, contexts may leave them out. Other entries stay as they are.

    ENTRY is the number that `show` prints, a range of numbers such as 3-5, or an id.
    """
    _pin(store, tenant, session, entries, as_json=as_json, pinned=False)


def _pin(
    store: str | None, tenant: str | None, session: str, names: tuple[str, ...], *, as_json: bool, pinned: bool
) -> None:
    with open_memory(store, tenant, write=True) as memory:
        session = require(memory, session).session
        chat = memory.session(session)
        seqs = [entry.seq for entry in named_entries(chat, names)]
        (chat.pin if pinned else chat.unpin)(*seqs)
    if as_json:
        print_json({"session": session, "pinned" if pinned else "unpinned": seqs})
    else:
        is_one = len(seqs) == 1
        stays = "stays in every context" if is_one else "stay in every context"
        leaves = "is no longer pinned" if is_one else "are no longer pinned"
        click.echo(f"{counted(len(seqs), 'entry')} of {line(session)} {stays if pinned else leaves}.")

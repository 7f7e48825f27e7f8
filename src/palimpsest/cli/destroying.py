"""`palimpsest delete` and `erase`: destroying a session, or what some of its entries say, for good."""

from __future__ import annotations

import click

from palimpsest.cli.app import examples, expect_somebody, json_option, store_options
from palimpsest.cli.forget import erased_json, print_erased
from palimpsest.cli.opening import entries_argument, named_entries, open_memory, require, session_argument
from palimpsest.cli.output import counted, line, moment, note, print_json
from palimpsest.cli.sessions import print_entries


@click.command(
    "delete",
    epilog=examples(
        "palimpsest delete support-7", "palimpsest delete support-7 --dry-run", "palimpsest delete support-7 --yes"
    ),
)
@session_argument
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask. SESSION is a whole id then.")
@json_option
@store_options
def delete_command(
    store: str | None, tenant: str | None, as_json: bool, session: str, dry_run: bool, yes: bool
) -> None:
    """Destroy SESSION with everything that belongs to it. Branches of it keep the entries that they share with it.

    `palimpsest forget --session` erases those entries in every branch, too.
    """
    asks = not (yes or dry_run)
    with open_memory(store, tenant, write=not dry_run) as memory:
        info = require(memory, session, whole=yes)
        if asks:
            expect_somebody(as_json)
        called = f" ({line(info.title)})" if info.title else ""
        held = f"{line(info.session)}{called}: {counted(info.entries, 'entry')}, last changed {moment(info.updated)}"
        if not as_json and not yes:
            click.echo(held)
        if asks:
            click.confirm("Destroy this? It cannot be undone.", abort=True)
        gone = not dry_run and memory.delete_session(info.session)
    if as_json:
        print_json({"session": info.session, "entries": info.entries, "deleted": gone})
    elif not dry_run:
        click.echo(f"Deleted {line(info.session)}." if gone else f"{line(info.session)} was gone already.")


@click.command(
    "erase",
    epilog=examples("palimpsest erase support-7 3", "palimpsest erase support-7 3-5 9 --reason 'asked by mail' --yes"),
)
@session_argument
@entries_argument
@click.option("--reason", metavar="TEXT", default="by request", show_default=True, help="Kept in the log.")
@click.option("--dry-run", is_flag=True, help="Show the entries, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask. SESSION is a whole id then.")
@json_option
@store_options
def erase_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    entries: tuple[str, ...],
    reason: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Destroy what entries of SESSION say, in every branch that shares them, and in summaries that tell of it.

    ENTRY is the number that `show` prints, two of them as in 3-5, or an id. Their places stay, as tombstones. For all
    that says a text, or that is somebody's, there is `palimpsest forget`.
    """
    asks = not (yes or dry_run)
    with open_memory(store, tenant, write=not dry_run) as memory:
        session = require(memory, session, whole=yes).session
        if asks:
            expect_somebody(as_json)
        chat = memory.session(session)
        meant = [entry for entry in named_entries(chat, entries) if entry.is_there]
        if not as_json and not yes:
            print_entries(meant)
        if asks and meant:
            click.confirm(f"Destroy {counted(len(meant), 'entry')}? It cannot be undone.", abort=True)
        done = chat.erase([entry.seq for entry in meant], reason=reason) if meant and not dry_run else None
    if as_json:
        print_json({"session": session, "meant": [entry.seq for entry in meant], "erased": done and erased_json(done)})
    elif done is not None:
        print_erased(done)
    elif not meant:
        note("Nothing to erase: that is erased already.")

"""`palimpsest delete` and `erase`: destroy a session, or the content of some of its entries, for good."""

from __future__ import annotations

import click

from palimpsest.cli.app import confirm, examples, json_option, require_interactive, store_options
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
@click.option("--dry-run", is_flag=True, help="Show what would be destroyed, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask. SESSION must be a complete id then.")
@json_option
@store_options
def delete_command(
    store: str | None, tenant: str | None, as_json: bool, session: str, dry_run: bool, yes: bool
) -> None:
    """Destroy SESSION with everything that belongs to it. Its branches keep the entries that they share with it.

    `palimpsest forget --session` erases those entries, too.
    """
    asks = not (yes or dry_run)
    with open_memory(store, tenant, write=not dry_run) as memory:
        info = require(memory, session, whole=yes)
        if asks:
            require_interactive(as_json)
        title = f" ({line(info.title)})" if info.title else ""
        summary = f"{line(info.session)}{title}: {counted(info.entries, 'entry')}, last changed {moment(info.updated)}"
        if not as_json and not yes:
            click.echo(summary)
        if asks:
            confirm("Destroy this? It cannot be undone.")
        deleted = not dry_run and memory.delete_session(info.session)
    if as_json:
        print_json({"session": info.session, "entries": info.entries, "deleted": deleted})
    elif not dry_run:
        click.echo(f"Deleted {line(info.session)}." if deleted else f"{line(info.session)} was already deleted.")


@click.command(
    "erase",
    epilog=examples("palimpsest erase support-7 3", "palimpsest erase support-7 3-5 9 --reason 'asked by mail' --yes"),
)
@session_argument
@entries_argument
@click.option("--reason", metavar="TEXT", default="by request", show_default=True, help="Reason, kept in the log.")
@click.option("--dry-run", is_flag=True, help="Show the entries, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask. SESSION must be a complete id then.")
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
    """Destroy the content of single entries.

    It is destroyed in SESSION, in every branch that shares the entries, and in summaries of them. ENTRY is the number
    that `show` prints, a range of numbers such as 3-5, or an id. The entries stay in the log as tombstones, without
    content. To destroy all that contains a text or belongs to a user, use `palimpsest forget`.
    """
    asks = not (yes or dry_run)
    with open_memory(store, tenant, write=not dry_run) as memory:
        session = require(memory, session, whole=yes).session
        if asks:
            require_interactive(as_json)
        chat = memory.session(session)
        targets = [entry for entry in named_entries(chat, entries) if entry.is_there]
        if not as_json and not yes:
            print_entries(targets)
        if asks and targets:
            confirm(f"Destroy {counted(len(targets), 'entry')}? It cannot be undone.")
        seqs = [entry.seq for entry in targets]
        done = chat.erase(seqs, reason=reason) if seqs and not dry_run else None
    if as_json:
        print_json({"session": session, "meant": seqs, "erased": done and erased_json(done)})
    elif done is not None:
        print_erased(done)
    elif not targets:
        note("Nothing to erase: these entries are already erased.")

"""`palimpsest forget`: destroy for good all that belongs to a user, a session or a tenant, or that contains a text."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from palimpsest import Memory
from palimpsest.cli.app import confirm, examples, json_option, require_interactive, store_options
from palimpsest.cli.opening import open_memory, require, session_ids
from palimpsest.cli.output import console, counted, line, note, print_json, session_progress, table
from palimpsest.types import Erased

FEW = 20
"""The most session names that are listed; of more only the number is printed."""


@click.command(
    "forget",
    epilog=examples(
        "palimpsest forget --user ann --dry-run",
        "palimpsest forget --session support-7",
        "palimpsest forget --matches - --yes < text.txt",
        "palimpsest forget --user ann --tenant acme --yes --json",
        "palimpsest forget --tenant acme",
    ),
)
@click.option("--user", metavar="ID", help="Forget all that this user said, with the whole interactions it began.")
@click.option(
    "--session",
    metavar="ID",
    shell_complete=session_ids,
    help="Forget this session, with its entries in every branch that shares them.",
)
@click.option(
    "--matches", metavar="TEXT", help="Forget what contains this text, in any letter case; - reads it from stdin."
)
@click.option("--reason", metavar="TEXT", default="by request", show_default=True, help="Reason, kept in the log.")
@click.option("--dry-run", is_flag=True, help="Show what would be destroyed, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@store_options
def forget_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    user: str | None,
    session: str | None,
    matches: str | None,
    reason: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Destroy for good all data of a user, session or tenant.

    Or destroy all that contains a text. Give one of --user, --session and --matches. --tenant alone means all sessions
    and items of that tenant. The command shows what would be destroyed, and asks first. Summaries of it are made anew
    from the rest, or withdrawn. If the command is interrupted, run it again: it goes on with what is left.
    """
    subject = {"user": user, "session": session, "matches": matches}
    chosen: dict[str, str | None] = {name: value for name, value in subject.items() if value is not None} or {
        "tenant": tenant
    }
    if len(chosen) != 1 or None in chosen.values():
        raise click.UsageError("give exactly one of --user, --session and --matches, or --tenant alone")
    asks = not (yes or dry_run)
    if matches == "-" and not asks:
        chosen["matches"] = _read()
    with open_memory(store, tenant, write=not dry_run) as memory:
        if session is not None:
            chosen["session"] = require(memory, session, whole=yes).session
        if asks:
            require_interactive(as_json, busy=matches == "-")
        done = _forgotten(memory, chosen, reason, dry_run=dry_run or asks)
        if asks and done:
            print_erased(done)
            confirm("Destroy this? It cannot be undone.")
            done = _forgotten(memory, chosen, reason, dry_run=False)
    if as_json:
        print_json(erased_json(done))
    else:
        print_erased(done)


def _read() -> str:
    """Read the text from standard input. Raises a usage error if it does not decode: it would match nothing."""
    text = sys.stdin.read().removeprefix("\ufeff").removesuffix("\n")  # without a byte order mark
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"--matches -: standard input is not valid {sys.stdin.encoding}") from None
    return text


def _forgotten(memory: Memory, subject: dict[str, Any], reason: str, *, dry_run: bool) -> Erased:
    with session_progress() as progress:
        return memory.forget(reason=reason, dry_run=dry_run, progress=progress, **subject)


def print_erased(done: Erased) -> None:
    """Print an erasure's report: what was destroyed, or would be, and what remains."""
    would = done.dry_run
    if not (done or done.remains):
        note(f"Nothing to forget: {done.unknown}." if done.unknown else "Nothing to forget.")
        return
    rows = table("would be destroyed" if would else "destroyed", "", right=())
    rows.add_row("entries", f"{done.entries:,}")
    if done.media:
        rows.add_row("images, sounds, documents", f"{done.media:,}")
    for title, names in (("sessions, whole", done.sessions), ("branches that share some", done.branches)):
        if names:
            rows.add_row(title, line(", ".join(names) if len(names) <= FEW else counted(len(names), "session")))
    if done.withdrawn:
        rows.add_row("summaries", f"{done.withdrawn:,}" if would else f"{done.withdrawn:,}, {done.rebuilt:,} made anew")
    for title, counts in (("items of", done.items), ("derived:", done.derived)):
        for name, number in counts.items():
            rows.add_row(line(f"{title} {name}"), f"{number:,}")
    console().print(rows)
    for remainder in done.remains:
        note(f"Remains: {remainder}")


def erased_json(done: Erased) -> dict[str, Any]:
    """Return an erasure's report as JSON values."""
    values: dict[str, Any] = msgspec.to_builtins(done)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

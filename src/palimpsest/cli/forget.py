"""`palimpsest forget`: destroying for good all that belongs to a user, a session or a tenant, or that says a text."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from palimpsest import Memory
from palimpsest.cli.app import examples, expect_somebody, json_option, store_options
from palimpsest.cli.opening import open_memory, require, session_ids
from palimpsest.cli.output import console, counted, line, note, print_json, session_progress, table
from palimpsest.types import Erased

FEW = 20
"""Names that are listed each; more of them are a number."""


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
@click.option("--user", metavar="ID", help="All that this user said, with the whole interactions that began with it.")
@click.option(
    "--session",
    metavar="ID",
    shell_complete=session_ids,
    help="This session, with its entries in every branch that shares them.",
)
@click.option("--matches", metavar="TEXT", help="What says this text, in any letter case. `-` reads it from stdin.")
@click.option("--reason", metavar="TEXT", default="by request", show_default=True, help="Kept in the log.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
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
    """Destroy for good all that belongs to a user, a session or a tenant, or that says a text.

    Give one of --user, --session and --matches; --tenant alone is all sessions and items of that tenant. What would go
    is shown, and nothing goes before that is confirmed. Summaries that told of it are made anew from the rest, or
    withdrawn. Interrupted, the same command again goes on with what is left.
    """
    subject = {"user": user, "session": session, "matches": matches}
    given: dict[str, str | None] = {name: value for name, value in subject.items() if value is not None} or {
        "tenant": tenant
    }
    if len(given) != 1 or None in given.values():
        raise click.UsageError("give exactly one of --user, --session and --matches, or --tenant alone")
    asks = not (yes or dry_run)
    if matches == "-" and not asks:
        given["matches"] = _read()
    with open_memory(store, tenant, write=not dry_run) as memory:
        if session is not None:
            given["session"] = require(memory, session, whole=yes).session
        if asks:
            expect_somebody(as_json, busy=matches == "-")
        done = _forgotten(memory, given, reason, dry_run=dry_run or asks)
        if asks and done:
            print_erased(done)
            click.confirm("Destroy this? It cannot be undone.", abort=True)
            done = _forgotten(memory, given, reason, dry_run=False)
    if as_json:
        print_json(erased_json(done))
    else:
        print_erased(done)


def _read() -> str:
    """The text that standard input has: one that is read wrongly would be found nowhere."""
    text = sys.stdin.read().removesuffix("\n")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"--matches -: standard input is no text in {sys.stdin.encoding}") from None
    return text


def _forgotten(memory: Memory, subject: dict[str, Any], reason: str, *, dry_run: bool) -> Erased:
    with session_progress() as progress:
        return memory.forget(reason=reason, dry_run=dry_run, progress=progress, **subject)


def print_erased(done: Erased) -> None:
    """Print the report: what went, or would go, and what remains."""
    would = done.dry_run
    if not (done or done.remains):
        note(f"Nothing to forget: {done.unknown}." if done.unknown else "Nothing to forget.")
        return
    rows = table("would go" if would else "gone", "", right=())
    rows.add_row("entries", f"{done.entries:,}")
    if done.media:
        rows.add_row("images, sounds, documents", f"{done.media:,}")
    for title, names in (("sessions, whole", done.sessions), ("branches that share some", done.branches)):
        if names:
            rows.add_row(title, line(", ".join(names) if len(names) <= FEW else counted(len(names), "session")))
    if done.withdrawn:
        rows.add_row("summaries", f"{done.withdrawn:,}" if would else f"{done.withdrawn:,}, {done.rebuilt:,} made anew")
    for title, found in (("items of", done.items), ("derived:", done.derived)):
        for name, number in found.items():
            rows.add_row(line(f"{title} {name}"), f"{number:,}")
    console().print(rows)
    for told in done.remains:
        note(f"Remains: {told}")


def erased_json(done: Erased) -> dict[str, Any]:
    """Return the report as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(done)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

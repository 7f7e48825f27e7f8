"""`palimpsest export`: a session as a file, whole or as provider messages."""

from __future__ import annotations

import os
from typing import Any

import click

from palimpsest import Session
from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import open_memory, require, session_argument
from palimpsest.cli.output import note, to_json


@click.command(
    "export",
    epilog=examples(
        "palimpsest export support-7 -o support-7.json",
        "palimpsest export support-7 --format openai | jq '.[].role'",
    ),
)
@session_argument
@click.option(
    "--format",
    type=click.Choice(["palimpsest", "openai"]),
    default="palimpsest",
    show_default=True,
    help="Everything, to be imported again; or the log as messages of chat completions.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file. [default: standard output]")
@json_option
@store_options
def export_command(
    store: str | None, tenant: str | None, as_json: bool, session: str, format: str, output: str | None
) -> None:
    """Write a session as JSON. Erased entries are there as tombstones without content.

    The form `openai` is what a model would be given without any budget: a call that is still open is left out, and
    so is what has expired or was erased.
    """
    with open_memory(store, tenant) as memory:
        require(memory, session)
        chat = memory.session(session, readonly=True)
        value: Any = chat.export() if format == "palimpsest" else _messages(chat)
    text = to_json(value, indent=None if output is None and not as_json else 1) + "\n"
    if output is None or output == "-":
        click.echo(text, nl=False)
        return
    _write(output, text)
    note(f"Wrote {len(text.encode()):,} bytes to {output}.")


def _messages(chat: Session) -> list[dict[str, Any]]:
    context = chat.context(view="export", dry_run=True)
    if context.pending:
        note(f"Left out, because their calls are still open: {', '.join(context.pending)}")
    return context.messages


def _write(path: str, text: str) -> None:
    """Write the whole file or none of it."""
    partial = f"{path}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError as fault:
        raise click.ClickException(f"{path}: {fault.strerror}") from fault

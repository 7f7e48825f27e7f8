"""`palimpsest export`: write a session to a file, whole or as provider messages."""

from __future__ import annotations

import sys
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Literal

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.failing import OperationFailed
from palimpsest.cli.opening import open_memory, require, session_argument
from palimpsest.cli.output import Cleaning, note, print_json, warn
from palimpsest.errors import StoreCorrupt

if TYPE_CHECKING:
    from palimpsest import Session
    from palimpsest.types import FormatName


@click.command(
    "export",
    epilog=examples(
        "palimpsest export support-7 -o support-7.json",
        "palimpsest export support-7 --format openai | jq '.[].role'",
        "palimpsest export support-7 --format anthropic -o messages.json",
    ),
)
@session_argument
@click.option(
    "--format",
    metavar="NAME",
    default="palimpsest",
    show_default=True,
    help="palimpsest: everything, to be imported again; else messages of a provider (openai, anthropic, ...), or text.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file. [default: standard output]")
@click.option("--leave-out-damaged", is_flag=True, help="Export what can be read, and list what cannot.")
@json_option
@store_options
def export_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    format: FormatName | Literal["palimpsest"],
    output: str | None,
    leave_out_damaged: bool,
) -> None:
    """Write a session as JSON, with everything in it. Erased entries are included as tombstones without content.

    Another --format writes what a model would be given without a budget. Open tool calls are left out, and so are
    entries that have expired or were erased or rewound. If the provider takes the system text beside the messages, the
    export has it there. All formats but `text` are JSON; with --json that is put into an object, too.

    If a part of a session cannot be read, it is not exported. With --leave-out-damaged the rest is exported, each
    omission is listed, and the exit status is 1.
    """
    if output == "":  # what a shell passes for "$VARIABLE" if that is not set
        raise click.UsageError("--output is empty: give a file, or - for standard output")
    unreadable = list[str]()
    with open_memory(store, tenant) as memory:
        chat = memory.session(require(memory, session).session, readonly=True)
        try:
            _export(chat, format, output, as_json=as_json, unreadable=unreadable if leave_out_damaged else None)
        except StoreCorrupt as fault:
            if leave_out_damaged:
                raise
            raise StoreCorrupt(fault.store, f"{fault.reason}; --leave-out-damaged exports the rest") from fault
    for place in unreadable:
        warn(f"left out: {place}")
    if unreadable:
        click.get_current_context().exit(1)


def _export(
    chat: Session,
    format: FormatName | Literal["palimpsest"],
    output: str | None,
    *,
    as_json: bool,
    unreadable: list[str] | None,
) -> None:
    """Write the session. With a list `unreadable`, leave out what cannot be read, and add it to that list."""
    left_out = unreadable.append if unreadable is not None else None
    if format != "palimpsest":
        with suppress(*((StoreCorrupt,) if unreadable is not None else ())):
            if pending := chat.context(view="export", dry_run=True).pending:
                note(f"Left out, because these calls have no result yet: {', '.join(pending)}")
    if output is None or output == "-":
        if as_json and format == "text":
            prompt = BytesIO()
            chat.export_to(prompt, format=format, left_out=left_out)
            print_json({"prompt": prompt.getvalue().decode()})
            return
        out = Cleaning(sys.stdout.buffer, json=format != "text")
        chat.export_to(out, format=format, left_out=left_out)
        if format == "text":
            out.write(b"\n")  # so that a shell's prompt begins on a new line
        out.close()
        return
    try:
        size = chat.export_to(output, format=format, left_out=left_out)
    except OSError as fault:
        raise OperationFailed(f"{output}: {fault.strerror}") from fault
    note(f"Wrote {size:,} bytes to {output}.")

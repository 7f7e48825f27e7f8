"""`palimpsest export`: a session as a file, whole or as provider messages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.failing import OperationFailed
from palimpsest.cli.opening import open_memory, require, session_argument
from palimpsest.cli.output import Cleaning, note, print_json

if TYPE_CHECKING:
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
    help="Everything, to be imported again; or the log in a provider's format (openai, anthropic, ...), or as text.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file. [default: standard output]")
@json_option
@store_options
def export_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    format: FormatName | Literal["palimpsest"],
    output: str | None,
) -> None:
    """Write a session as JSON. Erased entries are there as tombstones without content.

    The other forms are what a model would be given without any budget: a call that is still open is left out, and
    so is what has expired, was erased or was rewound. Where a provider takes the system text beside the messages
    it stands beside them. All but `text` is JSON anyway; --json makes an object of that, too.
    """
    with open_memory(store, tenant) as memory:
        chat = memory.session(require(memory, session).session, readonly=True)
        if format != "palimpsest":
            pending = chat.context(view="export", dry_run=True).pending
            if pending:
                note(f"Left out, because their calls are still open: {', '.join(pending)}")
        if as_json and format == "text":
            print_json(chat.context(view="export", dry_run=True, format="text").request())
            return
        if output is None or output == "-":
            out = Cleaning(sys.stdout.buffer, json=format != "text")
            chat.export_to(out, format=format)
            if format == "text":
                out.write(b"\n")  # a shell's next line begins behind it
            out.close()
            return
        try:
            size = chat.export_to(output, format=format)
        except OSError as fault:
            raise OperationFailed(f"{output}: {fault.strerror}") from fault
    note(f"Wrote {size:,} bytes to {output}.")

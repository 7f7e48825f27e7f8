"""`palimpsest export`: a session as a file, whole or as provider messages."""

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
    help="Everything, to be imported again; or the log in a provider's format (openai, anthropic, ...), or as text.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file. [default: standard output]")
@click.option("--leave-out-damaged", is_flag=True, help="Export what can be read, and name what cannot.")
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
    """Write a session as JSON. Erased entries are there as tombstones without content.

    The other forms are what a model would be given without any budget: a call that is still open is left out, and
    so is what has expired, was erased or was rewound. Where a provider takes the system text beside the messages
    it stands beside them. All but `text` is JSON anyway; --json makes an object of that, too.

    A session of which something cannot be read is not exported, unless with --leave-out-damaged: what is left out then
    is named, and the exit status is 1.
    """
    if output == "":  # as a shell gives for a variable that is not set
        raise click.UsageError("--output is empty: give a file, or - for standard output")
    lost = list[str]()
    with open_memory(store, tenant) as memory:
        chat = memory.session(require(memory, session).session, readonly=True)
        try:
            _export(chat, format, output, as_json=as_json, lost=lost if leave_out_damaged else None)
        except StoreCorrupt as fault:
            if leave_out_damaged:
                raise
            raise StoreCorrupt(fault.store, f"{fault.reason}; --leave-out-damaged exports all else") from fault
    for told in lost:
        warn(f"left out: {told}")
    if lost:
        click.get_current_context().exit(1)


def _export(
    chat: Session,
    format: FormatName | Literal["palimpsest"],
    output: str | None,
    *,
    as_json: bool,
    lost: list[str] | None,
) -> None:
    """Write the session; with `lost`, without what cannot be read, which is noted there."""
    left_out = lost.append if lost is not None else None
    if format != "palimpsest":
        with suppress(*((StoreCorrupt,) if lost is not None else ())):
            if pending := chat.context(view="export", dry_run=True).pending:
                note(f"Left out, because their calls are still open: {', '.join(pending)}")
    if output is None or output == "-":
        if as_json and format == "text":
            whole = BytesIO()
            chat.export_to(whole, format=format, left_out=left_out)
            print_json({"prompt": whole.getvalue().decode()})
            return
        out = Cleaning(sys.stdout.buffer, json=format != "text")
        chat.export_to(out, format=format, left_out=left_out)
        if format == "text":
            out.write(b"\n")  # a shell's next line begins behind it
        out.close()
        return
    try:
        size = chat.export_to(output, format=format, left_out=left_out)
    except OSError as fault:
        raise OperationFailed(f"{output}: {fault.strerror}") from fault
    note(f"Wrote {size:,} bytes to {output}.")

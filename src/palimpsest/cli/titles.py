"""`palimpsest title`: print, set or remove a session's title."""

from __future__ import annotations

import click

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import open_memory, require, session_argument
from palimpsest.cli.output import line, note, print_json


@click.command(
    "title",
    epilog=examples(
        "palimpsest title support-7", "palimpsest title support-7 'Where is order 7?'", "palimpsest title trip --remove"
    ),
)
@session_argument
@click.argument("text", required=False, metavar="[TEXT]")
@click.option("--remove", is_flag=True, help="Remove the title.")
@json_option
@store_options
def title_command(
    store: str | None, tenant: str | None, as_json: bool, session: str, text: str | None, remove: bool
) -> None:
    """Print the title of SESSION, or set it to TEXT. `palimpsest sessions --title` finds sessions by title."""
    if remove and text is not None:
        raise click.UsageError("TEXT and --remove contradict each other")
    changes = remove or text is not None
    with open_memory(store, tenant, write=changes) as memory:
        info = require(memory, session)
        if changes:
            info = memory.session(info.session).describe(title=text)
    if as_json:
        print_json({"session": info.session, "title": info.title})
    elif info.title is None:
        note(f"{line(info.session)} has no title.")
    else:
        click.echo(line(info.title))

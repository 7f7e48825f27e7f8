"""`palimpsest index`: show the state of a tenant's search index, or rebuild it."""

from __future__ import annotations

import click
import msgspec

from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.failing import Unavailable
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import clean, console, counted, line, note, print_json, session_progress, table
from palimpsest.cli.search import EMBEDDER
from palimpsest.types import IndexStatus


@click.command(
    "index", epilog=examples("palimpsest index status", "palimpsest index rebuild --store chats.db --tenant acme")
)
@click.argument("action", type=click.Choice(["status", "rebuild"]), metavar="[status|rebuild]", default="status")
@EMBEDDER
@json_option
@store_options
def index_command(store: str | None, tenant: str | None, as_json: bool, action: str, embedder: str | None) -> None:
    """Show the state of a tenant's search index, or rebuild it.

    The state is where the index is, how large it is, and how far behind. A rebuild reads the logs. Searches keep the
    index up to date by themselves. Rebuild it to remove stale parts at once, or to index a large store before the first
    search. If your program has an embedder, name it here: otherwise the program's next search computes the vectors. If
    a rebuild is interrupted, run it again: it goes on, and so does the next search.
    """
    rebuilds = action == "rebuild"
    with open_memory(store, tenant, write=rebuilds, embedder=embedder) as memory:
        status = memory.index_status()
        is_stored = status.is_kept or not rebuilds
        backend = memory.store.backend
        if not is_stored and (backend.companion or backend.tables):
            where = line(backend.companion) if backend.companion else "in the database"
            raise Unavailable(
                f"nothing was rebuilt: the search index {where} cannot be used, so each process that searches keeps "
                "one in its own memory; the warning above says why"
            )
        if rebuilds and is_stored:
            with session_progress() as progress:
                status = memory.rebuild_index(progress=progress)
    if as_json:
        print_json(msgspec.structs.asdict(status))
    else:
        _print(status)
    if not is_stored:
        note("Nothing was rebuilt: with this store, each process that searches keeps an index in its own memory.")
    elif not status.sessions and status.behind:
        note("Nothing is indexed yet: the first search does that, or `palimpsest index rebuild`.")


def _print(status: IndexStatus) -> None:
    rows = table("", "")
    rows.show_header = False
    rows.add_row("where", clean(status.where))
    for name in ("sessions", "entries", "parts", "bytes"):
        rows.add_row(name, f"{getattr(status, name):,}")
    rows.add_row("behind", counted(status.behind, "session"))
    rows.add_row("stale", counted(status.stale, "part"))
    console().print(rows)

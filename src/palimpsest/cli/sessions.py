"""`palimpsest sessions`, `show` and `stats`: list sessions, print a log, print figures of a session."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import click
import msgspec
from rich.padding import Padding
from rich.text import Text

from palimpsest import Entry, Session
from palimpsest.cli.app import Whole, examples, json_option, store_options
from palimpsest.cli.opening import all_entries, named_entry, open_memory, open_to_note, require, session_argument
from palimpsest.cli.output import clean, console, counted, line, moment, note, on_terminal, print_json, table
from palimpsest.log.entry_json import entry_json
from palimpsest.types import SessionInfo

TIMES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S")
TITLE = 60
"""The most characters of a title in a listing."""


class _Time(click.DateTime):
    """A time in UTC. Its error shows examples instead of the strptime patterns that click would list."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a time; write it as 2026-11-01 or 2026-11-01T12:00, in UTC", param, ctx)


TIME = _Time(TIMES)


@click.command(
    "sessions",
    epilog=examples(
        "palimpsest sessions",
        "palimpsest sessions --user ann --order latest --limit 10",
        "palimpsest sessions --title order --since 2026-11-01 --json",
    ),
)
@click.option("--user", metavar="ID", help="List only sessions of this user.")
@click.option("--title", metavar="TEXT", help="List only sessions with this text in their title, in any letter case.")
@click.option("--prefix", metavar="TEXT", default="", help="List only sessions whose id begins with this text.")
@click.option("--since", type=TIME, metavar="TIME", help="List only sessions last written to at or after TIME, UTC.")
@click.option("--before", type=TIME, metavar="TIME", help="List only sessions last written to before TIME, UTC.")
@click.option(
    "--order",
    type=click.Choice(["id", "latest"]),
    default="id",
    show_default=True,
    help="Sort by id, or with the latest write first.",
)
@click.option("--limit", type=Whole(1), metavar="N", default=1000, show_default=True, help="List at most N sessions.")
@click.option("--after", metavar="PLACE", default="", help="Continue at the place that the previous page printed.")
@json_option
@store_options
def sessions_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    user: str | None,
    title: str | None,
    prefix: str,
    since: datetime | None,
    before: datetime | None,
    order: Literal["id", "latest"],
    limit: int,
    after: str,
) -> None:
    """List the sessions of a store."""
    first, last = (when and when.replace(tzinfo=UTC) for when in (since, before))
    with open_memory(store, tenant) as memory:
        found = memory.sessions(
            user=user, title=title, prefix=prefix, since=first, before=last, order=order, limit=limit, after=after
        )
        filtered = not found and bool(memory.sessions(limit=1))
    if as_json:
        print_json([_as_json(info) for info in found])
    elif found:
        console().print(_listing(found))
    else:
        note("No such sessions." if filtered else "No sessions yet: `palimpsest import FILE --session ID` makes one.")
    if found.next is not None:
        note(f"There are more: --after {found.next!r}, or a larger --limit.")


def _listing(found: Sequence[SessionInfo]) -> Any:
    """Return a table of sessions, with columns for title and user only if one of the sessions has them."""
    optional = [name for name in ("title", "user") if any(getattr(info, name) is not None for info in found)]
    figures = ("entries", "revision", "epoch")
    rows = table("session", *optional, *figures, "updated (UTC)", right=figures)
    for info in found:
        texts = (line(getattr(info, name) or "", TITLE) for name in optional)
        rows.add_row(
            line(info.session) + (" (damaged)" if info.damaged else ""),
            *texts,
            *(f"{getattr(info, name):,}" for name in figures),
            moment(info.updated),
        )
    return rows


def _as_json(info: SessionInfo) -> dict[str, Any]:
    parent, revision = info.forked_from or (None, None)
    return {
        "session": info.session,
        "title": info.title,
        "user": info.user,
        "metadata": info.metadata,
        "entries": info.entries,
        "revision": info.revision,
        "epoch": info.epoch,
        "forked_from": parent,
        "forked_at": revision,
        "created": _iso(info.created),
        "updated": _iso(info.updated),
        "damaged": info.damaged,
    }


def _iso(microseconds: int) -> str | None:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat() if microseconds else None


@click.command(
    "show",
    epilog=examples(
        "palimpsest show support-7",
        "palimpsest show support-7 --all | less",
        "palimpsest show support-7 --entry 12",
        "palimpsest show support-7 --at 40 --json",
    ),
)
@session_argument
@click.option("--limit", type=Whole(1), metavar="N", default=20, show_default=True, help="Print the newest N entries.")
@click.option("--all", "everything", is_flag=True, help="Print the whole log.")
@click.option("--entry", "name", metavar="ENTRY", help="Print only this entry, whole: its number, or its id.")
@click.option(
    "--at",
    type=Whole(0),
    metavar="REVISION",
    help="Print the log as it was at this revision; `palimpsest history` lists revisions.",
)
@click.option("--full", is_flag=True, help="Print whole texts, not only their first lines.")
@json_option
@store_options
def show_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    limit: int,
    everything: bool,
    name: str | None,
    at: int | None,
    full: bool,
) -> None:
    """Print a session's log, oldest entry first. Entries that contexts leave out are in it, too.

    Control characters in texts are printed as visible escapes.
    """
    if name is not None and at is not None:
        raise click.UsageError("--entry prints an entry as it is now: leave out --at")
    limit = min(limit, sys.maxsize)  # the most that a deque takes
    with open_memory(store, tenant) as memory:
        info = require(memory, session)
        chat = memory.session(info.session, readonly=True)
        if name is not None:
            entry = named_entry(chat, name)
            print_entries([entry], as_json=as_json, full=True, single=True)
            return
        # The newest entry's `seq` is the number of entries, or larger after erasures and clears: so this `after` never
        # skips one of the newest, and the log is not read from its beginning.
        least_newest_seq = info.entries if at is None and not everything else limit
        entries = all_entries(chat, after=max(least_newest_seq - limit, 0), at=at)
        if everything:
            print_entries(entries, as_json=as_json, full=full)
            return
        newest = deque(entries, maxlen=limit)
    print_entries(newest, as_json=as_json, full=full)
    if newest and newest[0].seq > 1 and not as_json:
        note(f"{counted(len(newest), 'entry')}, the newest; --all shows the whole log.")


def print_entries(entries: Any, *, as_json: bool = False, full: bool = False, single: bool = False) -> None:
    """Print entries, each under a title; `single` prints the only one as an object of its own."""
    if as_json:
        values = [entry_json(entry) for entry in entries]
        print_json(values[0] if single else values)
        return
    screen = console()
    for entry in entries:
        _print_entry(screen, entry, full=full)


_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "yellow", "system": "magenta"}
LINES, WIDTH = 6, 600


def _print_entry(screen: Any, entry: Entry, *, full: bool) -> None:
    title = Text(no_wrap=True)
    title.append(f"{entry.seq:>5}  ", "dim")
    title.append(_who(entry), _STYLES.get(entry.role, ""))
    title.append(f"  {moment(entry.created_at)}", "dim")
    marks = [*_marks(entry)]
    if marks:
        title.append(f"  [{', '.join(marks)}]", "dim")
    screen.print(title, soft_wrap=True)
    text = "(damaged)" if entry.damaged else "(erased)" if entry.erased else clean(entry.text)
    shown, omitted = (text, 0) if full else _shortened(text)
    if shown:
        _print_indented(screen, Text(shown, "dim" if entry.role == "tool" else ""))
    if omitted:
        _print_indented(screen, Text(f"… {omitted:,} more characters: --entry {entry.seq}", "dim"))


def _print_indented(screen: Any, text: Any) -> None:
    """Print a text indented under an entry's title: wrapped on a terminal, elsewhere line by line as it is."""
    if on_terminal():
        screen.print(Padding(text, (0, 0, 0, 7)))
        return
    for piece in text.plain.split("\n"):
        click.echo(f"       {piece}")


def _who(entry: Entry) -> str:
    name = line(entry.name or "", 60)
    if entry.kind == "tool_call":
        return f"{entry.role} calls {name}"
    if entry.kind == "tool_result":
        return f"result of {name or 'a tool'}"
    if entry.kind == "context":
        return f"context {name}"
    return f"{entry.role} ({name})" if name else entry.role


def _marks(entry: Entry) -> Iterator[str]:
    if entry.call_id:
        yield line(entry.call_id, 40)
    if entry.status not in (None, "unknown"):
        yield str(entry.status)
    if entry.late:
        yield "late"
    if entry.kind == "tool_result" and not entry.answers:
        yield "answers no call"
    if entry.pinned:
        yield "pinned"
    if not isinstance(entry.content, str):
        parts = [type(part).__name__.lower() for part in entry.content]
        yield from sorted({part for part in parts if part != "text"})


def _shortened(text: str) -> tuple[str, int]:
    shown = "\n".join(text.split("\n")[:LINES])[:WIDTH]
    return shown, len(text) - len(shown)


@click.command("stats", epilog=examples("palimpsest stats support-7", "palimpsest stats support-7 --json"))
@session_argument
@click.option("--model", metavar="NAME", help="Count with this model's tokenizer. [default: o200k_base]")
@json_option
@store_options
def stats_command(store: str | None, tenant: str | None, as_json: bool, session: str, model: str | None) -> None:
    """Print figures of a session: entries, tokens, cuts and more. Texts that were never counted are counted now."""
    with open_to_note(store, tenant) as memory:
        figures = figures_of(memory.session(require(memory, session).session, model=model))
    if as_json:
        print_json(figures)
    else:
        print_figures(figures)


def print_figures(figures: dict[str, Any]) -> None:
    """Print a session's figures, one per line."""
    rows = table("", "", right=())
    rows.show_header = False
    for name, value in figures.items():
        rows.add_row(name.replace("_", " "), clean(_value_text(value)))
    console().print(rows)


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def figures_of(chat: Session) -> dict[str, Any]:
    """Return a session's figures as JSON values."""
    stats = chat.stats()
    values = msgspec.to_builtins(stats)
    values["usage"] = values["usage"] if stats.usage.calls else "never recorded"
    values["definition"] = values["definition"] or "not declared"
    values["spent"] = msgspec.structs.asdict(stats.spent) if stats.spent.calls else "nothing on summaries"
    return {"session": chat.id, "counter": chat.options.counter.name, **values}

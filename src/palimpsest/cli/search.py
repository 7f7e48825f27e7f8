"""`palimpsest search`: search everything that was said, archived entries included."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import click
from rich.padding import Padding
from rich.text import Text

from palimpsest.cli.app import Whole, examples, json_option, store_options
from palimpsest.cli.opening import open_to_note, require, session_ids
from palimpsest.cli.output import clean, console, counted, line, moment, note, on_terminal, print_json
from palimpsest.cli.sessions import TIME
from palimpsest.types import Kind, Passage, Recalled, Role

WIDTH = 300
"""About how many characters of a passage are shown without `--full`."""

EMBEDDER = click.option(
    "--embedder", metavar="NAME", help="Compare meanings, too, with this model: wordllama, minilm.  [default: none]"
)

_BLANKS = re.compile(r"\s+")


@click.command(
    "search",
    epilog=examples(
        "palimpsest search 'where did Ann go in May'",
        "palimpsest search '\"order 4417-B\"' --session support-7 --role user",
        "palimpsest search invoice --user ann --since 2026-11-01 --limit 5 --json",
    ),
)
@click.argument("query", metavar="QUERY")
@click.option(
    "--session",
    "sessions",
    metavar="SESSION",
    multiple=True,
    shell_complete=session_ids,
    help="Search only this session. Repeatable.",
)
@click.option("--user", metavar="ID", help="Search only sessions of this user.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(get_args(Kind)),
    multiple=True,
    help="Find only entries of this kind. Repeatable.",
)
@click.option(
    "--role",
    "roles",
    type=click.Choice(get_args(Role)),
    multiple=True,
    help="Find only entries of this role. Repeatable.",
)
@click.option(
    "--name", "names", metavar="NAME", multiple=True, help="Find only entries of this speaker or tool. Repeatable."
)
@click.option("--since", type=TIME, metavar="TIME", help="Find only what was written at or after this time, UTC.")
@click.option("--until", type=TIME, metavar="TIME", help="Find only what was written before this time, UTC.")
@click.option("--limit", type=Whole(1), metavar="N", default=10, show_default=True, help="Print at most N passages.")
@click.option(
    "--tokens", type=Whole(1), metavar="N", help="Print as many passages as fit into N tokens.  [default: no limit]"
)
@EMBEDDER
@click.option("--full", is_flag=True, help="Print whole passages, not only the text around the matches.")
@json_option
@store_options
def search_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    query: str,
    sessions: Sequence[str],
    user: str | None,
    kinds: Sequence[Kind],
    roles: Sequence[Role],
    names: Sequence[str],
    since: datetime | None,
    until: datetime | None,
    limit: int,
    tokens: int | None,
    embedder: str | None,
    full: bool,
) -> None:
    """Search everything that was said, and print the best passages.

    All sessions are searched, archived entries included. The best passage comes first. Words match by their stems.
    Words in double quotes are a phrase. What is new since the last search is indexed first.
    """
    first, last = (when and when.replace(tzinfo=UTC) for when in (since, until))
    with open_to_note(store, tenant, embedder=embedder) as memory:
        found = memory.recall(
            query,
            sessions=[require(memory, name).session for name in sessions] or None,
            user=user,
            max_tokens=tokens,
            limit=limit,
            kinds=kinds or None,
            roles=roles or None,
            names=names or None,
            since=first,
            until=last,
            neighbours=0,
        )
    if as_json:
        print_json(_as_json(found))
        return
    screen = console()
    for passage in found.hits:
        _print(screen, passage, full=full)
    if not found.found:
        note("Nothing was found.")
    elif found.left_out:
        passages = counted(found.left_out, "more passage" if found else "passage")
        note(f"{passages} had no room in {tokens:,} tokens.")


def _print(screen: Any, passage: Passage, *, full: bool) -> None:
    title = Text(no_wrap=True)
    title.append(f"{passage.score:4.2f}  ", "dim")
    title.append(line(passage.session), "bold")
    title.append(f"  {passage.seq}  ", "dim")
    title.append(_who(passage), "cyan")
    title.append(f"  {moment(passage.at)}", "dim")
    screen.print(title, soft_wrap=True)
    shown = _shown(passage, full=full)
    if on_terminal():
        screen.print(Padding(shown, (0, 0, 0, 6)))
    else:
        click.echo(f"      {shown.plain}")


def _who(passage: Passage) -> str:
    speaker = passage.role if passage.kind == "message" else passage.kind.replace("_", " ")
    return f"{speaker} ({line(passage.name, 60)})" if passage.name else speaker


def _shown(passage: Passage, *, full: bool) -> Text:
    """Return the passage on one line, with its matches highlighted; of a long one only the part with most of them."""
    start, end = (0, len(passage.text)) if full else _window(passage)
    shown = Text("… " if start + passage.start else "")
    for piece, is_match in _pieces(passage, start, end):
        shown.append(clean(_BLANKS.sub(" ", piece)), "bold yellow" if is_match else "")
    return shown.append(" …" if passage.start + end < passage.chars else "")


def _pieces(passage: Passage, start: int, end: int) -> Iterator[tuple[str, bool]]:
    """Yield the text from `start` to `end` in pieces, and for each piece whether it is a match."""
    at = start
    for first, last in passage.matched:
        if start <= first and last <= end:
            yield passage.text[at:first], False
            yield passage.text[first:last], True
            at = last
    yield passage.text[at:end], False


def _window(passage: Passage) -> tuple[int, int]:
    """Return the start and end of the part of a passage to show: the one with the most matches, at word boundaries."""
    length = len(passage.text)
    if length <= WIDTH:
        return 0, length
    starts = [max(first - WIDTH // 4, 0) for first, _ in passage.matched] or [0]
    start = max(starts, key=lambda start: sum(start <= first < start + WIDTH for first, _ in passage.matched))
    start = passage.text.rfind(" ", 0, start) + 1 if start else 0
    end = passage.text.find(" ", start + WIDTH)
    return start, end if end >= 0 else length


def _as_json(found: Recalled) -> dict[str, Any]:
    return {
        "found": found.found,
        "left_out": found.left_out,
        "tokens": found.tokens,
        "passages": [
            {
                "session": passage.session,
                "seq": passage.seq,
                "id": passage.id,
                "score": round(passage.score, 4),
                "kind": passage.kind,
                "role": passage.role,
                "name": passage.name,
                "created_at": passage.created_at.isoformat(),
                "text": passage.text,
                "start": passage.start,
                "end": passage.end,
                "matched": [list(span) for span in passage.matched],
            }
            for passage in found.hits
        ],
    }

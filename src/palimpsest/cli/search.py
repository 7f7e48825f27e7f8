"""`palimpsest search`: what was said, found again."""

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
"""Characters of a passage that are shown, unless all of them are asked for."""

EMBEDDER = click.option(
    "--embedder", metavar="NAME", help="A model that compares meanings, too: wordllama, minilm.  [default: none]"
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
    help="Only this session; may be given again.",
)
@click.option("--user", metavar="ID", help="Only sessions of this user.")
@click.option(
    "--kind", "kinds", type=click.Choice(get_args(Kind)), multiple=True, help="Only entries of this kind; again: or."
)
@click.option("--role", "roles", type=click.Choice(get_args(Role)), multiple=True, help="Only of this role; again: or.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="Only from this speaker or tool; again: or.")
@click.option("--since", type=TIME, metavar="TIME", help="Only what was written since then, UTC.")
@click.option("--until", type=TIME, metavar="TIME", help="Only what was written before then.")
@click.option("--limit", type=Whole(1), metavar="N", default=10, show_default=True, help="At most so many.")
@click.option("--tokens", type=Whole(1), metavar="N", help="As many as have room in N tokens.  [default: no limit]")
@EMBEDDER
@click.option("--full", is_flag=True, help="Whole passages, not what stands around the words.")
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
    """Find what was said about QUERY in all sessions, archived entries included, the best passages first.

    Words count by their stems; words in double quotes are a phrase. What is new since the last search is indexed first.
    """
    first, last = (when and when.replace(tzinfo=UTC) for when in (since, until))
    with open_to_note(store, tenant, embedder=embedder) as memory:
        found = memory.recall(
            query,
            sessions=[require(memory, one).session for one in sessions] or None,
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
        what = counted(found.left_out, "more passage" if found else "passage")
        note(f"{what} had no room in {tokens:,} tokens.")


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
    what = passage.role if passage.kind == "message" else passage.kind.replace("_", " ")
    return f"{what} ({line(passage.name, 60)})" if passage.name else what


def _shown(passage: Passage, *, full: bool) -> Text:
    """The passage on one line, what was asked for marked; where it is long, what stands around most of that."""
    start, end = (0, len(passage.text)) if full else _window(passage)
    shown = Text("… " if start + passage.start else "")
    for piece, is_match in _pieces(passage, start, end):
        shown.append(clean(_BLANKS.sub(" ", piece)), "bold yellow" if is_match else "")
    return shown.append(" …" if passage.start + end < passage.chars else "")


def _pieces(passage: Passage, start: int, end: int) -> Iterator[tuple[str, bool]]:
    """The text between two places, cut where a word that was asked for begins or ends."""
    at = start
    for first, last in passage.matched:
        if start <= first and last <= end:
            yield passage.text[at:first], False
            yield passage.text[first:last], True
            at = last
    yield passage.text[at:end], False


def _window(passage: Passage) -> tuple[int, int]:
    """Where the part begins and ends that is shown of a passage: the one with the most that was asked for."""
    most = len(passage.text)
    if most <= WIDTH:
        return 0, most
    begins = [max(first - WIDTH // 4, 0) for first, _ in passage.matched] or [0]
    start = max(begins, key=lambda begin: sum(begin <= first < begin + WIDTH for first, _ in passage.matched))
    start = passage.text.rfind(" ", 0, start) + 1 if start else 0
    end = passage.text.find(" ", start + WIDTH)
    return start, end if end >= 0 else most


def _as_json(found: Recalled) -> dict[str, Any]:
    return {
        "found": found.found,
        "left_out": found.left_out,
        "tokens": found.tokens,
        "passages": [
            {
                "session": one.session,
                "seq": one.seq,
                "id": one.id,
                "score": round(one.score, 4),
                "kind": one.kind,
                "role": one.role,
                "name": one.name,
                "created_at": one.created_at.isoformat(),
                "text": one.text,
                "start": one.start,
                "end": one.end,
                "matched": [list(place) for place in one.matched],
            }
            for one in found.hits
        ],
    }

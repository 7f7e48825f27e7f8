"""`palimpsest history`, `diff`, `fork` and `rewind`: list a session's changes, compare contexts, branch, go back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from rich.text import Text

from palimpsest.cli.app import Whole, examples, json_option, store_options
from palimpsest.cli.opening import named_entry, open_memory, require, session_argument
from palimpsest.cli.output import clean, console, counted, line, moment, note, print_json, table
from palimpsest.log.entry import moment as time_of

if TYPE_CHECKING:
    from palimpsest import Context, Entry, Memory, Session
    from palimpsest.types import FormatName, Record

Message = dict[str, Any]


# --- history


@click.command(
    "history",
    epilog=examples("palimpsest history support-7", "palimpsest history support-7 --after 40 --json"),
)
@session_argument
@click.option("--after", type=Whole(0), default=0, metavar="REVISION", help="List only what came after this revision.")
@click.option("--before", type=Whole(1), metavar="REVISION", help="List only what came before this revision.")
@json_option
@store_options
def history_command(
    store: str | None, tenant: str | None, as_json: bool, session: str, after: int, before: int | None
) -> None:
    """List the changes of a session, oldest first.

    Changes are additions, cuts, erasures, pins, rewinds and others, each with its time and reason. Each has a revision,
    which `context --at`, `show --at`, `diff`, `fork --at` and `rewind --to` take.
    """
    with open_memory(store, tenant) as memory:
        records = memory.session(require(memory, session).session, readonly=True).history(after=after, before=before)
    if as_json:
        print_json([_record_json(record) for record in records])
        return
    rows = table("revision", "time", "what", "entries", "why", right=("revision",))
    for record in records:
        rows.add_row(str(record.revision), moment(record.at), record.kind, _seq_list(record.seqs), line(_why(record)))
    console().print(rows)


def _record_json(record: Record) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(record)
    return {**values, "at": time_of(record.at).isoformat()}


def _seq_list(seqs: Sequence[int]) -> str:
    """Return the seqs as text, with runs as ranges: `1 to 6, 9`. Of more than 8 runs the rest is left out."""
    runs: list[list[int]] = []
    for seq in seqs:
        if runs and seq == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], seq]
        else:
            runs.append([seq])
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return ", ".join(ranges[:8]) + (", …" if len(ranges) > 8 else "")


def _why(record: Record) -> str:
    """Return a record's reason, with its view, unless that is the main one, and its figures that are not 0."""
    view = f"view {record.view}: " if record.view not in ("", "main") else ""
    figures = {name: value for name, value in record.detail.items() if isinstance(value, int) and value}
    detail = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in figures.items())
    return f"{view}{record.reason}" + (f" ({detail})" if detail else "")


# --- diff


class Hunk(NamedTuple):
    """A run of messages in a diff: either `kept` messages in both, or those removed and those added in their place.

    Removed and added messages come with their indexes in the old and the new context.
    """

    kept: int
    removed: list[tuple[int, Message]]
    added: list[tuple[int, Message]]


@click.command(
    "diff",
    epilog=examples(
        "palimpsest diff support-7 40 52", "palimpsest diff support-7 40 52 --view small --format anthropic --json"
    ),
)
@session_argument
@click.argument("rev1", type=Whole(0), metavar="REV1")
@click.argument("rev2", type=Whole(0), metavar="REV2")
@click.option("--view", metavar="NAME", default="main", show_default=True, help="View of the session to use.")
@click.option("--format", metavar="NAME", default="openai", show_default=True, help="Provider format of the messages.")
@click.option("--full", is_flag=True, help="Print whole messages, not only their beginnings.")
@json_option
@store_options
def diff_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    rev1: int,
    rev2: int,
    view: str,
    format: FormatName,
    full: bool,
) -> None:
    """Compare what the model was given at two revisions.

    REV1 and REV2 are revisions, which `palimpsest history` lists. What happened in between is shown, too.

    Messages of both are counted. The others are listed: `-` was given at REV1 only, `+` at REV2 only.
    """
    with open_memory(store, tenant) as memory:
        chat = memory.session(require(memory, session).session, readonly=True, view=view, format=format)
        before, after = (chat.context(at=revision) for revision in (rev1, rev2))
        between = [record for record in _between(chat, rev1, rev2) if record.kind != "add"]
    changes = list(changed(before.messages, after.messages))
    if as_json:
        print_json(_diff_json(before, after, changes, between))
        return
    _print_diff(before, after, changes, between, width=0 if full else 100)


def _between(chat: Session, rev1: int, rev2: int) -> list[Record]:
    return chat.history(after=min(rev1, rev2), before=max(rev1, rev2) + 1)


def changed(before: Sequence[Message], after: Sequence[Message]) -> Iterator[Hunk]:
    """Yield the hunks that turn `before` into `after`, in order. Messages are equal if their JSON is."""
    left, right = ([json.dumps(message, sort_keys=True) for message in messages] for messages in (before, after))
    for opcode, i1, i2, j1, j2 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if opcode == "equal":
            yield Hunk(i2 - i1, [], [])
        else:
            yield Hunk(0, list(enumerate(before[i1:i2], i1)), list(enumerate(after[j1:j2], j1)))


def _side(context: Context) -> dict[str, Any]:
    return {"revision": context.revision, "messages": len(context.messages), "tokens": context.tokens}


def _diff_json(before: Context, after: Context, changes: list[Hunk], between: list[Record]) -> dict[str, Any]:
    return {
        "from": _side(before),
        "to": _side(after),
        "same_prefix": _same_prefix(changes),
        "changes": [
            {"kept": change.kept}
            if change.kept
            else {
                "removed": [{"index": i, "message": message} for i, message in change.removed],
                "added": [{"index": i, "message": message} for i, message in change.added],
            }
            for change in changes
        ],
        "records": [_record_json(record) for record in between],
    }


def _same_prefix(changes: list[Hunk]) -> int:
    """Return how many messages both contexts begin with: what a provider's cache may have kept."""
    return changes[0].kept if changes else 0


def _print_diff(before: Context, after: Context, changes: list[Hunk], between: list[Record], *, width: int) -> None:
    screen = console()
    for sign, side in (("-", _side(before)), ("+", _side(after))):
        size = f"{counted(side['messages'], 'message')}, {side['tokens']:,} tokens"
        screen.print(Text(f"{sign} revision {side['revision']}: {size}", "bold"))
    for record in between:
        screen.print(Text(clean(f"  {record.kind} at revision {record.revision}: {_why(record)}"), "yellow"))
    for change in changes:
        if change.kept:
            screen.print(Text(f"  {counted(change.kept, 'message')} alike", "dim"))
        for sign, style, messages in (("-", "red", change.removed), ("+", "green", change.added)):
            for i, message in messages:
                screen.print(Text(f"{sign} {i}  {_shown(message, width)}", style))
    if not any(change.removed or change.added for change in changes):
        note("The model was given the same at both revisions.")


def _shown(message: Message, width: int) -> str:
    role = message.get("role") or message.get("type") or message.get("section") or ""
    rest = {key: value for key, value in message.items() if key not in ("role", "section")}
    single = next(iter(rest.values())) if len(rest) == 1 else None
    body = single if isinstance(single, str) else json.dumps(rest, ensure_ascii=False)
    return line(f"{role}: {body}", width) if width else clean(f"{role}: {body}")


# --- going back


@click.command(
    "fork",
    epilog=examples("palimpsest fork support-7 support-7-retry", "palimpsest fork support-7 retry --at 40"),
)
@session_argument
@click.argument("branch", required=False, metavar="[NEW]")
@click.option(
    "--at",
    type=Whole(0),
    metavar="REVISION",
    help="Branch off SESSION as it was at this revision; `palimpsest history` lists revisions. [default: now]",
)
@click.option("--behind", metavar="ENTRY", help="Branch off right behind this entry: its number, or its id.")
@json_option
@store_options
def fork_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    branch: str | None,
    at: int | None,
    behind: str | None,
) -> None:
    """Make a session NEW that branches off SESSION. Without NEW its id is generated. Both go on independently.

    They share the entries from before the fork: if you erase one of these, it is erased in both.
    """
    _one_point(at, behind)
    with open_memory(store, tenant, write=True) as memory:
        session = require(memory, session).session
        when = at if behind is None else _entry(memory, session, behind)
        forked = memory.session(session).fork(branch, at=when)
        info = memory.info(forked.id)
    if as_json:
        print_json({"session": forked.id, "entries": info.entries, "revision": info.revision})
        return
    click.echo(line(forked.id))
    note(f"It holds {counted(info.entries, 'entry')} of {line(session)}.")


@click.command(
    "rewind",
    epilog=examples("palimpsest rewind support-7 --to 40", "palimpsest rewind support-7 --behind 12"),
)
@session_argument
@click.option(
    "--to", type=Whole(0), metavar="REVISION", help="Go back to this revision; `palimpsest history` lists revisions."
)
@click.option("--behind", metavar="ENTRY", help="Go back to right behind this entry: its number, or its id.")
@json_option
@store_options
def rewind_command(
    store: str | None, tenant: str | None, as_json: bool, session: str, to: int | None, behind: str | None
) -> None:
    """Go back to an earlier state of SESSION.

    What came after is hidden, not destroyed: rewinding to a later revision restores it.
    """
    _one_point(to, behind)
    if to is None and behind is None:
        raise click.UsageError("give --to REVISION or --behind ENTRY; `palimpsest history` lists revisions")
    with open_memory(store, tenant, write=True) as memory:
        info = require(memory, session)
        session, before = info.session, info.revision
        when = to if behind is None else _entry(memory, session, behind)
        assert when is not None, "one of the two was given"
        hidden = memory.session(session).rewind(when)
        info = memory.info(session)
    if as_json:
        print_json({"session": session, "taken_back": hidden, "entries": info.entries, "revision": info.revision})
        return
    click.echo(f"Took back {counted(hidden, 'entry')}; {line(session)} holds {counted(info.entries, 'entry')}.")
    if info.revision > before:
        note(f"`palimpsest rewind {shlex.quote(session)} --to {before}` restores them.")


def _one_point(revision: int | None, entry: str | None) -> None:
    if revision is not None and entry is not None:
        raise click.UsageError("give either a revision or an entry, not both")


def _entry(memory: Memory, session: str, name: str) -> Entry:
    """Return the entry that `--behind` names. The session is opened read-only, so that the strategy `lru` does not
    count this as an access to the entry."""
    return named_entry(memory.session(session, readonly=True), name)

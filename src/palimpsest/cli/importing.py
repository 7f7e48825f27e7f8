"""`palimpsest import`: add conversations from files to sessions; repeating an import adds nothing."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from msgspec.structs import replace
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from palimpsest import ConfigError, ImportFailed, Memory
from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import clean, console, counted, line, note, on_terminal, print_json, progress_bar, table
from palimpsest.sessions.importing.report import Imported, ImportReport, Refused
from palimpsest.transfer.sources import NAMES

MANY = 20
"""The most sessions of a file that are listed; more of them are summed up in one line."""

_EMPTY = ImportReport(source="", format=None, sessions={})


@click.command(
    "import",
    epilog=examples(
        "palimpsest import chat.jsonl --session support-7",
        "palimpsest import chatgpt-export.zip",
        "palimpsest import conversations.json --from claude --branches",
        "palimpsest import agents.db --from openai-agents",
        "palimpsest import requests.jsonl --format anthropic",
        "cat chat.jsonl | palimpsest import - --session support-7",
        "palimpsest import *.jsonl --strict --json",
        "palimpsest import huge.json --limit value=1000000000",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--from", "source", metavar="SOURCE", default="auto", help=f"Kind of the files: {', '.join(NAMES)}.")
@click.option("--format", metavar="FORMAT", help="Format of provider messages. [default: recognised from the messages]")
@click.option(
    "--session", metavar="ID", help="Import into this session. [default: the conversation's id, or the file's name]"
)
@click.option("--key", metavar="TEXT", help="Import the same messages once more, under another key.")
@click.option("--branches", is_flag=True, help="Make edits and regenerated answers sessions of their own.")
@click.option("--strict", is_flag=True, help="Stop at the first fault, and store nothing of its file.")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=NUMBER", help="Change a limit that an error names. Repeatable."
)
@json_option
@store_options
def import_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    files: tuple[str, ...],
    source: str,
    format: str | None,
    session: str | None,
    key: str | None,
    branches: bool,
    strict: bool,
    limits: tuple[str, ...],
) -> None:
    """Add conversations from files to sessions. Importing a file again adds nothing.

    FILE is JSON or JSON lines of provider messages, an export of Palimpsest, of ChatGPT or of Claude (the archive,
    or the conversations.json inside), a database of the OpenAI Agents SDK, or messages that LangChain or
    Pydantic AI wrote; `-` is standard input. The kind of file is recognised from its content.

    Malformed items are reported with their place, the rest is imported, and the exit status is 1.
    """
    for path in files:
        _check_readable(path)
    options: dict[str, Any] = {"source": source, "format": format, "session_id": session, "key": key}
    options |= {"branches": branches, "limits": _limits(limits)}
    reports: list[tuple[str, ImportReport]] = []
    with open_memory(store, tenant, create=True) as memory:
        for path in files:
            report = _import_file(memory, path, {**options, "strict": strict})
            reports.append((path, report))
            for refused in report.refused:
                _tell(path, refused)
            if strict and report.refused:
                break
    if as_json:
        print_json([_as_json(path, report) for path, report in reports])
    else:
        _print(reports)
    if any(report.refused for _, report in reports):
        click.get_current_context().exit(1)


def _limits(given: tuple[str, ...]) -> dict[str, int]:
    """Parse the values of `--limit`. Raises a usage error for one that is not NAME=NUMBER."""
    limits = {}
    for option in given:
        name, _, number = option.partition("=")
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise click.UsageError(f"--limit {clean(option)}: give a name and a whole number, as in value=1000000000")
        limits[name] = int(number)
    return limits


def _check_readable(path: str) -> None:
    """Raise a usage error for a file that cannot be read, before anything is imported.

    The file is not opened: if this process has it open as an SQLite database, closing a second descriptor of it would
    drop SQLite's POSIX locks.
    """
    try:
        if path != "-" and stat.S_ISDIR(os.stat(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path != "-" and not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as fault:
        raise click.UsageError(f"{path}: {fault.strerror}") from fault


def _import_file(memory: Memory, path: str, options: dict[str, Any]) -> ImportReport:
    with _progress(path) as progress:
        try:
            return memory.import_file(sys.stdin.buffer if path == "-" else path, progress=progress, **options)
        except ImportFailed as failed:
            return _failed(path, failed)
        except ConfigError as fault:
            if fault.where != "session_id" or fault.found is not None:
                raise
            hint = f"{path}: its messages name no session; give --session ID"
            raise click.UsageError(hint) from fault


def _failed(path: str, failed: ImportFailed) -> ImportReport:
    """Return the report on a file of which nothing was imported."""
    place = "" if failed.where in (os.path.basename(path), "the file") else failed.where
    return replace(_EMPTY, refused=(Refused(place.removeprefix("line "), failed.reason),))


def _tell(path: str, refused: Refused) -> None:
    separator = ":" if refused.place[:1].isdecimal() else ": " if refused.place else ""
    note(f"{path}{separator}{refused.place}: {refused.reason}")


@contextmanager
def _progress(path: str) -> Iterator[Callable[[int, int | None], object]]:
    """Show a progress bar for a file of 1 MiB or more, if standard error is a terminal.

    Yields a function that is called with the bytes that are done and, where known, the total.
    """
    size = os.path.getsize(path) if path != "-" else 0
    if size < 1 << 20 or not on_terminal(sys.stderr):
        yield lambda _, __: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as shown:
        task = shown.add_task(clean(os.path.basename(path)), total=size)
        yield lambda done, total: shown.update(task, completed=done, total=total or size)


def _print(reports: list[tuple[str, ImportReport]]) -> None:
    rows = table("file", "session", "added", "already there", "refused", right=("added", "already there", "refused"))
    for path, report in reports:
        refused = f"{len(report.refused):,}"
        for name, imported in _listed(report):
            figures = (f"{imported.added:,}", f"{imported.already_there:,}") if imported else ("0", "0")
            rows.add_row(line(path), line(name), *figures, refused)
            refused = ""
    console().print(rows)
    for path, report in reports:
        if report.source and (report.source, report.format) != ("messages", "openai"):
            written = f", written in {report.format}" if report.format else ""
            note(f"{line(path)}: read as {report.source}{written}")
        for reason, count in report.left_out.items():
            note(f"{line(path)}: left out: {count:,} {reason}")


def _listed(report: ImportReport) -> list[tuple[str, Imported | None]]:
    """Return the sessions of a file as the table lists them: each, or if there are many a single line for all."""
    sessions = report.sessions
    if not sessions:
        return [("-", None)]
    if len(sessions) <= MANY:
        return list(sessions.items())
    added, already = (sum(getattr(done, name) for done in sessions.values()) for name in ("added", "already_there"))
    return [(counted(len(sessions), "session"), Imported(added, already))]


def _as_json(path: str, report: ImportReport) -> dict[str, Any]:
    sessions = [
        {"session": name, "added": imported.added, "already_there": imported.already_there}
        | ({"title": imported.title} if imported.title else {})
        for name, imported in report.sessions.items()
    ]
    return {
        "file": path,
        "source": report.source or None,
        "format": report.format,
        "sessions": sessions,
        "refused": [{"place": refused.place, "reason": refused.reason} for refused in report.refused],
        "left_out": report.left_out,
    }

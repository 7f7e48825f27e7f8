"""`palimpsest memory`: a declared memory by its keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import click

from palimpsest.cli.app import CommandGroup, Number, Whole, examples, expect_somebody, json_option
from palimpsest.cli.defined import expect_memory
from palimpsest.cli.failing import Conflicting, InputRefused, Missing, OperationFailed
from palimpsest.cli.opening import resolve
from palimpsest.cli.output import console, counted, line, moment, note, print_json, table
from palimpsest.cli.sessions import entry_json
from palimpsest.errors import StoreCorrupt
from palimpsest.resources import DeclaredMemory, KeyStats, Resources
from palimpsest.types import CompactionResult

F = TypeVar("F", bound=Callable[..., Any])

FAILURES = ("failed", "empty", "conflict")
"""Why nothing was flushed, where something went wrong."""


@click.group(
    "memory",
    cls=CommandGroup,
    epilog=examples(
        "palimpsest memory append chat user:ann 'Hello.' --config memory/",
        "palimpsest memory read chat user:ann --limit 10 --json --config memory/",
        "palimpsest memory flush chat 'user:*' --dry-run --config memory/",
        "palimpsest memory clear chat user:ann --backup --config memory/",
    ),
)
def memory_command() -> None:
    """Read and change declared memories by their keys.

    REF is the id of a memory that is declared in --config, KEY one of its keys. Where KEY is a pattern, `*` in it
    stands for any characters. Where the memory is kept, and what may not be kept there, is declared, too.
    """


def keyed(verb: F) -> F:
    """The arguments and options that each of these commands has."""
    for decorate in (
        json_option,
        click.option(
            "--tenant",
            metavar="NAME",
            default=lambda: resolve(None, None)[1],
            help="The tenant whose sessions are meant. [default: default]",
        ),
        click.option(
            "--config",
            metavar="FILE|FOLDER",
            envvar="PALIMPSEST_CONFIG",
            show_envvar=True,
            required=True,
            help="Where the memory is declared.",
        ),
        click.argument("key", metavar="KEY"),
        click.argument("ref", metavar="REF"),
    ):
        verb = decorate(verb)
    return verb


most = click.option(
    "--max-keys", type=Whole(0, 10_000), default=0, metavar="N", help="The most keys of a pattern; 0: 1000."
)
yes = click.option("--yes", is_flag=True, help="Do not ask.")
payload = click.argument("text", required=False, metavar="[TEXT]")
file = click.option(
    "--file",
    type=click.File(encoding="utf-8"),
    help="JSON: a text, a message, or a list of messages; - for standard input.",
)


@contextmanager
def opened(config: str, ref: str, tenant: str) -> Iterator[DeclaredMemory]:
    """The declared memory, open."""
    with Resources.load(config, tenant=tenant) as resources:
        expect_memory(resources, ref, config)
        yield resources.keyed(ref)


def given(text: str | None, file: TextIO | None) -> object:
    """What is to be written: the text, or what a file has."""
    if (text is None) == (file is None):
        raise click.UsageError("give TEXT or --file, one of the two")
    if file is None:
        return text
    try:
        return json.loads(file.read())
    except ValueError as fault:
        raise InputRefused(f"{file.name} is no JSON: {fault}") from fault
    except RecursionError as fault:
        raise InputRefused(f"{file.name} is nested too deeply") from fault


@memory_command.command("read", epilog=examples("palimpsest memory read chat user:ann --offset 10 --limit 5"))
@keyed
@click.option("--offset", type=Whole(0), default=0, metavar="N", help="How many of the oldest are passed over.")
@click.option("--limit", type=Whole(0), metavar="N", help="The most messages.  [default: all]")
def read_command(ref: str, key: str, config: str, tenant: str, as_json: bool, offset: int, limit: int | None) -> None:
    """Print what is active under KEY, oldest first."""
    with opened(config, ref, tenant) as memory:
        page = memory.read(key, offset=offset, limit=limit)
    if as_json:
        where = {"offset": offset, "limit": limit, "has_more": offset + len(page.entries) < page.total}
        print_json({"key": key, "messages": list(map(entry_json, page.entries)), "total": page.total, **where})
        return
    for one in page.entries:
        click.echo(f"{one.role}: {line(one.text)}")
    note(f"{len(page.entries)} of {counted(page.total, 'message')}")


@memory_command.command("append", epilog=examples("palimpsest memory append chat user:ann 'Hello.' --config memory/"))
@keyed
@payload
@file
def append_command(
    ref: str, key: str, config: str, tenant: str, as_json: bool, text: str | None, file: TextIO | None
) -> None:
    """Add TEXT, said by the user, or the messages of a file, under KEY."""
    messages = given(text, file)
    with opened(config, ref, tenant) as memory:
        added = memory.append(key, messages)
    _tell(as_json, {"key": key, "added": added}, f"Added {counted(added, 'message')}.")


@memory_command.command("write", epilog=examples("palimpsest memory write chat user:ann --file chat.json"))
@keyed
@payload
@file
def write_command(
    ref: str, key: str, config: str, tenant: str, as_json: bool, text: str | None, file: TextIO | None
) -> None:
    """Let TEXT, or the messages of a file, be what is active under KEY. What that leaves out goes to the archive."""
    messages = given(text, file)
    with opened(config, ref, tenant) as memory:
        written = memory.write(key, messages)
    _tell(as_json, {"key": key, "written": written}, f"{counted(written, 'message')} now under {line(key)}.")


@memory_command.command("flush", epilog=examples("palimpsest memory flush chat 'user:*' --dry-run"))
@keyed
@click.option("--strategy", metavar="NAME", help="simple_fifo, lru, hybrid_summary or token_aware_lru.")
@click.option("--dry-run", is_flag=True, help="Show what would leave, and change nothing.")
@click.option("--force", is_flag=True, help="Also below the threshold.")
@click.option("--threshold", type=Number(0, 1), metavar="SHARE", help="The share of the limit from which it is due.")
@most
def flush_command(
    ref: str,
    key: str,
    config: str,
    tenant: str,
    as_json: bool,
    strategy: str | None,
    dry_run: bool,
    force: bool,
    threshold: float | None,
    max_keys: int,
) -> None:
    """Let old messages under KEY leave for the archive, where the limits say so."""
    with opened(config, ref, tenant) as memory:
        found = memory.flush(
            key, strategy=strategy, dry_run=dry_run, force=force, threshold=threshold, max_keys=max_keys
        )
    _expect(found, key)
    if as_json:
        print_json({one: _told_of(done) for one, done in found.items()})
        _end_of(found)
        return
    rows = table("key", "strategy", "messages", "tokens", "why not", right=("messages", "tokens"))
    for one, done in found.items():
        messages, tokens = (
            f"{done.messages_before:,} → {done.messages_after:,}",
            f"{done.tokens_before:,} → {done.tokens_after:,}",
        )
        rows.add_row(line(one), done.strategy, messages, tokens, done.reason or "-")
    console().print(rows)
    _end_of(found)


@memory_command.command("clear", epilog=examples("palimpsest memory clear chat user:ann --backup --yes"))
@keyed
@click.option("--backup", is_flag=True, help="First store a copy, as a session of its own.")
@yes
@most
def clear_command(
    ref: str, key: str, config: str, tenant: str, as_json: bool, backup: bool, yes: bool, max_keys: int
) -> None:
    """Destroy all that was said under KEY. The session stays."""
    with opened(config, ref, tenant) as memory:
        _confirm(memory, key, as_json, max_keys, yes=yes)
        cleared = memory.clear(key, confirm=True, backup=backup, max_keys=max_keys)
    _expect(cleared.entries or cleared.failed, key)
    took = sum(cleared.entries.values())
    told = f"Destroyed {counted(took, 'entry')} under {counted(len(cleared.entries), 'key')}."
    data = {"entries": dict(cleared.entries), "backups": dict(cleared.backups), "failed": dict(cleared.failed)}
    _tell(as_json, data, told)
    for one, copy in () if as_json else cleared.backups.items():
        note(f"the copy of {line(one)} is the session {line(copy)}")
    _end_with(cleared.failed)


@memory_command.command("delete", epilog=examples("palimpsest memory delete chat user:ann --yes"))
@keyed
@yes
@most
def delete_command(ref: str, key: str, config: str, tenant: str, as_json: bool, yes: bool, max_keys: int) -> None:
    """Destroy KEY, and all that was said under it."""
    with opened(config, ref, tenant) as memory:
        _confirm(memory, key, as_json, max_keys, yes=yes)
        gone = memory.delete(key, max_keys=max_keys)
    _expect(gone, key)
    _tell(as_json, {"deleted": gone}, f"Deleted {counted(gone, 'key')}.")


@memory_command.command("stats", epilog=examples("palimpsest memory stats chat 'user:*' --json"))
@keyed
@most
def stats_command(ref: str, key: str, config: str, tenant: str, as_json: bool, max_keys: int) -> None:
    """Print how much is under KEY: messages by role, tokens, and how much of the limit that is."""
    with opened(config, ref, tenant) as memory:
        found = memory.stats(key, max_keys=max_keys)
    _expect(found, key)
    if as_json:
        print_json({one: _as_json(stats) for one, stats in found.items()})
        return
    rows = table("key", "messages", "tokens", "of limit", "archived", "last flush (UTC)", right=("messages", "tokens"))
    for one, stats in found.items():
        used = "-" if stats.utilization is None else f"{stats.utilization:.0%}"
        flushed = "-" if stats.last_flush is None else moment(stats.last_flush)
        rows.add_row(line(one), f"{stats.messages:,}", f"{stats.tokens:,}", used, f"{stats.archived:,}", flushed)
    console().print(rows)


@memory_command.command("health", epilog=examples("palimpsest memory health chat '*'"))
@keyed
@most
def health_command(ref: str, key: str, config: str, tenant: str, as_json: bool, max_keys: int) -> None:
    """Write, read and delete something in the store, and tell which keys are near their limit."""
    with opened(config, ref, tenant) as memory:
        health = memory.health(key, max_keys=max_keys)
    near, failed = list(health.near_limit), dict(health.failed)
    told = {"works": health.works, "error": health.error, "near_limit": near, "failed": failed}
    _tell(as_json, told, "The store works." if health.works else f"The store does not work: {line(str(health.error))}")
    for one in () if as_json else health.near_limit:
        note(f"{line(one)} is near its limit")
    for one, why in () if as_json else health.failed.items():
        note(f"{line(one)} cannot be read: {line(why)}")
    if not health.works:
        click.get_current_context().exit(5)
    _end_with(health.failed)


def _tell(as_json: bool, data: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(data)
    else:
        click.echo(text)


def _told_of(done: CompactionResult) -> dict[str, Any]:
    """What became of a key."""
    figures = ("messages_before", "messages_after", "tokens_before", "tokens_after", "tokens_saved")
    names = ("strategy", "reason", "why", "dry_run", *figures)
    return {name: getattr(done, name) for name in names} | {"summary": done.summary.id if done.summary else None}


def _end_of(found: Mapping[str, CompactionResult]) -> None:
    """End a flush with the status of what failed, or of what another flush has kept waiting, where that was so."""
    failed = {one: done.why or str(done.reason) for one, done in found.items() if done.reason in FAILURES}
    if failed:
        raise OperationFailed(
            f"nothing was changed under {', '.join(map(line, failed))}: {next(iter(failed.values()))}"
        )
    if pending := [one for one, done in found.items() if done.reason == "pending"]:
        raise Conflicting(f"another flush is under way of {', '.join(map(line, pending))}")


def _end_with(failed: Collection[str]) -> None:
    """End with the status of what failed, where a key did; the log has told which and why."""
    if failed:
        click.get_current_context().exit(1)


def _expect(found: object, key: str) -> None:
    """Raise Missing where nothing is there of a key that is no pattern."""
    if not found and "*" not in key:
        raise Missing(f"there is nothing under {line(key)}")


def _confirm(memory: DeclaredMemory, key: str, as_json: bool, max_keys: int, *, yes: bool) -> None:
    if yes:
        return
    expect_somebody(as_json, instead="--yes")
    meant = memory.keys(key, max_keys=max_keys)
    try:
        found = memory.stats(key, max_keys=max_keys)
    except StoreCorrupt:
        found = {}
    held = sum(stats.messages + stats.archived for stats in found.values())
    click.echo(f"{counted(len(meant), 'key')}: {', '.join(map(line, meant))}")
    hidden = [one for one in meant if one not in found]
    more = f", and all that is under {', '.join(map(line, hidden))}, which cannot be read" if hidden else ""
    click.confirm(f"Destroy {counted(held, 'entry')}{more}? It cannot be undone.", abort=True)


def _as_json(stats: KeyStats) -> dict[str, Any]:
    flushed = None if stats.last_flush is None else stats.last_flush.isoformat()
    named = {name: getattr(stats, name) for name in ("messages", "tokens", "limit", "utilization", "archived")}
    return {**named, "roles": dict(stats.roles), "last_flush": flushed}

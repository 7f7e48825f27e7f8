"""`palimpsest memory`: read and change a declared memory by its keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TextIO, TypeVar

import click

from palimpsest.cli.app import CommandGroup, Number, Whole, confirm, examples, json_option, require_interactive
from palimpsest.cli.defined import expect_memory
from palimpsest.cli.failing import InputRefused
from palimpsest.cli.opening import resolve
from palimpsest.cli.outcomes import each, exit_if_any, expect, print_each, raise_for_each, raise_if_failed
from palimpsest.cli.output import console, counted, line, moment, note, print_json, table
from palimpsest.errors import PalimpsestError, StoreCorrupt
from palimpsest.resources import DeclaredMemory, Resources
from palimpsest.resources.answering_sync import Answers
from palimpsest.resources.replies import (
    UNWRITTEN,
    append_reply,
    clear_reply,
    delete_reply,
    flush_reply,
    health_reply,
    page_reply,
    stats_reply,
    write_reply,
)

F = TypeVar("F", bound=Callable[..., Any])


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

    REF is the id of a memory that is declared in --config, KEY one of its keys. Where KEY may be a pattern, `*` in it
    stands for any characters. The declaration also says where the memory is stored, and which privacy policy it has.
    """


def keyed(verb: F) -> F:
    """Add the arguments and options that all these commands have."""
    for decorate in (
        json_option,
        click.option(
            "--tenant",
            metavar="NAME",
            default=lambda: resolve(None, None)[1],
            help="Tenant that the sessions belong to. [default: default]",
        ),
        click.option(
            "--config",
            metavar="FILE|FOLDER",
            envvar="PALIMPSEST_CONFIG",
            show_envvar=True,
            required=True,
            help="File or folder that declares the memory.",
        ),
        click.argument("key", metavar="KEY"),
        click.argument("ref", metavar="REF"),
    ):
        verb = decorate(verb)
    return verb


max_keys_option = click.option(
    "--max-keys",
    type=Whole(0, 10_000),
    default=0,
    metavar="N",
    help="Act on at most N keys that match a pattern; 0: 1000.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
text_argument = click.argument("text", required=False, metavar="[TEXT]")
file_option = click.option(
    "--file",
    type=click.File(encoding="utf-8"),
    help="JSON: a text, a message, or a list of messages; - for standard input.",
)


@contextmanager
def opened(config: str, ref: str, tenant: str) -> Iterator[DeclaredMemory]:
    """Open the declared memory. Raises Missing if no memory with this id is declared."""
    with Resources.load(config, tenant=tenant) as resources:
        expect_memory(resources, ref, config)
        yield resources.keyed(ref)


def payload(text: str | None, file: TextIO | None) -> object:
    """Return what to write: the text, or the JSON value in the file. Raises a usage error for none or both of them."""
    if (text is None) == (file is None):
        raise click.UsageError("give either TEXT or --file")
    if file is None:
        return text
    try:
        return json.loads(file.read().removeprefix("\ufeff"))  # the byte order mark that some editors write
    except ValueError as fault:
        raise InputRefused(f"{file.name} is not valid JSON: {fault}") from fault
    except RecursionError as fault:
        raise InputRefused(f"{file.name} is nested too deeply") from fault


@memory_command.command("read", epilog=examples("palimpsest memory read chat user:ann --offset 10 --limit 5"))
@keyed
@click.option("--offset", type=Whole(0), default=0, metavar="N", help="Skip the N oldest messages.")
@click.option("--limit", type=Whole(0), metavar="N", help="Print at most N messages.  [default: all]")
def read_command(ref: str, key: str, config: str, tenant: str, as_json: bool, offset: int, limit: int | None) -> None:
    """Print the active messages under KEY, oldest first."""
    with opened(config, ref, tenant) as memory:
        page = memory.read(key, offset=offset, limit=limit)
    if as_json:
        print_json(page_reply(key, page, offset, limit))
        return
    for entry in page.entries:
        click.echo(f"{entry.role}: {line(entry.text)}")
    note(f"{len(page.entries)} of {counted(page.total, 'message')}")


@memory_command.command("append", epilog=examples("palimpsest memory append chat user:ann 'Hello.' --config memory/"))
@keyed
@text_argument
@file_option
def append_command(
    ref: str, key: str, config: str, tenant: str, as_json: bool, text: str | None, file: TextIO | None
) -> None:
    """Add TEXT, as a message of the user, or the messages of a file under KEY."""
    messages = payload(text, file)
    with opened(config, ref, tenant) as memory:
        added = memory.append(key, messages)
        total = _total(memory, key) if as_json else 0
    _print(as_json, append_reply(key, added, total), f"Added {counted(added, 'message')}.")


@memory_command.command("write", epilog=examples("palimpsest memory write chat user:ann --file chat.json"))
@keyed
@text_argument
@file_option
def write_command(
    ref: str, key: str, config: str, tenant: str, as_json: bool, text: str | None, file: TextIO | None
) -> None:
    """Replace the active messages under KEY by TEXT, or by the messages of a file. The old ones go to the archive."""
    messages = payload(text, file)
    with opened(config, ref, tenant) as memory:
        written = memory.write(key, messages)
    _print(as_json, write_reply(key, written), f"{counted(written, 'message')} now under {line(key)}.")


@memory_command.command("flush", epilog=examples("palimpsest memory flush chat 'user:*' --dry-run"))
@keyed
@click.option("--strategy", metavar="NAME", help="simple_fifo, lru, hybrid_summary or token_aware_lru.")
@click.option("--dry-run", is_flag=True, help="Show what would be archived, and change nothing.")
@click.option("--force", is_flag=True, help="Flush below the threshold, too.")
@click.option("--threshold", type=Number(0, 1), metavar="SHARE", help="Share of the limit from which a flush is due.")
@max_keys_option
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
    """Move old messages under KEY to the archive, if its limits require that."""
    options: dict[str, Any] = {"strategy": strategy, "dry_run": dry_run, "force": force, "threshold": threshold}
    options["max_keys"] = max_keys
    with opened(config, ref, tenant) as memory:
        if as_json and "*" in key:
            print_each(lambda: Answers(memory).flush(key, **options))
            return
        results = memory.flush(key, **options)
        declared = memory.strategy
    expect(results, key)
    if as_json:
        print_json(flush_reply(key, results[key], declared))
        raise_if_failed(results)
        return
    rows = table("key", "strategy", "messages", "tokens", "why not", right=("messages", "tokens"))
    for flushed, done in results.items():
        messages, tokens = (
            f"{done.messages_before:,} → {done.messages_after:,}",
            f"{done.tokens_before:,} → {done.tokens_after:,}",
        )
        rows.add_row(line(flushed), done.strategy, messages, tokens, done.reason or "-")
    console().print(rows)
    raise_if_failed(results)


@memory_command.command("clear", epilog=examples("palimpsest memory clear chat user:ann --backup --yes"))
@keyed
@click.option("--backup", is_flag=True, help="First store a copy, as a session of its own.")
@yes_option
@max_keys_option
def clear_command(
    ref: str, key: str, config: str, tenant: str, as_json: bool, backup: bool, yes: bool, max_keys: int
) -> None:
    """Destroy all entries under KEY. The session itself stays."""
    with opened(config, ref, tenant) as memory:
        _confirm(memory, key, as_json, max_keys, yes=yes)
        if as_json and "*" in key:
            print_each(lambda: Answers(memory).clear(key, backup=backup, max_keys=max_keys))
            return
        cleared = memory.clear(key, confirm=True, backup=backup, max_keys=max_keys)
    expect(cleared.entries or cleared.failed, key)
    if as_json:
        print_json(clear_reply(key, cleared.entries[key], cleared.backups.get(key)))
        return
    destroyed = sum(cleared.entries.values())
    click.echo(f"Destroyed {counted(destroyed, 'entry')} under {counted(len(cleared.entries), 'key')}.")
    for copied, copy in cleared.backups.items():
        note(f"the copy of {line(copied)} is the session {line(copy)}")
    exit_if_any(cleared.failed)


@memory_command.command("delete", epilog=examples("palimpsest memory delete chat user:ann --yes"))
@keyed
@yes_option
@max_keys_option
def delete_command(ref: str, key: str, config: str, tenant: str, as_json: bool, yes: bool, max_keys: int) -> None:
    """Destroy KEY, and all entries under it."""
    with opened(config, ref, tenant) as memory:
        _confirm(memory, key, as_json, max_keys, yes=yes)
        if as_json and "*" in key:
            print_each(lambda: Answers(memory).delete(key, max_keys=max_keys))
            return
        deleted = memory.delete(key, max_keys=max_keys)
    expect(deleted, key)
    _print(as_json, delete_reply(key, deleted), f"Deleted {counted(deleted, 'key')}.")


@memory_command.command("stats", epilog=examples("palimpsest memory stats chat 'user:*' --json"))
@keyed
@max_keys_option
def stats_command(ref: str, key: str, config: str, tenant: str, as_json: bool, max_keys: int) -> None:
    """Print how much is under KEY: messages, tokens, and how much of the limit that is."""
    with opened(config, ref, tenant) as memory:
        if "*" in key:
            reply = each(lambda: Answers(memory).stats(key, max_keys=max_keys))
        else:
            stats_by_key = memory.stats(key)
            expect(stats_by_key, key)
            reply = stats_reply(key, stats_by_key[key])
    if as_json:
        print_json(reply)
    results = reply.get("results", [reply])
    rows = table("key", "messages", "tokens", "of limit", "archived", "last flush (UTC)", right=("messages", "tokens"))
    for stats in () if as_json else (one for one in results if "error" not in one):
        used = "-" if stats["utilization"] is None else f"{stats['utilization']:.0%}"
        flushed = "-" if stats["last_flush"] is None else moment(datetime.fromisoformat(stats["last_flush"]))
        counts = (f"{stats[name]:,}" for name in ("message_count", "token_count"))
        rows.add_row(line(stats["key"]), *counts, used, f"{stats['archived_count']:,}", flushed)
    if not as_json:
        console().print(rows)
    if "*" in key:
        raise_for_each(reply, "cannot be read:")


@memory_command.command("health", epilog=examples("palimpsest memory health chat '*'"))
@keyed
@max_keys_option
def health_command(ref: str, key: str, config: str, tenant: str, as_json: bool, max_keys: int) -> None:
    """Check the store by writing, reading and deleting something, and list the keys that are near their limit."""
    with opened(config, ref, tenant) as memory:
        health = memory.health(key, max_keys=max_keys)
        stats = (
            memory.stats(key).get(key, UNWRITTEN)
            if as_json and health.works and "*" not in key and not health.failed
            else None
        )
        reply = health_reply(key, health, stats, memory.strategy)
    near_limit, failed = list(health.near_limit), dict(health.failed)
    text = "The store works." if health.works else f"The store does not work: {line(str(health.error))}"
    _print(as_json, reply, text)
    for near in () if as_json else near_limit:
        note(f"{line(near)} is near its limit")
    for unreadable, why in () if as_json else failed.items():
        note(f"{line(unreadable)} cannot be read: {line(why)}")
    if not health.works:
        click.get_current_context().exit(5)
    exit_if_any(failed)


def _total(memory: DeclaredMemory, key: str) -> int | None:
    """Return how many messages are active under KEY, or None if the store fails: what was added is stored."""
    try:
        return memory.read(key, limit=0).total
    except PalimpsestError:
        return None


def _print(as_json: bool, data: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(data)
    else:
        click.echo(text)


def _confirm(memory: DeclaredMemory, key: str, as_json: bool, max_keys: int, *, yes: bool) -> None:
    """Show which keys would be destroyed and ask for confirmation, unless `yes` is given."""
    if yes:
        return
    require_interactive(as_json, instead="--yes")
    keys = memory.keys(key, max_keys=max_keys)
    try:
        stats_by_key = memory.stats(key, max_keys=max_keys)
    except StoreCorrupt:
        stats_by_key = {}
    entries = sum(stats.messages + stats.archived for stats in stats_by_key.values())
    click.echo(f"{counted(len(keys), 'key')}: {', '.join(map(line, keys))}")
    unreadable = [matched for matched in keys if matched not in stats_by_key]
    more = f", and all that is under {', '.join(map(line, unreadable))}, which cannot be read" if unreadable else ""
    confirm(f"Destroy {counted(entries, 'entry')}{more}? It cannot be undone.")

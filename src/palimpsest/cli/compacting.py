"""`palimpsest compact`, `summaries` and `verify`: compact a session, read its summaries, check that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from palimpsest import ConfigError, Memory
from palimpsest.cli.app import Number, Whole, confirm, examples, json_option, require_interactive, store_options
from palimpsest.cli.failing import Conflicting, OperationFailed
from palimpsest.cli.opening import all_sessions, open_memory, require, session_argument, session_ids
from palimpsest.cli.output import clean, console, counted, line, moment, note, on_terminal, print_json, table, warn
from palimpsest.cli.sessions import print_entries
from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry_json import entry_json
from palimpsest.types import Verification

if TYPE_CHECKING:
    from palimpsest import Session
    from palimpsest.types import CompactionResult, Summary

STYLE = {"interaction_keep": "--keep", "summary_tokens": "--summary-tokens"}
"""Strategy options that only some strategies have, with the names that the command gives them."""

FAILURES = ("failed", "empty", "no_gain", "conflict")
"""Reasons of a `CompactionResult` for which the exit status is 1."""


@click.command(
    "compact",
    epilog=examples(
        "palimpsest compact support-7 --dry-run",
        "palimpsest compact support-7 --strategy summarizer --keep 3",
        "palimpsest compact support-7 --summarizer openai:gpt-4o-mini",
        "palimpsest compact support-7 --strategy lru --max-messages 100 --json",
    ),
)
@session_argument
@click.option(
    "--strategy",
    metavar="NAME",
    help="simple_fifo, lru, token_aware_lru, hybrid_summary, summarizer, neuralyzer, mask_results, superseded_contexts "
    "or ladder. [default: ladder]",
)
@click.option("--keep", type=Whole(0), metavar="N", help="Leave the newest N interactions as they are.")
@click.option("--summary-tokens", type=Whole(1), metavar="N", help="Length of a summary by hybrid_summary, in tokens.")
@click.option("--model", metavar="NAME", help="Model whose window is the limit and whose tokenizer counts.")
@click.option("--max-tokens", type=Whole(1), metavar="N", help="The session's limit in tokens.")
@click.option("--max-messages", type=Whole(1), metavar="N", help="The session's limit in messages.")
@click.option(
    "--summarizer",
    metavar="MODEL",
    help="Model that writes summaries, such as openai:gpt-4o-mini. Without it no model is called.",
)
@click.option(
    "--if-over",
    type=Number(0, 1, min_open=True),
    metavar="SHARE",
    help="Compact only if this share of the limits is reached, such as 0.8.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before a strategy destroys entries.")
@json_option
@store_options
def compact_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    strategy: str | None,
    keep: int | None,
    summary_tokens: int | None,
    model: str | None,
    max_tokens: int | None,
    max_messages: int | None,
    summarizer: str | None,
    if_over: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make a session's contexts smaller now.

    A strategy chooses the entries that are summarised, masked, evicted or erased. Entries that are summarised or
    evicted stay in the log, where `show`, `summaries --expand` and `export` find them. Only the strategy neuralyzer
    destroys entries: it shows them first, and asks. If there is nothing to do, that is no error.
    """
    given = _chosen("ladder" if strategy is None else strategy, keep, summary_tokens, summarizer)
    with open_memory(store, tenant, write=not dry_run) as memory:
        session = require(memory, session, whole=yes).session
        chat = memory.session(
            session, model=model, max_tokens=max_tokens, max_messages=max_messages, summarizer=summarizer
        )
        asks = not (yes or dry_run) and _destroys(chat, given)  # then the first run is a dry one, to show its result
        if asks:
            require_interactive(as_json, besides=", and this strategy destroys entries")
        busy = console(stderr=True).status(f"compacting {line(session)} …") if on_terminal() else nullcontext()
        with busy, _as_the_command_has_it(given):
            result = chat.compact(given, dry_run=dry_run or asks, threshold=if_over)
        if asks and result.erased:
            print_result(result)
            confirm("Destroy this? It cannot be undone.")
            result = chat.compact(given, threshold=if_over)
    if as_json:
        print_json(result_json(result))
    else:
        print_result(result)
    if result.reason == "pending":
        raise Conflicting(result.why or "another compaction of this session is under way")
    if result.reason in FAILURES:
        raise OperationFailed(result.why or f"nothing was changed: {result.reason}")


def _chosen(strategy: str, keep: int | None, summary_tokens: int | None, summarizer: str | None) -> Any:
    """Return the strategy as `Session.compact` takes it: its name, or a mapping with its options."""
    given = zip(STYLE, (keep, summary_tokens), strict=True)
    options: dict[str, Any] = {name: value for name, value in given if value is not None}
    if summarizer is not None and strategy in ("ladder", "summarizer", "hybrid_summary"):
        options["on_failure"] = "keep"  # report a failed model, which the user named, instead of falling back
    return {"strategy": strategy, **options} if options else strategy


@contextmanager
def _as_the_command_has_it(given: Any) -> Iterator[None]:
    """Turn a ConfigError about a strategy's option into a usage error that names the command's option."""
    try:
        yield
    except ConfigError as fault:
        option = STYLE.get(str(fault.found))
        if option is None or fault.found not in given:
            raise
        raise click.UsageError(f"the strategy {given['strategy']} takes no {option}") from fault


def _destroys(chat: Session, strategy: Any) -> bool:
    """Whether a strategy may erase entries. False for an invalid one, whose error `compact` raises, redacted."""
    try:
        return chat.options.chosen(strategy).erases
    except ConfigError:
        return False


def result_json(result: CompactionResult) -> dict[str, Any]:
    """Return a compaction's result as JSON values."""
    values: dict[str, Any] = msgspec.to_builtins(result)
    values["summary"] = summary_json(result.summary) if result.summary is not None else None
    return {**values, "tokens_saved": result.tokens_saved}


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return a summary as JSON values."""
    values = {name: msgspec.to_builtins(getattr(summary, name)) for name in summary.__struct_fields__}
    start, end = summary.time_range
    return {
        **values,
        "entries": summary.entries,
        "created_at": summary.created_at.isoformat(),
        "time_range": {"start": start.isoformat(), "end": end.isoformat()},
        "reduction_factor": round(summary.reduction_factor, 2),
    }


def print_result(result: CompactionResult) -> None:
    """Print what a compaction did, or why it did nothing."""
    screen = console()
    if result.reason is not None:
        screen.print(Text(clean(f"nothing was done: {result.reason.replace('_', ' ')}. {result.why}".strip())))
        return
    done = [("covered", result.covered), ("evicted", result.evicted), ("erased", result.erased)]
    effect = (
        ", ".join(f"{counted(number, 'entry')} {verb}" for verb, number in done if number) or "old tool results masked"
    )
    verb = "would be" if result.dry_run else "is"
    screen.print(Text(f"{line(result.strategy)}: {effect}", "bold"))
    screen.print(
        f"the active set {verb} {result.tokens_after:,} tokens in {counted(result.messages_after, 'message')}, "
        f"from {result.tokens_before:,} in {result.messages_before:,}"
    )
    for step in result.steps:
        screen.print(
            Text(clean(f"  {step.name}: {counted(step.entries, 'entry')}, {step.tokens:,} tokens; {step.why}"))
        )
    if result.summary is not None:
        print_summary(result.summary)


def print_summary(summary: Summary) -> None:
    """Print a summary under a title that says which entries it covers and how it was made."""
    screen = console()
    start, end = summary.time_range
    by = summary.model or "no model"
    screen.print(
        Text(
            f"\nsummary {line(summary.id)}, version {summary.version}: {counted(summary.entries, 'entry')} of "
            f"{moment(start)} to {moment(end)} in {summary.tokens:,} tokens, by {line(by)} ({line(summary.method)})",
            "bold",
        ),
        soft_wrap=True,
    )
    if summary.fallback:
        warn(f"the configured summarizer was not used: {summary.fallback}")
    for piece in clean(summary.text).split("\n"):
        click.echo(f"       {piece}")


@click.command(
    "summaries",
    epilog=examples(
        "palimpsest summaries support-7",
        "palimpsest summaries support-7 --all --json",
        "palimpsest summaries support-7 --expand",
        "palimpsest summaries support-7 --restore ID",
    ),
)
@session_argument
@click.option("--all", "everything", is_flag=True, help="Print superseded versions, too.")
@click.option("--expand", is_flag=True, help="Print the entries that the summaries cover, too.")
@click.option("--restore", metavar="ID", help="Withdraw this summary: the entries that it covers are active again.")
@json_option
@store_options
def summaries_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    everything: bool,
    expand: bool,
    restore: str | None,
) -> None:
    """Print, expand or withdraw the summaries of a session.

    A summary stands for older entries in the contexts of the session.
    """
    with open_memory(store, tenant, write=restore is not None) as memory:
        chat = memory.session(require(memory, session).session)
        if restore is not None:
            back = chat.restore(restore)
            if as_json:
                print_json({"restored": back})
            else:
                click.echo(f"{counted(back, 'entry')} active again")
            return
        summaries = chat.summaries(history=everything)
        covered = {summary.id: chat.expand(summary) for summary in summaries} if expand else {}
    if as_json:
        values = [summary_json(summary) for summary in summaries]
        for value in values:
            if expand:
                value["covered"] = [entry_json(entry) for entry in covered[value["id"]]]
        print_json(values)
        return
    if not summaries:
        note("There are no summaries yet: `palimpsest compact` makes them.")
    for summary in summaries:
        print_summary(summary)
        if expand:
            click.echo()
            print_entries(covered[summary.id])


def _verified(memory: Memory, name: str) -> Verification:
    """Verify a session; if it cannot be read, the reason is the one problem."""
    try:
        return memory.session(name, readonly=True).verify()
    except StoreCorrupt as fault:
        return Verification(problems=(fault.reason,))


@click.command("verify", epilog=examples("palimpsest verify support-7", "palimpsest verify --json"))
@click.argument("session", metavar="[SESSION]", required=False, shell_complete=session_ids)
@json_option
@store_options
def verify_command(store: str | None, tenant: str | None, as_json: bool, session: str | None) -> None:
    """Check that no entry of a session is lost.

    Without SESSION, all sessions of the tenant are checked. Every entry must be active, covered by a summary, evicted,
    erased, rewound or expired, exactly once. The exit status is 1 if a check fails, or a session cannot be read.
    """
    verifications: dict[str, Any] = {}
    with open_memory(store, tenant) as memory:
        if session is not None:
            session = require(memory, session).session
        names = [session] if session is not None else [info.session for info in all_sessions(memory)]
        progress = console(stderr=True).status("verifying …") if on_terminal() else nullcontext()
        with progress:
            for name in names:
                verifications[name] = _verified(memory, name)
    if as_json:
        print_json({name: {**msgspec.to_builtins(done), "ok": done.ok} for name, done in verifications.items()})
    else:
        columns = ("active", "covered", "evicted", "erased", "rewound", "expired", "summaries")
        rows = table("session", *columns, "", right=columns)
        for name, verification in verifications.items():
            figures = [f"{getattr(verification, column):,}" for column in columns]
            rows.add_row(line(name), *figures, "ok" if verification.ok else "NOT WHOLE")
        console().print(rows)
    problems = [f"{line(name)}: {problem}" for name, done in verifications.items() for problem in done.problems]
    if problems:
        raise OperationFailed("\n".join(problems))

"""`palimpsest compact`, `summaries` and `verify`: making a session smaller, and seeing that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from palimpsest import ConfigError, Memory
from palimpsest.cli.app import Whole, examples, expect_somebody, json_option, store_options
from palimpsest.cli.failing import Conflicting, OperationFailed
from palimpsest.cli.opening import all_sessions, open_memory, require, session_argument, session_ids
from palimpsest.cli.output import clean, console, counted, line, moment, note, on_terminal, print_json, table, warn
from palimpsest.cli.sessions import entry_json, print_entries
from palimpsest.errors import StoreCorrupt
from palimpsest.types import Verification

if TYPE_CHECKING:
    from palimpsest import Session
    from palimpsest.types import CompactionResult, Summary

STYLE = {"interaction_keep": "--keep", "summary_tokens": "--summary-tokens"}
"""Options of strategies that only some of them have, with how the command has them."""

FAILURES = ("failed", "empty", "no_gain", "conflict")


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
@click.option("--keep", type=Whole(0), metavar="N", help="The newest so many interactions stay as they are.")
@click.option("--summary-tokens", type=Whole(1), metavar="N", help="Length of a summary by hybrid_summary.")
@click.option("--model", metavar="NAME", help="Whose window is the limit, and whose tokenizer counts.")
@click.option("--max-tokens", type=Whole(1), metavar="N", help="The session's limit in tokens.")
@click.option("--max-messages", type=Whole(1), metavar="N", help="The session's limit in messages.")
@click.option("--summarizer", metavar="MODEL", help="Such as openai:gpt-4o-mini. Without it no model is asked.")
@click.option(
    "--if-over",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Only if this share of the limits is reached.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before a strategy destroys.")
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
    """Compact a session now: cover, mask, evict or erase what a strategy chooses.

    What is covered or evicted stays in the log, where `show`, `summaries --expand` and `export` reach it; only
    the neuralyzer destroys: what it would is shown, and nothing goes before that is confirmed. Nothing to do is no
    error.
    """
    given = _chosen(strategy or "ladder", keep, summary_tokens, summarizer)
    with open_memory(store, tenant, write=not dry_run) as memory:
        session = require(memory, session, whole=yes).session
        chat = memory.session(
            session, model=model, max_tokens=max_tokens, max_messages=max_messages, summarizer=summarizer
        )
        asks = not (yes or dry_run) and _destroys(chat, given)
        if asks:
            expect_somebody(as_json, besides=", and this strategy destroys")
        busy = console(stderr=True).status(f"compacting {line(session)} …") if on_terminal() else nullcontext()
        with busy, _as_the_command_has_it(given):
            result = chat.compact(given, dry_run=dry_run or asks, threshold=if_over)
        if asks and result.erased:
            print_result(result)
            click.confirm("Destroy this? It cannot be undone.", abort=True)
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
    """The strategy by its name, or with what was given for it."""
    given = zip(STYLE, (keep, summary_tokens), strict=True)
    options: dict[str, Any] = {name: value for name, value in given if value is not None}
    if summarizer is not None and strategy in ("ladder", "summarizer", "hybrid_summary"):
        options["on_failure"] = "keep"  # who names a model by hand is told where it gave no answer
    return {"strategy": strategy, **options} if options else strategy


@contextmanager
def _as_the_command_has_it(given: Any) -> Iterator[None]:
    """Name an option that the strategy does not have as the command does."""
    try:
        yield
    except ConfigError as fault:
        option = STYLE.get(str(fault.found))
        if option is None or fault.found not in given:
            raise
        raise click.UsageError(f"{option} is not for {given['strategy']}") from fault


def _destroys(chat: Session, strategy: Any) -> bool:
    """Whether a strategy may erase. What is wrong with one is for `compact` to say, as the privacy policy has it."""
    try:
        return chat.options.chosen(strategy).erases
    except ConfigError:
        return False


def result_json(result: CompactionResult) -> dict[str, Any]:
    """Return what a compaction did as JSON values."""
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
    told = ", ".join(f"{counted(number, 'entry')} {what}" for what, number in done if number) or "old results masked"
    verb = "would be" if result.dry_run else "is"
    screen.print(Text(f"{line(result.strategy)}: {told}", "bold"))
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
    """Print a summary under a title that says what it stands for and how it was made."""
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
@click.option("--all", "everything", is_flag=True, help="Superseded versions, too.")
@click.option("--expand", is_flag=True, help="The entries that the summaries cover, whole.")
@click.option("--restore", metavar="ID", help="Bring the entries that this summary covers back into the active set.")
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
    """Print what stands for the older part of a session, expand it, or take it back."""
    with open_memory(store, tenant, write=restore is not None) as memory:
        chat = memory.session(require(memory, session).session)
        if restore is not None:
            back = chat.restore(restore)
            if as_json:
                print_json({"restored": back})
            else:
                click.echo(f"{counted(back, 'entry')} back in the active set")
            return
        found = chat.summaries(history=everything)
        covered = {summary.id: chat.expand(summary) for summary in found} if expand else {}
    if as_json:
        values = [summary_json(summary) for summary in found]
        for value in values:
            if expand:
                value["covered"] = [entry_json(entry) for entry in covered[value["id"]]]
        print_json(values)
        return
    if not found:
        note("Nothing is summarised: `palimpsest compact` does that.")
    for summary in found:
        print_summary(summary)
        if expand:
            click.echo()
            print_entries(covered[summary.id])


def _verified(memory: Memory, name: str) -> Verification:
    """What became of a session's entries; of one that cannot be read, why."""
    try:
        return memory.session(name, readonly=True).verify()
    except StoreCorrupt as fault:
        return Verification(problems=(fault.reason,))


@click.command("verify", epilog=examples("palimpsest verify support-7", "palimpsest verify --json"))
@click.argument("session", metavar="[SESSION]", required=False, shell_complete=session_ids)
@json_option
@store_options
def verify_command(store: str | None, tenant: str | None, as_json: bool, session: str | None) -> None:
    """Walk a session, or all of them, and check that nothing is lost.

    Every entry must be active, covered by a summary, evicted, erased, rewound or expired, exactly once. Ends with
    status 1 where something does not hold together.
    """
    found: dict[str, Any] = {}
    with open_memory(store, tenant) as memory:
        if session is not None:
            session = require(memory, session).session
        names = [session] if session is not None else [info.session for info in all_sessions(memory)]
        progress = console(stderr=True).status("verifying …") if on_terminal() else nullcontext()
        with progress:
            for name in names:
                found[name] = _verified(memory, name)
    if as_json:
        print_json({name: {**msgspec.to_builtins(one), "ok": one.ok} for name, one in found.items()})
    else:
        columns = ("active", "covered", "evicted", "erased", "rewound", "expired", "summaries")
        rows = table("session", *columns, "", right=columns)
        for name, one in found.items():
            figures = [f"{getattr(one, column):,}" for column in columns]
            rows.add_row(line(name), *figures, "ok" if one.ok else "NOT WHOLE")
        console().print(rows)
    problems = [f"{line(name)}: {problem}" for name, one in found.items() for problem in one.problems]
    if problems:
        raise OperationFailed("\n".join(problems))

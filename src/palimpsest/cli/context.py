"""`palimpsest context`: the context of a session's next model call, and its account."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from palimpsest import Context
from palimpsest.cli.app import Whole, examples, json_option, store_options
from palimpsest.cli.context_page import context_page
from palimpsest.cli.failing import OperationFailed
from palimpsest.cli.opening import open_memory, require, session_argument
from palimpsest.cli.output import bar, clean, console, counted, note, print_json, table, warn
from palimpsest.transfer.writing import replacing_file

if TYPE_CHECKING:
    from palimpsest.types import FormatName

PARTS = (
    ("system", "magenta"),
    ("tools", "blue"),
    ("overhead", "white"),
    ("head", "yellow"),
    ("summaries", "cyan"),
    ("log", "green"),
    ("tail", "bright_magenta"),
)


@click.command(
    "context",
    epilog=examples(
        "palimpsest context support-7 --model gpt-4o --max-tokens 8000",
        "palimpsest context support-7 --max-tokens 8000 --system @prompt.txt --tools tools.json",
        "palimpsest context support-7 --max-tokens 8000 --messages > messages.json",
        "palimpsest context support-7 --format anthropic --request > request.json",
        "palimpsest context support-7 --model gpt-4o --max-tokens 8000 --html support-7.html",
    ),
)
@session_argument
@click.option("--model", metavar="NAME", help="Model whose window, tokenizer and reserve for the answer are used.")
@click.option("--max-tokens", type=Whole(0), metavar="N", help="Budget of the whole request, in tokens.")
@click.option("--max-messages", type=Whole(0), metavar="N", help="At most N messages of the log.")
@click.option("--reserve", type=Whole(0), metavar="N", help="Tokens kept for the answer.")
@click.option("--system", metavar="TEXT|@FILE", help="System prompt that your program sends along.")
@click.option("--tools", metavar="@FILE|FILE", help="Tool schemas that your program sends along: a JSON list.")
@click.option(
    "--facts", metavar="SCOPE", multiple=True, help="Put the facts of this working memory at the end. Repeatable."
)
@click.option("--view", metavar="NAME", default="main", show_default=True, help="View of the session to use.")
@click.option(
    "--at",
    type=Whole(0),
    metavar="REVISION",
    help="Show the context of this revision; `palimpsest history` lists revisions.",
)
@click.option("--format", metavar="NAME", default="openai", show_default=True, help="Provider format of the messages.")
@click.option(
    "--messages/--report", "messages", default=False, help="Print the messages as JSON, or a report on the context."
)
@click.option(
    "--request",
    "request",
    is_flag=True,
    help="Print the arguments for the provider's client as JSON: messages, system text, tools.",
)
@click.option(
    "--html", metavar="FILE", help="Write a page: what each call of the model was given, and what was left out."
)
@click.option("--commit", is_flag=True, help="Store the cut that this budget needs. Without it nothing is written.")
@json_option
@store_options
def context_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    model: str | None,
    max_tokens: int | None,
    max_messages: int | None,
    reserve: int | None,
    system: str | None,
    tools: str | None,
    facts: tuple[str, ...],
    view: str,
    at: int | None,
    format: FormatName,
    messages: bool,
    request: bool,
    html: str | None,
    commit: bool,
) -> None:
    """Print what the model would be given next.

    The report says how full the budget is, and what is left out and why. Nothing is stored unless you give --commit.
    """
    outputs = {"--html": html is not None, "--request": request, "--messages": messages}
    chosen = [name for name, given in outputs.items() if given]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} print different things: give one of them")
    check_page("--html", html, as_json=as_json)
    caller_parts: dict[str, Any] = {"system": given_text(system), "tools": _tools(tools)}
    with open_memory(store, tenant, write=commit) as memory:
        chat = memory.session(
            require(memory, session).session,
            view=view,
            format=format,
            model=model,
            max_tokens=max_tokens,
            max_messages=max_messages,
            reserve=reserve,
            facts=facts,
        )
        context = chat.context(**caller_parts, at=at, dry_run=not commit)
        if html is not None:
            write_page(html, context_page(chat, context, caller_parts, view, model), is_private=True)
        elif request:
            print_json(context.request())
        elif messages:
            print_json(context.messages)
        elif as_json:
            print_json(account(context))
        else:
            print_context(context, committed=commit)


def check_page(option: str, path: str | None, *, as_json: bool) -> None:
    """Raise a usage error if an option for a page or picture names no file, or standard output beside `--json`."""
    if path == "":  # what a shell passes for "$VARIABLE" if that is not set
        raise click.UsageError(f"{option} is empty: give a file, or - for standard output")
    if path == "-" and as_json:
        raise click.UsageError("--json prints nothing but JSON to standard output: write the page to a file")


def write_page(path: str, text: str, *, is_private: bool = False) -> None:
    """Write a page or a picture to a file; `-` is standard output.

    The file is written whole or not at all. With `is_private` only the owner may read a new file, as the page holds
    texts of a log. A database is not written over.
    """
    if path == "-":
        click.echo(text.encode(), nl=False)  # always UTF-8, which the page declares
        return
    page = text.encode()
    try:
        with replacing_file(path, is_private=is_private) as file:
            file.write(page)
    except OSError as fault:
        raise OperationFailed(f"{path}: {fault.strerror}") from fault
    note(f"Wrote {len(page):,} bytes to {path}.")


def given_text(given: str | None) -> str | None:
    """Return the text of `--system TEXT|@FILE`, read from the file for `@FILE`."""
    return _read("--system", given[1:]) if given is not None and given.startswith("@") else given


def _read(option: str, path: str) -> str:
    """Read the file that an option names. Raises a usage error if that fails."""
    try:
        with open(path, encoding="utf-8-sig") as file:  # without the byte order mark that some editors write
            return file.read()
    except OSError as fault:
        raise click.UsageError(f"{option}: {path}: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise click.UsageError(
            f"{option}: {path} is not text in UTF-8 ({fault.reason} at byte {fault.start})"
        ) from fault


def _tools(given: str | None) -> list[Any]:
    if given is None:
        return []
    schemas: object = None
    try:
        schemas = json.loads(_read("--tools", given.removeprefix("@")))
    except ValueError as fault:
        raise click.UsageError(f"--tools: {given} is not valid JSON ({fault})") from fault
    except RecursionError as fault:
        raise click.UsageError(f"--tools: {given} is nested too deeply") from fault
    if not isinstance(schemas, list):
        raise click.UsageError(f"--tools: {given} is not a JSON list of tool schemas")
    return schemas


def account(context: Context) -> dict[str, Any]:
    """Return a context's figures as JSON values."""
    report = msgspec.to_builtins(context.report)
    report.pop("parts")
    budget = msgspec.to_builtins(context.budget) if context.budget is not None else None
    return {
        "revision": context.revision,
        "epoch": context.epoch,
        "format": context.format,
        "tokens": context.tokens,
        "budget": budget,
        "parts": msgspec.to_builtins(context.parts),
        "report": report,
        "problems": list(context.problems),
        "prefix": context.prefix._asdict(),
    }


def print_context(context: Context, *, committed: bool) -> None:
    """Print how full the budget is, the tokens of each part, and what is left out and why."""
    screen, budget, report = console(), context.budget, context.report
    bounded = budget is not None and budget.limit < 2**62
    available = budget.available if budget is not None and bounded else context.tokens
    width = max(min(screen.width, 100) - 2, 20)
    parts = [
        (name, getattr(context.parts, name), style) for name, style in PARTS if name != "tail" or context.parts.tail
    ]
    scale = max(available, context.tokens, 1) / (budget.factor if budget is not None else 1.0)
    screen.print(Text(_headline(context, available if bounded else None), "bold"))
    screen.print(bar([(size / scale, style, "█") for _, size, style in parts], width))
    rows = table("part", "tokens", "share", right=("tokens", "share"))
    for name, size, style in parts:
        rows.add_row(Text(name, style), f"{size:,}", f"{size / max(context.counted, 1):.0%}")
    screen.print(rows)
    for text in _remarks(context, committed=committed):
        screen.print(Text(clean(text)))
    for warning in (*report.warnings, *(f"problem: {problem}" for problem in context.problems)):
        warn(warning)


def _headline(context: Context, available: int | None) -> str:
    report = context.report
    held = counted(report.entries, "entry") + " of " + counted(report.interactions, "interaction")
    held += " in " + counted(report.messages, "message")
    if available is None:
        return f"{context.tokens:,} tokens, no budget: {held}"
    reserve = context.budget.reserve if context.budget is not None else 0
    kept = f", {reserve:,} more are kept for the answer" if reserve else ""
    return f"{context.tokens:,} of {available:,} tokens ({context.tokens / max(available, 1):.0%}{kept}): {held}"


def _remarks(context: Context, *, committed: bool) -> list[str]:
    """Return remarks to print under the figures, one line each: cuts, omissions, adaptations, open calls, notes."""
    report = context.report
    lines = []
    if report.new_cut:
        before = f" from {report.tokens_before_cut:,} tokens" if report.tokens_before_cut else ""
        rungs = f" by {', then '.join(report.rungs)}" if report.rungs else ""
        stored = "stored" if committed and context.epoch is not None else "not stored"
        lines.append(f"cut       {report.epoch_reason}{before}{rungs}; {stored}")
    elif report.epoch_reason is not None:
        lines.append(
            f"epoch     {context.epoch if context.epoch is not None else '-'}, began with {report.epoch_reason}"
        )
    for omission in report.left_out:
        first, last = omission.first, omission.last
        seq_range = str(first) if first == last else f"{first} to {last}"
        lines.append(f"left out  {counted(omission.entries, 'entry')} ({seq_range}): {omission.reason}")
    treated = (("masked", report.masked), ("clamped", report.clamped), ("pinned", report.pinned))
    for name, seqs in (*treated, ("anchors", report.anchors)):
        if seqs:
            listed = ", ".join(map(str, seqs[:12])) + (", …" if len(seqs) > 12 else "")
            lines.append(f"{name:8}  {counted(len(seqs), 'entry')} ({listed})")
    adapted: dict[str, list[str]] = {}
    for adaptation in report.adapted:
        adapted.setdefault(adaptation.what, []).append(str(adaptation.seq))
    for what, entries in adapted.items():
        listed = ", ".join(entries[:12]) + (", …" if len(entries) > 12 else "")
        lines.append(f"adapted   {what} ({listed})")
    for name, calls in (("pending", report.pending), ("repaired", report.repaired)):
        if calls:
            lines.append(f"{name:8}  {counted(len(calls), 'call')} ({', '.join(calls)})")
    return lines + [f"note      {text}" for text in report.notes if text != "a dry run"]

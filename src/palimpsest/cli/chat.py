"""`palimpsest chat`: talk with a model whose memory is a session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from palimpsest import Context, Memory, PalimpsestError, SummarizerFailed
from palimpsest.cli import ended_at_once
from palimpsest.cli.answer import AnswerPrinter
from palimpsest.cli.app import Number, Whole, examples, json_option, store_options
from palimpsest.cli.compacting import print_result, print_summary, result_json, summary_json
from palimpsest.cli.context import account, given_text, print_context
from palimpsest.cli.opening import open_memory, session_argument
from palimpsest.cli.output import counted, line, note, on_terminal, to_json, warn
from palimpsest.cli.privacy import redactor, telling
from palimpsest.cli.sessions import figures_of, print_entries, print_figures
from palimpsest.log.entry import now_us
from palimpsest.log.entry_json import entry_json
from palimpsest.runtime.runner import Inline, drive
from palimpsest.summaries.models.chat_model import ChatModel
from palimpsest.summaries.models.model_summarizer import ModelSummarizer
from palimpsest.tokens.models import find_model

if TYPE_CHECKING:
    from palimpsest.runtime.logs import Redact
    from palimpsest.summaries.models.chat_model import BoundModel, ModelAnswer

UNKNOWN_WINDOW = 8_000
"""The budget, in tokens, of a request to a model whose window is not known."""


@click.command(
    "chat",
    epilog=examples(
        "palimpsest chat trip --model openai:gpt-4o-mini",
        "palimpsest chat trip --model openai:gpt-4o --max-tokens 8000 --system @prompt.txt",
        "palimpsest chat trip --model gpt-oss --base-url http://127.0.0.1:8000/v1",
        "palimpsest chat trip --model openai:gpt-4o --summarizer openai:gpt-4o-mini",
        "echo 'Where were we?' | palimpsest chat trip --model openai:gpt-4o-mini --json",
    ),
)
@session_argument
@click.option(
    "--model", required=True, metavar="NAME", help="Model to talk with: PROVIDER:MODEL, or with --base-url any name."
)
@click.option("--base-url", metavar="URL", help="Address of a server that speaks OpenAI's protocol.")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the API key. [default: the provider's own]")
@click.option("--max-tokens", type=Whole(1), metavar="N", help="Budget of a request. [default: the model's window]")
@click.option("--reserve", type=Whole(0), metavar="N", help="Tokens of the budget that are kept for the answer.")
@click.option("--system", metavar="TEXT|@FILE", help="The system prompt.")
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long to wait for the next piece of an answer.",
)
@click.option(
    "--summarizer",
    metavar="MODEL",
    help="Model that summarises, at the same address; none: summarise without a model. [default: --model]",
)
@click.option("--no-compact", is_flag=True, help="Do not summarise; leave out what does not fit.")
@json_option
@store_options
def chat_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    session: str,
    model: str,
    base_url: str | None,
    api_key_env: str | None,
    max_tokens: int | None,
    reserve: int | None,
    system: str | None,
    timeout: float,
    summarizer: str | None,
    no_compact: bool,
) -> None:
    """Talk with a model that remembers the conversation.

    SESSION holds the conversation, and every request fits the budget. Each line that you type is a message. `/help`
    lists the commands. Ctrl-C cancels an answer, Ctrl-D ends.

    Without a terminal, messages are lines of standard input, answers go to standard output and everything else to
    standard error. The exit status is 1 if any message had no answer. With --json each answer is an object on a line
    of its own.
    """
    if no_compact and summarizer is not None:
        raise click.UsageError("--summarizer and --no-compact contradict each other")
    server: dict[str, Any] = {"base_url": base_url, "api_key": _key(api_key_env), "timeout": timeout}
    chat_model, system_text = ChatModel(model, **server), given_text(system)
    options: dict[str, Any] = {**_budget(chat_model, max_tokens), "reserve": reserve}
    if not no_compact:
        name = model if summarizer is None else summarizer
        by = None if summarizer == "none" else ModelSummarizer(name, stream=True, **server)
        options |= {"long_term": "ladder", "summarizer": by, "auto_compact": "background"}
    runner, redact = Inline(), telling(redactor())
    runner.redact = redact
    try:
        with open_memory(store, tenant, create=True) as memory:
            bound = chat_model.bound(runner, now_us)
            chat = Chat(memory, session, bound, system_text, options, redact, as_json=as_json)
            chat.run()
    finally:
        drive(runner.close())
    if chat.failed and not chat.terminal:
        click.get_current_context().exit(1)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise click.UsageError(f"--api-key-env: the variable {variable} is not set, or empty")
    return key


def _budget(model: ChatModel, max_tokens: int | None) -> dict[str, Any]:
    """Return the session's options that limit a request."""
    if find_model(model.name) is not None:
        return {"model": model.name, "max_tokens": max_tokens}
    return {"max_tokens": max_tokens or UNKNOWN_WINDOW}


Told: TypeAlias = Callable[[str, dict[str, Any]], None]
"""A handler of an event: it is called with the session and what happened."""

Shown: TypeAlias = tuple[object, Callable[[], object]]
"""What a command found, as a JSON value, and a function that prints it for people."""


class Chat:
    """A conversation at a terminal or over pipes. `failed` says whether a message had no answer."""

    def __init__(
        self,
        memory: Memory,
        session: str,
        model: BoundModel,
        system: str | None,
        options: dict[str, Any],
        redact: Redact | None,
        *,
        as_json: bool,
    ) -> None:
        self.redact: Redact = redact or str
        """Redacts a provider's answers and errors before they are printed."""
        self.streams = redact is None
        self.session = memory.session(session, **options)
        self.model, self.system, self.as_json = model, system, as_json
        self.terminal = on_terminal(sys.stdin) and on_terminal()
        self.failed = False
        memory.on("compressed", self._in_background(_tell_compressed))
        memory.on("compaction:failed", self._in_background(_tell_failed))
        memory.on("summarizer:failed", self._in_background(_tell_stand_in))

    @staticmethod
    def _in_background(tell: Told) -> Told:
        """Return a function that tells in any thread, as compaction does, in the form that this command has chosen."""
        context = click.get_current_context()  # each thread has its own

        def told(session: str, facts: dict[str, Any]) -> None:
            with context.scope(cleanup=False):
                tell(session, facts)

        return told

    def run(self) -> None:
        """Answer messages and obey commands until there are no more."""
        if self.terminal:
            held = counted(self.session.stats().total_entries, "entry")
            note(f"{line(self.session.id)}: {held}. /help lists the commands, Ctrl-D ends.")
        for text in _typed() if self.terminal else _piped():
            if text == "/quit":
                return
            try:
                self._take(text)
            except KeyboardInterrupt:
                note("\nCancelled: the answer is not stored.")
            except SummarizerFailed as failed:  # raised by the chat's own model: compaction reports its result instead
                self._fail(f"the model {failed.summarizer} gave no answer ({failed.kind}): {failed.why}")
            except PalimpsestError as error:
                self._fail(str(error))

    def _take(self, text: str) -> None:
        if text.startswith("/") and not text.startswith("//"):
            name, _, argument = text[1:].partition(" ")
            command = COMMANDS.get(name)
            if command is None:
                self._fail(f"there is no command /{name}; /help lists the commands, //{name} sends it as a message")
                return
            result, show = command(self, argument.strip())
            if self.as_json:
                click.echo(to_json({"command": name, "result": result}, indent=None))
            else:
                show()
        elif text:
            self._say(text.removeprefix("/") if text.startswith("//") else text)

    def _say(self, text: str) -> None:
        with self.session.turn():
            self.session.add_user_message(text)
            context = self.session.context(system=self.system)
            answer = self._answer(context)
            if answer.text:
                self.session.add_assistant_message(answer.text)
            if answer.reported:
                spent = answer.spent
                self.session.record_usage(
                    input_tokens=spent.input_tokens,
                    output_tokens=spent.output_tokens,
                    cached_tokens=answer.cached_tokens,
                    context=context,
                )
        self._account(context, answer)

    def _answer(self, context: Context) -> ModelAnswer:
        shown = AnswerPrinter(self.redact, streams=self.streams, silent=self.as_json)
        reserve = context.budget.reserve if context.budget is not None else 0
        messages = context.request()["messages"]
        try:
            return drive(self.model.answer(messages, on_text=shown, max_tokens=reserve or None))
        finally:
            shown.end()

    def _account(self, context: Context, answer: ModelAnswer) -> None:
        """Print how full the budget was, how much of the input came from a cache, and how many summaries exist."""
        available = context.budget.available if context.budget is not None else None
        summaries = len(self.session.summaries())
        if self.as_json:
            spent = answer.spent
            figures = {"input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens, "cost": spent.cost}
            values = {"answer": self.redact(answer.text), "tokens": context.tokens, "budget": available, **figures}
            click.echo(to_json({**values, "cached_tokens": answer.cached_tokens, "summaries": summaries}, indent=None))
            return
        parts = [f"{context.tokens:,} tokens"]
        if available:
            parts = [f"{context.tokens:,} of {available:,} tokens ({context.tokens / available:.0%})"]
        if answer.cached_tokens:
            parts.append(f"{answer.cached_tokens / max(answer.spent.input_tokens, 1):.0%} of the input from the cache")
        if summaries:
            parts.append(counted(summaries, "summary"))
        if not answer.text:
            parts.append("the model said nothing")
        elif answer.finish == "length":
            parts.append("the answer was cut off")
        click.secho(f"[{', '.join(parts)}]", dim=True, err=True)

    def _fail(self, why: str) -> None:
        self.failed = True
        why = self.redact(why)
        if self.as_json:
            click.echo(to_json({"error": why}, indent=None))
        else:
            note(f"Error: {line(why)}")

    # --- commands: each has a result as JSON, and a function that prints the same for people

    def help(self, _: str) -> Shown:
        """Print the commands."""
        # `python -OO` drops docstrings.
        told = {f"/{name}": (command.__doc__ or "").partition("\n")[0] for name, command in COMMANDS.items()}
        told |= {"/quit": "End; so does Ctrl-D.", "//...": "Send a message that begins with a slash."}
        return told, lambda: click.echo("\n".join(f"{name:<11} {does}" for name, does in told.items()))

    def context(self, _: str) -> Shown:
        """Print how full the budget is, and what is left out and why."""
        context = self.session.context(system=self.system, dry_run=True)
        return account(context), lambda: print_context(context, committed=False)

    def stats(self, _: str) -> Shown:
        """Print the session in numbers."""
        figures = figures_of(self.session)
        return figures, lambda: print_figures(figures)

    def compact(self, _: str) -> Shown:
        """Compact now: mask old results, then summarise all but the newest messages."""
        result = self.session.compact()
        return result_json(result), lambda: print_result(result)

    def summaries(self, _: str) -> Shown:
        """Print the summaries that stand for the older part of the conversation."""
        summaries = self.session.summaries()

        def show() -> None:
            for summary in summaries:
                print_summary(summary)

        return [summary_json(summary) for summary in summaries], show

    def expand(self, id: str) -> Shown:
        """Print the entries that a summary covers: the newest summary, or the one with this ID."""
        entries = self.session.expand(id or None)
        return [entry_json(entry) for entry in entries], lambda: print_entries(entries)


COMMANDS: dict[str, Callable[[Chat, str], Shown]] = {
    "help": Chat.help,
    "context": Chat.context,
    "stats": Chat.stats,
    "compact": Chat.compact,
    "summaries": Chat.summaries,
    "expand": Chat.expand,
}


def _typed() -> Iterator[str]:
    """Yield the lines typed at a terminal, with line editing and history where the system has readline."""
    with suppress(ImportError):
        import readline  # noqa: F401 (`input` uses it)
    while True:
        try:
            with ended_at_once():
                line = input("\n> ").strip()
            yield line
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            note("\nCtrl-D ends.")


def _piped() -> Iterator[str]:
    """Yield the lines of standard input, with U+FFFD for bytes that are not UTF-8, and without a byte order mark."""
    for text in sys.stdin:
        yield text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").removeprefix("\ufeff").strip()


def _tell_compressed(_: str, facts: dict[str, Any]) -> None:
    summary = facts["summary"]
    note(f"[a summary of {summary.tokens:,} tokens now stands for {counted(summary.entries, 'entry')}]")


def _tell_failed(_: str, facts: dict[str, Any]) -> None:
    warn(f"not compacted: {line(str(facts['why']))}")


def _tell_stand_in(_: str, facts: dict[str, Any]) -> None:
    warn(f"summarised without the model: {line(str(facts['why']))}")

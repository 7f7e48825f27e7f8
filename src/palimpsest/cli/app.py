"""The root command: its options, lazy loading of the commands, and the options that commands share.

`LazyGroup` imports a command's module when the command is called, and turns errors into messages and exit statuses.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import click

from palimpsest import PalimpsestError, PalimpsestWarning
from palimpsest.cli.failing import Misused, OperationFailed, failure, failure_json
from palimpsest.cli.output import JSON, heedless, log_as_warnings, on_terminal, take_any_text, warn
from palimpsest.errors import nearest, shorten

DEFAULT_STORE = "sqlite:///palimpsest.db"
BROKEN_PIPE, INTERRUPTED = 0, 130
PRIVACY = "palimpsest.privacy"
"""The key of a click context's `meta` under which the value of `--privacy` is kept."""
COMMANDS = {
    "chat": "chat",
    "compact": "compacting",
    "config": "config",
    "memory": "keyed",
    "context": "context",
    "copy": "copying",
    "delete": "destroying",
    "demo": "demo",
    "derived": "derived",
    "diff": "timeline",
    "doctor": "doctor",
    "erase": "destroying",
    "export": "exporting",
    "facts": "facts",
    "forget": "forget",
    "fork": "timeline",
    "history": "timeline",
    "import": "importing",
    "index": "indexing",
    "pin": "pinning",
    "repair": "repair",
    "rewind": "timeline",
    "rotate-keys": "keys",
    "scan": "scan",
    "search": "search",
    "serve": "serving",
    "sessions": "sessions",
    "show": "sessions",
    "stats": "sessions",
    "summaries": "compacting",
    "sweep": "sweeping",
    "title": "titles",
    "unpin": "pinning",
    "vacuum": "vacuum",
    "verify": "compacting",
    "worker": "working",
}
"""The module in `palimpsest.cli` that defines each command."""
OTHER_NAMES = {
    **dict.fromkeys(("list", "ls"), "sessions"),
    **dict.fromkeys(("rm", "remove", "del"), "delete"),
    **dict.fromkeys(("cat", "entries", "messages", "log"), "show"),
    **dict.fromkeys(("migrate", "move", "clone"), "copy"),
    **dict.fromkeys(("expire", "gc"), "sweep"),
    "branch": "fork",
    **dict.fromkeys(("undo", "reset"), "rewind"),
    **dict.fromkeys(("summarize", "summarise", "compress"), "compact"),
    **dict.fromkeys(("load", "add"), "import"),
    **dict.fromkeys(("save", "dump"), "export"),
    "check": "verify",
    **dict.fromkeys(("working", "remember"), "facts"),
    "describe": "title",
    "rename": "title",
    "redact": "scan",
    **dict.fromkeys(("find", "grep", "recall", "query"), "search"),
    **dict.fromkeys(("reindex", "rebuild"), "index"),
    **dict.fromkeys(("http", "server", "service"), "serve"),
    **dict.fromkeys(("configuration", "resources", "schema", "validate"), "config"),
}
"""Names that other programs use for a command: they are suggested, not accepted."""
OUT_OF_PLACE = {
    "config": dict.fromkeys(("--store", "--tenant", "--privacy"), "it reads files that declare memories"),
    "copy": {
        "--store": "it takes two stores, SOURCE and TARGET",
        "--privacy": "everything is copied unchanged; `palimpsest scan --apply` redacts what a store holds",
    },
    "demo": dict.fromkeys(("--store", "--tenant", "--privacy"), "it makes its own memory in a temporary file"),
    **dict.fromkeys(
        ("memory", "serve"),
        dict.fromkeys(("--store", "--privacy"), "the files of --config declare the store and the privacy policy"),
    ),
}
"""Root options that a command has no use for, with the reason. They are refused, as ignoring them could mislead."""
F = TypeVar("F", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """A group that imports a command's module when it is called, and turns errors into exit statuses."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        take_any_text()
        return super().__call__(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"palimpsest.cli.{COMMANDS[name]}")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(name, ctx, COMMANDS, OTHER_NAMES)
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        as_json = "--json" in args  # looked up before parsing, so that a parsing error is printed as JSON, too
        try:
            with _failures(as_json=as_json):
                ctx = super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:  # the reader of the printed help went away
            _leave_the_pipe()
        ctx.meta[JSON] = as_json
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        try:
            as_json = ctx.meta[JSON]
            with _failures(as_json=as_json), _plain_warnings(), log_as_warnings(as_json=as_json):
                outcome = super().invoke(ctx)
                sys.stdout.flush()
                return outcome
        except BrokenPipeError:
            _leave_the_pipe()
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except click.Abort as abort:
            if not isinstance(abort.__context__, KeyboardInterrupt):
                raise
            click.echo(err=True)  # end the line of the question that was interrupted
            ctx.exit(INTERRUPTED)


class CommandGroup(click.Group):
    """A group of subcommands, such as those of `palimpsest config`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(args[0], ctx, self.commands, {})
        return super().resolve_command(ctx, args)


class NoSuchCommand(click.UsageError):
    """There is no command of this name. `possibilities` lists commands that may have been meant."""

    def __init__(
        self, name: str, ctx: click.Context, commands: Collection[str], other_names: Mapping[str, str]
    ) -> None:
        closest = other_names.get(name.lower()) or nearest(name.lower(), commands)
        completions = [command for command in sorted(commands) if command.startswith(name.lower())]
        self.possibilities = [closest] if closest and closest not in completions else completions
        names = " or ".join(map(repr, self.possibilities))
        hint = f"did you mean {names}?" if names else f"`{ctx.command_path} --help` lists all commands"
        super().__init__(f"there is no command {shorten(name)}; {hint}", ctx)


@contextmanager
def _failures(*, as_json: bool) -> Iterator[None]:
    """Turn errors into click errors, which have a message and an exit status; with `as_json` print them as JSON."""
    try:
        try:
            yield
        except click.exceptions.NoArgsIsHelpError:  # its message is the help text
            raise
        except PalimpsestError as error:
            raise failure(error) from error
        except click.UsageError as error:  # it may quote an argument or a file name, which has to be neutralised
            raise Misused(error) from error
        except BrokenPipeError:
            raise
        except OSError as error:  # of a file or the output: stores raise StoreError instead
            raise OperationFailed(_unwritten(error)) from error
        except MemoryError as error:
            raise OperationFailed("there is not enough memory for this") from error
    except click.ClickException as error:
        with heedless():
            click.echo(failure_json(error), err=True) if as_json else error.show()
        raise click.exceptions.Exit(error.exit_code) from error


def _leave_the_pipe() -> NoReturn:
    """End quietly with status 0: the reader of the output went away."""
    _drop_output()
    sys.exit(BROKEN_PIPE)


def _drop_output() -> None:
    """Redirect standard output to /dev/null, so that Python's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritten(error: OSError) -> str:
    """Say which file, or the output, could not be read or written, and why.

    Output that cannot be flushed, such as on a full disk, is dropped: otherwise Python would try again at exit.
    """
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return f"{error.filename or 'the output could not be written'}: {error.strerror or error}"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print the library's warnings as one line each, without their place in the source code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        warn(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", PalimpsestWarning)
        warnings.filterwarnings("ignore", "nothing bounds this context")  # `print_context` prints "no budget"
        warnings.showwarning = show
        yield


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version  # 40 ms

        click.echo(f"palimpsest {version('palimpsest-memory')}")
        ctx.exit()


def store_options(function: F) -> F:
    """Add `--store`, `--tenant` and `--privacy`, which may be given before or after the command's name."""
    privacy = (
        "Policy that redacts private data before it is stored: default, secrets, or a JSON file. "
        "[env: PALIMPSEST_PRIVACY]"
    )
    function = click.option("--privacy", metavar="NAME|FILE", expose_value=False, callback=_keep_privacy, help=privacy)(
        function
    )
    function = click.option("--tenant", metavar="NAME", help="Tenant that the sessions belong to. [default: default]")(
        function
    )
    store = "Address or file of the store. [env: PALIMPSEST_STORE; default: sqlite:///palimpsest.db]"
    return click.option("--store", metavar="URL", help=store)(function)


def _keep_privacy(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:  # `meta` is shared with the root context: a command's own option overrides the root's
        ctx.meta[PRIVACY] = value


def json_option(function: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(function)


def require_interactive(
    as_json: bool, *, besides: str = "", instead: str = "--yes, or --dry-run", busy: bool = False
) -> None:
    """Raise a usage error if nobody can be asked to confirm: with `as_json`, or when standard input is no terminal.

    Called by commands that are about to destroy something. The error names the options to give `instead`. `besides` is
    added to its reason. `busy` says that standard input is already read for something else.
    """
    if as_json or busy or not on_terminal(sys.stdin):
        why = "--json cannot ask for confirmation" if as_json else "there is no terminal to ask for confirmation"
        raise click.UsageError(f"{why}{besides}: give {instead}")


def confirm(question: str) -> None:
    """Ask on standard error whether to go on, as standard output may be a file. Raises click.Abort if not."""
    click.confirm(question, abort=True, err=True)


class Whole(click.IntRange):
    """A whole number within bounds; `name` is what click's errors call it."""

    name = "whole number"


class Number(click.FloatRange):
    """A number within bounds; `name` is what click's errors call it."""

    name = "number"


def examples(*lines: str) -> str:
    """Return the end of a command's help text: a heading, and one example per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("palimpsest demo", "palimpsest import chat.jsonl --session support-7", "palimpsest show support-7"),
)
@store_options
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
@click.pass_context
def palimpsest(ctx: click.Context, store: str | None, tenant: str | None) -> None:
    """Memory for LLM agents: a log of each conversation, and contexts that fit the model's budget.

    `palimpsest COMMAND --help` explains a command. Data goes to standard output, everything else to standard error.
    """
    ctx.obj = (store, tenant)
    given = {"--store": store, "--tenant": tenant, "--privacy": ctx.meta.get(PRIVACY)}
    for option, why in OUT_OF_PLACE.get(ctx.invoked_subcommand or "", {}).items():
        if given[option] is not None:
            raise click.UsageError(f"{option} cannot be given before `{ctx.invoked_subcommand}`: {why}")

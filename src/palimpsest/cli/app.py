"""The root command: global options, commands loaded when they are called, and options that commands share."""

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
from palimpsest.cli.failing import Misused, OperationFailed, failure, told
from palimpsest.cli.output import JSON, log_as_warnings, on_terminal, take_any_text, warn
from palimpsest.errors import nearest, shorten

DEFAULT_STORE = "sqlite:///palimpsest.db"
BROKEN_PIPE, INTERRUPTED = 0, 130
PRIVACY = "palimpsest.privacy"
"""Where a context of click keeps what `--privacy` was given."""
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
    **dict.fromkeys(("configuration", "resources", "schema", "validate"), "config"),
}
"""What other programs call what a command does."""
OUT_OF_PLACE = {
    "config": dict.fromkeys(("--store", "--tenant", "--privacy"), "it reads files that declare memories"),
    "copy": {
        "--store": "it takes two stores, SOURCE and TARGET",
        "--privacy": "what is stored is copied as it is; `palimpsest scan --apply` takes out what may not be kept",
    },
    "demo": dict.fromkeys(("--store", "--tenant", "--privacy"), "it makes a memory of its own"),
    "memory": dict.fromkeys(("--store", "--privacy"), "the files of --config declare it"),
}
"""Options before a command that would be heeded by none of what it does, and why: to ignore them would be worse."""
F = TypeVar("F", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used, and turns errors into exit statuses."""

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
        as_json = "--json" in args  # before anything is parsed: what is wrong with that is told as JSON, too
        try:
            with _failures(as_json=as_json):
                ctx = super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:  # what was read there was the help
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
            click.echo(err=True)  # the question that was asked has no end of its line
            ctx.exit(INTERRUPTED)


class CommandGroup(click.Group):
    """The commands of one subject."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(args[0], ctx, self.commands, {})
        return super().resolve_command(ctx, args)


class NoSuchCommand(click.UsageError):
    """There is no command of this name. `possibilities` are those that may have been meant."""

    def __init__(
        self, name: str, ctx: click.Context, commands: Collection[str], other_names: Mapping[str, str]
    ) -> None:
        meant = other_names.get(name.lower()) or nearest(name.lower(), commands)
        begun = [command for command in sorted(commands) if command.startswith(name.lower())]
        self.possibilities = [meant] if meant and meant not in begun else begun
        names = " or ".join(map(repr, self.possibilities))
        hint = f"did you mean {names}?" if names else f"`{ctx.command_path} --help` lists those that there are"
        super().__init__(f"there is no command {shorten(name)}; {hint}", ctx)


@contextmanager
def _failures(*, as_json: bool) -> Iterator[None]:
    """Turn what went wrong into what is shown, and into an exit status."""
    try:
        try:
            yield
        except click.exceptions.NoArgsIsHelpError:  # what it says is the help
            raise
        except PalimpsestError as error:
            raise failure(error) from error
        except click.UsageError as error:  # it may quote an argument, or the name of a file
            raise Misused(error) from error
        except BrokenPipeError:
            raise
        except OSError as error:  # one of a store would be ours
            raise OperationFailed(_unwritten(error)) from error
    except click.ClickException as error:
        if not as_json:
            raise
        click.echo(told(error), err=True)
        raise click.exceptions.Exit(error.exit_code) from error


def _leave_the_pipe() -> NoReturn:
    """Whoever read the output has enough: end quietly."""
    _drop_output()
    sys.exit(BROKEN_PIPE)


def _drop_output() -> None:
    """Let Python flush into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritten(error: OSError) -> str:
    """What could not be read or written, and why. Output that has no room is dropped, lest Python tries once more."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return f"{error.filename or 'the output could not be written'}: {error.strerror or error}"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show the library's warnings as one line each, without the place in its source."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        warn(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", PalimpsestWarning)
        warnings.filterwarnings("ignore", "nothing bounds this context")  # what is printed of a context says so
        warnings.showwarning = show
        yield


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version  # 40 ms

        click.echo(f"palimpsest {version('palimpsest-memory')}")
        ctx.exit()


def store_options(function: F) -> F:
    """Add `--store`, `--tenant` and `--privacy`, which may stand before or after the command's name."""
    privacy = "What may not be kept: default, secrets, or a JSON file with a policy. [env: PALIMPSEST_PRIVACY]"
    function = click.option("--privacy", metavar="NAME|FILE", expose_value=False, callback=_keep_privacy, help=privacy)(
        function
    )
    function = click.option("--tenant", metavar="NAME", help="The tenant whose sessions are meant. [default: default]")(
        function
    )
    store = "Address or file of the store. [env: PALIMPSEST_STORE; default: sqlite:///palimpsest.db]"
    return click.option("--store", metavar="URL", help=store)(function)


def _keep_privacy(ctx: click.Context, _param: click.Parameter, given: str | None) -> None:
    if given is not None:  # a command's own stands in the place of the root's
        ctx.meta[PRIVACY] = given


def json_option(function: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(function)


def expect_somebody(
    as_json: bool, *, besides: str = "", instead: str = "--yes, or --dry-run", busy: bool = False
) -> None:
    """Raise a usage error where a command that is about to destroy has nobody to ask: it needs an option `instead`.

    `besides` says more of why. `busy` says that standard input has something else to say.
    """
    if as_json or busy or not on_terminal(sys.stdin):
        why = "--json asks nothing" if as_json else "there is nobody to be asked"
        raise click.UsageError(f"{why}{besides}: give {instead}")


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


class Number(click.FloatRange):
    """A number within bounds."""

    name = "number"


def examples(*lines: str) -> str:
    """Return the end of a command's help: examples, one a line."""
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
    """Memory for LLM agents: one log per conversation, and contexts that fit, are valid and stay stable.

    `palimpsest COMMAND --help` explains a command. Data goes to standard output, errors to standard error.
    """
    ctx.obj = (store, tenant)
    given = {"--store": store, "--tenant": tenant, "--privacy": ctx.meta.get(PRIVACY)}
    for option, why in OUT_OF_PLACE.get(ctx.invoked_subcommand or "", {}).items():
        if given[option] is not None:
            raise click.UsageError(f"{option} has no place before `{ctx.invoked_subcommand}`: {why}")

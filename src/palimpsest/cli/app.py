"""The root command: global options, commands loaded when they are called, and what each error's exit status is.

0  done, also nothing to do        3  no such session or entry
1  the operation failed            4  another writer was first, or an id came back with other content
2  bad usage or configuration      5  the store cannot be reached, written or read
130  interrupted
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import click

from palimpsest import ConfigError, Conflict, EntryNotFound, PalimpsestError, PalimpsestWarning, StoreError
from palimpsest.cli.output import clean, on_terminal

DEFAULT_STORE = "sqlite:///palimpsest.db"
BROKEN_PIPE, INTERRUPTED = 0, 130
PRIVACY = "palimpsest.privacy"
"""Where a context of click keeps what `--privacy` was given."""
COMMANDS = {
    "chat": "chat",
    "compact": "compacting",
    "context": "context",
    "demo": "demo",
    "derived": "derived",
    "diff": "timeline",
    "doctor": "doctor",
    "export": "exporting",
    "forget": "forget",
    "fork": "timeline",
    "history": "timeline",
    "import": "importing",
    "repair": "repair",
    "rewind": "timeline",
    "rotate-keys": "keys",
    "scan": "scan",
    "sessions": "sessions",
    "show": "sessions",
    "stats": "sessions",
    "summaries": "compacting",
    "vacuum": "vacuum",
    "verify": "compacting",
}
F = TypeVar("F", bound=Callable[..., Any])


class OperationFailed(click.ClickException):
    """The operation failed."""

    def format_message(self) -> str:
        return clean(self.message)


class InputRefused(OperationFailed):
    """An option, an id or a configuration is not accepted."""

    exit_code = 2


class Missing(OperationFailed):
    """What was asked for is not there."""

    exit_code = 3


class Conflicting(OperationFailed):
    """Another writer was first, or an id came back with other content."""

    exit_code = 4


class Unavailable(OperationFailed):
    """The store cannot be reached, written or read."""

    exit_code = 5


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used, and turns errors into exit statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"palimpsest.cli.{COMMANDS[name]}")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _plain_warnings():
                outcome = super().invoke(ctx)
                sys.stdout.flush()
                return outcome
        except PalimpsestError as error:
            raise failure(error) from error
        except click.UsageError as error:  # it may quote an argument, or the name of a file
            raise click.UsageError(clean(error.format_message()), error.ctx) from error
        except BrokenPipeError:
            _leave_the_pipe()
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def failure(error: Exception) -> OperationFailed:
    """Return what ends the command for an error of the library."""
    endings: dict[type[Exception], type[OperationFailed]] = {
        ConfigError: InputRefused,
        EntryNotFound: Missing,
        Conflict: Conflicting,
        StoreError: Unavailable,
    }
    return next((ending for kind, ending in endings.items() if isinstance(error, kind)), OperationFailed)(str(error))


def _leave_the_pipe() -> NoReturn:
    """Whoever read the output has enough: end quietly, and let Python flush into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(BROKEN_PIPE)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show the library's warnings as one line each, without the place in its source."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        click.echo(f"Warning: {clean(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", PalimpsestWarning)
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
    function = click.option("--tenant", metavar="NAME", help="Whose sessions. [default: default]")(function)
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

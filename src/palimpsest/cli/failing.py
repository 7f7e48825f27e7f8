"""The errors that end a command: their message, as text or as JSON, and their exit status.

0  done, also nothing to do        3  no such session or entry
1  the operation failed            4  another writer was first, or an id came back with other content
2  bad usage or configuration      5  the store cannot be reached, written or read
130  interrupted                   143, 129  ended by SIGTERM or SIGHUP (the process dies of the signal)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from palimpsest import ConfigError, Conflict, EntryNotFound, PalimpsestError, StoreError
from palimpsest.cli.output import clean, json_line, line
from palimpsest.errors import InvalidResource
from palimpsest.errors.secret import without_login
from palimpsest.errors.wording import bounded


class OperationFailed(click.ClickException):
    """The operation failed.

    `kind` is the `error` of the JSON output: the name of the library's error, or one of the command line's own.
    `suggestions` are names that may have been meant, `more` are further keys of the JSON output.
    """

    exit_code = 1
    kind = "OperationFailed"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        suggestions: Sequence[str] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(without_login(message))
        self.kind, self.suggestions, self.more = kind or self.kind, tuple(suggestions), more or {}

    def format_message(self) -> str:
        return clean(self.message)


class InputRefused(OperationFailed):
    """An option, an id or a configuration is not accepted."""

    exit_code = 2
    kind = "InputRefused"


class Missing(OperationFailed):
    """The requested session, entry or other item does not exist."""

    exit_code = 3
    kind = "Missing"


class Conflicting(OperationFailed):
    """Another writer was first, or an id came back with other content."""

    exit_code = 4
    kind = "Conflict"


class Unavailable(OperationFailed):
    """The store cannot be reached, written or read."""

    exit_code = 5
    kind = "StoreUnavailable"


class Misused(click.UsageError):
    """A usage error of click, its message neutralised and without the logins of addresses: it may quote arguments."""

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(clean(without_login(error.format_message())), error.ctx)
        self.suggestions = tuple(getattr(error, "possibilities", None) or ())


def failure_json(error: click.ClickException) -> str:
    """Return an error as JSON for programs: one object, on one line."""
    values: dict[str, Any] = {
        "error": getattr(error, "kind", "UsageError"),
        "message": error.message,
        "status": error.exit_code,
    }
    if suggestions := getattr(error, "suggestions", ()):
        values["suggestions"] = list(suggestions)
    return json_line({**values, **getattr(error, "more", {})})


def failure(error: PalimpsestError) -> OperationFailed:
    """Return the click error, with its exit status, that ends the command for an error of the library."""
    if isinstance(error, InvalidResource):
        return _mistaken(error)
    endings_by_error: dict[type[Exception], type[OperationFailed]] = {
        ConfigError: InputRefused,
        EntryNotFound: Missing,
        Conflict: Conflicting,
        StoreError: Unavailable,
    }
    ending = next((ending for kind, ending in endings_by_error.items() if isinstance(error, kind)), OperationFailed)
    nearest = getattr(error, "nearest", None)
    return ending(str(error), kind=type(error).__name__, suggestions=[nearest] if nearest else ())


def _mistaken(error: InvalidResource) -> InputRefused:
    """List every mistake of declared memories on a line of its own, even if a key contains line breaks."""
    heading = str(error).partition("\n")[0]
    lines = "\n".join([heading, *(f"  {line(str(mistake))}" for mistake in error.mistakes)])
    mistakes = [
        mistake._replace(key=bounded(mistake.key), memory=mistake.memory and bounded(mistake.memory))._asdict()
        for mistake in error.mistakes
    ]
    return InputRefused(lines, kind=type(error).__name__, more={"mistakes": mistakes})

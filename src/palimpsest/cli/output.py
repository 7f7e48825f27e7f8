"""What reaches the terminal: neutralised text, JSON, tables, bars. Colour and boxes only where a person looks."""

from __future__ import annotations

import codecs
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import click

from palimpsest.errors.wording import words_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# C0 without tab and line feed, DEL and C1, lone surrogates, and what turns or hides text: marks and overrides of
# direction, line and paragraph separators, zero-width characters, tags, the byte order mark.
_UNSAFE = (
    "\x7f-\x9f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f{_UNSAFE}]")
_JSON_UNSAFE = re.compile(f"[{_UNSAFE}]")

JSON = "palimpsest.json"
"""Where a context of click keeps whether `--json` was given."""
PIPED_WIDTH = 4_000
"""Columns where nobody looks: what goes to a program or a file is not to be cut or wrapped."""


def clean(text: str) -> str:
    """Return `text` with everything that could steer a terminal or mislead a reader as visible escapes."""
    return _CONTROL.sub(_escape, text)


def line(text: str, width: int = 0) -> str:
    """Return `text` on one line, neutralised, cut to `width` characters where one is given."""
    flat = clean(" ".join(text.split()))
    return flat if not width or len(flat) <= width else flat[: width - 1] + "…"


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON that is safe on a terminal and has UTF-8: the characters that are neither are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _JSON_UNSAFE.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def take_any_text() -> None:
    """Let no text fail at the encoding of a standard stream, whatever the system says that is.

    What an output's encoding does not have is shown as escapes of JSON, so that JSON stays JSON. Bytes of the input
    that are no text come as lone surrogates.
    """
    codecs.register_error("palimpsest.escapes", _as_escapes)
    codecs.register(_ascii)
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "palimpsest.escapes"),
        (sys.stderr, "palimpsest.escapes"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = stream is not sys.stdin and codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_ASCII if is_ascii else None, errors=errors)


_ASCII = "palimpsest_ascii"


def _ascii(name: str) -> codecs.CodecInfo | None:
    """ASCII by another name: click takes a stream for misconfigured that is called so, and writes UTF-8 past it."""
    if name != _ASCII:
        return None
    plain = codecs.lookup("ascii")
    return codecs.CodecInfo(
        plain.encode,
        plain.decode,
        plain.streamreader,
        plain.streamwriter,
        plain.incrementalencoder,
        plain.incrementaldecoder,
        name=_ASCII,
    )


def _as_escapes(fault: UnicodeError) -> tuple[str, int]:
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    return json.dumps(fault.object[fault.start : fault.end])[1:-1], fault.end


class Cleaning:
    """A sink for UTF-8 that lets through what is safe on a terminal, and shows the rest as escapes."""

    def __init__(self, out: IO[bytes], *, json: bool) -> None:
        self._out, self._json = out, json
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes, /) -> None:
        """Write the next bytes."""
        self._put(self._decoder.decode(data))

    def close(self) -> None:
        """Write what is left."""
        self._put(self._decoder.decode(b"", final=True))
        self._out.flush()

    def _put(self, text: str) -> None:
        safe = _JSON_UNSAFE.sub(_json_escape, text) if self._json else clean(text)
        self._out.write(safe.encode())


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    click.echo(to_json(value))


def told_json(value: dict[str, Any]) -> str:
    """Return an object on one line, as standard error has it for programs."""
    return to_json(value, indent=None)


def note(text: str) -> None:
    """Print what is no data to standard error: as text, or with `--json` as an object on one line."""
    _tell("note", text, "")


def warn(text: str) -> None:
    """Print a warning to standard error, as `note` does."""
    _tell("warning", text, "Warning: ")


def _tell(kind: str, text: str, before: str) -> None:
    context = click.get_current_context(silent=True)
    _put(kind, text, before, as_json=context is not None and context.meta.get(JSON, False))


def _put(kind: str, text: str, before: str, *, as_json: bool) -> None:
    click.echo(told_json({kind: text}) if as_json else clean(before + text), err=True)


@contextmanager
def log_as_warnings(*, as_json: bool) -> Iterator[None]:
    """Print what the library logs meanwhile as warnings: what went wrong where nobody waits for it, in any thread.

    An error is its message without its traceback, whose texts nobody has looked at.
    """

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fault = record.exc_info[1] if record.exc_info else None
            text = record.getMessage() + (f" ({words_of(fault)})" if fault is not None else "")
            _put("warning", text, "Warning: ", as_json=as_json)

    logger, shown = logging.getLogger("palimpsest"), Shown(logging.WARNING)
    logger.addHandler(shown)
    try:
        yield
    finally:
        logger.removeHandler(shown)


def on_terminal(stream: IO[str] | None = None) -> bool:
    """Whether a person looks at this stream (standard output, unless another is given)."""
    return (stream or sys.stdout).isatty()


def console(*, stderr: bool = False) -> Console:
    """Return a console that breaks no words of data, knows NO_COLOR and leaves a broken pipe to its caller."""
    from rich.console import Console  # 30 ms, as all of rich here, which `--json` does without

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if on_terminal(sys.stderr if stderr else sys.stdout) else PIPED_WIDTH
    return Plain(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """Return a table: with rules on a terminal, columns of plain text elsewhere.

    On a narrow terminal the first column stays whole, texts are cut, and columns that have no room are left out.
    """
    from palimpsest.cli.tables import fitted  # as `console`

    return fitted(columns, right, title, plain=not on_terminal())


def bar(shares: Sequence[tuple[float, str, str]], width: int) -> Text:
    """Return a bar of `width` cells; each share is (part of the whole, style, character)."""
    from rich.text import Text  # as `console`

    made, filled, total = Text(), 0, 0.0
    for share, style, character in shares:
        total += share
        cells = min(round(total * width), width) - filled
        made.append(character * max(cells, 0), style)
        filled += max(cells, 0)
    made.append("·" * (width - filled), "dim")
    return made


def counted(number: int, one: str) -> str:
    """Return `3 entries`, `1 session`: a number with what it counts."""
    many = f"{one[:-1]}ies" if one.endswith("y") and one[-2] not in "aeiou" else f"{one}s"
    return f"{number:,} {one if number == 1 else many}"


@contextmanager
def session_progress(what: str = "sessions") -> Iterator[Callable[[int, int], object]]:
    """Show how many sessions are done, or what else there is to do, on a terminal only."""
    if not on_terminal(sys.stderr):
        yield lambda _, __: None
        return
    # As `console`.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def moment(when: datetime | int | None) -> str:
    """Return a time, UTC to the second. Numbers are microseconds since 1970."""
    if not when:
        return "-"
    if not isinstance(when, datetime):
        when = datetime.fromtimestamp(when / 1_000_000, UTC)
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")

"""Output of the commands: neutralised text, JSON, notes and warnings, tables, bars and progress.

Colours, rules and progress are only for terminals.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, cast

import click

from palimpsest.errors.wording import words_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table
    from rich.text import Text

# DEL and C1 controls, lone surrogates, and characters that reorder or hide text: marks and overrides of direction,
# line and paragraph separators, zero-width characters, tags, the byte order mark. `_CONTROL` adds the C0 controls
# except tab and line feed.
_UNSAFE = (
    "\x7f-\x9f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f{_UNSAFE}]")
_JSON_UNSAFE = re.compile(f"[{_UNSAFE}]")

JSON = "palimpsest.json"
"""The key of a click context's `meta` that says whether `--json` was given."""
PIPED_WIDTH = 4_000
"""Columns of output that goes to a program or a file, which is not to be cut or wrapped."""


def clean(text: str) -> str:
    """Return `text` with visible escapes for all characters that could control a terminal or mislead a reader."""
    return _CONTROL.sub(_escape, text)


def line(text: str, width: int = 0) -> str:
    """Return `text` on one line, neutralised like `clean`, and cut to `width` characters unless that is 0."""
    flat = clean(" ".join(text.split()))
    return flat if not width or len(flat) <= width else flat[: width - 1] + "…"


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Return the value as JSON that is safe on a terminal and valid UTF-8: all other characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _JSON_UNSAFE.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def take_any_text() -> None:
    """Configure the standard streams so that no text fails at their encoding, whichever the system sets.

    Characters that the output's encoding lacks are written as JSON escapes, so that JSON stays JSON. Bytes of standard
    input that do not decode become lone surrogates.
    """
    _write_whole()
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


def _write_whole() -> None:
    """Give standard output a buffer if it has none, as with PYTHONUNBUFFERED. Each line is passed on at once.

    An unbuffered stream may write only a part of what it is given, such as on a disk that is nearly full. Python does
    not look how much that was, so output would be cut off without an error.
    """
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.RawIOBase):
        encoding, errors = stream.encoding, stream.errors
        raw = cast("io.RawIOBase", stream.detach())
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(  # type: ignore[misc]
            io.BufferedWriter(raw), encoding, errors, line_buffering=True
        )


_ASCII = "palimpsest_ascii"


def _ascii(name: str) -> codecs.CodecInfo | None:
    """Return ASCII under another name.

    Click takes a stream whose encoding is called "ascii" for misconfigured, and writes UTF-8 to it.
    """
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
    """A binary sink that passes UTF-8 on to `out`, with escapes for all characters that are unsafe on a terminal."""

    def __init__(self, out: IO[bytes], *, json: bool) -> None:
        self._out, self._json = out, json
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes, /) -> None:
        """Write the next bytes."""
        self._put(self._decoder.decode(data))

    def close(self) -> None:
        """Write what is left of an incomplete character, and flush."""
        self._put(self._decoder.decode(b"", final=True))
        self._out.flush()

    def _put(self, text: str) -> None:
        safe = _JSON_UNSAFE.sub(_json_escape, text) if self._json else clean(text)
        self._out.write(safe.encode())


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    click.echo(to_json(value))


def json_line(value: dict[str, Any]) -> str:
    """Return an object as JSON on one line, as programs read it from standard error."""
    return to_json(value, indent=None)


def note(text: str) -> None:
    """Print a remark to standard error: as text, or with `--json` as an object on one line."""
    _tell("note", text, "")


def warn(text: str) -> None:
    """Print a warning to standard error, in the form that `note` has."""
    _tell("warning", text, "Warning: ")


def _tell(kind: str, text: str, before: str) -> None:
    context = click.get_current_context(silent=True)
    _put(kind, text, before, as_json=context is not None and context.meta.get(JSON, False))


def _put(kind: str, text: str, before: str, *, as_json: bool) -> None:
    with heedless():
        click.echo(json_line({kind: text}) if as_json else clean(before + text), err=True)


@contextmanager
def heedless() -> Iterator[None]:
    """Drop the messages of the block, and later ones, if standard error cannot be written to any more.

    They are no data: a command does its work without them, and its exit status tells how it ended.
    """
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextmanager
def log_as_warnings(*, as_json: bool) -> Iterator[None]:
    """Print what the library logs during the block, in any thread, as warnings.

    These are failures that no caller waits for, such as those of background work. An exception is printed without its
    traceback, whose texts were not checked for private data.
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
    """Whether the stream, by default standard output, is a terminal."""
    return (stream or sys.stdout).isatty()


def console(*, stderr: bool = False) -> Console:
    """Return a console of rich that interprets no markup in data and raises BrokenPipeError to its caller."""
    from rich.console import Console  # rich is imported late everywhere here: it takes 30 ms, and `--json` needs none

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if on_terminal(sys.stderr if stderr else sys.stdout) else PIPED_WIDTH
    return Plain(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """Return a table: with rules on a terminal, columns of plain text elsewhere.

    On a narrow terminal the first column stays whole, texts are cut, and columns that have no room are left out.
    """
    from palimpsest.cli.tables import fitted  # late: it imports rich

    return fitted(columns, right, title, plain=not on_terminal())


def bar(shares: Sequence[tuple[float, str, str]], width: int) -> Text:
    """Return a bar of `width` cells; each share is (part of the whole, style, character)."""
    from rich.text import Text  # late: rich takes 30 ms

    text, filled, total = Text(), 0, 0.0
    for share, style, character in shares:
        total += share
        cells = min(round(total * width), width) - filled
        text.append(character * max(cells, 0), style)
        filled += max(cells, 0)
    text.append("·" * (width - filled), "dim")
    return text


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural where needed: `3 entries`, `1 session`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


@contextmanager
def session_progress(what: str = "sessions") -> Iterator[Callable[[int, int], object]]:
    """Show a progress bar that counts sessions, or `what` else, if standard error is a terminal.

    Yields a function that is called with the numbers of what is done and of the total.
    """
    if not on_terminal(sys.stderr):
        yield lambda _, __: None
        return
    # Late: rich takes 30 ms.
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    with progress_bar(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Progress]:
    """Show a progress bar on standard error, and erase it at the end.

    The cursor is shown again at all events, by a console of its own: one that was interrupted in the middle of its
    output may keep back all that follows.
    """
    from rich.progress import Progress  # late: it takes 30 ms

    shown = Progress(*columns, console=console(stderr=True), transient=True)
    try:
        shown.start()
        yield shown
    finally:
        try:
            shown.stop()
        finally:
            console(stderr=True).show_cursor()


def moment(when: datetime | int | None) -> str:
    """Return a time in UTC, to the second, or "-" for none. Numbers are microseconds since 1970."""
    if not when:
        return "-"
    if not isinstance(when, datetime):
        when = datetime.fromtimestamp(when / 1_000_000, UTC)
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")

"""What is in a file of conversations: JSON or JSON lines, told apart and read in pieces of known place.

A piece is one message, a list of messages, an object with `messages`, or an export. JSON lines are read one at a
time, so that a file may be larger than memory; a JSON document is read whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

import click

Kind = Literal["message", "conversation", "export", "bad"]


class Piece(NamedTuple):
    """One readable thing of a file, or what is wrong at this place.

    `place` is `12` for line 12, or `messages[3]` in a document. `value` is a message, a list of messages or an
    export; for `bad` it is the reason. `raw` identifies the content, `end` is how many bytes were read so far.
    """

    place: str
    kind: Kind
    value: object
    session: str | None = None
    raw: bytes = b""
    end: int = 0


def pieces(stream: BinaryIO, name: str) -> Iterator[Piece]:
    """Yield what is in `stream`, in order. `name` is the file's: its ending says what it holds where it can."""
    lines = _Lines(stream)
    if name.endswith((".jsonl", ".ndjson")):
        yield from _from_lines(lines)
        return
    ahead = lines.ahead(2)
    if not name.endswith(".json") and len(ahead) == 2 and any(_is_whole(line) for line in ahead):
        yield from _from_lines(lines)
        return
    yield from _from_document(b"".join(lines))


class _Lines:
    """Lines of a stream, with a look ahead at the first that are not blank."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._ahead = stream, list[bytes]()

    def ahead(self, count: int) -> list[bytes]:
        while sum(bool(line.strip()) for line in self._ahead) < count and (line := self._stream.readline()):
            self._ahead.append(line)
        return [line for line in self._ahead if line.strip()]

    def __iter__(self) -> Iterator[bytes]:
        while self._ahead:
            yield self._ahead.pop(0)
        yield from self._stream


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except ValueError:
        return False


def _from_lines(lines: _Lines) -> Iterator[Piece]:
    end = 0
    for number, raw in enumerate(lines, 1):
        end += len(raw)
        text = raw.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else raw.strip()
        if not text:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as fault:
            yield Piece(str(number), "bad", _why(fault), raw=text, end=end)
            continue
        yield _piece(value, str(number), text, end)


def _from_document(body: bytes) -> Iterator[Piece]:
    try:
        value = json.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except json.JSONDecodeError as fault:
        yield Piece(str(fault.lineno), "bad", _why(fault), end=len(body))
        return
    except (ValueError, RecursionError) as fault:
        yield Piece("1", "bad", _why(fault), end=len(body))
        return
    many = isinstance(value, list) and value and not any(isinstance(item, dict) and "role" in item for item in value)
    if not many:
        yield _piece(value, "messages", body, len(body))._replace(end=len(body))
        return
    for number, item in enumerate(value, 1):
        found = _piece(item, f"item {number}", json.dumps(item).encode(), len(body))
        yield found


def _piece(value: object, place: str, raw: bytes, end: int) -> Piece:
    if isinstance(value, list):
        return Piece(place, "conversation", value, None, raw, end)
    if isinstance(value, dict):
        session = value.get("session_id")
        if "schema_version" in value and "entries" in value:
            return Piece(place, "export", value, session if isinstance(session, str) else None, raw, end)
        if isinstance(value.get("messages"), list):
            return Piece(
                place, "conversation", value["messages"], session if isinstance(session, str) else None, raw, end
            )
        if "role" in value:
            return Piece(place, "message", value, None, raw, end)
    reason = "neither a message, a list of messages, an object with `messages`, nor an export of Palimpsest"
    return Piece(place, "bad", reason, None, raw, end)


def _why(fault: Exception) -> str:
    if isinstance(fault, json.JSONDecodeError):
        return f"no JSON: {fault.msg} at column {fault.colno}"
    if isinstance(fault, UnicodeDecodeError):
        return f"no UTF-8: {fault.reason} at byte {fault.start}"
    return "nested too deeply" if isinstance(fault, RecursionError) else f"no JSON: {fault}"


def opened(path: str) -> BinaryIO:
    """Open a file, or standard input for `-`. Raises a usage error where it cannot be read."""
    if path == "-":
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as fault:
        raise click.UsageError(f"{path}: {fault.strerror}") from fault

"""`palimpsest import`: conversations from files into sessions, once however often it is repeated.

Messages go in batches of at most `BATCH`, one commit each. A batch's key is made of everything that the file held
before it, and of its first message: importing a file again adds nothing, and a file that has grown adds what is new.
Where that key is taken by another file that begins alike, the key covers the batch's whole content.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple, cast

import click

from palimpsest import ConfigError, Conflict, ImportFailed, InvalidEntry, Memory
from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import entries_in, open_memory
from palimpsest.cli.output import clean, console, line, note, on_terminal, print_json, table
from palimpsest.cli.reading import Piece, opened, pieces

BATCH = 256
Message = dict[str, Any]


class Bad(NamedTuple):
    """What could not be taken: where, and why."""

    place: str
    reason: str


class Tally:
    """What came of one file."""

    def __init__(self, name: str) -> None:
        self.name, self.bad = name, list[Bad]()
        self.sessions: dict[str, list[int]] = {}

    def count(self, session: str, added: int, there: int) -> None:
        """Note that so many entries came into a session, and so many were there already."""
        figures = self.sessions.setdefault(session, [0, 0])
        figures[0] += added
        figures[1] += there

    def reject(self, place: str, reason: str) -> None:
        """Note, and say at once, that something was not taken."""
        self.bad.append(Bad(place, reason))
        separator = ":" if place[:1].isdecimal() else ": "
        note(f"{self.name}{separator}{place}: {reason}")


class Importer:
    """Takes the pieces of one file into a memory."""

    def __init__(self, memory: Memory, tally: Tally, session: str | None, format: str, key: str | None) -> None:
        self._memory, self._tally, self._format, self._key = memory, tally, format, key or ""
        self._given, self._began = session, time.time_ns() // 1000
        self._stem = "" if tally.name == "-" else os.path.basename(tally.name).split(".")[0]
        self._chain = sha256(self._key.encode()).digest()
        self._waiting: list[tuple[str, Message, bytes]] = []

    def take(self, piece: Piece) -> None:
        """Take one piece; what is wrong with it goes into the tally."""
        if piece.kind == "message":
            self._waiting.append((piece.place, cast("Message", piece.value), piece.raw))
            if len(self._waiting) >= BATCH:
                self.flush()
            return
        self.flush()
        if piece.kind == "bad":
            self._tally.reject(piece.place, str(piece.value))
        elif piece.kind == "export":
            self._take_export(piece)
        else:
            self._take_conversation(piece)
        self._chain = sha256(self._chain + piece.raw).digest()

    def flush(self) -> None:
        """Store the messages that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._chain = self._store(self._session(None, ""), waiting, self._chain)

    def _session(self, own: str | None, number: str) -> str:
        """The session for a piece: the one asked for, else its own, else named after the file."""
        if self._given is not None:
            return self._given
        if own is not None:
            return own
        if not self._stem:
            raise click.UsageError(f"{self._tally.name}: nothing names a session for its messages; give --session ID")
        return f"{self._stem}-{number}" if number else self._stem

    def _take_conversation(self, piece: Piece) -> None:
        number = "".join(filter(str.isdecimal, piece.place))
        session = self._session(piece.session, number)
        try:
            self._memory.session(session)
        except ConfigError as fault:
            self._tally.reject(piece.place, str(fault))
            return
        messages = cast("list[Any]", piece.value)
        place = f"line {number} " if piece.place.isdecimal() else f"{piece.place} " if number else ""
        label = f"{piece.place}: messages" if piece.place.isdecimal() else f"{place}messages"
        placed = [(f"{label}[{i}]", message, b"") for i, message in enumerate(messages)]
        chain = sha256(self._key.encode() + b"\n" + (number if self._given else "").encode()).digest()
        for start in range(0, len(placed), BATCH):
            chain = self._store(session, placed[start : start + BATCH], chain)

    def _take_export(self, piece: Piece) -> None:
        data = cast("dict[str, Any]", piece.value)
        had = entries_in(self._memory, self._given or piece.session)
        try:
            session = self._memory.import_session(data, session_id=self._given, on_conflict="merge")
        except (ImportFailed, Conflict, ConfigError) as fault:
            self._tally.reject(piece.place, str(fault))
            return
        new = entries_in(self._memory, session) - had
        self._tally.count(session, new, len(data["entries"]) - new)

    def _store(self, session: str, placed: list[tuple[str, Message, bytes]], chain: bytes) -> bytes:
        """Add a batch without what is malformed in it, and return the chain after it.

        After something malformed a new batch begins, so that entries keep their keys where it was at the end.
        """
        while placed:
            good = len(placed)
            fault = self._add(session, [message for _, message, _ in placed], chain)
            if fault is not None:
                good = fault[0]
                self._tally.reject(placed[good][0], fault[1])
                self._add(session, [message for _, message, _ in placed[:good]], chain)
            for _, message, _ in placed[: good + 1]:
                chain = sha256(chain + _canonical(message)).digest()
            placed = placed[good + 1 :]
        return chain

    def _add(self, session: str, messages: list[Message], chain: bytes) -> tuple[int, str] | None:
        """Add the messages in one commit; where one is malformed add none, and return its number and the reason."""
        if not messages:
            return None
        chat = self._memory.session(session)
        first = sha256(chain + _canonical(messages[0])).hexdigest()
        try:
            entries = chat.add(messages, format=self._format, key=f"import:{first}")
        except InvalidEntry as fault:
            return _fault_in(fault)
        except Conflict:
            whole = sha256(b"".join(map(_canonical, messages))).hexdigest()
            entries = chat.add(messages, format=self._format, key=f"import:{first}:{whole}")
        added = sum(entry.at >= self._began for entry in entries)
        self._tally.count(session, added, len(entries) - added)
        return None


_PLACE = re.compile(r"messages\[(\d+)\]\.?(.*)")


def _fault_in(fault: InvalidEntry) -> tuple[int, str]:
    """The number of the malformed message in its batch, and what is wrong with it."""
    found = _PLACE.fullmatch(fault.where)
    reason = f"{found[2]}: {fault.reason}" if found and found[2] else fault.reason
    return int(found[1]) if found else 0, reason


def _canonical(message: object) -> bytes:
    import json

    return json.dumps(message, sort_keys=True, separators=(",", ":")).encode()


@click.command(
    "import",
    epilog=examples(
        "palimpsest import chat.jsonl --session support-7",
        "palimpsest import backup.json",
        "cat chat.jsonl | palimpsest import - --session support-7",
        "palimpsest import *.jsonl --strict --json",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--session", metavar="ID", help="Into this session. [default: the export's own id, or the file's name]")
@click.option("--format", default="openai", show_default=True, help="What the messages are written in.")
@click.option("--key", metavar="TEXT", help="Import the same messages once more, under another key.")
@click.option("--strict", is_flag=True, help="Stop at the first fault, and store nothing of its file.")
@json_option
@store_options
def import_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    files: tuple[str, ...],
    session: str | None,
    format: str,
    key: str | None,
    strict: bool,
) -> None:
    """Bring conversations from files into sessions.

    FILE is JSON lines (a message, a list of messages or an export on each) or JSON (a list of messages, an object
    with `messages`, or an export); `-` is standard input. Importing the same file again adds nothing.

    What is malformed is reported with its line, the rest is taken, and the exit status is 1.
    """
    tallies = []
    for path in files:
        opened(path).close() if path != "-" else None
    with open_memory(store, tenant, create=True) as memory:
        memory.session(session or "any", format=format)  # refuse a bad id or format before anything is read
        for path in files:
            tally = Tally(path)
            tallies.append(tally)
            _import_file(memory, path, tally, (session, format, key), strict=strict)
            if strict and tally.bad:
                break
    _print(tallies, as_json=as_json)
    if any(tally.bad for tally in tallies):
        click.get_current_context().exit(1)


def _import_file(
    memory: Memory, path: str, tally: Tally, asked: tuple[str | None, str, str | None], *, strict: bool
) -> None:
    with _stream(path, spool=strict) as (stream, size):
        if strict and not _is_clean(stream, tally, asked[1]):
            return
        importer = Importer(memory, tally, *asked)
        with _progress(path, size) as advance:
            for piece in pieces(stream, path):
                importer.take(piece)
                advance(piece.end)
            importer.flush()


def _is_clean(stream: BinaryIO, tally: Tally, format: str) -> bool:
    """Read all of it, store nothing, and say whether everything is well formed."""
    for piece in pieces(stream, tally.name):
        fault = _fault(piece, format)
        if fault is not None:
            tally.reject(*fault)
            return False
    stream.seek(0)
    return True


def _fault(piece: Piece, format: str) -> Bad | None:
    """What is wrong with a piece, found in a memory of its own."""
    if piece.kind == "bad":
        return Bad(piece.place, str(piece.value))
    value: Any = piece.value
    with Memory.open("memory://") as scratch:
        try:
            if piece.kind == "export":
                scratch.import_session(value)
            else:
                scratch.session(piece.session or "scratch").add(value, format=format)
        except (ImportFailed, ConfigError) as failed:
            return Bad(piece.place, str(failed))
        except InvalidEntry as malformed:
            number, reason = _fault_in(malformed)
            return Bad(piece.place, reason if piece.kind == "message" else f"messages[{number}]: {reason}")
    return None


@contextmanager
def _stream(path: str, *, spool: bool) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a file; standard input that has to be read twice is copied to a temporary file first."""
    if path != "-":
        with opened(path) as stream:
            yield stream, os.fstat(stream.fileno()).st_size
        return
    if not spool:
        yield opened(path), None
        return
    import shutil
    import tempfile

    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(opened(path), copy)
        size = copy.tell()
        copy.seek(0)
        yield copy, size


@contextmanager
def _progress(path: str, size: int | None) -> Iterator[Callable[[int], object]]:
    """Show how far a large file is, on a terminal only."""
    import sys

    if size is None or size < 1 << 20 or not on_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as shown:
        task = shown.add_task(clean(os.path.basename(path)), total=size)
        yield lambda end: shown.update(task, completed=end)


def _print(tallies: list[Tally], *, as_json: bool) -> None:
    if as_json:
        print_json([_as_json(tally) for tally in tallies])
        return
    rows = table("file", "session", "added", "already there", "refused", right=("added", "already there", "refused"))
    for tally in tallies:
        refused = f"{len(tally.bad):,}"
        if not tally.sessions:
            rows.add_row(line(tally.name), "-", "0", "0", refused)
        for session, (added, there) in tally.sessions.items():
            rows.add_row(line(tally.name), line(session), f"{added:,}", f"{there:,}", refused)
            refused = ""
    console().print(rows)


def _as_json(tally: Tally) -> dict[str, Any]:
    sessions = [{"session": name, "added": a, "already_there": b} for name, (a, b) in tally.sessions.items()]
    return {"file": tally.name, "sessions": sessions, "refused": [bad._asdict() for bad in tally.bad]}

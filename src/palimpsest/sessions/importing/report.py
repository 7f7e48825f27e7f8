"""The result of an import: the account that is kept while it runs, and the report at its end."""

from __future__ import annotations

import msgspec

from palimpsest.errors import ImportFailed
from palimpsest.privacy.gate import Gate
from palimpsest.transfer.sources import Piece

CHANGED = "messages that have changed since they were imported (left as they were)"
ERASED = "messages in the places of erased ones (if they are other messages, import them with a key)"
MORE = "more malformed items"
OTHERS = "other files of the archive"
WITHHELD = "messages that the privacy policy withholds"


class Imported(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """The import into one session: how many entries were `added` or `already_there`, and the conversation's `title`."""

    added: int
    already_there: int
    title: str | None = None


class Refused(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """Something that could not be imported: its `place` in the file (a line number, or a path), and the `reason`."""

    place: str
    reason: str


class ImportReport(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """The result of an import.

    `source` is the kind of file that was recognised or given, `format` the format of its messages (None for a source
    with a form of its own). `sessions` are those that the file has messages for, by id. `refused` lists what could not
    be imported. `left_out` counts by reason what was left out on purpose.
    """

    source: str
    format: str | None
    sessions: dict[str, Imported]
    refused: tuple[Refused, ...] = ()
    left_out: dict[str, int] = {}


def failed(place: str, reason: str) -> ImportFailed:
    """Return the error that says what is wrong at a place of a file."""
    return ImportFailed(f"line {place}" if place.isdecimal() else place, reason)


class Account:
    """The result of the pieces taken so far. Texts in it are redacted. Up to `most` refusals are listed one by one."""

    def __init__(self, gate: Gate, most: int) -> None:
        self._gate, self._most = gate, most
        self._sessions: dict[str, Imported] = {}
        self._refused: list[Refused] = []
        self._first: Refused | None = None
        self._left_out: dict[str, int] = {}

    @property
    def has_sessions(self) -> bool:
        """Whether entries of the file are stored."""
        return bool(self._sessions)

    def refuse(self, piece: Piece, why: object) -> None:
        """Note a piece that is malformed or could not be imported."""
        refused = Refused(piece.place, self._gate.redact(str(why)))
        self._first = self._first or refused
        if len(self._refused) < self._most:
            self._refused.append(refused)
        else:
            self.leave_out(MORE, 1)

    def check(self) -> None:
        """Raise ImportFailed for the first piece that was refused, if any was."""
        if self._first is not None:
            raise failed(self._first.place, self._first.reason)

    def leave_out(self, reason: str, count: int) -> None:
        """Note how many messages were left out on purpose, for a reason."""
        self._left_out[reason] = self._left_out.get(reason, 0) + count

    def count(self, session: str, added: int, already_there: int, title: str | None) -> None:
        """Note how many entries were added to a session, and how many existed. Its title is the first one."""
        before = self._sessions.get(session, Imported(0, 0))
        title = before.title or (title and self._gate.redact(title))
        self._sessions[session] = Imported(before.added + added, before.already_there + already_there, title)

    def report(self, source: str, format: str | None) -> ImportReport:
        """Return the report."""
        return ImportReport(
            source=source,
            format=format,
            sessions=self._sessions,
            refused=tuple(self._refused),
            left_out=self._left_out,
        )

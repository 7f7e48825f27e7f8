"""`openai-agents`: the SQLite database of the OpenAI Agents SDK's sessions, read and never written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from msgspec.structs import replace

from palimpsest.errors import ImportFailed, InvalidEntry
from palimpsest.log.entry import Entry
from palimpsest.transfer.sources import Conversation, Piece
from palimpsest.transfer.sources.common import microseconds
from palimpsest.transfer.sources.files import SourceFile
from palimpsest.transfer.sources.messages import Decoder
from palimpsest.transfer.sources.values import TooLarge, loads

NAME = "openai-agents"
ELSEWHERE = "messages in other branches"
MAIN = "main"
_PLAIN = "SELECT rowid, id FROM agent_messages WHERE session_id = ? ORDER BY id"
_BRANCH = (
    "SELECT m.rowid, m.id FROM message_structure s JOIN agent_messages m ON m.id = s.message_id "
    "WHERE s.session_id = ? AND s.branch_id = ? ORDER BY s.sequence_number"
)
_ROW = "SELECT message_data, created_at FROM agent_messages WHERE rowid = ?"
_OTHERS = (
    "SELECT count(DISTINCT message_id) FROM message_structure WHERE session_id = ? AND message_id NOT IN "
    "(SELECT message_id FROM message_structure WHERE session_id = ? AND branch_id = ?)"
)

_OURS = {"place", "entry", "meta"}
"""Tables by which a store of Palimpsest is recognised."""


class OpenAIAgents:
    """Sessions of the OpenAI Agents SDK (`SQLiteSession`, and `AdvancedSQLiteSession` with its branches).

    The items of a session are items of the Responses API. The conversation of an advanced session is its branch `main`.
    """

    format: str | None = "openai-responses"

    def __init__(self, file: SourceFile, *, format: str | None = None, branches: bool = False) -> None:
        self._name = file.name or "the file"
        if not file.is_sqlite:
            raise ImportFailed(self._name, "is not an SQLite database")
        self._file, self._size, self._branches = file, file.size or 0, branches
        self._decoder = Decoder(format or "openai-responses")
        self.format = format or "openai-responses"
        with closing(self._file.database()) as db:
            try:
                names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            except sqlite3.Error as fault:
                raise ImportFailed(self._name, f"cannot be read: {fault}") from fault
        tables = {name.decode("utf-8", "replace") for name in names}
        if "agent_messages" not in tables:
            listed = ", ".join(sorted(tables)[:6]) or "none"
            ours = "; a store of Palimpsest is copied by `palimpsest copy`" if tables >= _OURS else ""
            raise ImportFailed(self._name, f"has no table agent_messages (its tables: {listed}){ours}")
        self._advanced = "message_structure" in tables

    @staticmethod
    def speaks(value: object) -> bool:
        """Return False: this source has no JSON values."""
        return False

    def pieces(self) -> Iterator[Piece]:
        """Yield the items, session by session."""
        with closing(self._file.database()) as db:
            try:
                yield from self._sessions(db)
            except sqlite3.Error as fault:
                yield Piece(
                    place="agent_messages", fault=f"the rest of the database cannot be read: {fault}", end=self._size
                )

    def _sessions(self, db: sqlite3.Connection) -> Iterator[Piece]:
        total = db.execute("SELECT count(*) FROM agent_messages").fetchone()[0] or 1
        done = 0
        listed = db.execute("SELECT session_id, min(id) FROM agent_messages GROUP BY session_id ORDER BY min(id)")
        for number, (raw_id, first) in enumerate(listed, 1):
            try:
                session = raw_id.decode() if isinstance(raw_id, bytes) else str(raw_id)
            except UnicodeDecodeError as fault:
                yield Piece(
                    place=f"agent_messages.id={first}", fault=f"the session_id is not valid UTF-8: {fault.reason}"
                )
                continue
            has_rows, limit = False, self._file.limits.branches
            for branch, (query, arguments) in enumerate(self._queries(db, session), 1):
                if branch > limit + 1:
                    yield Piece(place=session, fault=self._file.limits.more_than("branches", "branches"))
                    break
                own = session if branch == 1 else f"{session}~{branch}"
                conversation = Conversation(id=own, number=str(number))
                self._decoder.begin()
                for row, id in db.execute(query, arguments):
                    has_rows, done = True, min(done + 1, total)
                    yield self._piece(db, row, id, conversation, self._size * done // total)
            if not has_rows:
                yield Piece(place=f"agent_messages.id={first}", fault="no row can be found by its session_id")
            if self._advanced and not self._branches:
                others = db.execute(_OTHERS, (session, session, MAIN)).fetchone()[0]
                if others and db.execute(_BRANCH, (session, MAIN)).fetchone():
                    yield Piece(place=session, left_out={ELSEWHERE: others})

    def _queries(self, db: sqlite3.Connection, session: str) -> list[tuple[str, tuple[Any, ...]]]:
        """Return a query and its arguments for each branch of a session: one for a plain session, else `main` first."""
        if not self._advanced:
            return [(_PLAIN, (session,))]
        query = "SELECT branch_id FROM message_structure WHERE session_id = ? GROUP BY branch_id ORDER BY min(id)"
        branches = [branch.decode("utf-8", "replace") for (branch,) in db.execute(query, (session,))]
        if not branches:
            return [(_PLAIN, (session,))]
        in_order = sorted(branches, key=lambda branch: branch != MAIN)  # stable: the others stay in order
        return [(_BRANCH, (session, branch)) for branch in (in_order if self._branches else in_order[:1])]

    def _piece(self, db: sqlite3.Connection, row: int, id: Any, conversation: Conversation, end: int) -> Piece:
        place = f"agent_messages.id={id}"
        try:
            data, created = db.execute(_ROW, (row,)).fetchone() or (b"", None)
            entries = self._entries(data if isinstance(data, bytes) else str(data).encode(), created)
        except InvalidEntry as fault:
            where = fault.where.removeprefix("messages[0]").removeprefix(".")
            reason = f"{where}: {fault.reason}" if where else fault.reason
            return Piece(place=place, conversation=conversation, fault=reason, end=end)
        except sqlite3.DataError:  # SQLite does not read a row beyond the limit
            reason = self._file.limits.more_than("value", "bytes in one row")
            return Piece(place=place, conversation=conversation, fault=reason, end=end)
        key = f"{NAME} {id}"
        return Piece(place=place, conversation=conversation, entries=tuple(entries), key=key, shared=True, end=end)

    def _entries(self, raw: bytes, created: Any) -> list[Entry]:
        """Return the entries of a row. Raises InvalidEntry for a damaged one."""
        try:
            item = loads(raw, self._file.limits)
        except TooLarge as fault:
            raise InvalidEntry("message_data", str(fault)) from fault
        except (ValueError, RecursionError) as fault:
            reason = "nested too deeply" if isinstance(fault, RecursionError) else f"not valid JSON: {fault}"
            raise InvalidEntry("message_data", reason) from fault
        at = microseconds(created.decode("utf-8", "replace") if isinstance(created, bytes) else created)
        return [replace(entry, at=at) for entry in self._decoder.read(item)]

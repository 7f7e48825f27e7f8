"""`openai-agents`: the SQLite database of the OpenAI Agents SDK's sessions, read and never written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from palimpsest.entries import Entry
from palimpsest.errors import ImportFailed, InvalidEntry
from palimpsest.sources import Conversation, Piece
from palimpsest.sources.common import microseconds
from palimpsest.sources.documents import loads
from palimpsest.sources.files import File
from palimpsest.sources.messages import Decoder

NAME = "openai-agents"
ELSEWHERE = "messages in other branches"
MAIN = "main"
_WAL = 2
"""What byte 18 of a database says where its writes go to a log of their own first."""

_PLAIN = "SELECT id, message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id"
_BRANCH = (
    "SELECT m.id, m.message_data, m.created_at FROM message_structure s JOIN agent_messages m ON m.id = s.message_id "
    "WHERE s.session_id = ? AND s.branch_id = ? ORDER BY s.sequence_number"
)
_OTHERS = (
    "SELECT count(DISTINCT message_id) FROM message_structure WHERE session_id = ?1 AND message_id NOT IN "
    "(SELECT message_id FROM message_structure WHERE session_id = ?1 AND branch_id = ?2)"
)


class OpenAIAgents:
    """Sessions of the OpenAI Agents SDK (`SQLiteSession`, and `AdvancedSQLiteSession` with its branches).

    A session's items are items of the Responses API. Of an advanced session the branch `main` is the conversation.
    """

    format: str | None = "openai-responses"

    def __init__(self, file: File, *, format: str | None = None, branches: bool = False) -> None:
        self._name = file.name or "the file"
        if not file.is_sqlite:
            raise ImportFailed(self._name, "is no SQLite database")
        self._path, self._size, self._branches = file.path, file.size or 0, branches
        self._decoder = Decoder(format or "openai-responses")
        self.format = format or "openai-responses"
        with closing(self._connected()) as db:
            try:
                found = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            except sqlite3.Error as fault:
                raise ImportFailed(self._name, f"cannot be read: {fault}") from fault
        tables = {name.decode("utf-8", "replace") for name in found}
        if "agent_messages" not in tables:
            seen = ", ".join(sorted(tables)[:6]) or "none"
            raise ImportFailed(self._name, f"has no table agent_messages (its tables: {seen})")
        self._advanced = "message_structure" in tables

    @staticmethod
    def speaks(value: object) -> bool:
        """No JSON value is of this source."""
        return False

    def _connected(self) -> sqlite3.Connection:
        """Open the database for reading only. Texts come as bytes: what is damaged must not stop the rest.

        Reading a database whose last writer has left would leave files beside it, so that one is opened as it is.
        """
        uri = Path(self._path).resolve().as_uri() + "?mode=ro"
        with open(self._path, "rb") as file:
            head = file.read(19)
        if head[18:] == bytes([_WAL]) and not Path(f"{self._path}-wal").exists():
            uri += "&immutable=1"
        try:
            db = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.Error as fault:
            raise ImportFailed(self._name, f"cannot be opened: {fault}") from fault
        db.text_factory = bytes
        db.execute("PRAGMA trusted_schema = OFF")  # what the file says of itself runs nothing
        return db

    def pieces(self) -> Iterator[Piece]:
        """Yield the items, session by session."""
        with closing(self._connected()) as db:
            try:
                yield from self._sessions(db)
            except sqlite3.Error as fault:
                yield Piece(place="agent_messages", fault=f"the database cannot be read on: {fault}", end=self._size)

    def _sessions(self, db: sqlite3.Connection) -> Iterator[Piece]:
        total = db.execute("SELECT count(*) FROM agent_messages").fetchone()[0] or 1
        done = 0
        listed = db.execute("SELECT session_id, min(id) FROM agent_messages GROUP BY session_id ORDER BY min(id)")
        for number, (given, first) in enumerate(listed, 1):
            try:
                session = given.decode() if isinstance(given, bytes) else str(given)
            except UnicodeDecodeError as fault:
                yield Piece(place=f"agent_messages.id={first}", fault=f"session_id is no UTF-8: {fault.reason}")
                continue
            for branch, (query, arguments) in enumerate(self._queries(db, session), 1):
                own = session if branch == 1 else f"{session}~{branch}"
                conversation = Conversation(id=own, number=str(number))
                self._decoder.begin()
                for row in db.execute(query, arguments):
                    done = min(done + 1, total)
                    yield self._piece(row, conversation, self._size * done // total)
            if self._advanced and not self._branches:
                left = db.execute(_OTHERS, (session, MAIN)).fetchone()[0]
                if left and db.execute(_BRANCH, (session, MAIN)).fetchone():
                    yield Piece(place=session, left_out={ELSEWHERE: left})

    def _queries(self, db: sqlite3.Connection, session: str) -> list[tuple[str, tuple[Any, ...]]]:
        """What reads the branches of a session: one for a plain session, `main` first for an advanced one."""
        if not self._advanced:
            return [(_PLAIN, (session,))]
        query = "SELECT branch_id FROM message_structure WHERE session_id = ? GROUP BY branch_id ORDER BY min(id)"
        found = [branch.decode("utf-8", "replace") for (branch,) in db.execute(query, (session,))]
        if not found:
            return [(_PLAIN, (session,))]
        named = sorted(found, key=lambda branch: branch != MAIN)  # stable: the others stay in order
        return [(_BRANCH, (session, branch)) for branch in (named if self._branches else named[:1])]

    def _piece(self, row: tuple[Any, ...], conversation: Conversation, end: int) -> Piece:
        id, data, created = row
        place = f"agent_messages.id={id}"
        raw = data if isinstance(data, bytes) else str(data).encode()
        try:
            entries = self._entries(raw, created)
        except InvalidEntry as fault:
            where = fault.where.removeprefix("messages[0]").removeprefix(".")
            reason = f"{where}: {fault.reason}" if where else fault.reason
            return Piece(place=place, conversation=conversation, fault=reason, end=end)
        key = f"{NAME} {id}"
        return Piece(place=place, conversation=conversation, entries=tuple(entries), key=key, shared=True, end=end)

    def _entries(self, raw: bytes, created: Any) -> list[Entry]:
        """The entries of a row. Raises InvalidEntry for one that is damaged."""
        try:
            item = loads(raw)
        except (ValueError, RecursionError) as fault:
            reason = "nested too deeply" if isinstance(fault, RecursionError) else f"no JSON: {fault}"
            raise InvalidEntry("message_data", reason) from fault
        at = microseconds(created.decode("utf-8", "replace") if isinstance(created, bytes) else created)
        return [replace(entry, at=at) for entry in self._decoder.read(item)]

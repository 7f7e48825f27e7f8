"""Taking conversations from files into a memory: once, however often it is repeated and wherever it was interrupted.

Messages go in batches of at most `BATCH`, one commit each. A message that has an id at its source is known by that. For
others a batch's key is made of everything that its conversation held before it, and of its first message: importing
a file again adds nothing, and a file that has grown adds what is new. Where that key is taken by another file that
begins alike, the key covers the batch's whole content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import groupby, islice
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from palimpsest.checks import check_file, check_progress, unfit
from palimpsest.entries import Entry, derived_ids
from palimpsest.errors import (
    ConfigError,
    Conflict,
    EntryNotFound,
    ImportFailed,
    InvalidEntry,
    PalimpsestError,
    PrivacyRefused,
    SessionNotFound,
)
from palimpsest.formats import find_format
from palimpsest.options import check_id
from palimpsest.sources import SOURCES, Conversation, Piece

if TYPE_CHECKING:
    from palimpsest.memory import AsyncMemory
    from palimpsest.session import AsyncSession
    from palimpsest.sources.files import File

BATCH = 256
AT_ONCE = 64
"""Pieces that are read in one step, so that an event loop is not asked for each."""

CHANGED = "messages that have changed since they were imported (left as they were)"
OTHERS = "other files of the archive"
WITHHELD = "messages that the privacy policy withholds"

Progress = Callable[[int, int | None], object]
"""Gets how many bytes are done and how many there are (None where nobody knows)."""


class Imported(msgspec.Struct, frozen=True):
    """What came into one session: entries that are new, entries that were there already, the conversation's title."""

    added: int
    already_there: int
    title: str | None = None


class Refused(msgspec.Struct, frozen=True):
    """What could not be taken: where in the file (a line number, or a path), and why."""

    place: str
    reason: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an import.

    `source` is what the file was taken for, `format` what its messages are written in (None for a source with a form
    of its own). `sessions` are those that the file speaks of, by id. `left_out` counts what was not taken on
    purpose, by reason.
    """

    source: str
    format: str | None
    sessions: dict[str, Imported]
    refused: tuple[Refused, ...] = ()
    left_out: dict[str, int] = {}


async def import_file(
    memory: AsyncMemory,
    path: str | os.PathLike[str] | BinaryIO,
    *,
    source: str,
    format: str | None,
    session_id: str | None,
    key: str | None,
    strict: bool,
    branches: bool,
    progress: Progress | None,
) -> ImportReport:
    """Take what a file holds into the memory; see `AsyncMemory.import_file`."""
    check_file(path, "path", "read")
    check_progress(progress)
    if source != "auto":
        SOURCES.find(source)
    if format is not None:
        find_format(format)
    if session_id is not None:
        check_id(session_id, "session_id")
    if key is not None and (not isinstance(key, str) or not key or unfit(key) is not None):
        raise ConfigError("key", key, "a text that names this import, or None")
    run, finish = memory.runner.run, memory.runner.finish
    file: File = await run(_opened, path, strict)
    try:
        if strict:
            checking = Checking(memory, session_id)
            _, _, pieces = await run(_pieces, file, source, format, branches)
            while chunk := await run(_next, pieces):
                for piece in chunk:
                    checking.take(piece)
            await run(file.again)
        found, taken, pieces = await run(_pieces, file, source, format, branches)
        importer = Importer(memory, file.stem, session_id, key)
        if file.others:
            importer.left_out[OTHERS] = file.others
        while chunk := await run(_next, pieces):
            for piece in chunk:
                await importer.take(piece)
            if progress is not None:
                progress(chunk[-1].end, file.size)
        await importer.flush()
    finally:
        await finish(file.close)
    return importer.report(found, taken)


def _opened(path: str | os.PathLike[str] | BinaryIO, twice: bool) -> File:
    from palimpsest.sources.files import File

    return File(path, twice=twice)


def _pieces(file: File, source: str, format: str | None, branches: bool) -> tuple[str, str | None, Iterator[Piece]]:
    """What the file is taken for, what its messages are written in, and its pieces."""
    from palimpsest.sources.detection import find_source

    found, kind = find_source(source, file)
    reader = kind(file, format=format, branches=branches)
    return found, reader.format, reader.pieces()


def _next(pieces: Iterator[Piece]) -> list[Piece]:
    return list(islice(pieces, AT_ONCE))


class Checking:
    """Looks at every piece before anything is stored. Raises ImportFailed at the first fault."""

    def __init__(self, memory: AsyncMemory, session: str | None) -> None:
        self._memory, self._given = memory, session

    def take(self, piece: Piece) -> None:
        """Look at one piece."""
        if piece.fault is not None:
            raise ImportFailed(_where(piece.place), piece.fault)
        own = piece.conversation.id if piece.conversation is not None else None
        try:
            if own is not None and self._given is None:
                check_id(own, "session")
            if piece.export is not None:
                from palimpsest.imports import imported

                imported(piece.export, admission=self._memory.privacy)
            self._memory.privacy.shown(piece.entries)
        except PalimpsestError as fault:
            raise ImportFailed(_where(piece.place), str(fault)) from fault


def _where(place: str) -> str:
    return f"line {place}" if place.isdecimal() else place


class Importer:
    """Takes the pieces of one file into a memory, in order."""

    def __init__(self, memory: AsyncMemory, stem: str, session: str | None, key: str | None) -> None:
        self._memory, self._stem, self._given, self._key = memory, stem, session, key or ""
        self._sessions: dict[str, Imported] = {}
        self._refused: list[Refused] = []
        self.left_out: dict[str, int] = {}
        self._chain = sha256(self._key.encode()).digest()  # what the file's own messages were so far
        self._talk: Conversation | None = None
        self._told = b""  # what the messages of the conversation at hand were so far
        self._waiting: list[Piece] = []
        self._shut: Conversation | None = None  # a conversation whose id is no session's id
        self._seen: dict[str, int] = {}  # by session, the revision up to which entries were there before

    def report(self, source: str, format: str | None) -> ImportReport:
        """What came of it."""
        return ImportReport(
            source=source,
            format=format,
            sessions=self._sessions,
            refused=tuple(self._refused),
            left_out=self.left_out,
        )

    def _refuse(self, piece: Piece, why: object) -> None:
        self._refused.append(Refused(piece.place, self._memory.privacy.told(str(why))))

    async def take(self, piece: Piece) -> None:
        """Take one piece; what is wrong with it goes into the report."""
        for why, count in piece.left_out.items():
            reason = self._memory.privacy.told(why)
            self.left_out[reason] = self.left_out.get(reason, 0) + count
        if piece.fault is not None:
            self._refuse(piece, piece.fault)
        if piece.conversation is not self._talk or (self._waiting and bool(piece.key) != bool(self._waiting[0].key)):
            await self.flush()
        if piece.conversation is not self._talk:
            self._begin(piece.conversation)
        if piece.export is not None:
            await self.flush()
            await self._take_export(piece)
        elif piece.apart:
            await self.flush()
            self._advance([piece])
        else:
            self._waiting.append(piece)
            if len(self._waiting) >= BATCH:
                await self.flush()

    def _begin(self, conversation: Conversation | None) -> None:
        self._talk = conversation
        if conversation is not None:
            number = conversation.number if self._given else ""
            self._told = sha256(self._key.encode() + b"\n" + number.encode()).digest()

    def _advance(self, pieces: Sequence[Piece]) -> None:
        """Let the identity of what comes next depend on these, too."""
        for piece in pieces:
            if piece.mark and not piece.key:
                if self._talk is None:
                    self._chain = sha256(self._chain + piece.mark).digest()
                else:
                    self._told = sha256(self._told + piece.mark).digest()

    async def flush(self) -> None:
        """Store the messages that wait, without what is malformed among them.

        After something malformed a new batch begins, so that entries keep their keys where it was at the end.
        """
        waiting, self._waiting = self._waiting, []
        for malformed, grouped in groupby(waiting, lambda piece: piece.fault is not None):
            run = list(grouped)
            speaking = next((piece for piece in run if piece.entries and not malformed), None)
            if speaking is not None:
                session = self._session(speaking)
                if session is not None:
                    await (self._add_known(session, run) if run[0].key else self._add_run(session, run))
            self._advance(run)

    def _session(self, piece: Piece) -> AsyncSession | None:
        """The session for a piece: the one asked for, else its own, else named after the file."""
        talk = piece.conversation
        if talk is not None and talk is self._shut:
            return None
        name = self._given or (talk.id if talk is not None else None)
        if name is None and not self._stem:
            raise ConfigError("session_id", None, "the id of a session: nothing in the file or its name gives one")
        number = talk.number if talk is not None else ""
        try:
            return self._memory.session(name or (f"{self._stem}-{number}" if number else self._stem))
        except ConfigError as fault:
            self._refuse(piece, fault)
            self._shut = talk
            return None

    # --- storing

    async def _add_run(self, session: AsyncSession, run: Sequence[Piece]) -> None:
        """Add messages that are known by what came before them, in one commit."""
        before = self._chain if self._talk is None else self._told
        entries = [entry for piece in run for entry in piece.entries]
        first = sha256(before + run[0].mark).hexdigest()
        try:
            await self._add(session, entries, f"import:{first}")
        except Conflict:
            whole = sha256(b"".join(piece.mark for piece in run)).hexdigest()
            await self._add(session, entries, f"import:{first}:{whole}")
        except (InvalidEntry, PrivacyRefused) as fault:
            if len(run) == 1:
                self._refuse(run[0], fault)
                return
            kept = self._chain, self._told
            for piece in run:
                if piece.entries:
                    await self._add_run(session, [piece])
                self._advance([piece])
            self._chain, self._told = kept

    async def _add_known(self, session: AsyncSession, run: Sequence[Piece]) -> None:
        """Add messages that have ids at their source, in one commit, or one by one where that is refused."""
        entries = [entry for piece in run for entry in self._identified(piece)]
        try:
            await self._add(session, entries, None)
        except (Conflict, InvalidEntry, PrivacyRefused) as fault:
            if len(run) > 1:
                for piece in run:
                    await self._add_known(session, [piece])
            elif not isinstance(fault, Conflict):
                self._refuse(run[0], fault)
            else:
                await self._compare(session, entries)

    def _identified(self, piece: Piece) -> list[Entry]:
        ids = derived_ids(f"import:{self._key}:{piece.key}", len(piece.entries))
        return [msgspec.structs.replace(entry, id=id) for entry, id in zip(piece.entries, ids, strict=True)]

    async def _compare(self, session: AsyncSession, entries: Sequence[Entry]) -> None:
        """A message that is there with something else in it stays as it is; what it says now is counted."""
        changed = False
        slots = await self._memory.privacy.entries(self._memory.store, session.options.key, entries)
        for entry in [slot.kept for slot in slots if slot.kept is not None]:
            try:
                there = await session.entry(entry.id)
            except EntryNotFound:
                changed = True
                continue
            changed |= (there.kind, there.role, there.content) != (entry.kind, entry.role, entry.content)
            self._count(session.id, 0, 1)
        if changed:
            self.left_out[CHANGED] = self.left_out.get(CHANGED, 0) + 1

    async def _add(self, session: AsyncSession, entries: Sequence[Entry], key: str | None) -> None:
        if not entries:
            return
        seen = await self._revision(session.id)
        given = await session.add_entries(entries, key=key)
        self._memory.withheld.pop(
            (session.options.key, self._memory.store), None
        )  # nobody goes on with an interaction of then
        stored = [entry for entry in given if entry.revision]
        if len(stored) < len(given):
            self.left_out[WITHHELD] = self.left_out.get(WITHHELD, 0) + len(given) - len(stored)
        added = len({entry.id for entry in stored if entry.revision > seen})
        self._seen[session.id] = max([seen, *(entry.revision for entry in stored)])
        self._count(session.id, added, len(stored) - added)

    async def _revision(self, session: str) -> int:
        """The session's revision before anything of this file came into it."""
        if session not in self._seen:
            try:
                self._seen[session] = (await self._memory.info(session)).revision
            except SessionNotFound:
                self._seen[session] = 0
        return self._seen[session]

    async def _take_export(self, piece: Piece) -> None:
        assert piece.export is not None, "the caller has looked"
        own = piece.export.get("session_id")
        name = self._given or (own if isinstance(own, str) else "")
        had = await self._entries_in(name)
        try:
            session = await self._memory.import_session(piece.export, session_id=self._given, on_conflict="merge")
        except (ImportFailed, Conflict, ConfigError, PrivacyRefused) as fault:
            self._refuse(piece, fault)
            return
        new = await self._entries_in(session) - had
        self._count(session, new, len(piece.export["entries"]) - new)
        self._seen.pop(session, None)

    async def _entries_in(self, session: str) -> int:
        try:
            return (await self._memory.info(session)).entries
        except SessionNotFound:
            return 0

    def _count(self, session: str, added: int, there: int) -> None:
        before = self._sessions.get(session, Imported(0, 0))
        named = self._talk.title if self._talk is not None else None
        title = before.title or (named and self._memory.privacy.told(named))
        self._sessions[session] = Imported(before.added + added, before.already_there + there, title)

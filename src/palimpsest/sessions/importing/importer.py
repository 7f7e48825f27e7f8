"""Storing the messages of a file, each once, even if the import is repeated or was interrupted.

Messages are stored in batches of at most `BATCH`, one commit each. A message that has an id at its source is identified
by that id, others by their place in their conversation (`palimpsest.sessions.importing.places`). So importing a file
again adds nothing, and importing a file that has grown adds what is new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from palimpsest.errors import (
    ConfigError,
    Conflict,
    EntryNotFound,
    ImportFailed,
    InvalidEntry,
    PrivacyRefused,
)
from palimpsest.log.checks import TITLE
from palimpsest.log.entry import Entry
from palimpsest.log.ids import derived_ids, is_id
from palimpsest.sessions.importing.exports import import_session
from palimpsest.sessions.importing.places import AlternativePlaces, Places
from palimpsest.sessions.importing.report import CHANGED, ERASED, WITHHELD, Account
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.session import AsyncSession
from palimpsest.transfer.sources import Conversation, Piece

BATCH = 256


class Importer:
    """Imports the pieces of one file into a memory, in order."""

    def __init__(
        self,
        scope: MemoryScope,
        open_session: Callable[..., AsyncSession],
        stem: str,
        session: str | None,
        key: str | None,
        most: int,
    ) -> None:
        self._scope, self._gate, self._open = scope, scope.gate, open_session
        self._stem, self._given, self._key = usable(stem), session, key or ""
        self.account = Account(scope.gate, most)
        self._talk: Conversation | None = None
        # The place in the current conversation, and in the one of pieces that name no conversation.
        self._position, self._file_position = _Position(), _Position()
        self._waiting: list[Piece] = []
        self._said: set[tuple[str, int]] = set()  # session and hash of words, of pieces that are to be stored once
        self._rejected: Conversation | None = None  # the conversation for which no session could be opened

    async def take(self, piece: Piece) -> None:
        """Take one piece. What is wrong with it is noted in the account, not raised."""
        for why, count in piece.left_out.items():
            self.account.leave_out(self._gate.redact(why), count)
        if piece.fault is not None:
            self.account.refuse(piece, piece.fault)
        same_identity = not self._waiting or _identity(piece) == _identity(self._waiting[0])
        if piece.conversation is not self._talk or not same_identity:
            await self.flush()
        if piece.conversation is not self._talk:
            self._talk = piece.conversation
            self._position = _Position(
                piece.conversation.number if self._given and piece.conversation is not None else ""
            )
        if piece.export is not None:
            await self.flush()
            await self._take_export(piece)
        else:
            self._waiting.append(piece)
            if len(self._waiting) >= BATCH:
                await self.flush()

    async def flush(self) -> None:
        """Store the messages that wait. All of them are of one conversation and are identified in the same way."""
        waiting, self._waiting = self._waiting, []
        position = self._file_position if self._talk is None else self._position
        speaking = [piece for piece in waiting if piece.entries and piece.fault is None]
        session = self._session(speaking[0]) if speaking else None
        if session is not None:
            identity = _identity(speaking[0])
            if identity == "place":
                await self._add_by_place(session, waiting, position)
            else:
                fresh = [piece for piece in speaking if not (piece.once and self._said_before(session, piece))]
                await (self._add_by_id(session, fresh) if identity == "id" else self._add_by_key(session, fresh))
        position.index += sum(piece.counts for piece in waiting)

    @property
    def _title(self) -> str | None:
        """The title of the current conversation."""
        return self._talk.title if self._talk is not None else None

    def _session(self, piece: Piece) -> AsyncSession | None:
        """Return the session for a piece: the one asked for, else its conversation's, else one named after the file.

        None, after noting a refusal, if the session cannot be opened. Raises ConfigError if nothing gives an id, unless
        something of the file is stored already: then that is a refusal, too.
        """
        talk = piece.conversation
        if talk is not None and talk is self._rejected:
            return None
        name = self._given or (talk.id if talk is not None else None)
        if name is None and not self._stem:
            if not self.account.has_sessions:
                raise no_id()
            self.account.refuse(piece, UNNAMED)
            self._rejected = talk
            return None
        number = talk.number if talk is not None else ""
        try:
            return self._open(name or (f"{self._stem}-{number}" if number else self._stem), title=_fitting(self._title))
        except (ConfigError, PrivacyRefused) as fault:
            self.account.refuse(piece, fault)
            self._rejected = talk
            return None

    # --- storing

    async def _add_by_place(self, session: AsyncSession, run: Sequence[Piece], position: _Position) -> None:
        """Add messages that are identified by their place, in one commit."""
        placed, index = list[tuple[Piece, int]](), position.index
        for piece in run:
            if piece.entries and piece.fault is None:
                placed.append((piece, index))
            index += piece.counts

        def ids_at(alternative: int) -> Iterator[str]:
            path = position.path_of(alternative)
            for piece, piece_index in placed:
                yield from self._ids(len(piece.entries), position.number, path, piece_index)

        pieces = [piece for piece, _ in placed]
        while True:
            place = await self._places(session).find([entry for piece in pieces for entry in piece.entries], ids_at)
            try:
                await self._settle(session, _parted(pieces, place))
                break
            except Conflict:  # another process took this place with other messages: find the next alternative
                continue
        position.path = position.path_of(place.alternative)

    async def _add_by_key(self, session: AsyncSession, run: Sequence[Piece]) -> None:
        """Add messages whose keys other messages may have, too. In one commit, or one by one if that is refused."""
        places = self._places(session)
        firsts = await places.stored([id for piece in run for id in self._ids(len(piece.entries), piece.key, 0)])
        settled = []
        for piece in run:

            def ids_at(alternative: int, piece: Piece = piece) -> Iterator[str]:
                return iter(self._ids(len(piece.entries), piece.key, alternative))

            first = {id: firsts[id] for id in ids_at(0) if id in firsts}
            settled += _parted([piece], await places.find(piece.entries, ids_at, first))
        try:
            await self._settle(session, settled)
        except Conflict:  # another process was first, or the file has a key twice
            for piece in run:
                await self._add_by_key(session, [piece])

    def _said_before(self, session: AsyncSession, piece: Piece) -> bool:
        """Return whether the same words came before in this file, and count the piece as already there if so."""
        words = session.id, hash(tuple((entry.role, entry.text) for entry in piece.entries))
        repeated = words in self._said
        self._said.add(words)
        if repeated:
            self.account.count(session.id, 0, len(piece.entries), self._title)
        return repeated

    async def _settle(self, session: AsyncSession, pieces: Sequence[_Settled]) -> None:
        """Add the new entries of the pieces, and count those that exist or were erased."""
        await self._add_new(session, [settled for settled in pieces if settled.new])
        if erased := sum(settled.erased for settled in pieces):
            self.account.leave_out(ERASED, erased)
        if already_there := sum(settled.already_there for settled in pieces):
            self.account.count(session.id, 0, already_there, self._title)

    async def _add_new(self, session: AsyncSession, pieces: Sequence[_Settled]) -> None:
        try:
            await self._add(session, [entry for settled in pieces for entry in settled.new])
        except (InvalidEntry, PrivacyRefused) as fault:
            if len(pieces) == 1:
                self.account.refuse(pieces[0].piece, fault)
                return
            for settled in pieces:
                await self._add_new(session, [settled])

    def _places(self, session: AsyncSession) -> Places:
        return Places(self._gate, self._scope.store, session.options.key)

    def _ids(self, count: int, *name: str | int) -> list[str]:
        return derived_ids(f"import {json.dumps([self._key, *name])}", count)

    async def _add_by_id(self, session: AsyncSession, run: Sequence[Piece]) -> None:
        """Add messages that have ids at their source, in one commit, or one by one if that is refused."""
        entries = [
            msgspec.structs.replace(entry, id=id)
            for piece in run
            for entry, id in zip(piece.entries, self._ids(len(piece.entries), piece.key), strict=True)
        ]
        try:
            await self._add(session, entries)
        except (Conflict, InvalidEntry, PrivacyRefused) as fault:
            if len(run) > 1:
                for piece in run:
                    await self._add_by_id(session, [piece])
            elif not isinstance(fault, Conflict):
                self.account.refuse(run[0], fault)
            else:
                await self._compare(session, entries)

    async def _compare(self, session: AsyncSession, entries: Sequence[Entry]) -> None:
        """Count a message whose id is taken: as already there, and as changed if the stored one says something else.

        The stored message stays as it is.
        """
        changed = False
        slots = await self._gate.entries(self._scope.store, session.options.key, entries)
        for entry in [slot.kept for slot in slots if slot.kept is not None]:
            try:
                stored = await session.entry(entry.id)
            except EntryNotFound:
                changed = True
                continue
            changed |= (stored.kind, stored.role, stored.content) != (entry.kind, entry.role, entry.content)
            self.account.count(session.id, 0, 1, self._title)
        if changed:
            self.account.leave_out(CHANGED, 1)

    async def _add(self, session: AsyncSession, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        turn = session._appender.turn  # noqa: SLF001 (no public verb says how many entries an append has added)
        before = turn.added
        returned = await session.add_entries(entries)
        self._scope.let_go(session.options.key)  # no later message belongs to an interaction of an import
        stored = [entry for entry in returned if entry.revision]
        if len(stored) < len(returned):
            self.account.leave_out(WITHHELD, len(returned) - len(stored))
        added = turn.added - before
        self.account.count(session.id, added, len(stored) - added, self._title)

    async def _take_export(self, piece: Piece) -> None:
        assert piece.export is not None, "the caller checks that"
        try:
            taken = await import_session(self._scope, piece.export, session_id=self._given, on_conflict="merge")
        except (ImportFailed, Conflict, ConfigError, PrivacyRefused) as fault:
            self.account.refuse(piece, fault)
            return
        self.account.count(*taken, self._title)


def usable(stem: str) -> str:
    """Return the name of a file without its endings, if it can be the id of a session, else ""."""
    return stem if is_id(stem) else ""


def no_id() -> ConfigError:
    """Return the error for a conversation that has no id, in a file without a name that can be one."""
    return ConfigError("session_id", None, "the id of a session: neither the file nor its name gives one")


UNNAMED = (
    "the conversation has no id, and the file has no name that can be one. Give one as `session_id`, or with --session"
)


def _fitting(title: str | None) -> str | None:
    """Return the title as a session accepts it: valid Unicode, not too long, not empty."""
    return None if title is None else title.encode("utf-8", "replace").decode()[:TITLE] or None


class _Position:
    """The place of the next message in its conversation.

    `number` is that of the conversation, if several are imported into one session. `index` counts the messages before.
    `path` lists at which indexes this file took another alternative than the first (`Places`).
    """

    def __init__(self, number: str = "") -> None:
        self.number, self.path, self.index = number, "", 0

    def path_of(self, alternative: int) -> str:
        """Return the path for messages that take this alternative from here on."""
        return f"{self.path}/{self.index}.{alternative}" if alternative else self.path


class _Settled(NamedTuple):
    """A piece with its new entries, and the numbers of those that exist already and of those that were erased."""

    piece: Piece
    new: list[Entry]
    already_there: int
    erased: int


def _parted(pieces: Sequence[Piece], place: AlternativePlaces) -> list[_Settled]:
    """Give the entries of consecutive pieces their ids at a place, and tell new entries from known ones."""
    settled, ids = [], iter(place.ids)
    for piece in pieces:
        entries = [msgspec.structs.replace(entry, id=next(ids)) for entry in piece.entries]
        new = [entry for entry in entries if entry.id not in place.stored]
        known = len(entries) - len(new)
        settled.append(_Settled(piece, new, 0 if place.all_erased else known, known if place.all_erased else 0))
    return settled


def _identity(piece: Piece) -> str:
    """Return what identifies a message: its own "id", a "key" that other messages may have, too, or its "place"."""
    return "place" if not piece.key else "key" if piece.shared or piece.once else "id"

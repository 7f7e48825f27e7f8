"""Storing what comes of a file: once, however often it is repeated and wherever it was interrupted.

Messages go in batches of at most `BATCH`, one commit each. A message that has an id at its source is known by that,
others by their place in their conversation (`palimpsest.sessions.importing.places`): importing a file again adds
nothing, and a file that has grown adds what is new.
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
from palimpsest.log.entry import Entry, derived_ids
from palimpsest.log.head import Head
from palimpsest.log.ids import is_id
from palimpsest.sessions.importing.exports import import_session
from palimpsest.sessions.importing.places import AlternativePlaces, Places
from palimpsest.sessions.importing.report import CHANGED, ERASED, WITHHELD, Account
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.session import AsyncSession
from palimpsest.transfer.sources import Conversation, Piece

BATCH = 256


class Importer:
    """Takes the pieces of one file into a memory, in order."""

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
        self._stem, self._given, self._key = stem if is_id(stem) else "", session, key or ""
        self.account = Account(scope.gate, most)
        self._talk: Conversation | None = None
        self._line, self._own = _Line(), _Line()  # of the conversation at hand, and of the one that the file is
        self._waiting: list[Piece] = []
        self._said: set[tuple[str, int]] = set()  # what is not taken twice, by session and what it says
        self._shut: Conversation | None = None  # a conversation whose id is no session's id
        self._seen: dict[str, int] = {}  # by session, the revision up to which entries were there before

    async def take(self, piece: Piece) -> None:
        """Take one piece; what is wrong with it goes into the report."""
        for why, count in piece.left_out.items():
            self.account.leave_out(self._gate.redact(why), count)
        if piece.fault is not None:
            self.account.refuse(piece, piece.fault)
        known_alike = not self._waiting or _known_by(piece) == _known_by(self._waiting[0])
        if piece.conversation is not self._talk or not known_alike:
            await self.flush()
        if piece.conversation is not self._talk:
            self._talk = piece.conversation
            self._line = _Line(piece.conversation.number if self._given and piece.conversation is not None else "")
        if piece.export is not None:
            await self.flush()
            await self._take_export(piece)
        else:
            self._waiting.append(piece)
            if len(self._waiting) >= BATCH:
                await self.flush()

    async def flush(self) -> None:
        """Store the messages that wait."""
        waiting, self._waiting = self._waiting, []
        line = self._own if self._talk is None else self._line
        speaking = [piece for piece in waiting if piece.entries and piece.fault is None]
        session = self._session(speaking[0]) if speaking else None
        if session is not None:
            known = _known_by(speaking[0])
            if known == "place":
                await self._add_run(session, waiting, line)
            else:
                fresh = [piece for piece in speaking if not (piece.once and self._said_before(session, piece))]
                await (self._add_known(session, fresh) if known == "id" else self._add_shared(session, fresh))
        line.index += sum(piece.counts for piece in waiting)

    @property
    def _title(self) -> str | None:
        """The title of the conversation at hand."""
        return self._talk.title if self._talk is not None else None

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
            return self._open(name or (f"{self._stem}-{number}" if number else self._stem), title=_fitting(self._title))
        except (ConfigError, PrivacyRefused) as fault:
            self.account.refuse(piece, fault)
            self._shut = talk
            return None

    # --- storing

    async def _add_run(self, session: AsyncSession, run: Sequence[Piece], line: _Line) -> None:
        """Add messages that are known by their place, in one commit."""
        placed, index = list[tuple[Piece, int]](), line.index
        for piece in run:
            if piece.entries and piece.fault is None:
                placed.append((piece, index))
            index += piece.counts

        def ids_at(alternative: int) -> Iterator[str]:
            path = line.path_of(alternative)
            for piece, at in placed:
                yield from self._ids(len(piece.entries), line.number, path, at)

        pieces = [piece for piece, _ in placed]
        while True:
            place = await self._places(session).find([entry for piece in pieces for entry in piece.entries], ids_at)
            try:
                await self._settle(session, _parted(pieces, place))
                break
            except Conflict:  # another process was first, with something else: the next place is ours
                continue
        line.path = line.path_of(place.alternative)

    async def _add_shared(self, session: AsyncSession, run: Sequence[Piece]) -> None:
        """Add messages whose keys may be those of others, too, in one commit, or one by one where that is refused."""
        places = self._places(session)
        firsts = await places.there([id for piece in run for id in self._ids(len(piece.entries), piece.key, 0)])
        settled = []
        for piece in run:

            def ids_at(alternative: int, piece: Piece = piece) -> Iterator[str]:
                return iter(self._ids(len(piece.entries), piece.key, alternative))

            first = {id: firsts[id] for id in ids_at(0) if id in firsts}
            settled += _parted([piece], await places.find(piece.entries, ids_at, first))
        try:
            await self._settle(session, settled)
        except Conflict:  # another process was first, or a key stands twice in the file
            for piece in run:
                await self._add_shared(session, [piece])

    def _said_before(self, session: AsyncSession, piece: Piece) -> bool:
        """Whether the words of a piece have come before; they are there already, then."""
        said = session.id, hash(tuple((entry.role, entry.text) for entry in piece.entries))
        known = said in self._said
        self._said.add(said)
        if known:
            self.account.count(session.id, 0, len(piece.entries), self._title)
        return known

    async def _settle(self, session: AsyncSession, pieces: Sequence[_Settled]) -> None:
        """Add what of the pieces is new, and count what is there."""
        await self._add_new(session, [one for one in pieces if one.new])
        if buried := sum(one.buried for one in pieces):
            self.account.leave_out(ERASED, buried)
        if there := sum(one.there for one in pieces):
            self.account.count(session.id, 0, there, self._title)

    async def _add_new(self, session: AsyncSession, pieces: Sequence[_Settled]) -> None:
        try:
            await self._add(session, [entry for one in pieces for entry in one.new])
        except (InvalidEntry, PrivacyRefused) as fault:
            if len(pieces) == 1:
                self.account.refuse(pieces[0].piece, fault)
                return
            for one in pieces:
                await self._add_new(session, [one])

    def _places(self, session: AsyncSession) -> Places:
        return Places(self._gate, self._scope.store, session.options.key)

    def _ids(self, count: int, *name: str | int) -> list[str]:
        return derived_ids(f"import {json.dumps([self._key, *name])}", count)

    async def _add_known(self, session: AsyncSession, run: Sequence[Piece]) -> None:
        """Add messages that have ids at their source, in one commit, or one by one where that is refused."""
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
                    await self._add_known(session, [piece])
            elif not isinstance(fault, Conflict):
                self.account.refuse(run[0], fault)
            else:
                await self._compare(session, entries)

    async def _compare(self, session: AsyncSession, entries: Sequence[Entry]) -> None:
        """A message that is there with something else in it stays as it is; what it says now is counted."""
        changed = False
        slots = await self._gate.entries(self._scope.store, session.options.key, entries)
        for entry in [slot.kept for slot in slots if slot.kept is not None]:
            try:
                there = await session.entry(entry.id)
            except EntryNotFound:
                changed = True
                continue
            changed |= (there.kind, there.role, there.content) != (entry.kind, entry.role, entry.content)
            self.account.count(session.id, 0, 1, self._title)
        if changed:
            self.account.leave_out(CHANGED, 1)

    async def _add(self, session: AsyncSession, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        seen = await self._revision(session.id)
        given = await session.add_entries(entries)
        self._scope.let_go(session.options.key)  # nobody goes on with an interaction of then
        stored = [entry for entry in given if entry.revision]
        if len(stored) < len(given):
            self.account.leave_out(WITHHELD, len(given) - len(stored))
        added = len({entry.id for entry in stored if entry.revision > seen})
        self._seen[session.id] = max([seen, *(entry.revision for entry in stored)])
        self.account.count(session.id, added, len(stored) - added, self._title)

    async def _revision(self, session: str) -> int:
        """The session's revision before anything of this file came into it."""
        if session not in self._seen:
            self._seen[session] = (await self._head(session)).revision
        return self._seen[session]

    async def _take_export(self, piece: Piece) -> None:
        assert piece.export is not None, "the caller has looked"
        try:
            taken = await import_session(self._scope, piece.export, session_id=self._given, on_conflict="merge")
        except (ImportFailed, Conflict, ConfigError, PrivacyRefused) as fault:
            self.account.refuse(piece, fault)
            return
        self.account.count(*taken, self._title)
        self._seen.pop(taken.session, None)

    async def _head(self, session: str) -> Head:
        return await self._scope.store.head(self._scope.key(session)) or Head()


def _fitting(title: str | None) -> str | None:
    """A title as a session may have it."""
    return None if title is None else title.encode("utf-8", "replace").decode()[:TITLE] or None


class _Line:
    """Where the next message of a conversation has its place.

    `number` is the conversation's, where several go into one session; `path` says at which places the file took which
    alternative, `index` how many messages came before.
    """

    def __init__(self, number: str = "") -> None:
        self.number, self.path, self.index = number, "", 0

    def path_of(self, alternative: int) -> str:
        """The path with an alternative from here on."""
        return f"{self.path}/{self.index}.{alternative}" if alternative else self.path


class _Settled(NamedTuple):
    """A piece with what of it is new, and how much of it is there, or was erased."""

    piece: Piece
    new: list[Entry]
    there: int
    buried: int


def _parted(pieces: Sequence[Piece], place: AlternativePlaces) -> list[_Settled]:
    """The pieces that stand at a place, one after the other, with what is new of each."""
    settled, ids = [], iter(place.ids)
    for piece in pieces:
        entries = [msgspec.structs.replace(entry, id=next(ids)) for entry in piece.entries]
        new = [entry for entry in entries if entry.id not in place.there]
        known = len(entries) - len(new)
        settled.append(_Settled(piece, new, 0 if place.graves else known, known if place.graves else 0))
    return settled


def _known_by(piece: Piece) -> str:
    """What a message is known by: an "id" that no other has, a "key" that others may have, too, or its "place"."""
    return "place" if not piece.key else "key" if piece.shared or piece.once else "id"

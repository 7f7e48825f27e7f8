"""The verbs of a memory that import sessions and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

from palimpsest.errors import ConfigError, Conflict, ImportFailed, InvalidEntry, PrivacyRefused
from palimpsest.formats import find_format
from palimpsest.log import values
from palimpsest.log.checks import check, check_names, unfit
from palimpsest.log.ids import check_id
from palimpsest.log.values import check_file, check_progress
from palimpsest.sessions.importing.exports import import_session
from palimpsest.sessions.importing.importer import Importer, no_id, usable
from palimpsest.sessions.importing.report import OTHERS, ImportReport, failed
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.session import AsyncSession
from palimpsest.stores.overlay import Overlay
from palimpsest.transfer.sources import SOURCES, Piece, Source
from palimpsest.transfer.sources.detection import find_source
from palimpsest.transfer.sources.files import SourceFile
from palimpsest.transfer.sources.limits import Given, Limits, limits_of

AT_ONCE = 64
"""Pieces that are read in one step, so that there is no hop to a thread for each."""

Progress = Callable[[int, int | None], object]
"""Called with the number of bytes done and the number of all (None: unknown)."""


class Importing:
    """Imports exports and files into one memory. `open_session` returns the session of an id."""

    def __init__(self, scope: MemoryScope, open_session: Callable[..., AsyncSession]) -> None:
        self._scope, self._open_session = scope, open_session

    async def session(self, data: Mapping[str, Any], *, session_id: str | None, on_conflict: str) -> str:
        """Import a session that `export()` returned. Return its id."""
        return (await import_session(self._scope, data, session_id=session_id, on_conflict=on_conflict)).session

    async def file(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        source: str,
        format: str | None,
        session_id: str | None,
        key: str | None,
        strict: bool,
        branches: bool,
        progress: Progress | None,
        limits: Given,
    ) -> ImportReport:
        """Import the conversations of a file."""
        check_file(path, "path", "read")
        check_progress(progress)
        values.switch("strict", strict)
        _check_names(source, format, session_id, key)
        most = limits_of(limits)
        run, finish = self._scope.runner.run, self._scope.runner.finish
        file: SourceFile = await run(_opened, path, strict, most)
        try:
            if strict:
                await self._check(file, source, format, branches, session_id)
                await run(file.again)
            found_source, reader = await run(_reader, file, source, format, branches)
            pieces = reader.pieces()
            importer = Importer(self._scope, self._open_session, file.stem, session_id, key, most.refused)
            if file.others:
                importer.account.leave_out(OTHERS, file.others)
            while chunk := await run(_next, pieces):
                end = chunk[-1].end
                for piece in chunk:
                    await importer.take(piece)
                    if strict:
                        importer.account.check()
                del piece
                await run(chunk.clear)  # freeing megabytes would hold up an event loop, so a thread does it
                if progress is not None:
                    progress(end, file.size)
            await importer.flush()
            if strict:
                importer.account.check()
        finally:
            await finish(file.close)
        return importer.account.report(found_source, reader.format)

    async def _check(
        self, file: SourceFile, source: str, format: str | None, branches: bool, session_id: str | None
    ) -> None:
        """Read a file once without storing anything. Raises ImportFailed for the first fault in it."""
        run, name = self._scope.runner.run, session_id or usable(file.stem)
        checking = Checking(self._scope, session_id, has_name=bool(name))
        _, reader = await run(_reader, file, source, format, branches)
        pieces = reader.pieces()
        while chunk := await run(_next, pieces):
            for piece in chunk:
                await checking.take(piece)


def _check_names(source: str, format: str | None, session_id: str | None, key: str | None) -> None:
    """Raise ConfigError for names of an import that cannot be meant."""
    if not isinstance(source, str) or source != "auto":
        SOURCES.find(source)
    if format is not None:
        find_format(format)
    if session_id is not None:
        check_id(session_id, "session_id")
    if key is not None and (not isinstance(key, str) or not key or unfit(key) is not None):
        raise ConfigError("key", key, "a text that names this import, or None")


def _opened(path: str | os.PathLike[str] | BinaryIO, twice: bool, limits: Limits) -> SourceFile:
    return SourceFile(path, twice=twice, limits=limits)


def _reader(file: SourceFile, source: str, format: str | None, branches: bool) -> tuple[str, Source]:
    """Return the name of the file's source, and the source itself, which has read the beginning of the file."""
    name, source_class = find_source(source, file)
    return name, source_class(file, format=format, branches=branches)


def _next(pieces: Iterator[Piece]) -> list[Piece]:
    return list(islice(pieces, AT_ONCE))


class Checking:
    """Checks every piece before anything is stored. Raises ImportFailed at the first fault.

    `has_name` says whether a conversation without an id gets one: the id that was asked for, or the name of the file.
    """

    def __init__(self, scope: MemoryScope, session: str | None, *, has_name: bool = True) -> None:
        self._scope, self._given, self._has_name = scope, session, has_name

    async def take(self, piece: Piece) -> None:
        """Check one piece. An export is imported into an overlay, so that conflicts with stored entries show, too.

        Raises ConfigError for a conversation that no id can be found for.
        """
        if piece.fault is not None:
            raise failed(piece.place, piece.fault)
        own = piece.conversation.id if piece.conversation is not None else None
        if piece.entries and own is None and not self._has_name:
            raise no_id()
        try:
            if piece.export is not None:
                scope = self._scope.with_store(Overlay(self._scope.store, self._scope.clock))
                await import_session(scope, piece.export, session_id=self._given, on_conflict="merge")
            if own is not None and self._given is None:
                check_id(own, "session")
            for entry in piece.entries:
                check(entry, "entries")
                check_names(entry, "entries")
            self._scope.gate.shown(piece.entries)
        except (ConfigError, Conflict, ImportFailed, InvalidEntry, PrivacyRefused) as fault:
            raise failed(piece.place, str(fault)) from fault

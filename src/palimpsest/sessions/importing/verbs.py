"""Conversations on their way into a memory: what its verbs for that do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

from palimpsest.errors import ConfigError, Conflict, ImportFailed, InvalidEntry, PrivacyRefused
from palimpsest.formats import find_format
from palimpsest.log import values
from palimpsest.log.checks import check_file, check_progress, unfit
from palimpsest.log.ids import check_id
from palimpsest.sessions.importing.exports import import_session
from palimpsest.sessions.importing.importer import Importer
from palimpsest.sessions.importing.report import OTHERS, ImportReport, failed
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.session import AsyncSession
from palimpsest.stores.overlay import Overlay
from palimpsest.transfer.sources import SOURCES, Piece
from palimpsest.transfer.sources.detection import find_source
from palimpsest.transfer.sources.files import SourceFile
from palimpsest.transfer.sources.limits import Given, Limits, limits_of

AT_ONCE = 64
"""Pieces that are read in one step, so that an event loop is not asked for each."""

Progress = Callable[[int, int | None], object]
"""Gets how many bytes are done and how many there are (None where nobody knows)."""


class Importing:
    """Takes exports and files into one memory. `open_session` gives the session of an id."""

    def __init__(self, scope: MemoryScope, open_session: Callable[..., AsyncSession]) -> None:
        self._scope, self._open_session = scope, open_session

    async def session(self, data: Mapping[str, Any], *, session_id: str | None, on_conflict: str) -> str:
        """Take a session that `export()` gave."""
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
        """Take the conversations of a file."""
        check_file(path, "path", "read")
        check_progress(progress)
        values.switch("strict", strict)
        if not isinstance(source, str) or source != "auto":
            SOURCES.find(source)
        if format is not None:
            find_format(format)
        if session_id is not None:
            check_id(session_id, "session_id")
        if key is not None and (not isinstance(key, str) or not key or unfit(key) is not None):
            raise ConfigError("key", key, "a text that names this import, or None")
        most = limits_of(limits)
        run, finish = self._scope.runner.run, self._scope.runner.finish
        file: SourceFile = await run(_opened, path, strict, most)
        try:
            if strict:
                await self._check(file, source, format, branches, session_id)
                await run(file.again)
            found, taken, pieces = await run(_pieces, file, source, format, branches)
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
                await run(chunk.clear)  # a thread lets go of megabytes: it would hold up an event loop
                if progress is not None:
                    progress(end, file.size)
            await importer.flush()
            if strict:
                importer.account.check()
        finally:
            await finish(file.close)
        return importer.account.report(found, taken)

    async def _check(
        self, file: SourceFile, source: str, format: str | None, branches: bool, session_id: str | None
    ) -> None:
        """Read a file once without storing anything. Raises ImportFailed for the first thing that is wrong with it."""
        checking, run = Checking(self._scope, session_id), self._scope.runner.run
        _, _, pieces = await run(_pieces, file, source, format, branches)
        while chunk := await run(_next, pieces):
            for piece in chunk:
                await checking.take(piece)


def _opened(path: str | os.PathLike[str] | BinaryIO, twice: bool, limits: Limits) -> SourceFile:
    return SourceFile(path, twice=twice, limits=limits)


def _pieces(
    file: SourceFile, source: str, format: str | None, branches: bool
) -> tuple[str, str | None, Iterator[Piece]]:
    """What the file is taken for, what its messages are written in, and its pieces."""
    found, kind = find_source(source, file)
    reader = kind(file, format=format, branches=branches)
    return found, reader.format, reader.pieces()


def _next(pieces: Iterator[Piece]) -> list[Piece]:
    return list(islice(pieces, AT_ONCE))


class Checking:
    """Looks at every piece before anything is stored. Raises ImportFailed at the first fault."""

    def __init__(self, scope: MemoryScope, session: str | None) -> None:
        self._scope, self._given = scope, session

    async def take(self, piece: Piece) -> None:
        """Look at one piece. An export is taken into an overlay, so that what is stored has its say, too."""
        if piece.fault is not None:
            raise failed(piece.place, piece.fault)
        own = piece.conversation.id if piece.conversation is not None else None
        try:
            if piece.export is not None:
                scope = self._scope.over(Overlay(self._scope.store, self._scope.clock))
                await import_session(scope, piece.export, session_id=self._given, on_conflict="merge")
            if own is not None and self._given is None:
                check_id(own, "session")
            self._scope.gate.shown(piece.entries)
        except (ConfigError, Conflict, ImportFailed, InvalidEntry, PrivacyRefused) as fault:
            raise failed(piece.place, str(fault)) from fault

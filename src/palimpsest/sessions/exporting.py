"""Exporting a session as a file or as values, redacted as the policy demands."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from errno import EAGAIN
from functools import partial
from io import RawIOBase
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.formats import FormatName, Message, find_format
from palimpsest.log import spans, values
from palimpsest.log.change import Record
from palimpsest.log.head import Head
from palimpsest.log.values import check_file
from palimpsest.sessions.accesses import access_order
from palimpsest.sessions.contexts.builder import ContextBuilder
from palimpsest.sessions.contexts.request import ContextRequest
from palimpsest.sessions.copied_facts import exported_facts
from palimpsest.sessions.history import History
from palimpsest.sessions.options import Options
from palimpsest.sessions.reading import LogReader
from palimpsest.sessions.salvage import SoundReader
from palimpsest.sessions.scope import SessionScope
from palimpsest.stores import Dump
from palimpsest.stores.overlay import Overlay
from palimpsest.transfer.relinking import head_of
from palimpsest.transfer.writing import exported, listed, replacing_file, written

if TYPE_CHECKING:
    from typing import IO

    from palimpsest.log.entry import Entry
    from palimpsest.stores import Store
    from palimpsest.transfer.writing import Sink

SPOOLED = 1 << 20
"""Bytes of an export that are held in memory. What is larger goes to an unnamed temporary file first."""

PIECE = 64 * 1024
"""Bytes that are written to the destination at once."""


TOGETHER = 64
"""Entries that are redacted in one step."""


LeftOut = Callable[[str], object]
"""Called with a sentence for each thing that cannot be read."""


class Exporting:
    """Exports one session."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._gate = scope, scope.gate

    @property
    def _past(self) -> History:
        return History(self._scope.store, self._scope.key)

    @property
    def _reader(self) -> LogReader:
        return LogReader(self._scope.store, self._scope.options)

    def _sound(self, left_out: LeftOut | None) -> SoundReader | None:
        """Return a reader that skips what cannot be read, or None if nothing may be left out."""
        return SoundReader(self._scope.store, self._scope.key) if left_out is not None else None

    async def export(self, left_out: LeftOut | None = None) -> dict[str, Any]:
        """Return the session as plain JSON values: all of it, or with `left_out` all that can be read of it."""
        sound = self._sound(left_out)
        head, entries, records = await self._reader.settled(partial(self._all, sound))
        shown, accesses = self._gate.head(head), await access_order(self._scope.store, self._scope.key)
        key, now, facts = self._scope.key, self._scope.clock(), await self._facts(sound)
        values = await self._scope.store.apart(exported, key, shown, entries, records, now, accesses, facts)
        _tell(sound, left_out)
        return values

    async def _facts(self, sound: SoundReader | None) -> list[dict[str, Any]]:
        lost = sound.lost if sound is not None else None
        return await exported_facts(self._scope.store, *self._scope.key, self._gate, lost)

    async def _all(self, sound: SoundReader | None, head: Head) -> tuple[Head, list[Entry], list[Record]]:
        """Return the head, all entries and all records of the session. Entries and records are redacted."""
        head, entries, records = await self._read(sound, head)
        shown = [entry async for entry in self._shown(entries)]
        return head, shown, [self._gate.record(record) async for record in records]

    async def _read(
        self, sound: SoundReader | None, head: Head
    ) -> tuple[Head, AsyncIterator[Entry], AsyncIterator[Record]]:
        """Return the head, and iterators over all entries and all records; consume them in this order."""
        if sound is None:
            return head, self._past.entries(head), self._past.records(head)
        head, records = await sound.session(head)
        return head, sound.entries(head), _each_of(records)

    async def export_to(
        self,
        file: str | os.PathLike[str] | Sink,
        format: FormatName | Literal["palimpsest"],
        left_out: LeftOut | None = None,
    ) -> int:
        """Write the session to a file: all of it, or with `left_out` all that can be read. Return the bytes written."""
        check_file(file, "file", "write")
        if not isinstance(format, str) or format != "palimpsest":
            try:
                find_format(format)
            except ConfigError as fault:
                raise ConfigError("format", format, f"palimpsest, {fault.allowed}", nearest=fault.nearest) from fault
        run, size, sound = self._scope.runner.run, 0, self._sound(left_out)
        with SpooledTemporaryFile(SPOOLED) as spool:  # the export may have to begin anew: nothing is out yet
            await (self._listed(spool, format, sound) if format != "palimpsest" else self._written(spool, sound))
            await run(spool.seek, 0)
            with replacing_file(file) as out:
                while piece := await run(spool.read, PIECE):
                    await run(_write, out, piece)
                    size += len(piece)
        _tell(sound, left_out)
        return size

    async def _written(self, spool: IO[bytes], sound: SoundReader | None) -> None:
        """Write the JSON of what `export` returns."""

        async def write(head: Head) -> None:
            spool.seek(0)
            spool.truncate()
            head, read_entries, read_records = await self._read(sound, head)
            entries = self._shown(read_entries)
            records = (self._gate.record(record) async for record in read_records)
            shown, now = self._gate.head(head), self._scope.clock()
            accesses = await access_order(self._scope.store, self._scope.key)
            async for piece in written(
                self._scope.key,
                shown,
                entries,
                records,
                now,
                accesses,
                await self._facts(sound),
                self._scope.store.apart,
            ):
                await self._scope.runner.run(spool.write, piece)

        await self._reader.settled(write)

    async def _listed(self, spool: IO[bytes], format: FormatName, sound: SoundReader | None) -> None:
        """Write the session in a provider's format, as a model would be sent it."""
        plain = Options(self._scope.key, format=format, counter=self._scope.options.counter)
        builder = ContextBuilder(
            await self._shown_store(sound), plain, ContextRequest(view="export", dry_run=True), self._scope.clock()
        )
        spool.write(listed(await self._scope.store.together(builder.context, reads=True)))

    async def messages(self, format: FormatName | None, after: int, before: int | None) -> list[Message]:
        """Return the log as messages in a provider's format.

        Groups that have an entry between `after` and `before` are taken whole.
        """
        values.whole("after", after, of="a `seq`")
        values.whole("before", before, none=True, of="a `seq`")
        scope = self._scope
        plain = Options(
            scope.key, format=scope.options.format if format is None else format, counter=scope.options.counter
        )
        head, entries, _ = await self._reader.settled(partial(self._all, None))
        groups = [entry.group for entry in entries if entry.seq > after and (before is None or entry.seq < before)]
        if not groups:
            return []
        first, last = min(groups), max(groups)
        chosen = [entry for entry in entries if first <= entry.seq and first <= entry.group <= last]
        chosen = [entry for entry in entries if first <= entry.seq <= chosen[-1].seq]
        copy = Overlay(scope.store, scope.clock)
        part = head_of(chosen, first, head.rewound)
        part = msgspec.structs.replace(
            part,
            revision=head.revision,
            epoch=head.epoch,
            rewound=spans.common(head.rewound, [(first, part.next_seq - 1)]),
            erased=sum(entry.erased for entry in chosen),
        )
        await copy.load(scope.key, Dump(head=part, entries=tuple(chosen), records=()), replace=True)
        request = ContextRequest(view="messages", dry_run=True)
        builder = ContextBuilder(copy, plain, request, scope.clock())
        return list((await copy.together(builder.context, reads=True)).messages)

    async def _shown(self, entries: AsyncIterator[Entry]) -> AsyncIterator[Entry]:
        """Yield the entries as they may leave this process, redacted in batches."""
        if self._gate.redactor is None:
            async for entry in entries:
                yield entry
            return
        batch: list[Entry] = []
        async for entry in entries:
            batch.append(entry)
            if len(batch) == TOGETHER:
                for shown in await self._scope.store.apart(self._redacted, batch):
                    yield shown
                batch = []
        for shown in await self._scope.store.apart(self._redacted, batch):
            yield shown

    def _redacted(self, entries: list[Entry]) -> list[Entry]:
        return [self._gate.shown([entry])[0] for entry in entries]

    async def _shown_store(self, sound: SoundReader | None) -> Store:
        """Return a store with the session as it may leave this process: the store itself if there is no policy and
        nothing is to be left out, else an overlay."""
        if self._gate.redactor is None and sound is None:
            return self._scope.store
        head, entries, records = await self._reader.settled(partial(self._all, sound))
        copy = Overlay(self._scope.store, self._scope.clock)
        await copy.load(self._scope.key, Dump(head=head, entries=tuple(entries), records=tuple(records)), replace=True)
        return copy


def _write(out: Sink, piece: bytes) -> None:
    """Write all of a piece. A stream without a buffer may take only a part of it at once, and says how much.

    Raises BlockingIOError if such a stream takes nothing, since it does not wait.
    """
    taken = out.write(piece)
    while isinstance(out, RawIOBase) and taken != len(piece):
        if not isinstance(taken, int):
            raise BlockingIOError(EAGAIN, "the stream is full, and does not wait until it is not")
        piece = piece[taken:]
        taken = out.write(piece)


def _tell(sound: SoundReader | None, left_out: LeftOut | None) -> None:
    """Report what could not be read, each thing once."""
    if sound is not None and left_out is not None:
        for lost in dict.fromkeys(sound.lost):
            left_out(lost)


async def _each_of(records: Sequence[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record

"""What is written to one home in one step: which batches are done, and the lines that they are."""

from __future__ import annotations

import contextlib
import os

import msgspec

from palimpsest.stores.backend import Batch, Place, PlaceHead, Refusal, Step
from palimpsest.stores.file.disk import NEW, Disk, remove, sync, write_at
from palimpsest.stores.file.home import DESTROYED, DROPPED, Home
from palimpsest.stores.file.lines import HomeLine, StepLine, batch_line, row_text, value_text


class Write:
    """What is written to one home in one step."""

    def __init__(self, disk: Disk, home: Home, fd: int) -> None:
        self._disk, self.home, self.path, self.fd = disk, home, home.path, fd
        self.lines: list[tuple[list[StepLine], int]] = []
        self._heads: dict[Place, PlaceHead | None] = {}
        self._address = "", ""
        self._new = False
        remove(self.path + NEW)  # of a writer that was killed

    def take(self, batch: Batch) -> Refusal | None:
        """Take a batch whose heads are as expected; else return those that are there."""
        heads = [None if step.rows_only else self._head(step.place) for step in batch]
        for step, head in zip(batch, heads, strict=True):
            if not step.rows_only and (head.hot if head is not None else None) != step.expect:
                return tuple(heads)
        spoiled = self.lines[-1][1] if self.lines else self.home.spoiled
        for step in batch:
            first = not self.lines or not step.drop  # what earlier ones have put is not known to the home
            spoiled = max(spoiled, self.home.spoils(step) if first else DROPPED, DESTROYED if step.destroys else 0)
        steps = [line for step, head in zip(batch, heads, strict=True) if (line := self._line(step, head)) is not None]
        if steps:
            self.lines.append((steps, spoiled))
            self._address = batch[0].place.tenant, batch[0].place.home
        return None

    def _head(self, place: Place) -> PlaceHead | None:
        return self._heads[place] if place in self._heads else self.home.head(place.space, place.name)

    def _line(self, step: Step, head: PlaceHead | None) -> StepLine | None:
        """What a step says in the log; None if it changes nothing."""
        put: dict[str, list[msgspec.Raw]] = {}
        for table, rows in step.put:
            put.setdefault(table, []).extend(msgspec.Raw(row_text(row)) for row in rows)
        line = StepLine(step.place.space, step.place.name, drop=step.drop, put=put)
        if step.rows_only or (step.hot == step.expect and step.cold is None):
            return line if step.drop or put else None
        line.gone, line.expires = step.hot is None, step.expires
        self._heads[step.place] = None
        if step.hot is not None:
            cold = step.cold if step.cold is not None else head.cold if head is not None else b""
            self._heads[step.place] = PlaceHead(step.hot, cold)
            line.hot = msgspec.Raw(value_text(step.hot))
            if step.cold is not None:
                line.cold = msgspec.Raw(value_text(step.cold))
        return line

    def undone(self) -> contextlib.AbstractContextManager[None]:
        """Take back what is written if something is raised, or the log has another end than it should have."""
        return self._disk.appending(self.fd, self.path, self.home.end)

    def put(self, mark: int) -> None:
        """Write the lines, in one step."""
        self._new = not self.home.end
        first = HomeLine(*self._address).line() if self._new else b""
        write_at(self.fd, first + b"".join(batch_line(mark, *line) for line in self.lines), self.home.end)

    def sync(self) -> None:
        """Wait for the disk."""
        if self._disk.synced:
            sync(self.fd)
        if self._new:
            self._disk.sync_folder(os.path.dirname(self.path))

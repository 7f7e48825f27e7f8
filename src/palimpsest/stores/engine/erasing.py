"""An erasure: what it means in the session where it was asked for, and in every branch that has the entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log import spans as ranges
from palimpsest.log.change import Change, Record, recounted, still_meant
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.resuming import committed
from palimpsest.log.summary import Compaction
from palimpsest.log.withdrawal import flushed, forgotten, needed, standing, tombstone
from palimpsest.stores.backend import Ask, Named, Range, Row, Seen, Step
from palimpsest.stores.engine.forms import beside_entries, entry_row, key_of, record_row
from palimpsest.stores.engine.known import Known
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.sessions import Made, Sessions
from palimpsest.stores.engine.trees import Tree, of_tree, sharers
from palimpsest.stores.rules import Looks


class _Part(NamedTuple):
    """A session that has any of the entries: what the erasure is there, its records of compactions, those of them that
    become others, and its state of compaction where that does."""

    known: Known
    change: Change
    records: list[Record]
    anew: list[Record]
    state: Compaction | None

    @classmethod
    def of(cls, known: Known, change: Change, records: list[Record]) -> _Part:
        """What an erasure does to what was made from entries in a session."""
        gone, silence = [*change.seqs, *ranges.members(change.also)], change.silence
        anew, state = forgotten(
            records,
            known.head,
            gone,
            spare=change.spare,
            released=change.released,
            evicted=change.evicted,
            silence=silence,
        )
        return cls(known, change, records, anew, state)

    @property
    def before(self) -> Compaction:
        """Its state of compaction as it is stored."""
        return standing(self.records, self.known.head)


class Erasure:
    """One erasure: what it means in the session where it was asked for, and in every branch that has the entries."""

    def __init__(self, sessions: Sessions, reading: Reading, known: Known, change: Change) -> None:
        self._sessions, self._reading, self._known, self._change = sessions, reading, known, change
        self._tree, self._parts = Tree(sessions.url, known, None), list[_Part]()
        self._living: list[Entry] = []
        self._graves: dict[SessionKey, set[int]] = {}
        self._untold: list[tuple[int, Entry]] = []

    @property
    def points(self) -> list[tuple[int, int]]:
        """The keys of what is erased."""
        return _joined(self._known.keys(self._change.seqs))

    async def read(self, seen: Sequence[Seen], look: Looks) -> None:
        """Take what was read of the session, and read what is read of its branches."""
        known = self._known
        if not seen:
            self._change = still_meant(known.head, self._change, {})
            self._parts = [_Part.of(known, self._change, [])]
            return
        tree, rows = seen
        entries = await self._reading.slim(known, rows.rows[0])
        flushes = self._change.spare
        living = [e for e in entries if e.damaged or (not e.erased if flushes else e.is_there)]
        change = still_meant(known.head, self._change, {e.seq: e.id for e in living})
        meant = set(change.seqs)
        self._living = [entry for entry in living if entry.seq in meant]
        graves = tuple(entry.seq for entry in self._living if entry.flushed)
        self._change = change = msgspec.structs.replace(change, graves=graves)
        told = {row[0]: row for some in rows.rows[1:] for row in some}
        records = self._reading.told(known, [told[key] for key in sorted(told)])
        self._tree = Tree(self._sessions.url, known, tree)
        others = await sharers(self._sessions, known, self._tree, change.seqs, look)
        self._parts = [
            _Part.of(known, change, records),
            *(
                _Part.of(other, _of_branch(change, known.key, seqs), self._reading.told(other, rows))
                for other, seqs, rows in others
            ),
        ]
        self._check_unshared()
        self._untold = await self._told_no_more()
        if any(entry.damaged for entry in self._living):
            # What is damaged is counted anew by reading whole logs.
            for part in self._parts:
                self._graves[part.known.key] = await self._reading.graves(part.known)

    def _check_unshared(self) -> None:
        """Raise Conflict where a flush would destroy what another session has not let go of."""
        if not self._change.unshared:
            return
        now = self._sessions.clock()
        for part in self._parts[1:]:
            head = part.known.head
            if not head.is_over(now) and needed(part.before, head, part.change.seqs):
                raise Conflict(f"session {part.known.key.session!r}", "has what a flush would destroy: look again")

    def batch(self, more: Sequence[Step], at: int) -> Made:
        """The steps of it, with `more`, and the sessions after them."""
        made, told, known = [self._in(one, at) for one in self._parts], self._told(), self._known
        stay = [flushed(one) if ranges.within(told, one.seq) else tombstone(one) for one in self._living]
        graves = [entry_row(known.log_of(grave.seq), grave) for grave in stay]
        graves += [entry_row(log, tombstone(one)) for log, one in self._untold]
        points = _joined(row[0] for row in graves)
        log = Step(
            known.logs,
            rows_only=True,
            drop=beside_entries(points),
            put=[("entry", graves), ("record", [row for _, _, rows in made for row in rows])],
            destroys=True,
        )
        batch = [*(step for _, step, _ in made), self._tree.step(), log, *more]
        return batch, [after for after, _, _ in made]

    def _told(self) -> tuple[ranges.Span, ...]:
        """Of which entries a flush leaves summaries that tell of them, here or in a branch: they are found by what
        stays of these."""
        if not self._change.spare:
            return ()
        return ranges.union(*(part.before.covered for part in self._parts))

    async def _told_no_more(self) -> list[tuple[int, Entry]]:
        """What a flush has left of entries of which summaries tell before it, and none does then, by their logs: with
        the last summary goes who spoke."""
        if self._change.spare:
            return []
        if all(part.state is None for part in self._parts):  # contexts show the summaries that they did
            return []
        before = {key for part in self._parts for key in _told_by(part, part.before)}
        then = {key for part in self._parts for key in _told_by(part, part.state or part.before)}
        wanted = _joined(before - then - set(self._known.keys(self._change.seqs)))
        rows = await self._reading.rows(self._known, Range("entry", wanted)) if wanted else []
        there = zip(rows, await self._reading.slim(self._known, rows), strict=True)
        return [(row[0] >> 32, one) for row, one in there if one.flushed]

    def _in(self, part: _Part, at: int) -> tuple[Known, Step, list[Row]]:
        """What it makes of one session."""
        known, change, made = part.known, part.change, [*part.anew]
        if part.state is not None:
            change = msgspec.structs.replace(change, compaction=part.state)
        after, record, _ = committed(known.head, change, at)
        if known.key in self._graves:
            after = recounted(after, self._graves[known.key] | set(change.seqs))
        if record is not None:
            made.append(record)
        now, step = known.step(after)
        return now, step, [record_row(known.log, one) for one in made]


def _told_by(part: _Part, state: Compaction) -> list[int]:
    """The keys of the entries of which the summaries of a state tell."""
    made = [
        one.compaction.summary for one in part.records if one.compaction is not None and one.revision in state.current
    ]
    return part.known.keys(ranges.members(ranges.union(*(one.covers for one in made if one is not None))))


def _of_branch(change: Change, key: SessionKey, seqs: Sequence[int]) -> Change:
    """The erasure as another branch has it: of the entries that it shares, with the session where it was asked for.

    What was made from them, and what is remembered of compactions, is each branch's own.
    """
    detail = {**change.detail, "session": key.session}
    return msgspec.structs.replace(
        change,
        seqs=tuple(seqs),
        also=(),
        silence=(),
        said=(),
        compaction=None,
        released=(),
        evicted=(),
        attempts=None,
        detail=detail,
    )


def of_erasure(known: Known, change: Change) -> list[Ask]:
    """What asks for all that an erasure has to know of a session."""
    silent = [(key, key) for key in sorted(key_of(known.log, revision) for revision in set(change.silence))]
    wanted: list[Range | Named] = [
        Range("entry", _joined(known.keys(change.seqs))),
        Named("record", [str(known.log)]),
        Range("record", silent),
    ]
    return [of_tree(known), known.ask(*wanted)]


def _joined(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Keys as spans, as few as there can be."""
    return list(ranges.of(set(keys)))

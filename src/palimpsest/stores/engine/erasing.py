"""An erasure: its effect in the session where it was requested, and in every branch that shares the entries."""

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
from palimpsest.stores.engine.forms import drops_beside, entry_row, key_of, record_row
from palimpsest.stores.engine.known import Known
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.sessions import Prepared, Sessions
from palimpsest.stores.engine.trees import Tree, ask_tree, sharers
from palimpsest.stores.rules import AsyncLook


class _Part(NamedTuple):
    """The effect in one session: the erasure as it is there, its records of compactions, which of those change, and its
    new state of compaction, if that changes.
    """

    known: Known
    change: Change
    records: list[Record]
    changed_records: list[Record]
    state: Compaction | None

    @classmethod
    def of(cls, known: Known, change: Change, records: list[Record]) -> _Part:
        """Work out what an erasure does to the summaries and records of a session."""
        erased, silence = [*change.seqs, *ranges.members(change.also)], change.silence
        changed_records, state = forgotten(
            records,
            known.head,
            erased,
            spare=change.spare,
            released=change.released,
            evicted=change.evicted,
            silence=silence,
        )
        return cls(known, change, records, changed_records, state)

    @property
    def before(self) -> Compaction:
        """The state of compaction as it is stored."""
        return standing(self.records, self.known.head)


class Erasure:
    """One erasure: its effect in the session where it was requested, and in every branch that shares the entries."""

    def __init__(self, sessions: Sessions, reading: Reading, known: Known, change: Change) -> None:
        self._sessions, self._reading, self._known, self._change = sessions, reading, known, change
        self._tree, self._parts = Tree(sessions.url, known, None), list[_Part]()
        self._living: list[Entry] = []
        self._tombstones: dict[SessionKey, set[int]] = {}
        self._unsummarised: list[tuple[int, Entry]] = []

    @property
    def points(self) -> list[tuple[int, int]]:
        """The spans of keys of what is erased."""
        return _spans(self._known.keys(self._change.seqs))

    async def read(self, seen: Sequence[Seen], look: AsyncLook) -> None:
        """Take what was seen of the session, and read its branches."""
        known = self._known
        if not seen:
            self._change = still_meant(known.head, self._change, {})
            self._parts = [_Part.of(known, self._change, [])]
            return
        tree, rows = seen
        entries = await self._reading.without_large(known, rows.rows[0])
        flushes = self._change.spare
        living = [e for e in entries if e.damaged or (not e.erased if flushes else e.is_there)]
        change = still_meant(known.head, self._change, {e.seq: e.id for e in living})
        erased_seqs = set(change.seqs)
        self._living = [entry for entry in living if entry.seq in erased_seqs]
        graves = tuple(entry.seq for entry in self._living if entry.flushed)
        self._change = change = msgspec.structs.replace(change, graves=graves)
        record_rows = {row[0]: row for found_rows in rows.rows[1:] for row in found_rows}
        records = self._reading.records_of(known, [record_rows[key] for key in sorted(record_rows)])
        self._tree = Tree(self._sessions.url, known, tree)
        sharing = await sharers(self._sessions, known, self._tree, change.seqs, look)
        self._parts = [
            _Part.of(known, change, records),
            *(
                _Part.of(other, _of_branch(change, known.key, seqs), self._reading.records_of(other, rows))
                for other, seqs, rows in sharing
            ),
        ]
        self._check_unshared()
        self._unsummarised = await self._no_longer_summarised()
        if any(entry.damaged for entry in self._living):
            # The head's counts cannot be adjusted for an unreadable entry: they are made anew from the whole log.
            for part in self._parts:
                self._tombstones[part.known.key] = await self._reading.tombstones(part.known)

    def _check_unshared(self) -> None:
        """Raise Conflict if a flush would destroy entries that another session still needs."""
        if not self._change.unshared:
            return
        now = self._sessions.clock()
        for part in self._parts[1:]:
            head = part.known.head
            if not head.is_over(now) and needed(part.before, head, part.change.seqs):
                name = part.known.key.session
                raise Conflict(f"session {name!r}", "still needs entries that a flush would destroy: try again")

    def batch(self, other_steps: Sequence[Step], at: int) -> Prepared:
        """Return the steps of the erasure, with `other_steps`, and the sessions after them."""
        known, summarised = self._known, self._still_summarised()
        parts = [self._change_of(part, at) for part in self._parts]
        remnants = [flushed(one) if ranges.within(summarised, one.seq) else tombstone(one) for one in self._living]
        grave_rows = [entry_row(known.log_of(grave.seq), grave) for grave in remnants]
        grave_rows += [entry_row(log, tombstone(entry)) for log, entry in self._unsummarised]
        points = _spans(row[0] for row in grave_rows)
        log_step = Step(
            known.logs,
            rows_only=True,
            drop=drops_beside(points),
            put=[("entry", grave_rows), ("record", [row for _, _, rows in parts for row in rows])],
            destroys=True,
        )
        batch = [*(step for _, step, _ in parts), self._tree.step(), log_step, *other_steps]
        return batch, [after for after, _, _ in parts]

    def _still_summarised(self) -> tuple[ranges.Span, ...]:
        """Return the seqs of flushed entries that summaries still cover, here or in a branch.

        What stays of these entries lets them be found.
        """
        if not self._change.spare:
            return ()
        return ranges.union(*(part.before.covered for part in self._parts))

    async def _no_longer_summarised(self) -> list[tuple[int, Entry]]:
        """Return, with their logs, flushed entries that summaries cover before this erasure and none covers after it.

        What the flush has left of them, such as who spoke, goes with the last summary.
        """
        if self._change.spare:
            return []
        if all(part.state is None for part in self._parts):  # contexts go on showing the same summaries
            return []
        before = {key for part in self._parts for key in _summarised_by(part, part.before)}
        after = {key for part in self._parts for key in _summarised_by(part, part.state or part.before)}
        wanted = _spans(before - after - set(self._known.keys(self._change.seqs)))
        rows = await self._reading.rows(self._known, Range("entry", wanted)) if wanted else []
        entries = zip(rows, await self._reading.without_large(self._known, rows), strict=True)
        return [(row[0] >> 32, entry) for row, entry in entries if entry.flushed]

    def _change_of(self, part: _Part, at: int) -> tuple[Known, Step, list[Row]]:
        """Return one session after the erasure, the step of its head, and the rows of its records that change."""
        known, change, records = part.known, part.change, [*part.changed_records]
        if part.state is not None:
            change = msgspec.structs.replace(change, compaction=part.state)
        after, record, _ = committed(known.head, change, at)
        if known.key in self._tombstones:
            after = recounted(after, self._tombstones[known.key] | set(change.seqs))
        if record is not None:
            records.append(record)
        known_after, step = known.step(after)
        return known_after, step, [record_row(known.log, one) for one in records]


def _summarised_by(part: _Part, state: Compaction) -> list[int]:
    """Return the keys of the entries that the summaries of a state cover."""
    summaries = [
        record.compaction.summary
        for record in part.records
        if record.compaction is not None and record.revision in state.current
    ]
    return part.known.keys(
        ranges.members(ranges.union(*(summary.covers for summary in summaries if summary is not None)))
    )


def _of_branch(change: Change, key: SessionKey, seqs: Sequence[int]) -> Change:
    """Return the erasure as a branch has it: of the entries that it shares, naming the session of the request.

    What was made from the entries, and what is remembered of compactions, is each branch's own.
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


def ask_erasure(known: Known, change: Change) -> list[Ask]:
    """Ask for everything that an erasure needs to know of a session."""
    silenced = [(key, key) for key in sorted(key_of(known.log, revision) for revision in set(change.silence))]
    wanted: list[Range | Named] = [
        Range("entry", _spans(known.keys(change.seqs))),
        Named("record", [str(known.log)]),
        Range("record", silenced),
    ]
    return [ask_tree(known), known.ask(*wanted)]


def _spans(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Return these keys as the fewest spans."""
    return list(ranges.of(set(keys)))

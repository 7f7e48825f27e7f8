"""One erasure: what is read for it, and what it makes of a session, and of every branch that has the entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.log import spans as ranges
from palimpsest.log.change import Change, Record, recounted, still_meant
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.resuming import committed
from palimpsest.log.withdrawal import forgotten, tombstone
from palimpsest.stores.backend import Ask, Named, Range, Row, Seen, Step
from palimpsest.stores.engine.forms import entry_row, key_of, record_row
from palimpsest.stores.engine.heads import Known, Sessions
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.sharing import Sharing
from palimpsest.stores.engine.trees import of_tree

OF_ENTRIES = ("entry", "tokens/*", "held")
"""The tables that have something of an entry."""


class Erasure:
    """One erasure: what it means in the session where it was asked for, and in every branch that has the entries."""

    def __init__(self, sessions: Sessions, reading: Reading, known: Known, change: Change) -> None:
        self._sessions, self._reading, self._known, self._asked = sessions, reading, known, change
        self.sharing = Sharing(sessions, known, None)
        self._records: list[Record] = []
        self._living: list[Entry] = []
        self._graves: dict[SessionKey, set[int]] = {}
        self._change = change
        self.steps: list[Step] = []
        """What it was made to last."""

    @property
    def points(self) -> list[tuple[int, int]]:
        """The keys of what is erased."""
        return _joined(self._known.keys(self._change.seqs))

    async def read(self, seen: Sequence[Seen]) -> None:
        """Take what was read of the session, and read what is read of its branches."""
        known, asked = self._known, self._asked
        if not seen:
            self._change = still_meant(known.head, asked, {})
            return
        tree, rows = seen
        entries = await self._reading.slim(known, rows.rows[0])
        living = [e for e in entries if e.damaged or not e.erased]
        self._change = change = still_meant(known.head, asked, {e.seq: e.id for e in living})
        meant = set(change.seqs)
        self._living = [entry for entry in living if entry.seq in meant]
        told = {row[0]: row for some in rows.rows[1:] for row in some}
        self._records = self._reading.told(known, [told[key] for key in sorted(told)])
        self.sharing = Sharing(self._sessions, known, tree, change.seqs)
        await self.sharing.look()
        if any(entry.damaged for entry in self._living):
            self.sharing.fixed = True  # what is damaged is counted anew by reading whole logs
            for each in (known, *(other.known for other in self.sharing.others)):
                self._graves[each.key] = await self._reading.graves(each)

    def batch(self, known: Known, at: int, more: Sequence[Step]) -> tuple[list[Step], list[Known]]:
        """The steps of it, with `more`, and the sessions after them; of the session as it is known by now."""
        change = self._change
        made = [self._in(known, change, self._records, at)]
        for other, seqs, rows in self.sharing.others:
            records = self._reading.told(other, rows)
            made.append(self._in(other, of_branch(change, known.key, seqs), records, at))
        graves = [entry_row(known.log_of(entry.seq), tombstone(entry)) for entry in self._living]
        points = _joined(row[0] for row in graves)
        log = Step(
            known.logs,
            rows_only=True,
            drop=[(table, low, high) for table in OF_ENTRIES[1:] for low, high in points],
            put=[("entry", graves), ("record", [row for _, _, rows in made for row in rows])],
            destroys=True,
        )
        steps = [step for _, step, _ in made]
        batch = self.steps = [*steps, self.sharing.tree.step(), log, *more]
        return batch, [after for after, _, _ in made]

    def _in(self, known: Known, change: Change, there: list[Record], at: int) -> tuple[Known, Step, list[Row]]:
        """What it makes of one session."""
        gone = [*change.seqs, *ranges.members(change.also)]
        made, state = forgotten(there, known.head, gone, spare=change.spare, silence=change.silence)
        if state is not None:
            change = msgspec.structs.replace(change, compaction=state)
        after, record, _ = committed(known.head, change, at)
        if known.key in self._graves:
            after = recounted(after, self._graves[known.key] | set(change.seqs))
        if record is not None:
            made.append(record)
        now, step = known.step(after)
        return now, step, [record_row(known.log, one) for one in made]


def of_branch(change: Change, key: SessionKey, seqs: Sequence[int]) -> Change:
    """The erasure as another branch has it: of the entries that it shares, with the session where it was asked for.

    What was made from them, and what is remembered of compactions, is each branch's own.
    """
    detail = {**change.detail, "session": key.session}
    return msgspec.structs.replace(
        change, seqs=tuple(seqs), silence=(), said=(), compaction=None, attempts=None, detail=detail
    )


def of_erasure(known: Known, change: Change) -> list[Ask]:
    """What asks for all that an erasure has to know of a session."""
    silent = [(key, key) for key in sorted(key_of(known.log, revision) for revision in set(change.silence))]
    wanted: list[Range | Named] = [
        Range("entry", _joined(known.keys(change.seqs))),
        Named("record", [str(known.log)]),
        Range("record", silent),
    ]
    return [of_tree(known), Ask(known.logs, wanted, head=False)]


def _joined(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Keys as spans, as few as there can be."""
    return list(ranges.of(set(keys)))

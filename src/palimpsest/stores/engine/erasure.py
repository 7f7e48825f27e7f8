"""One erasure: what is read for it, and what it makes of a session, and of every branch that has the entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from palimpsest.log import spans as ranges
from palimpsest.log.change import Change, Record, recounted, still_meant
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.resuming import committed
from palimpsest.log.withdrawal import forgotten, tombstone
from palimpsest.stores.backend import Ask, Cells, Look, Named, Place, PlaceHead, Range, Row, Seen, Step
from palimpsest.stores.engine.forms import entry_row, key_of, record_row
from palimpsest.stores.engine.heads import Known, Sessions
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.trees import Tree, of_tree

OF_ENTRIES = ("entry", "tokens/*", "held")
"""The tables that have something of an entry."""

Readers = dict[tuple[str, int], tuple[int, ...]]
"""Which entries a session has, by its name and the number of its own log."""

Other = tuple[Known, tuple[int, ...], list[Record]]
"""Another session, which of the entries it has, and its records that carry a compaction."""


class Erasure:
    """One erasure: what it means in the session where it was asked for, and in every branch that has the entries."""

    def __init__(self, sessions: Sessions, reading: Reading, known: Known, change: Change) -> None:
        self._sessions, self._reading, self._known, self._asked = sessions, reading, known, change
        self._tree = Tree(sessions.url, known, None)
        self._records: list[Record] = []
        self._living: list[Entry] = []
        self._others: list[Other] = []
        self._graves: dict[SessionKey, set[int]] = {}
        self._change = change
        self.steps: list[Step] = []
        """What it was made to last."""
        self.beside: dict[Place, PlaceHead | None] = {}
        """The heads that this goes by beside the session's own: those of the others, and of the tree."""

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
        self._tree = Tree(self._sessions.url, known, tree)
        entries = await self._reading.slim(known, rows.rows[0])
        living = [e for e in entries if e.damaged or not e.erased]
        self._change = change = still_meant(known.head, asked, {e.seq: e.id for e in living})
        meant = set(change.seqs)
        self._living = [entry for entry in living if entry.seq in meant]
        told = {row[0]: row for some in rows.rows[1:] for row in some}
        self._records = self._reading.told(known, [told[key] for key in sorted(told)])
        if readers := self._tree.others(known, change.seqs):
            seen = await self._sessions.backend.look(asks_beside(known, readers))
            self._others = self._met(known, readers, seen)
        if any(entry.damaged for entry in self._living):
            for each in (known, *(other for other, _, _ in self._others)):
                self._graves[each.key] = await self._reading.graves(each)

    def renewed(self, known: Known, there: Mapping[Place, PlaceHead | None], look: Look) -> bool:
        """Take in who has come to the tree, is gone from it, or is another than the head that is there says.

        False where that takes more than a look: what is damaged is counted anew by reading whole logs.
        """
        if self._graves:
            return False
        (tree,) = look([of_tree(known)])
        self._tree = Tree(self._sessions.url, known, tree)
        readers = self._tree.others(known, self._change.seqs)
        kept = [one for one in self._others if there.get(one[0].place) == one[0].there and _name(one[0]) in readers]
        here = {_name(one[0]) for one in kept}
        new = {name: seqs for name, seqs in readers.items() if name not in here}
        self._others = [*kept, *self._met(known, new, look(asks_beside(known, new)) if new else ())]
        return True

    def _met(self, known: Known, readers: Readers, seen: Sequence[Seen]) -> list[Other]:
        """These sessions, as they were seen, if they are there."""
        found = beside(self._sessions, known, readers, seen)
        return [
            (other, tuple(sorted(readers[_name(other)])), self._reading.told(other, records))
            for other, records in found
        ]

    def batch(self, known: Known, at: int, more: Sequence[Step]) -> tuple[list[Step], list[Known]]:
        """The steps of it, with `more`, and the sessions after them; of the session as it is known by now."""
        change = self._change
        made = [self._in(known, change, self._records, at)]
        for other, seqs, records in self._others:
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
        batch = self.steps = [*steps, self._tree.step(), log, *more]
        self.beside = {step.place: other.there for step, (other, _, _) in zip(steps[1:], self._others, strict=True)}
        self.beside[known.tree] = self._tree.there
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


def only_appended(known: Known, now: Known) -> bool:
    """Whether nothing has become of a session but appends: what was read of it is as it was."""
    return now.reads_as(known) and now.head.epoch == known.head.epoch and now.stirred == known.stirred


def asks_beside(known: Known, readers: Iterable[tuple[str, int]]) -> list[Ask]:
    """What asks for other sessions of a home, by name and own log, and for the records that carry a compaction."""
    heads = [Ask(known.place._replace(name=name)) for name, _ in readers]
    return [*heads, Ask(known.logs, [Named("record", [str(log) for _, log in readers])], head=False)]


def beside(
    sessions: Sessions, known: Known, readers: Iterable[tuple[str, int]], seen: Sequence[Seen]
) -> list[tuple[Known, Sequence[Cells]]]:
    """Those of these sessions that are there, with these records, by what was seen of what was asked for."""
    by_log: dict[int, list[Cells]] = {}
    for row in seen[-1].rows[0] if seen else ():
        by_log.setdefault(row[0] >> 32, []).append(row)
    found: list[tuple[Known, Sequence[Cells]]] = []
    for (name, log), one in zip(readers, seen, strict=False):
        other = sessions.read(known.key._replace(session=name), known.place._replace(name=name), one.head)
        if other.there is not None and other.log == log:
            found.append((other, by_log.get(log, [])))
    return found


def _name(known: Known) -> tuple[str, int]:
    """What a reader of a log is known by."""
    return known.key.session, known.log


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

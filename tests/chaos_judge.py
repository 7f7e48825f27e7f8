"""Whether a store holds what the journals of a run say that it must, and nothing that they say has gone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from chaos_journal import BRANCH, OWN, SHARED, Op, journals, marks_in
from chaos_model import Cells, World
from palimpsest import Entry, Memory
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from writer import quarters


class Fault(NamedTuple):
    """A rule that does not hold, and the operations that tell why it should."""

    rule: str
    ops: tuple[Op, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([self.rule, *map(str, self.ops)])


class Found:
    """What can be read of one session."""

    def __init__(self, memory: Memory, name: str) -> None:
        session = memory.session(name, counter=quarters)
        self.name = name
        self.log = session.entries(rewound=True)
        self.visible = [_mark(entry) for entry in session.entries()]
        self.marks = [_mark(entry) for entry in self.log]
        self.summaries = {made.id for made in session.summaries(history=True)}
        head = drive(memory.store.head(SessionKey(memory.tenant, name)))
        self.pinned = {_mark(entry) for entry in self.log if head is not None and entry.seq in head.pinned}
        self.forked_from = head.forked_from if head is not None else None
        everything = [session.export(), session.summaries(history=True), session.history(), session.context().messages]
        self.text = f"{json.dumps(everything[0])} {everything[1:]}"
        self.problems = session.verify().problems


def _mark(entry: Entry) -> str | None:
    if entry.erased:
        return None
    marks = marks_in(entry.text)
    return marks[0] if marks else "?"


class Judge:
    """Compares the journals of a run with the sessions of its tenant, when all processes have ended."""

    def __init__(self, folder: Path) -> None:
        self.ops = journals(folder)
        self.faults: list[Fault] = []
        self._all = [op for ops in self.ops.values() for op in ops]
        self._appends = [op for op in self._all if op.verb == "append"]
        self._written = [op for op in self._all if op.verb in ("append", "own append")]
        self._by_mark = {mark: op for op in self._written for mark in op.facts["marks"]}
        self._worlds = {writer: _replayed(ops) for writer, ops in self.ops.items()}

    def count(self) -> dict[str, int]:
        """How often each thing was done, and what came of all."""
        verbs = Counter(op.verb for op in self._all)
        return {**dict(verbs.most_common()), **{f"-> {op or 'killed'}": n for op, n in self._outcomes().items()}}

    def _outcomes(self) -> Counter[str]:
        return Counter(op.outcome for op in self._all)

    def gone(self) -> set[str]:
        """The marks that may be nowhere any more: everything that was written, but what may be there."""
        alive = {mark for op in self._appends for mark in op.facts["marks"]} - self._erased()
        for world in self._worlds.values():
            alive |= world.alive()
        return self._by_mark.keys() - alive

    def redacted(self) -> set[str]:
        """The private addresses that an acknowledged scan must have met."""
        scans = [op for op in self._all if op.verb == "scan" and op.sure]
        found = set()
        for op in self._written:
            if op.facts.get("private") and op.sure:
                name = op.facts["session"]
                late = max([op.ended, *self._moved(op)])
                if any(scan.begun > late and scan.facts["session"] in (None, name) for scan in scans):
                    found.update(op.facts["private"])
        return found

    def _moved(self, append: Op) -> Iterator[float]:
        """When copies were made by imports: what a scan has missed is no fault of it."""
        if append.verb == "own append":
            for op in self.ops[append.writer]:
                if op.verb == "own import" and op.begun > append.begun:
                    yield op.ended if op.sure else float("inf")

    def _erased(self) -> set[str]:
        """The marks in sessions of everybody that were erased for sure."""
        gone = {mark for op in self._all if op.verb == "erase" and op.sure for mark in op.facts["marks"]}
        sweeps = [op.begun for op in self._all if op.verb == "sweep" and op.sure]
        for op in self._appends:
            if "expires" in op.facts and op.sure and any(at > max(op.ended, op.facts["expires"]) for at in sweeps):
                gone.update(op.facts["marks"])
        return gone

    def _perhaps(self) -> set[str]:
        """The marks in sessions of everybody that may have been erased."""
        gone = {mark for op in self._all if op.verb == "erase" for mark in op.facts["marks"]}
        return gone.union(*(op.facts["marks"] for op in self._appends if "expires" in op.facts))

    # --- judging

    def journals(self) -> None:
        """No operation met an error that may not be, and every one that was not cut short came to an end."""
        for op in self._all:
            if op.outcome == "raised":
                self._fault(f"{op.verb} raised {op.result['error']}: {op.result['said']}", op)

    def store(self, memory: Memory) -> None:
        """What is there is what must be."""
        found = {info.session: Found(memory, info.session) for info in memory.sessions(limit=1_000_000)}
        for one in found.values():
            if one.problems:
                self._fault(f"{one.name} is not whole: {one.problems}")
        self._together(found)
        for writer, world in self._worlds.items():
            self._own(writer, world, found)
        self._strangers(found)
        text = {name: one.text for name, one in found.items()}
        for what in sorted(self.gone()):
            for name in (name for name, said in text.items() if what in said):
                self._fault(f"{what} is gone and can be read in {name}", *self._about(what))
        for what in sorted(self.redacted()):
            for name in (name for name, said in text.items() if what in said):
                self._fault(f"{what} was redacted and can be read in {name}")

    def bytes_of(self, data: bytes, *, sealed: bool) -> None:
        """No byte tells of what is gone; of an encrypted store none tells of anything."""
        there = set(marks_in(data.decode("latin-1")))
        for what in sorted(there & (self._by_mark.keys() if sealed else self.gone())):
            self._fault(f"{what} stands in the store's files", *self._about(what))
        for what in sorted(self.redacted()):
            if what.encode() in data:
                self._fault(f"{what} was redacted and stands in the store's files")

    def _fault(self, rule: str, *ops: Op) -> None:
        self.faults.append(Fault(rule, ops))

    def _about(self, what: str) -> list[Op]:
        return [op for op in self._all if what in op.facts.get("marks", ())]

    # --- sessions of everybody

    def _together(self, found: dict[str, Found]) -> None:
        erased, perhaps = self._erased(), self._perhaps()
        batches: dict[str, list[Op]] = defaultdict(list)
        for op in self._appends:
            batches[op.facts["session"]].append(op)
        for name, ops in batches.items():
            there = found.get(name)
            if there is None:
                if any(op.sure for op in ops):
                    self._fault(f"session {name} is not there", *ops[:1])
                continue
            self._order(there, ops, erased, perhaps)
        for op in self._all:
            if op.verb == "fork":
                self._branch(op, found)
            elif op.verb == "compact" and op.sure and op.result["summary"]:
                self._summary(op, found[op.facts["session"]])

    def _order(self, there: Found, ops: list[Op], erased: set[str], perhaps: set[str]) -> None:
        """Each batch is there once, whole, in one piece, and behind those that its writer has added before."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, mark in enumerate(there.marks):
            if mark is not None:
                places[mark].append(place)
        ids = {entry.id: place for place, entry in enumerate(there.log)}
        last: dict[str, int] = {}
        for op in ops:
            marks, given = op.facts["marks"], op.result.get("ids") or [None] * len(op.facts["marks"])
            at = [places[mark] or ([ids[id]] if id in ids else []) for mark, id in zip(marks, given, strict=True)]
            if any(len(one) > 1 for one in at):
                self._fault(f"a batch is in {there.name} more than once", op)
                continue
            flat = [one[0] if one else None for one in at]
            self._ids(there, given, flat, op)
            for mark, where in zip(marks, flat, strict=True):
                readable = where is not None and there.marks[where] == mark
                if op.sure and where is None:
                    self._fault(f"{mark} was acknowledged and is not in {there.name}", *self._about(mark))
                elif op.sure and not readable and mark not in perhaps:
                    self._fault(f"{mark} has lost its text in {there.name}", *self._about(mark))
                elif readable and mark in erased:
                    self._fault(f"{mark} was erased and is in {there.name}", *self._about(mark))
            known = [where for where in flat if where is not None]
            whole = [mark for mark, where in zip(marks, flat, strict=True) if where is None and mark not in perhaps]
            if known and whole:
                self._fault(f"a batch is in {there.name} in part: {whole} are missing", op)
            pieces = known != list(range(known[0], known[0] + len(known))) if known else False
            if pieces and len(known) == len(marks):
                self._fault(f"a batch is in {there.name} in pieces", op)
            if known and known[0] < last.get(op.writer, -1):
                self._fault(f"a batch is in {there.name} before what its writer has added before it", op)
            if known:
                last[op.writer] = known[-1]

    def _ids(self, there: Found, given: list[str | None], flat: list[int | None], op: Op) -> None:
        """What is there has the ids that its writer was told."""
        for id, where in zip(given, flat, strict=True):
            if id is not None and where is not None and there.log[where].id != id:
                self._fault(f"{id} was told, and {there.log[where].id} is in {there.name}", op)

    def _summary(self, op: Op, there: Found) -> None:
        if op.result["summary"] not in there.summaries:
            self._fault("a summary that was made is not in the history", op)

    def _branch(self, op: Op, found: dict[str, Found]) -> None:
        """A branch has what was acknowledged before it, in the same places, and nothing that came after."""
        branch, root = found.get(op.facts["into"]), found.get(op.facts["session"])
        if branch is None or root is None:
            if op.sure:
                self._fault("a branch is not there", op)
            return
        later = [append for append in self._appends if append.facts["session"] == branch.name]
        own = {mark for append in later for mark in append.facts["marks"]}
        shared = [entry.id for entry in branch.log if entry.id in {one.id for one in root.log}]
        if shared != [entry.id for entry in root.log][: len(shared)]:
            self._fault(f"branch {branch.name} has other entries than {root.name}", op)
        if strange := [mark for mark in branch.marks[len(shared) :] if mark is not None and mark not in own]:
            self._fault(f"branch {branch.name} has {strange} of nobody", op)
        for append in self._appends:
            before = append.sure and append.facts["session"] == root.name and append.ended < op.begun
            if before and not set(append.result["ids"]) <= set(shared):
                ids = {id: entry.seq for entry in root.log if (id := entry.id) in append.result["ids"]}
                why = f"{len(shared)} are shared, the root has {ids}"
                self._fault(f"branch {branch.name} lacks what came before it: {why}", op, append)

    # --- sessions of one writer

    def _own(self, writer: str, world: World, found: dict[str, Found]) -> None:
        for name, logs in world.may_be.items():
            ops = [op for op in self.ops[writer] if name in (op.facts.get("session"), op.facts.get("into"))]
            there = found.get(name)
            if not any(_is(log, there) for log in logs):
                seen = there and (there.marks, there.visible)
                self._fault(f"{name} may be one of {list(map(_told, logs))} and is {seen}", *ops)
            log = logs[0]
            if len(logs) == 1 and log and there is not None:
                seen_pins = world.pinned.get(name, set()) & {c.mark for c, hidden in log if not (hidden or c.perhaps)}
                if not seen_pins <= there.pinned:
                    self._fault(f"{name} has lost pins: {seen_pins - there.pinned}", *ops)

    def _strangers(self, found: dict[str, Found]) -> None:
        """Nothing is there that nobody wrote, or where nobody wrote it."""
        for name, there in found.items():
            if name[0] not in (SHARED, BRANCH, OWN):
                self._fault(f"session {name} is nobody's")
            for mark in there.marks:
                if mark is not None and mark not in self._by_mark:
                    self._fault(f"{mark} in {name} is nobody's")


def _is(log: Cells | None, there: Found | None) -> bool:
    """Whether a session is as it is known; one that never had anything does not exist."""
    if log is None or there is None:
        return not log and there is None
    return (
        len(log) == len(there.marks)
        and all(cell.shows(mark) for (cell, _), mark in zip(log, there.marks, strict=True))
        and len(there.visible) == sum(not hidden for _, hidden in log)
        and all(cell.shows(m) for cell, m in zip((c for c, hidden in log if not hidden), there.visible, strict=True))
    )


def _told(log: Cells | None) -> list[tuple[str, bool, bool]] | None:
    return None if log is None else [(cell.mark, cell.erased, hidden) for cell, hidden in log]


def _replayed(ops: Iterable[Op]) -> World:
    world = World()
    for op in ops:
        if op.verb.startswith("own "):
            world.apply(op.verb.removeprefix("own "), op.facts, sure=op.sure)
    return world

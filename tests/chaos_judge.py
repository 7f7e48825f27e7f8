"""Judges a store by the journals of a run: acknowledged entries must be there, and erased ones must be gone.

Sessions are of two kinds. For shared sessions, which all writers change, the judge checks rules that hold in any
order of the operations. For a writer's own sessions, `chaos_model` replays the journal and knows the exact content.
"""

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
    """A broken rule, and the operations that show it."""

    rule: str
    ops: tuple[Op, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([self.rule, *map(str, self.ops)])


class SeenSession:
    """Everything that can be read of one session.

    `log` has all entries, rewound ones too; `marks` has the mark of each (see `_mark`), and `visible` those of the
    entries that no rewind has hidden. `text` is the text of every kind of read.
    """

    def __init__(self, memory: Memory, name: str) -> None:
        session = memory.session(name, counter=quarters)
        self.name = name
        self.log = session.entries(rewound=True)
        self.visible = [_mark(entry) for entry in session.entries()]
        self.marks = [_mark(entry) for entry in self.log]
        self.summaries = {summary.id for summary in session.summaries(history=True)}
        head = drive(memory.store.head(SessionKey(memory.tenant, name)))
        self.pinned = {_mark(entry) for entry in self.log if head is not None and entry.seq in head.pinned}
        self.forked_from = head.forked_from if head is not None else None
        export = json.dumps(session.export())
        others = [session.summaries(history=True), session.history(), session.context().messages]
        self.text = f"{export} {others}"
        self.problems = session.verify().problems


def _mark(entry: Entry) -> str | None:
    """Return the mark of an entry, None for a tombstone, or "?" for a text without a mark."""
    if entry.erased:
        return None
    marks = marks_in(entry.text)
    return marks[0] if marks else "?"


class Judge:
    """Compares the journals of a run with the sessions of its tenant, once all processes have ended.

    The methods `journals`, `store` and `bytes_of` add to `faults`.
    """

    def __init__(self, folder: Path) -> None:
        self.ops = journals(folder)
        self.faults: list[Fault] = []
        self._all = [op for ops in self.ops.values() for op in ops]
        self._appends = [op for op in self._all if op.verb == "append"]
        self._written = [op for op in self._all if op.verb in ("append", "own append")]
        self._by_mark = {mark: op for op in self._written for mark in op.facts["marks"]}
        self._worlds = {writer: _replayed(ops) for writer, ops in self.ops.items()}

    def count(self) -> dict[str, int]:
        """Return how often each verb was run, and how often each outcome came, for a report."""
        verbs = Counter(op.verb for op in self._all)
        return {**dict(verbs.most_common()), **{f"-> {name or 'killed'}": n for name, n in self._outcomes().items()}}

    def _outcomes(self) -> Counter[str]:
        return Counter(op.outcome for op in self._all)

    def gone(self) -> set[str]:
        """Return the marks that must be nowhere: all that were written, without those that may still be readable."""
        alive = {mark for op in self._appends for mark in op.facts["marks"]} - self._erased()
        for world in self._worlds.values():
            alive |= world.alive()
        return self._by_mark.keys() - alive

    def redacted(self) -> set[str]:
        """Return the private addresses that an acknowledged scan must have redacted."""
        scans = [op for op in self._all if op.verb == "scan" and op.sure]
        addresses = set()
        for op in self._written:
            if op.facts.get("private") and op.sure:
                name = op.facts["session"]
                last_copied = max([op.ended, *self._copied(op)])
                if any(scan.begun > last_copied and scan.facts["session"] in (None, name) for scan in scans):
                    addresses.update(op.facts["private"])
        return addresses

    def _copied(self, append: Op) -> Iterator[float]:
        """Yield when later imports may have copied an append's texts: a scan before that need not redact the copy."""
        if append.verb == "own append":
            for op in self.ops[append.writer]:
                if op.verb == "own import" and op.begun > append.begun:
                    yield op.ended if op.sure else float("inf")

    def _erased(self) -> set[str]:
        """Return the marks in shared sessions that were certainly erased."""
        gone = {mark for op in self._all if op.verb == "erase" and op.sure for mark in op.facts["marks"]}
        sweeps = [op.begun for op in self._all if op.verb == "sweep" and op.sure]
        for op in self._appends:
            if "expires" in op.facts and op.sure and any(at > max(op.ended, op.facts["expires"]) for at in sweeps):
                gone.update(op.facts["marks"])
        return gone

    def _maybe_erased(self) -> set[str]:
        """Return the marks in shared sessions that may have been erased."""
        gone = {mark for op in self._all if op.verb == "erase" for mark in op.facts["marks"]}
        return gone.union(*(op.facts["marks"] for op in self._appends if "expires" in op.facts))

    # --- judging

    def journals(self) -> None:
        """Check that no operation raised an error that is not allowed."""
        for op in self._all:
            if op.outcome == "raised":
                self._fault(f"{op.verb} raised {op.result['error']}: {op.result['said']}", op)

    def store(self, memory: Memory) -> None:
        """Check the contents of all sessions of the tenant."""
        seen = {info.session: SeenSession(memory, info.session) for info in memory.sessions(limit=1_000_000)}
        for session in seen.values():
            if session.problems:
                self._fault(f"{session.name} is not whole: {session.problems}")
        self._shared(seen)
        for writer, world in self._worlds.items():
            self._own(writer, world, seen)
        self._strangers(seen)
        for mark in sorted(self.gone()):
            for name in (name for name, session in seen.items() if mark in session.text):
                self._fault(f"{mark} is gone and can be read in {name}", *self._about(mark))
        for address in sorted(self.redacted()):
            for name in (name for name, session in seen.items() if address in session.text):
                self._fault(f"{address} was redacted and can be read in {name}")

    def bytes_of(self, data: bytes, *, sealed: bool) -> None:
        """Check that a store's bytes hold no mark that is gone, and those of an encrypted store no mark at all."""
        stored = set(marks_in(data.decode("latin-1")))
        for mark in sorted(stored & (self._by_mark.keys() if sealed else self.gone())):
            self._fault(f"{mark} stands in the store's files", *self._about(mark))
        for address in sorted(self.redacted()):
            if address.encode() in data:
                self._fault(f"{address} was redacted and stands in the store's files")

    def _fault(self, rule: str, *ops: Op) -> None:
        self.faults.append(Fault(rule, ops))

    def _about(self, mark: str) -> list[Op]:
        """Return the operations on a mark."""
        return [op for op in self._all if mark in op.facts.get("marks", ())]

    # --- shared sessions

    def _shared(self, seen: dict[str, SeenSession]) -> None:
        """Check the appends, branches and summaries of shared sessions."""
        erased, maybe_erased = self._erased(), self._maybe_erased()
        batches: dict[str, list[Op]] = defaultdict(list)
        for op in self._appends:
            batches[op.facts["session"]].append(op)
        for name, ops in batches.items():
            session = seen.get(name)
            if session is None:
                if any(op.sure for op in ops):
                    self._fault(f"session {name} is not there", *ops[:1])
                continue
            self._order(session, ops, erased, maybe_erased)
        for op in self._all:
            if op.verb == "fork":
                self._branch(op, seen)
            elif op.verb == "compact" and op.sure and op.result["summary"]:
                self._summary(op, seen[op.facts["session"]])

    def _order(self, session: SeenSession, ops: list[Op], erased: set[str], maybe_erased: set[str]) -> None:
        """Check that each batch is in the log once, complete, contiguous, and behind its writer's earlier batches.

        The place of an entry is found by its mark, or by its id where the text was erased.
        """
        places: dict[str, list[int]] = defaultdict(list)
        for place, mark in enumerate(session.marks):
            if mark is not None:
                places[mark].append(place)
        ids = {entry.id: place for place, entry in enumerate(session.log)}
        last: dict[str, int] = {}  # the place of each writer's newest entry
        for op in ops:
            marks, given = op.facts["marks"], op.result.get("ids") or [None] * len(op.facts["marks"])
            at = [places[mark] or ([ids[id]] if id in ids else []) for mark, id in zip(marks, given, strict=True)]
            if any(len(candidates) > 1 for candidates in at):
                self._fault(f"a batch is in {session.name} more than once", op)
                continue
            placed = [candidates[0] if candidates else None for candidates in at]
            self._ids(session, given, placed, op)
            for mark, where in zip(marks, placed, strict=True):
                readable = where is not None and session.marks[where] == mark
                if op.sure and where is None:
                    self._fault(f"{mark} was acknowledged and is not in {session.name}", *self._about(mark))
                elif op.sure and not readable and mark not in maybe_erased:
                    self._fault(f"{mark} has lost its text in {session.name}", *self._about(mark))
                elif readable and mark in erased:
                    self._fault(f"{mark} was erased and is in {session.name}", *self._about(mark))
            found = [where for where in placed if where is not None]
            missing = [m for m, where in zip(marks, placed, strict=True) if where is None and m not in maybe_erased]
            if found and missing:
                self._fault(f"a batch is in {session.name} in part: {missing} are missing", op)
            in_pieces = found != list(range(found[0], found[0] + len(found))) if found else False
            if in_pieces and len(found) == len(marks):
                self._fault(f"a batch is in {session.name} in pieces", op)
            if found and found[0] < last.get(op.writer, -1):
                self._fault(f"a batch is in {session.name} before what its writer has added before it", op)
            if found:
                last[op.writer] = found[-1]

    def _ids(self, session: SeenSession, given: list[str | None], placed: list[int | None], op: Op) -> None:
        """Check that stored entries have the ids that the append returned."""
        for id, where in zip(given, placed, strict=True):
            if id is not None and where is not None and session.log[where].id != id:
                self._fault(f"{id} was returned, and {session.log[where].id} is in {session.name}", op)

    def _summary(self, op: Op, session: SeenSession) -> None:
        if op.result["summary"] not in session.summaries:
            self._fault("a summary that was made is not in the history", op)

    def _branch(self, op: Op, seen: dict[str, SeenSession]) -> None:
        """Check that a branch shares a prefix of its root's log, with every entry acknowledged before the fork began.

        All further entries must come from appends to the branch itself.
        """
        branch, root = seen.get(op.facts["into"]), seen.get(op.facts["session"])
        if branch is None or root is None:
            if op.sure:
                self._fault("a branch is not there", op)
            return
        later = [append for append in self._appends if append.facts["session"] == branch.name]
        own = {mark for append in later for mark in append.facts["marks"]}
        shared = [entry.id for entry in branch.log if entry.id in {original.id for original in root.log}]
        if shared != [entry.id for entry in root.log][: len(shared)]:
            self._fault(f"branch {branch.name} has other entries than {root.name}", op)
        if strange := [mark for mark in branch.marks[len(shared) :] if mark is not None and mark not in own]:
            self._fault(f"branch {branch.name} has {strange} of nobody", op)
        for append in self._appends:
            before = append.sure and append.facts["session"] == root.name and append.ended < op.begun
            if before and not set(append.result["ids"]) <= set(shared):
                ids = {id: entry.seq for entry in root.log if (id := entry.id) in append.result["ids"]}
                detail = f"{len(shared)} are shared, the root has {ids}"
                self._fault(f"branch {branch.name} lacks what came before it: {detail}", op, append)

    # --- sessions of one writer

    def _own(self, writer: str, world: World, seen: dict[str, SeenSession]) -> None:
        """Check that each own session of a writer has one of its possible logs, and its pins if the log is certain."""
        for name, logs in world.may_be.items():
            ops = [op for op in self.ops[writer] if name in (op.facts.get("session"), op.facts.get("into"))]
            session = seen.get(name)
            if not any(_is(log, session) for log in logs):
                stored = session and (session.marks, session.visible)
                self._fault(f"{name} may be one of {list(map(_shown, logs))} and is {stored}", *ops)
            log = logs[0]
            if len(logs) == 1 and log and session is not None:
                pins = world.pinned.get(name, set()) & {c.mark for c, hidden in log if not (hidden or c.perhaps)}
                if not pins <= session.pinned:
                    self._fault(f"{name} has lost pins: {pins - session.pinned}", *ops)

    def _strangers(self, seen: dict[str, SeenSession]) -> None:
        """Check that no session and no entry exists that no writer has written."""
        for name, session in seen.items():
            if name[0] not in (SHARED, BRANCH, OWN):
                self._fault(f"session {name} is nobody's")
            for mark in session.marks:
                if mark is not None and mark not in self._by_mark:
                    self._fault(f"{mark} in {name} is nobody's")


def _is(log: Cells | None, session: SeenSession | None) -> bool:
    """Whether a session has this log. A session with an expected empty log may also not exist."""
    if log is None or session is None:
        return not log and session is None
    return (
        len(log) == len(session.marks)
        and all(cell.shows(mark) for (cell, _), mark in zip(log, session.marks, strict=True))
        and len(session.visible) == sum(not hidden for _, hidden in log)
        and all(cell.shows(m) for cell, m in zip((c for c, hidden in log if not hidden), session.visible, strict=True))
    )


def _shown(log: Cells | None) -> list[tuple[str, bool, bool]] | None:
    return None if log is None else [(cell.mark, cell.erased, hidden) for cell, hidden in log]


def _replayed(ops: Iterable[Op]) -> World:
    """Return the model of a writer's own sessions after these operations."""
    world = World()
    for op in ops:
        if op.verb.startswith("own "):
            world.apply(op.verb.removeprefix("own "), op.facts, sure=op.sure)
    return world

"""A model of the sessions that only one writer changes: replays the writer's operations to tell what they must hold."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


class Cell:
    """An entry of the model; branches share it.

    `erased` is whether it was certainly erased, `perhaps` whether an erasure was at least begun.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.erased = self.perhaps = False

    def copy(self) -> Cell:
        """Return the entry as an import copies it."""
        copied = Cell(self.mark)
        copied.erased, copied.perhaps = self.erased, self.perhaps
        return copied

    def shows(self, seen: str | None) -> bool:
        """Whether the entry may be read as `seen`: its mark, or None for a tombstone."""
        return (seen == self.mark and not self.erased) or (seen is None and (self.erased or self.perhaps))


Cells = list[tuple[Cell, bool]]
"""A log: its entries, each with whether a rewind has hidden it."""


class World:
    """The sessions of one writer.

    `may_be` has the possible logs of each session: exactly one log, or several after an operation that was cut short.
    None stands for a session that does not exist.
    """

    def __init__(self) -> None:
        self.may_be: dict[str, list[Cells | None]] = {}
        self.pinned: dict[str, set[str]] = defaultdict(set)
        self._cells: dict[str, list[Cell]] = defaultdict(list)

    def known(self) -> dict[str, Cells]:
        """Return the existing sessions whose log is certain."""
        return {name: logs[0] for name, logs in self.may_be.items() if len(logs) == 1 and logs[0] is not None}

    def alive(self) -> set[str]:
        """Return the marks that may still be readable."""
        logs = [log for logs in self.may_be.values() for log in logs if log is not None]
        return {cell.mark for log in logs for cell, _ in log if not cell.erased}

    def apply(self, verb: str, facts: dict[str, Any], *, sure: bool) -> None:
        """Apply an operation. If it is not `sure` (not acknowledged), the log may be as before it or as after it."""
        if verb == "forget_text":
            self._erase([cell for mark in facts["marks"] for cell in self._cells[mark]], sure=sure)
            return
        name = facts["session"]
        before = self.may_be.get(name, [None])[0]
        if verb in ("fork", "import"):
            assert before is not None
            log: Cells | None = before if verb == "fork" else [(self._new(cell), hidden) for cell, hidden in before]
            name = facts["into"]
            after = log and list(log)
        else:
            after = self._after(verb, before or [], facts, sure=sure)
        self.may_be[name] = [after] if sure else [*self.may_be.get(name, [None]), after]
        if name == facts.get("into"):
            self.pinned[name] = set(self.pinned[facts["session"]])

    def _after(self, verb: str, log: Cells, facts: dict[str, Any], *, sure: bool) -> Cells | None:
        """Return the log after the operation, or None if the session no longer exists."""
        if verb == "append":
            return [*log, *[(self._new(Cell(mark)), False) for mark in facts["marks"]]]
        if verb == "rewind":
            self.pinned.pop(facts["session"], None)  # the pins are again those of that earlier time
            last = [place for place, (_, hidden) in enumerate(log) if not hidden][facts["keeps"] - 1]
            return [(cell, hidden or place > last) for place, (cell, hidden) in enumerate(log)]
        if verb == "erase":
            self._erase([cell for cell, _ in log if cell.mark in facts["marks"]], sure=sure)
        elif verb == "pin" and sure:
            self.pinned[facts["session"]].update(facts["marks"])
        elif verb == "forget":
            self._erase([cell for cell, _ in log], sure=sure)
        if verb in ("clear", "delete", "forget"):
            self.pinned.pop(facts["session"], None)
            return [] if verb == "clear" else None
        return log

    def _new(self, cell: Cell) -> Cell:
        """Return a copy that erasures by text (`forget_text`) also reach."""
        copied = cell.copy()
        self._cells[copied.mark].append(copied)
        return copied

    def _erase(self, cells: list[Cell], *, sure: bool) -> None:
        for cell in cells:
            cell.erased, cell.perhaps = cell.erased or sure, True

"""`Mistake`: one thing that is wrong in declared memories, and how messages list these, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from palimpsest.errors.wording import bounded


class Mistake(NamedTuple):
    """One thing that is wrong in a declared memory.

    It has the `file` (None: a mapping was given), the `line` and `column` of the key (from 1; None: not known), the id
    of the `memory`, the `key`, what was `found`, as messages show it, what is `allowed`, the `nearest` valid name to an
    unknown one, and where in the value it is wrong (`within`; "": all of it), such as the column of a condition.
    """

    file: str | None
    line: int | None
    column: int | None
    memory: str | None
    key: str
    found: str
    allowed: str
    nearest: str | None
    within: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        whose = f"memory {bounded(self.memory)!r}" if self.memory is not None else ""
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        found = "nothing" if self.found == "None" else self.found
        where = ", ".join(part for part in (bounded(self.key) or "the whole", self.within) if part)
        fault = f"{where}: {found} is not accepted; allowed: {self.allowed}{hint}"
        return ": ".join(part for part in (place, whose, fault) if part)


def told_together(mistakes: Sequence[Mistake]) -> str:
    """Return the text of an error about these mistakes, a line for each."""
    count = len(mistakes)
    heading = f"{count} {'mistake' if count == 1 else 'mistakes'} in declared memories:"
    return "\n  ".join([heading, *map(str, mistakes)])

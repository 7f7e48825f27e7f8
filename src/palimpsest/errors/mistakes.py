"""What is wrong in declared memories, as it is told: a line each, with its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from palimpsest.errors.wording import bounded


class Mistake(NamedTuple):
    """One thing that is wrong in a declared memory: the `file` (None: a mapping), the `line` and `column` of the key
    (from 1; None: not known), the memory's id, the `key`, what was `found`, as it is shown, what is `allowed`, and the
    `nearest` name to an unknown one."""

    file: str | None
    line: int | None
    column: int | None
    memory: str | None
    key: str
    found: str
    allowed: str
    nearest: str | None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        whose = f"memory {bounded(self.memory)!r}" if self.memory is not None else ""
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        found = "nothing" if self.found == "None" else self.found
        said = f"{bounded(self.key) or 'the whole'}: {found} is not accepted; allowed: {self.allowed}{hint}"
        return ": ".join(part for part in (place, whose, said) if part)


def told_together(mistakes: Sequence[Mistake]) -> str:
    """All of them, a line each."""
    count = len(mistakes)
    heading = f"{count} {'mistake' if count == 1 else 'mistakes'} in declared memories:"
    return "\n  ".join([heading, *map(str, mistakes)])

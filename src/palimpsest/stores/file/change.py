"""What is written to one home in one step: which batches are done, and the lines that they are."""

from __future__ import annotations

from palimpsest.stores.backend import Batch, Place, PlaceHead, Refusal, Step
from palimpsest.stores.file.home import Home
from palimpsest.stores.file.lines import HomeLine, RowLine, StepLine, Writing
from palimpsest.stores.rules import are_fleeting, refused


class Change:
    """What is written to one home in one step, for who has its lock: which batches are done, and their lines."""

    def __init__(self, home: Home, lasting: bool) -> None:
        self._home, self._lasting = home, lasting
        self.batches: list[Batch] = []
        self._heads: dict[Place, PlaceHead | None] = {}

    def take(self, batch: Batch) -> Refusal | None:
        """Take a batch whose heads are as expected; else return those that are there."""
        heads = [None if step.rows_only else self._head(step.place) for step in batch]
        if (refusal := refused(batch, heads)) is not None:
            return refusal
        if any(map(_does_something, batch)):
            self._heads.update(
                (step.place, step.after(head)) for step, head in zip(batch, heads, strict=True) if step.moves
            )
            self.batches.append(batch)
        return None

    @property
    def destroys(self) -> bool:
        """Whether no byte of what goes by it may stay."""
        return any(map(_destroys, self.batches))

    def _head(self, place: Place) -> PlaceHead | None:
        return self._heads[place] if place in self._heads else self._home.head(place.space, place.name)

    @property
    def lasts(self) -> bool:
        """Whether anything of it may not be lost when the machine is."""
        return self._lasting and not are_fleeting(self.batches)

    def lines(self, at: int) -> list[bytes]:
        """The lines of what was taken, with the home's own where it is new."""
        address = self.batches[0][0].place
        first = [] if self._home.end else [HomeLine(address.tenant, address.home).line()]
        writing, lines, fleeting = Writing(), [], not self.lasts
        for batch in self.batches:
            writing.steps = [_line(step, writing) for step in batch if _does_something(step)]
            lines.append(writing.line(at, fleeting=fleeting, destroys=_destroys(batch)))
        return first + lines


def _destroys(batch: Batch) -> bool:
    return any(step.destroys for step in batch)


def _line(step: Step, writing: Writing) -> StepLine:
    """What a step says in the log."""
    put: dict[str, list[RowLine]] = {}
    for table, rows in step.put:
        put.setdefault(table, []).extend(map(writing.row, rows))
    line = StepLine(step.place.space, step.place.name, drop=step.drop, put=put)
    if step.moves:
        line.gone, line.expires = step.hot is None, step.expires
        if step.hot is not None:
            writing.head(line, step.hot, step.cold)
    return line


def _does_something(step: Step) -> bool:
    return bool(step.drop or step.put) or step.moves

"""Tables that fit their terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

WIDE = 80
"""Columns of a terminal from which on tables have all that there is."""
SHORTEST, GAP = 8, 3
"""Cells that a text needs in a narrow table, and those between columns."""


class Fitted(Table):
    """A table that is made narrower before it is shown on a narrow terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < WIDE:
            narrow(self, options.max_width)
        return super().__rich_console__(console, options)


def fitted(columns: Sequence[str], right: Sequence[str], title: str | None, *, plain: bool) -> Fitted:
    """Return a table without rows: `right` names the columns of figures, `plain` is without rules."""
    made = Fitted(
        box=None if plain else box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        pad_edge=False,
        padding=(0, 2, 0, 0) if plain else (0, 1),
        header_style="bold",
    )
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    return made


def narrow(made: Table, width: int) -> None:
    """Make a table fit: its first column as it is, texts cut, and as many of the others as there is room for."""

    def whole(column: Column) -> int:
        return max(cell_len(str(cell)) for cell in (column.header, *column.cells))

    def needed(column: Column) -> int:
        return whole(column) if column is made.columns[0] or column.justify == "right" else min(whole(column), SHORTEST)

    while len(made.columns) > 1 and sum(needed(column) + GAP for column in made.columns) > width:
        made.columns.pop()
    left = max(width - sum(needed(column) + GAP for column in made.columns), 0)
    for column in made.columns:
        more = min(whole(column) - needed(column), left)
        left -= more
        column.width, column.no_wrap, column.overflow = needed(column) + more, True, "ellipsis"
    first = made.columns[0]
    first.width, first.no_wrap, first.overflow = min(whole(first), width - GAP), False, "fold"

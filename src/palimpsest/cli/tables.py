"""Tables of rich that are narrowed to fit a small terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

WIDE = 80
"""Terminals of at least so many columns show tables whole."""
SHORTEST, GAP = 8, 3
"""Cells that a text column keeps at least in a narrow table, and cells between two columns."""


class Fitted(Table):
    """A table that narrows itself when it is printed on a terminal of less than `WIDE` columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < WIDE:
            narrow(self, options.max_width)
        return super().__rich_console__(console, options)


def fitted(columns: Sequence[str], right: Sequence[str], title: str | None, *, plain: bool) -> Fitted:
    """Return a table without rows. `right` names the right-aligned columns; a `plain` table has no rules."""
    table = Fitted(
        box=None if plain else box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        pad_edge=False,
        padding=(0, 2, 0, 0) if plain else (0, 1),
        header_style="bold",
    )
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    return table


def narrow(table: Table, width: int) -> None:
    """Fit a table into `width` columns of the terminal.

    The first column and those of figures stay whole, the others are cut to `SHORTEST` cells at least. Columns that have
    no room are dropped from the right. Room that is left goes to the cut columns, from the left.
    """

    def full_width(column: Column) -> int:
        return max(cell_len(str(cell)) for cell in (column.header, *column.cells))

    def least_width(column: Column) -> int:
        full = full_width(column)
        return full if column is table.columns[0] or column.justify == "right" else min(full, SHORTEST)

    while len(table.columns) > 1 and sum(least_width(column) + GAP for column in table.columns) > width:
        table.columns.pop()
    spare = max(width - sum(least_width(column) + GAP for column in table.columns), 0)
    for column in table.columns:
        extra = min(full_width(column) - least_width(column), spare)
        spare -= extra
        column.width, column.no_wrap, column.overflow = least_width(column) + extra, True, "ellipsis"
    first = table.columns[0]
    first.width, first.no_wrap, first.overflow = min(full_width(first), width - GAP), False, "fold"

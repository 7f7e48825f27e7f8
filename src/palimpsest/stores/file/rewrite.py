"""A home's log written anew: what is there now, and nothing of what was."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import msgspec

from palimpsest.stores.file.home import Home
from palimpsest.stores.file.lines import NONE, HomeLine, StepLine, batch_line, value_text

TOGETHER = 64
"""Rows, or heads, of one line."""


def write_anew(home: Home, fd: int, file: BinaryIO) -> None:
    """Write what the log that is open holds into a new file: first the heads, then the rows, a table at a time."""
    at = max((head.at for head in home.heads.values()), default=0)
    file.write(HomeLine(home.tenant, home.home).line())
    file.writelines(batch_line(at, steps, 0) for steps in _heads(home))
    for (space, name, table), rows in home.tables.items():
        texts = home.texts(fd, rows.spots)
        while some := list(map(msgspec.Raw, islice(texts, TOGETHER))):
            file.write(batch_line(at, [StepLine(space, name, put={table: some})], 0))


def _heads(home: Home) -> Iterator[list[StepLine]]:
    steps = [
        StepLine(
            space,
            name,
            hot=msgspec.Raw(value_text(there.head.hot)),
            cold=msgspec.Raw(value_text(there.head.cold)) if there.head.cold else NONE,
            expires=there.expires,
            at=there.at,
            doubt=bool(there.doubt),
        )
        for (space, name), there in home.heads.items()
    ]
    for first in range(0, len(steps), TOGETHER):
        yield steps[first : first + TOGETHER]

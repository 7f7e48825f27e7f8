"""Cutting a source that cannot be read at once: between interactions, else between entries, else in a text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.log.summary import Summary
from palimpsest.summaries import Count, Recipe, SummarySource
from palimpsest.summaries.prompts import text_of, written

SHARE = 0.6
"""Of the summarizer's window: what a source takes at most; the rest is for the instructions and the answer."""

_LEAST = 0.2
"""Of the window: what a part may take, however long the summary is that comes before it."""

_ATOM = 200
"""Characters that are not cut any more."""


class _Block(NamedTuple):
    """What stays together: a summary, or entries; and what it takes."""

    summaries: Sequence[Summary]
    entries: Sequence[Entry]
    tokens: int


def parts_of(source: SummarySource, recipe: Recipe, count: Count) -> list[SummarySource]:
    """Return the source in parts that the summarizer can read, in order; whole where it can read all of it.

    Room is left for the summary of the parts before. Together the parts hold every summary, and every character of
    every entry.
    """
    if recipe.window is None:
        return [source]
    whole = int(SHARE * recipe.window)
    before = [_Block((summary,), (), count(summary.text)) for summary in source.previous]
    sizes = {id(entry): count(written(entry)) for entry in source.entries}
    if sum(block.tokens for block in before) + sum(sizes.values()) <= whole:
        return [source]
    room = max(whole - recipe.target, int(_LEAST * recipe.window), 1)
    parts: list[SummarySource] = []
    for blocks in _filled((*before, *_blocks(source.entries, sizes, room, count)), room):
        previous = tuple(summary for block in blocks for summary in block.summaries)
        entries = tuple(entry for block in blocks for entry in block.entries)
        parts.append(msgspec.structs.replace(source, previous=previous, entries=entries))
    return parts


def _filled(blocks: Iterable[_Block], room: int) -> Iterator[list[_Block]]:
    """Yield runs of blocks that fit into the room; one that does not is a run of its own."""
    run: list[_Block] = []
    used = 0
    for block in blocks:
        if run and used + block.tokens > room:
            yield run
            run, used = [], 0
        run.append(block)
        used += block.tokens
    if run:
        yield run


def _blocks(entries: Sequence[Entry], sizes: dict[int, int], room: int, count: Count) -> Iterator[_Block]:
    """Yield whole interactions; of those that do not fit the entries, and of those that do not fit the pieces."""
    for _, together in groupby(entries, key=lambda entry: entry.turn):
        interaction = list(together)
        tokens = sum(sizes[id(entry)] for entry in interaction)
        if tokens <= room:
            yield _Block((), interaction, tokens)
            continue
        for entry in interaction:
            if sizes[id(entry)] <= room:
                yield _Block((), (entry,), sizes[id(entry)])
                continue
            for piece in _pieces(text_of(entry), room, count):
                part = msgspec.structs.replace(entry, content=piece)
                yield _Block((), (part,), count(written(part)))


def _pieces(text: str, room: int, count: Count) -> Iterator[str]:
    """Yield a text in pieces that fit, in order: halves, and halves of halves, cut at blanks where there are any."""
    waiting = [text]
    while waiting:
        piece = waiting.pop()
        if len(piece) <= _ATOM or count(piece) <= room:
            yield piece
            continue
        middle = len(piece) // 2
        blank = max(piece.rfind(mark, middle - _ATOM // 4, middle) for mark in ("\n", " "))
        at = blank + 1 if blank > 0 else middle
        waiting += [piece[at:], piece[:at]]

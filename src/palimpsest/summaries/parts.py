"""Split a source that cannot be read at once: between interactions, else between entries, else inside a text. Pure."""

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
"""Largest share of the summarizer's window for a source. The rest is for the instructions and the answer."""

_LEAST = 0.2
"""Least share of the window for a part, however long the summary before it is."""

_ATOM = 200
"""Pieces of so many characters are not split any further."""


class _Block(NamedTuple):
    """What stays together, a summary or entries, and its tokens."""

    summaries: Sequence[Summary]
    entries: Sequence[Entry]
    tokens: int


def parts_of(source: SummarySource, recipe: Recipe, count: Count) -> list[SummarySource]:
    """Split the source into parts that the summarizer can read, in order. It stays whole if it can be read at once.

    Room is left for the summary of the previous parts. Together the parts contain every summary, and every character of
    every entry.
    """
    if recipe.window is None:
        return [source]
    whole = int(SHARE * recipe.window)
    summary_blocks = [_Block((summary,), (), count(summary.text)) for summary in source.previous]
    sizes = {id(entry): count(written(entry)) for entry in source.entries}
    if sum(block.tokens for block in summary_blocks) + sum(sizes.values()) <= whole:
        return [source]
    room = max(whole - recipe.target, int(_LEAST * recipe.window), 1)
    parts: list[SummarySource] = []
    for blocks in _filled((*summary_blocks, *_blocks(source.entries, sizes, room, count)), room):
        previous = tuple(summary for block in blocks for summary in block.summaries)
        entries = tuple(entry for block in blocks for entry in block.entries)
        parts.append(msgspec.structs.replace(source, previous=previous, entries=entries))
    return parts


def _filled(blocks: Iterable[_Block], room: int) -> Iterator[list[_Block]]:
    """Yield runs of blocks that fit the room. A block that does not fit is a run of its own."""
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
    """Yield whole interactions; the entries of one that does not fit; and the pieces of an entry that does not fit."""
    for _, members in groupby(entries, key=lambda entry: entry.turn):
        interaction = list(members)
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
    """Yield a text in pieces that fit, in order: repeatedly halved, at blanks if possible."""
    stack = [text]
    while stack:
        piece = stack.pop()
        if len(piece) <= _ATOM or count(piece) <= room:
            yield piece
            continue
        middle = len(piece) // 2
        blank = max(piece.rfind(mark, middle - _ATOM // 4, middle) for mark in ("\n", " "))
        at = blank + 1 if blank > 0 else middle
        stack += [piece[at:], piece[:at]]

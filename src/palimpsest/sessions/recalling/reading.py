"""Entries by their names, as passages: whole, or as much of them as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.checks import unfit
from palimpsest.log.entry import Entry
from palimpsest.recall.parts import said
from palimpsest.sessions.recalling.recalled import LETTERS, Passage, Recalled, rendered

MOST = 1000
"""Entries that are read at once."""


def names_of(entries: Any) -> tuple[list[int], list[str]]:
    """The numbers and the ids of entries that are named. Raises ConfigError for what names none."""
    listed = values.is_listed(entries) and not isinstance(entries, str)
    given = list(islice(entries, MOST + 1)) if listed else [entries]
    if len(given) > MOST:
        raise ConfigError("entries", f"more than {MOST:,} names", f"at most {MOST:,} entries")
    given = [one.id if isinstance(one, Entry) else one for one in given]
    for one in given:
        if not isinstance(one, int | str) or isinstance(one, bool):
            raise ConfigError("entries", one, "entries as they are, by id, or by `seq`")
    seqs = [one for one in given if isinstance(one, int) and 0 < one < 1 << 63]
    return seqs, [one for one in given if isinstance(one, str) and unfit(one) is None]


def check_bounds(max_tokens: object, start: object) -> None:
    """Raise ConfigError for what is no budget, or no place in a text."""
    values.whole("max_tokens", max_tokens, 1, none=True)
    values.whole("start", start, 0)


def read(session: str, entries: Sequence[Entry], start: int, most: int | None, count: Callable[[str], int]) -> Recalled:
    """Make passages of entries, from the characters `start` on, in the order of the log, as many as have room in so
    many tokens; the last one may end before its entry does."""
    shown = [_passage(session, entry, start) for entry in sorted(entries, key=lambda one: one.seq)]
    found = len(shown)
    if most is not None:
        shown = _fitting(shown, most, count)
    shown = [msgspec.structs.replace(one, tokens=count(one.shown)) for one in shown]
    tokens = count(rendered(shown)) if shown else 0
    return Recalled(passages=tuple(shown), tokens=tokens, found=found, left_out=found - len(shown))


def _fitting(passages: Sequence[Passage], most: int, count: Callable[[str], int]) -> list[Passage]:
    """The first of these passages that have room, and the longest beginning of the next one that has."""

    def fits(shown: Sequence[Passage]) -> bool:
        return len(shown[-1].text) <= LETTERS * most and count(rendered(shown)) <= most

    number = _guessed(passages, most, count)
    while number and not fits(passages[:number]):
        number -= 1
    while number < len(passages) and fits(passages[: number + 1]):
        number += 1
    shown = list(passages[:number])
    if number == len(passages):
        return shown
    whole, low = passages[number], 0
    high = min(len(whole.text), LETTERS * most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits([*shown, _cut(whole, middle)]) else (low, middle)
    return [*shown, _cut(whole, low)] if low else shown


def _guessed(passages: Sequence[Passage], most: int, count: Callable[[str], int]) -> int:
    """About how many of these have room: the sum of pieces is a good guess, and counts each of them once."""
    left = most
    for number, one in enumerate(passages):
        left -= count(one.shown) if len(one.text) <= LETTERS * most else most + 1
        if left < 0:
            return number
    return len(passages)


def _cut(whole: Passage, chars: int) -> Passage:
    return msgspec.structs.replace(whole, text=whole.text[:chars], end=whole.start + min(chars, len(whole.text)))


def _passage(session: str, entry: Entry, start: int) -> Passage:
    text = said(entry)
    end = len(text)
    start = min(start, end)
    return Passage(
        session=session,
        id=entry.id,
        seq=entry.seq,
        kind=entry.kind,
        role=entry.role,
        name=entry.name,
        at=entry.at,
        text=text[start:],
        start=start,
        end=end,
        chars=end,
        is_hit=False,
    )

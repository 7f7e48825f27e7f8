"""Entries by their names, as passages: whole, or as much of them as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.checks import unfit
from palimpsest.log.entry import Entry
from palimpsest.sessions.recalling.recalled import Passage, Recalled, rendered

MOST = 1000
"""Entries that are read at once."""

LETTERS = 16
"""Characters of a token, at most about: what is behind so many is not counted to see whether it has room."""


def names_of(entries: Any) -> tuple[list[int], list[str]]:
    """The numbers and the ids of entries that are named. Raises ConfigError for what is neither."""
    given = [entries] if isinstance(entries, int | str) else list(entries) if isinstance(entries, Iterable) else [None]
    if len(given) > MOST or not all(isinstance(one, int | str) and not isinstance(one, bool) for one in given):
        raise ConfigError("entries", f"{len(given):,} names", f"at most {MOST:,} numbers and ids of entries")
    seqs = [one for one in given if isinstance(one, int) and 0 < one < 1 << 63]
    return seqs, [one for one in given if isinstance(one, str) and unfit(one) is None]


def check_bounds(max_tokens: object, start: object) -> None:
    """Raise ConfigError for what is no budget, or no place in a text."""
    values.whole("max_tokens", max_tokens, 1, none=True)
    values.whole("start", start, 0)


def read(session: str, entries: Sequence[Entry], start: int, most: int | None, count: Callable[[str], int]) -> Recalled:
    """Make passages of entries, from the characters `start` on, in the order of the log, as many as have room in so
    many tokens; the last one may end before its entry does."""
    ordered = sorted(entries, key=lambda entry: entry.seq)
    shown = list[Passage]()
    for entry in ordered:
        whole = _passage(session, entry, start, len(entry.text))
        fitting = whole if most is None else _fitting(shown, whole, most, count)
        if fitting is None:
            break
        shown.append(msgspec.structs.replace(fitting, tokens=count(fitting.shown)))
        if fitting.end < fitting.chars:
            break
    tokens = count(rendered(shown)) if shown else 0
    return Recalled(passages=tuple(shown), tokens=tokens, found=len(ordered), left_out=len(ordered) - len(shown))


def _fitting(shown: Sequence[Passage], whole: Passage, most: int, count: Callable[[str], int]) -> Passage | None:
    """The passage, or its longest beginning that has room behind those; None where nothing has."""

    def fits(chars: int) -> bool:
        return count(rendered([*shown, _cut(whole, chars)])) <= most

    low, high = 0, len(whole.text)
    if high <= LETTERS * most and fits(high):
        return whole
    high = min(high, LETTERS * most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return _cut(whole, low) if low else None


def _cut(whole: Passage, chars: int) -> Passage:
    return msgspec.structs.replace(whole, text=whole.text[:chars], end=whole.start + min(chars, len(whole.text)))


def _passage(session: str, entry: Entry, start: int, end: int) -> Passage:
    start = min(start, end)
    return Passage(
        session=session,
        id=entry.id,
        seq=entry.seq,
        kind=entry.kind,
        role=entry.role,
        name=entry.name,
        at=entry.at,
        text=entry.text[start:end],
        start=start,
        end=end,
        chars=end,
        is_hit=False,
    )

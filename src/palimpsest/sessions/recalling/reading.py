"""Reading named entries as passages: whole, or as much of them as fits into a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.checks import unfit
from palimpsest.log.entry import Entry
from palimpsest.recall.parts import searchable_text
from palimpsest.sessions.recalling.recalled import LETTERS, Passage, Recalled, passage_of, rendered

MOST = 1000
"""The most entries that one call reads."""


def names_of(entries: Any) -> tuple[list[int], list[str]]:
    """Return the seqs and the ids of the named entries. Raises ConfigError for anything that names no entry."""
    listed = values.is_listed(entries) and not isinstance(entries, str)
    given = list(islice(entries, MOST + 1)) if listed else [entries]
    if len(given) > MOST:
        raise ConfigError("entries", f"more than {MOST:,} names", f"at most {MOST:,} entries")
    names = [name.id if isinstance(name, Entry) else name for name in given]
    for name in names:
        if not isinstance(name, int | str) or isinstance(name, bool):
            raise ConfigError("entries", name, "Entry objects, ids, or numbers (`seq`)")
    seqs = [name for name in names if isinstance(name, int) and 0 < name < 1 << 63]
    return seqs, [name for name in names if isinstance(name, str) and unfit(name) is None]


def check_bounds(max_tokens: object, start: object) -> None:
    """Raise ConfigError if `max_tokens` is no budget, or `start` no position in a text."""
    values.whole("max_tokens", max_tokens, 1, none=True)
    values.whole("start", start, 0)


def read(session: str, entries: Sequence[Entry], start: int, most: int | None, count: Callable[[str], int]) -> Recalled:
    """Make passages of entries in the order of the log, each from the character `start` of its entry on.

    Only as many as fit into `most` tokens (None: no limit). The last one may be cut to fit.
    """
    shown = [_passage(session, entry, start) for entry in sorted(entries, key=lambda passage: passage.seq)]
    found = len(shown)
    if most is not None:
        shown = _fitting(shown, most, count)
    shown = [msgspec.structs.replace(passage, tokens=count(passage.shown)) for passage in shown]
    tokens = count(rendered(shown)) if shown else 0
    return Recalled(passages=tuple(shown), tokens=tokens, found=found, left_out=found - len(shown))


def _fitting(passages: Sequence[Passage], most: int, count: Callable[[str], int]) -> list[Passage]:
    """Return the first passages that fit together, and the longest beginning of the next one that still fits."""

    def fits(fitting: Sequence[Passage]) -> bool:
        return len(fitting[-1].text) <= LETTERS * most and count(rendered(fitting)) <= most

    number = _guessed(passages, most, count)
    while number and not fits(passages[:number]):
        number -= 1
    while number < len(passages) and fits(passages[: number + 1]):
        number += 1
    fitting = list(passages[:number])
    if number == len(passages):
        return fitting
    next_passage, low = passages[number], 0
    high = min(len(next_passage.text), LETTERS * most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits([*fitting, _cut(next_passage, middle)]) else (low, middle)
    return [*fitting, _cut(next_passage, low)] if low else fitting


def _guessed(passages: Sequence[Passage], most: int, count: Callable[[str], int]) -> int:
    """Guess how many passages fit, from the sum of their single counts, which needs only one count of each."""
    room = most
    for number, passage in enumerate(passages):
        room -= count(passage.shown) if len(passage.text) <= LETTERS * most else most + 1
        if room < 0:
            return number
    return len(passages)


def _cut(whole: Passage, chars: int) -> Passage:
    return msgspec.structs.replace(whole, text=whole.text[:chars], end=whole.start + min(chars, len(whole.text)))


def _passage(session: str, entry: Entry, start: int) -> Passage:
    text = searchable_text(entry)
    return passage_of(session, entry, text, (min(start, len(text)), len(text)))

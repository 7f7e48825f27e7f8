"""What every text must meet before it becomes a summary, checked without a model. Pure.

Nothing here trusts a model: what it leaves out is put back, what it adds must be in the source, and what is too long
is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from palimpsest.log.summary import SummaryItem
from palimpsest.summaries import Count, Rejected, SummarySource
from palimpsest.summaries.identifiers import COMMON, contains, missing
from palimpsest.summaries.mentions import identifiers

SLACK = 1.25
"""Of the target: a text of this length is still as long as asked for."""

KEPT = 0.95
"""The share of the protected identifiers of an earlier text that a new one has to hold."""

PROTECTED = 0.4
"""Of the target: what the protected identifiers cost at most, so that they can all be kept for ever."""

SUPPORTED = 0.5
"""The share of an item's content words that occur in its source."""

_ENDS = re.compile("[.!?\u2026](?=\\s|$)|[\u3002\uff01\uff1f]|\n")
_BLANKS = re.compile(r"\s+")
_WORD = re.compile(r"[^\W\d_]{3,}")
_WORDS = re.compile(r"\w+")
_STEM = 5
_TELLING = 8
"""Characters from which on a mark cannot be in a text by chance."""

_RUN = 8
"""Words in a row that a text has in common with what was asked only where it repeats that."""

_LEAST = 3
"""Content words of its source that a summary mentions at the least, or a quarter of them where there are so few."""

_DATE = re.compile(
    r"\b\d{1,2}:\d\d\b|\b\d{4}-\d\d-\d\d\b|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\b",
    re.IGNORECASE,
)
"""What dates and times of day have in them."""

_OF_ANY = frozenset(("entry", "user", "assis", "messa", "conve", "summa"))
"""Beginnings of words that any conversation may be described by."""

_REFUSAL = re.compile(
    r"\W*(?:i['\u2019]?m|i am|we are|we['\u2019]re)\s+(?:\w+\s+)?(?:sorry|afraid|unable|not able|an ai\b)"
    r"|\W*(?:i|we)\s+(?:can ?not|can['\u2019]t|won['\u2019]t|will not|(?:must|have to) decline|apologi[sz]e)\b"
    r"|\W*(?:i|we)\s+(?:do not|don['\u2019]t)\s+(?:have|see)\b"
    r"|\W*(?:sorry|apologies|my apologies|unfortunately,? i|as an? (?:\w+ )?(?:ai|assistant|language model))\b"
    r"|\W*please (?:provide|share|send|paste)\b",
    re.IGNORECASE,
)
"""How models begin a sentence in which they refuse, in English; in other languages the source has no such words."""


class Protected(msgspec.Struct, frozen=True):
    """Identifiers that a text has to hold: every pinned one, and nearly all of the others."""

    pinned: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def lost(self, text: str) -> tuple[str, ...]:
        """Return what has to be put back into `text`; nothing where few enough of the others are missing."""
        others = missing(text, self.others)
        return missing(text, self.pinned) + (others if len(others) > (1 - KEPT) * len(self.others) else ())


def pinned_of(source: SummarySource) -> tuple[str, ...]:
    """Return the identifiers that no summary of this source may leave out."""
    before = (item.text for summary in source.previous for item in summary.items if item.pinned)
    return tuple(dict.fromkeys(text for text in (*source.pinned, *before) if text.strip()))


def protected(text: str, items: Sequence[SummaryItem], pinned: Sequence[str], target: int, count: Count) -> Protected:
    """Return what of an earlier text has to stay: the newest first, up to its share of `target`."""
    newest: dict[str, int] = dict.fromkeys(identifiers(text), 0)
    for item in items:
        for identifier in identifiers(item.text):
            if identifier in newest:
                newest[identifier] = max(newest[identifier], *item.sources, 0)
    room = PROTECTED * target - sum(count(identifier) + 1 for identifier in pinned)
    others: list[str] = []
    for identifier in sorted(newest.keys() - pinned, key=lambda one: (-newest[one], text.find(one), one)):
        room -= count(identifier) + 1
        if room < 0:
            break
        others.append(identifier)
    return Protected(tuple(pinned), tuple(others))


class Support:
    """What a source says: items that are made up are not in it."""

    def __init__(self, text: str, *, words: bool = True) -> None:
        self._text = text
        self._folded = text.casefold()
        self._stems, self._by_words = _stems(text), words

    def holds(self, item: str) -> bool:
        """Whether the item's identifiers and most of its content words occur in the source."""
        if not self._names(identifiers(item)):
            return False
        words = _WORDS.findall(item.casefold())
        if not self._by_words or not words:
            return bool(words)
        stems = _stems(item)
        if not stems:
            return all(contains(self._folded, word) for word in words)
        return len(stems & self._stems) >= SUPPORTED * len(stems)

    def _names(self, found: Iterable[str]) -> bool:
        """Whether all these identifiers occur in the source."""
        for identifier in found:
            parts = identifier.split()
            wanted = parts if len(parts) == 1 else [part for part in parts if any(map(str.isdigit, part))]
            if not all(contains(self._text, part.strip(".,")) for part in wanted):
                return False
        return True

    def within(self, text: str) -> str:
        """Return the text without the sentences that name what the source does not; dates may be written anew."""

        def holds(piece: str) -> bool:
            return self._names(one for one in identifiers(piece) if not _DATE.search(one))

        pieces = sentences(text)
        kept = [piece if holds(piece) else "\n" * piece.endswith("\n") for piece in pieces]
        return text if kept == pieces else "".join(kept).strip()

    def tells(self, text: str) -> bool:
        """Whether the text says something of the source, beside that its writer will not: an identifier, or words."""
        said = "".join(piece for piece in sentences(text) if not _REFUSAL.match(piece))
        there = self._stems - _OF_ANY
        if any(contains(self._text, identifier) for identifier in identifiers(said)):
            return True
        if not there:
            return bool(_WORDS.search(said))
        told = _stems(said) - _OF_ANY
        return len(told & there if self._by_words else told) >= min(_LEAST, max(len(there) // 4, 1))


def _stems(text: str) -> set[str]:
    """The beginnings of the content words; of scripts that set no blanks between words, pairs of letters."""
    stems: set[str] = set()
    for word in set(_WORD.findall(text)):
        folded = word.casefold()
        if word.upper() == word.lower():
            stems.update(word[i : i + 2] for i in range(len(word) - 1))
        elif folded not in COMMON:
            stems.add(folded[:_STEM])
    return stems


def sentences(text: str) -> list[str]:
    """The text in its sentences, each with what stands behind it: joined they are the text."""
    ends = [0, *(match.end() for match in _ENDS.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends) if end > start]


def echoes(text: str, nonce: str, asked: str = "", source: str = "") -> bool:
    """Whether a text repeats what only a prompt holds: the mark that fences the source, or words that were `asked`."""
    if f"-{nonce}>" in text or (len(nonce) >= _TELLING and nonce in text):
        return True
    again = _runs(text) & _runs(asked)
    return bool(again) and not again <= _runs(source)


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _WORDS.findall(text.casefold())
    return {tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1)}


def cut(text: str, room: int, count: Count) -> str:
    """Return as much of `text` as takes at most `room` tokens, up to the end of a sentence, else of a word."""
    if room <= 0:
        return ""
    for ends in (_ENDS, _BLANKS):
        if kept := _cut_at([match.end() for match in ends.finditer(text)], text, room, count):
            return _without_title(kept)
    return _cut_at(range(1, len(text)), text, room, count)


def _cut_at(places: Sequence[int], text: str, room: int, count: Count) -> str:
    """The longest piece up to one of the places, or the whole, that takes at most `room` tokens."""

    def piece(number: int) -> str:
        return text[: places[number - 1]].rstrip() if number <= len(places) else text.rstrip()

    kept = most_that_fit(len(places) + 1, lambda number: count(piece(number)) <= room)
    return piece(kept) if kept else ""


def _without_title(text: str) -> str:
    """The text without titles of sections of which nothing is left."""
    while text.endswith(":") and not text.rpartition("\n")[2].startswith("- "):
        shorter = text.rpartition("\n")[0].rstrip()
        if not shorter:
            return text
        text = shorter
    return text


def most_that_fit(length: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `length` that fits, where more never fits once less did not.

    Few numbers are tried, and none far beyond the answer, because trying one costs as much as the text is long.
    """
    low, high = 0, 1
    while high <= length and fits(high):
        low, high = high, 2 * high
    high = min(high, length + 1)
    while low + 1 < high:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def mention(names: Iterable[str]) -> str:
    """Return the line that puts back what a text has left out."""
    return f"Also mentioned: {', '.join(names)}"


def completed(text: str, wanted: Protected, room: int, count: Count) -> str:
    """Return a text of at most `room` tokens that holds every pinned identifier, and lost ones that there is room for.

    Raises Rejected, no_gain, where the pinned identifiers alone take more.
    """
    lost = wanted.lost(text)
    pinned = set(wanted.pinned)
    must = [identifier for identifier in lost if identifier in pinned]
    may = [identifier for identifier in lost if identifier not in pinned]

    def whole(n: int) -> str:
        return _joined(text, mention((*must, *may[:n]))) if must or n else text

    if count(whole(0)) <= room:
        return whole(most_that_fit(len(may), lambda n: count(whole(n)) <= room))
    if not wanted.pinned:
        return cut(text, room, count)
    return _squeezed(text, wanted.pinned, room, count)


def _squeezed(text: str, pinned: Sequence[str], room: int, count: Count) -> str:
    """Return as much of the text as leaves room for the pinned identifiers that then are missing in it."""
    for line in (mention(missing(text, pinned)), mention(pinned)):
        left = room - count(line) - 1
        for _ in range(4):
            made = _joined(cut(text, left, count), line)
            over = count(made) - room
            if over <= 0 and not missing(made, pinned):
                return made
            left -= max(over, 0) + 1
    line = mention(pinned)
    if count(line) > room:
        raise Rejected("no_gain", f"the pinned identifiers alone take more than {max(room, 0)} tokens")
    return line


def _joined(text: str, line: str) -> str:
    return f"{text}\n{line}" if text else line

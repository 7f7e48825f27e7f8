"""Requirements of every text before it becomes a summary, checked without a model. Pure.

Nothing here trusts a model: what it leaves out is put back, what it adds must be in the source, and what is too long is
cut.
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
"""A text of up to this multiple of the target still has the length asked for."""

KEPT = 0.95
"""Share of the protected identifiers of an earlier text that a new text has to contain."""

PROTECTED = 0.4
"""Largest share of the target that protected identifiers may cost, so that all of them can be kept for ever."""

SUPPORTED = 0.5
"""Share of an item's content words that have to occur in its source."""

_ENDS = re.compile("[.!?\u2026](?=\\s|$)|[\u3002\uff01\uff1f]|\n")
_BLANKS = re.compile(r"\s+")
_WORD = re.compile(r"[^\W\d_]{3,}")
_WORDS = re.compile(r"\w+")
_STEM = 5
_UNMISTAKABLE = 8
"""A mark of at least so many characters does not occur in a text by chance."""

_COPIED = 8
"""So many words in a row that are also in the prompt show that a text repeats the prompt."""

_LEAST_WORDS = 3
"""Least number of content words of its source that a summary mentions, or a quarter of them if there are few."""

_DATE = re.compile(
    r"\b\d{1,2}:\d\d\b|\b\d{4}-\d\d-\d\d\b|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\b",
    re.IGNORECASE,
)
"""What dates and times of day contain."""

_GENERIC = frozenset(("entry", "user", "assis", "messa", "conve", "summa"))
"""Stems that describe any conversation."""

_REFUSAL = re.compile(
    r"\W*(?:i['\u2019]?m|i am|we are|we['\u2019]re)\s+(?:\w+\s+)?(?:sorry|afraid|unable|not able|an ai\b)"
    r"|\W*(?:i|we)\s+(?:can ?not|can['\u2019]t|won['\u2019]t|will not|(?:must|have to) decline|apologi[sz]e)\b"
    r"|\W*(?:i|we)\s+(?:do not|don['\u2019]t)\s+(?:have|see)\b"
    r"|\W*(?:sorry|apologies|my apologies|unfortunately,? i|as an? (?:\w+ )?(?:ai|assistant|language model))\b"
    r"|\W*please (?:provide|share|send|paste)\b",
    re.IGNORECASE,
)
"""How models begin a sentence in which they refuse, in English. In other languages the source has no such words."""


class Protected(msgspec.Struct, frozen=True):
    """Identifiers that a text has to contain: every pinned one, and nearly all of the others."""

    pinned: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def lost(self, text: str) -> tuple[str, ...]:
        """Return what has to be put back into `text`. Others are left alone if few enough of them are missing."""
        others = missing(text, self.others)
        return missing(text, self.pinned) + (others if len(others) > (1 - KEPT) * len(self.others) else ())


def pinned_of(source: SummarySource) -> tuple[str, ...]:
    """Return the identifiers that no summary of this source may leave out."""
    earlier = (item.text for summary in source.previous for item in summary.items if item.pinned)
    return tuple(dict.fromkeys(text for text in (*source.pinned, *earlier) if text.strip()))


def protected(text: str, items: Sequence[SummaryItem], pinned: Sequence[str], target: int, count: Count) -> Protected:
    """Return what of an earlier text has to stay: its newest identifiers, up to their share of `target`."""
    newest: dict[str, int] = dict.fromkeys(identifiers(text), 0)
    for item in items:
        for identifier in identifiers(item.text):
            if identifier in newest:
                newest[identifier] = max(newest[identifier], *item.sources, 0)
    room = PROTECTED * target - sum(count(identifier) + 1 for identifier in pinned)
    others: list[str] = []
    for identifier in sorted(
        newest.keys() - pinned, key=lambda identifier: (-newest[identifier], text.find(identifier), identifier)
    ):
        room -= count(identifier) + 1
        if room < 0:
            break
        others.append(identifier)
    return Protected(tuple(pinned), tuple(others))


class Support:
    """What a source says, to find items that are made up."""

    def __init__(self, text: str, *, words: bool = True) -> None:
        self._text = text
        self._folded = text.casefold()
        self._stems, self._by_words = _stems(text), words

    def holds(self, item: str) -> bool:
        """Whether the item's identifiers and most of its content words occur in the source."""
        if not self._names_occur(identifiers(item)):
            return False
        words = _WORDS.findall(item.casefold())
        if not self._by_words or not words:
            return bool(words)
        stems = _stems(item)
        if not stems:
            return all(contains(self._folded, word) for word in words)
        return len(stems & self._stems) >= SUPPORTED * len(stems)

    def _names_occur(self, names: Iterable[str]) -> bool:
        """Whether all these identifiers occur in the source."""
        for identifier in names:
            words = identifier.split()
            significant = words if len(words) == 1 else [word for word in words if any(map(str.isdigit, word))]
            if not all(contains(self._text, word.strip(".,")) for word in significant):
                return False
        return True

    def within(self, text: str) -> str:
        """Return the text without sentences that name what the source does not. Dates may be written differently."""

        def holds(piece: str) -> bool:
            return self._names_occur(identifier for identifier in identifiers(piece) if not _DATE.search(identifier))

        pieces = sentences(text)
        kept = [piece if holds(piece) else "\n" * piece.endswith("\n") for piece in pieces]
        return text if kept == pieces else "".join(kept).strip()

    def tells(self, text: str) -> bool:
        """Whether the text says something of the source, apart from refusals: an identifier, or enough words."""
        statements = "".join(piece for piece in sentences(text) if not _REFUSAL.match(piece))
        source_stems = self._stems - _GENERIC
        if any(contains(self._text, identifier) for identifier in identifiers(statements)):
            return True
        if not source_stems:
            return bool(_WORDS.search(statements))
        text_stems = _stems(statements) - _GENERIC
        return len(text_stems & source_stems if self._by_words else text_stems) >= min(
            _LEAST_WORDS, max(len(source_stems) // 4, 1)
        )


def _stems(text: str) -> set[str]:
    """Return the stems of the content words; for scripts without blanks between words, pairs of letters."""
    stems: set[str] = set()
    for word in set(_WORD.findall(text)):
        folded = word.casefold()
        if word.upper() == word.lower():
            stems.update(word[i : i + 2] for i in range(len(word) - 1))
        elif folded not in COMMON:
            stems.add(folded[:_STEM])
    return stems


def sentences(text: str) -> list[str]:
    """Split a text into sentences, each with what follows it. Joined they are the text again."""
    ends = [0, *(match.end() for match in _ENDS.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends) if end > start]


def echoes(text: str, nonce: str, asked: str = "", source: str = "") -> bool:
    """Whether a text repeats what only the prompt contains: the mark of the fence, or words that were `asked`."""
    if f"-{nonce}>" in text or (len(nonce) >= _UNMISTAKABLE and nonce in text):
        return True
    repeated = _word_runs(text) & _word_runs(asked)
    return bool(repeated) and not repeated <= _word_runs(source)


def _word_runs(text: str) -> set[tuple[str, ...]]:
    words = _WORDS.findall(text.casefold())
    return {tuple(words[i : i + _COPIED]) for i in range(len(words) - _COPIED + 1)}


def cut(text: str, room: int, count: Count) -> str:
    """Return as much of `text` as fits `room` tokens, up to the end of a sentence, or else of a word."""
    if room <= 0:
        return ""
    for ends in (_ENDS, _BLANKS):
        if kept := _cut_at([match.end() for match in ends.finditer(text)], text, room, count):
            return _without_title(kept)
    return _cut_at(range(1, len(text)), text, room, count)


def _cut_at(places: Sequence[int], text: str, room: int, count: Count) -> str:
    """Return the longest piece up to one of the places, or the whole text, that fits `room` tokens."""

    def piece(number: int) -> str:
        return text[: places[number - 1]].rstrip() if number <= len(places) else text.rstrip()

    fitting = most_that_fit(len(places) + 1, lambda number: count(piece(number)) <= room)
    return piece(fitting) if fitting else ""


def _without_title(text: str) -> str:
    """Return the text without trailing titles of empty sections."""
    while text.endswith(":") and not text.rpartition("\n")[2].startswith("- "):
        shorter = text.rpartition("\n")[0].rstrip()
        if not shorter:
            return text
        text = shorter
    return text


def most_that_fit(length: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `length` that fits, assuming that a larger one never fits if a smaller did not.

    Few numbers are tried, none far beyond the answer, since the cost of trying grows with the text.
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
    """Return a text of at most `room` tokens with every pinned identifier, and with lost ones as far as there is room.

    Raises Rejected (no_gain) if the pinned identifiers alone take more.
    """
    lost = wanted.lost(text)
    pinned = set(wanted.pinned)
    lost_pinned = [identifier for identifier in lost if identifier in pinned]
    lost_others = [identifier for identifier in lost if identifier not in pinned]

    def whole(n: int) -> str:
        return _joined(text, mention((*lost_pinned, *lost_others[:n]))) if lost_pinned or n else text

    if count(whole(0)) <= room:
        return whole(most_that_fit(len(lost_others), lambda n: count(whole(n)) <= room))
    if not wanted.pinned:
        return cut(text, room, count)
    return _squeezed(text, wanted.pinned, room, count)


def _squeezed(text: str, pinned: Sequence[str], room: int, count: Count) -> str:
    """Return as much of the text as leaves room for the pinned identifiers that are then missing."""
    for line in (mention(missing(text, pinned)), mention(pinned)):
        remaining = room - count(line) - 1
        for _ in range(4):
            candidate = _joined(cut(text, remaining, count), line)
            excess = count(candidate) - room
            if excess <= 0 and not missing(candidate, pinned):
                return candidate
            remaining -= max(excess, 0) + 1
    line = mention(pinned)
    if count(line) > room:
        raise Rejected("no_gain", f"the pinned identifiers alone take more than {max(room, 0)} tokens")
    return line


def _joined(text: str, line: str) -> str:
    return f"{text}\n{line}" if text else line

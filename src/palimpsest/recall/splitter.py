"""Splitting a text into chunks that overlap, as a knowledge base holds them. Pure.

A chunk ends behind the best separator in the last half of what has room, and the next one begins so far before that end
as may overlap. So chunks without their overlaps are the text, and the time is proportional to its length, whatever it
says: separators are looked for as they are, in what has room alone, and each chunk is counted a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from palimpsest.compaction.knowledge import TextSplitter

WORDS = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", "; ", ", ", " ")  # noqa: RUF001 (of full width)
SEPARATORS: dict[str, Sequence[str]] = {
    "recursive": WORDS,
    "sentence": (". ", "! ", "? ", ".\n", "!\n", "?\n", "。", "！", "？", "\n", " "),  # noqa: RUF001 (the same)
    "markdown": ("\n# ", "\n## ", "\n### ", "\n#### ", "\n##### ", "\n###### ", "\n```", "\n---", *WORDS),
}
"""Behind what a text is cut, the best first; before what begins with the end of a line, behind that end."""

NEARLY = 16
"""A chunk that lacks less than this part of what it may have is measured no further."""
FEW = 6
"""How often a length is guessed from the one before it, until the rest is halved."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a text: its `text`, which is the characters from `start` to `end`, but for separators at its ends
    where a splitter leaves these out. The first `overlap` characters of these are the last ones of the chunk before."""

    text: str
    start: int
    end: int
    overlap: int = 0


def split(text: str, splitter: TextSplitter, count: Callable[[str], int]) -> list[Chunk]:
    """Return the chunks of a text, in order; none of one that is blank.

    No chunk is larger than `chunk_size`, unless one character is. A text that is not larger is one chunk. One chunk of
    many may be blank.

    Args:
        text: any text.
        splitter: how it is split.
        count: what counts tokens; it is asked where the splitter's unit is these.
    """
    if not text.strip():
        return []
    separators = splitter.separators if splitter.separators is not None else SEPARATORS.get(splitter.type, ())
    cutter = _Cutter(text, splitter, len if splitter.unit == "chars" else count, [one for one in separators if one])
    chunks, before = list[Chunk](), 0
    for start, end in cutter.cuts():
        shown = _trimmed(text, start, end, separators) if not splitter.keep_separator else text[start:end]
        chunks.append(Chunk(shown, start, end, max(before - start, 0)))
        before = end
    return chunks


class _Cutter:
    """Cuts one text."""

    def __init__(
        self, text: str, splitter: TextSplitter, measure: Callable[[str], int], separators: Sequence[str]
    ) -> None:
        self._text, self._splitter, self._measure, self._separators = text, splitter, measure, separators
        self._wide = 1.0 if splitter.unit == "chars" else 4.0
        """How many characters a unit had where it was measured last."""

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Yield first character and end of each chunk."""
        text, length, size = self._text, len(self._text), self._splitter.chunk_size
        if self._splitter.type == "none" or self._measure(text) <= size:
            yield 0, length
            return
        start = end = 0
        last = -1
        while end < length:
            most = self._reach(start)
            if most <= end and start < end:  # beside what overlaps nothing has room
                start, most = end, self._reach(end)
            most = max(most, end + 1)
            if most >= length:
                yield self._back(start, last), length
                return
            cut = self._best(max((start + most) // 2, (end + most) // 2, end), most)
            if cut < most and self._measure(text[start:cut]) > size:  # a part may have more tokens than the whole
                cut = most
            yield start, cut
            last, end, start = start, cut, self._again(start, cut)

    def _reach(self, start: int) -> int:
        """The end of the largest chunk that begins there."""
        text, size = self._text, self._splitter.chunk_size
        return start + self._longest(lambda many: text[start : start + many], size, len(text) - start)

    def _longest(self, piece: Callable[[int], str], most: int, limit: int) -> int:
        """How many characters of a piece, up to a limit, have at most so many units, or hardly less."""
        low, high, guess = 0, limit + 1, int(most * self._wide)
        for tries in range(64):
            many = min(max(guess, low + 1), high - 1)
            if many <= low:
                break
            found = self._measure(piece(many))
            if found <= most:
                low = many
                if most - found <= most // NEARLY:
                    break
            else:
                high = many
            if found:
                self._wide = many / found
            guess = int(most * self._wide) if tries < FEW else (low + high) // 2
            guess = max(guess, low + low // 4) if high > limit else guess
        return low

    def _best(self, low: int, high: int) -> int:
        """Where to cut, behind `low` and up to `high`: at the last place of the best separator that is there."""
        for separator in self._separators:
            inner = _inner(separator)
            found = self._text.rfind(separator, max(low + 1 - inner, 0), high - inner + len(separator))
            if found >= 0 and low < found + inner <= high:
                return found + inner
        return high

    def _again(self, start: int, cut: int) -> int:
        """Where the chunk behind a cut begins: at a separator, if there is one in what may overlap."""
        most, text = self._splitter.chunk_overlap, self._text
        if not most:
            return cut
        low = cut - self._longest(lambda many: text[cut - many : cut], most, cut - start - 1)
        found = [text.find(one, max(low - _inner(one), 0), cut) + _inner(one) for one in self._separators]
        best = min((place for place in found if low <= place < cut), default=low)
        return best if best == low or self._measure(text[best:cut]) <= most else low

    def _back(self, start: int, last: int) -> int:
        """Where the last chunk begins, so that it has its least size: behind where the one before it does (`last`)."""
        least, text = self._splitter.min_chunk, self._text
        if not least or not start or self._measure(text[start:]) >= least:
            return start
        many = self._longest(lambda many: text[len(text) - many :], least, len(text))
        while many < len(text) and self._measure(text[len(text) - many :]) < least:
            many += 1 + many // NEARLY
        begin = max(len(text) - many, 0)
        return begin if begin > last and self._measure(text[begin:]) <= self._splitter.chunk_size else start


def _inner(separator: str) -> int:
    """How many characters of a separator belong to what is before a cut."""
    return 1 if separator[0] == "\n" and separator.strip("\n") else len(separator)


def _trimmed(text: str, start: int, end: int, separators: Sequence[str]) -> str:
    """A piece without the separators that it begins and ends with."""
    some = [one for one in separators if one]
    while start < end and (found := next((one for one in some if text.startswith(one, start, end)), "")):
        start += len(found)
    while start < end and (found := next((one for one in some if text.endswith(one, start, end)), "")):
        end -= len(found)
    return text[start:end]

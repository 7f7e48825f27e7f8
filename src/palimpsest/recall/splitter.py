"""Split a text into overlapping chunks, as knowledge bases hold them. Pure.

A chunk ends behind the best separator in the last half of the text that fits in it. The next chunk begins before that
end, by as much as may overlap. So the chunks without their overlaps make up the text. The time is proportional to the
text's length whatever it says: separators are plain strings, looked for only in what fits, and each chunk is measured a
few times.
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
"""What a text is cut behind, best first. A separator that begins with the end of a line is cut behind that end."""

NEARLY = 16
"""A chunk is not measured again if less than this part of its size (a sixteenth) is unused."""
FEW = 6
"""How often the length of a chunk is guessed from the last measured one before it is found by halving."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a text: the characters from `start` to `end`. Its first `overlap` characters are also in the chunk
    before.

    `text` is those characters, without separators at its ends if the splitter does not keep them.
    """

    text: str
    start: int
    end: int
    overlap: int = 0


def split(text: str, splitter: TextSplitter, count: Callable[[str], int]) -> list[Chunk]:
    """Return the chunks of a text, in order; none if the text is blank.

    No chunk is larger than `chunk_size`, unless a single character is. A text that is not larger is one chunk. A chunk
    of a longer text may be blank.

    Args:
        text: any text.
        splitter: how it is split.
        count: counts tokens; called if the splitter's unit is tokens.
    """
    if not text.strip():
        return []
    separators = splitter.separators if splitter.separators is not None else SEPARATORS.get(splitter.type, ())
    cutter = _Cutter(
        text, splitter, len if splitter.unit == "chars" else count, [separator for separator in separators if separator]
    )
    chunks, before = list[Chunk](), 0
    for start, end in cutter.cuts():
        kept = _trimmed(text, start, end, separators) if not splitter.keep_separator else text[start:end]
        chunks.append(Chunk(kept, start, end, max(before - start, 0)))
        before = end
    return chunks


class _Cutter:
    """Cuts one text into chunks."""

    def __init__(
        self, text: str, splitter: TextSplitter, measure: Callable[[str], int], separators: Sequence[str]
    ) -> None:
        self._text, self._splitter, self._measure, self._separators = text, splitter, measure, separators
        self._wide = 1.0 if splitter.unit == "chars" else 4.0
        """Characters per unit, as last measured."""

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each chunk."""
        text, length, size = self._text, len(self._text), self._splitter.chunk_size
        if self._splitter.type == "none" or self._measure(text) <= size:
            yield 0, length
            return
        start = end = 0
        previous_start = -1
        while end < length:
            reach = self._reach(start)
            if reach <= end and start < end:  # the overlap leaves no room for new text
                start, reach = end, self._reach(end)
            reach = max(reach, end + 1)
            if reach >= length:
                yield self._last_start(start, previous_start), length
                return
            cut = self._best(max((start + reach) // 2, (end + reach) // 2, end), reach)
            if cut < reach and self._measure(text[start:cut]) > size:  # a prefix may have more tokens than the whole
                cut = reach
            yield start, cut
            previous_start, end, start = start, cut, self._next_start(start, cut)

    def _reach(self, start: int) -> int:
        """Return the end of the largest chunk that begins at `start`."""
        text, size = self._text, self._splitter.chunk_size
        return start + self._longest(lambda many: text[start : start + many], size, len(text) - start)

    def _longest(self, piece: Callable[[int], str], most: int, limit: int) -> int:
        """Return how many characters, at most `limit`, of a piece have at most `most` units, or hardly fewer."""
        low, high, guess = 0, limit + 1, int(most * self._wide)
        for tries in range(64):
            chars = min(max(guess, low + 1), high - 1)
            if chars <= low:
                break
            units = self._measure(piece(chars))
            if units <= most:
                low = chars
                if most - units <= most // NEARLY:
                    break
            else:
                high = chars
            if units:
                self._wide = chars / units
            guess = int(most * self._wide) if tries < FEW else (low + high) // 2
            guess = max(guess, low + low // 4) if high > limit else guess
        return low

    def _best(self, low: int, high: int) -> int:
        """Return where to cut after `low`, up to `high`: at the last place of the best separator that occurs there."""
        for separator in self._separators:
            inner = _inner(separator)
            found = self._text.rfind(separator, max(low + 1 - inner, 0), high - inner + len(separator))
            if found >= 0 and low < found + inner <= high:
                return found + inner
        return high

    def _next_start(self, start: int, cut: int) -> int:
        """Return where the chunk after a cut begins: behind the first separator in the possible overlap, if there is
        one."""
        max_overlap, text = self._splitter.chunk_overlap, self._text
        if not max_overlap:
            return cut
        low = cut - self._longest(lambda count: text[cut - count : cut], max_overlap, cut - start - 1)
        starts = [
            text.find(separator, max(low - _inner(separator), 0), cut) + _inner(separator)
            for separator in self._separators
        ]
        best = min((place for place in starts if low <= place < cut), default=low)
        return best if best == low or self._measure(text[best:cut]) <= max_overlap else low

    def _last_start(self, start: int, previous: int) -> int:
        """Return where the last chunk begins: so early that it has its least size, if that is after `previous`."""
        min_size, text = self._splitter.min_chunk, self._text
        if not min_size or not start or self._measure(text[start:]) >= min_size:
            return start
        chars = self._longest(lambda chars: text[len(text) - chars :], min_size, len(text))
        while chars < len(text) and self._measure(text[len(text) - chars :]) < min_size:
            chars += 1 + chars // NEARLY
        begin = max(len(text) - chars, 0)
        return begin if begin > previous and self._measure(text[begin:]) <= self._splitter.chunk_size else start


def _inner(separator: str) -> int:
    """Return how many characters of a separator belong to the text before a cut."""
    return 1 if separator[0] == "\n" and separator.strip("\n") else len(separator)


def _trimmed(text: str, start: int, end: int, separators: Sequence[str]) -> str:
    """Return a piece of a text without the separators that it begins and ends with."""
    nonempty = [separator for separator in separators if separator]
    while start < end and (
        separator_here := next((separator for separator in nonempty if text.startswith(separator, start, end)), "")
    ):
        start += len(separator_here)
    while start < end and (
        separator_here := next((separator for separator in nonempty if text.endswith(separator, start, end)), "")
    ):
        end -= len(separator_here)
    return text[start:end]

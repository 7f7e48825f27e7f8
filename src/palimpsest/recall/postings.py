"""An index in memory: which parts hold a term, and how much that says. Pure.

The scores are those of SQLite's full-text index over the same terms: Okapi BM25 (Robertson and Zaragoza, "The
Probabilistic Relevance Framework", 2009) with k1 = 1.2, b = 0.75, and no weight below one millionth.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import log

K1 = 1.2
B = 0.75
LEAST = 1e-6
"""The weight of a term that half of all parts hold, or more: of two parts, the one that has it still comes first."""

Matches = Sequence[Mapping[int, float]]
"""For each term that was asked, the parts that hold it, by key, and what it adds to the score of each."""

PART_BITS, SEQ_BITS = 8, 28


def key_of(number: int, seq: int, part: int = 0) -> int:
    """Return the key of a part: which session, entry and part it is, in one number, so that keys of a session lie
    together.

    Args:
        number: of the session, below 2**27.
        seq: the entry's place in its log, below 2**28.
        part: which part of the entry, from 0, at most 254.
    """
    return number << SEQ_BITS + PART_BITS | seq << PART_BITS | part


def place_of(key: int) -> int:
    """Return the place of the entry of a part's key: the session's number and the `seq`.

    Args:
        key: of a part.
    """
    return key >> PART_BITS


def inverse_frequency(holding: int, parts: int) -> float:
    """Return what a term is worth.

    Args:
        holding: how many parts hold it.
        parts: how many there are; if they were counted at another moment, perhaps less.
    """
    return max(log((max(parts - holding, 0) + 0.5) / (holding + 0.5)), LEAST)


class Postings:
    """An index of parts by their terms, in memory. One thread at a time."""

    def __init__(self) -> None:
        """Make an empty index."""
        self._numbers: dict[str, int] = {}
        self._holding: list[dict[int, int]] = []
        self._names: list[str] = []
        self._free: list[int] = []
        self._parts: dict[int, array[int]] = {}
        self._length = 0

    def __len__(self) -> int:
        """How many parts it has."""
        return len(self._parts)

    def put(self, key: int, terms: Sequence[str]) -> None:
        """Add a part, in the place of one of the same key.

        Args:
            key: See `key_of`.
            terms: Its terms in order.
        """
        self.drop(key)
        numbers = array("I", [self._number(term) for term in terms])
        self._parts[key] = numbers
        self._length += len(numbers)
        for number in numbers:
            holding = self._holding[number]
            holding[key] = holding.get(key, 0) + 1

    def drop(self, key: int) -> bool:
        """Take a part out, with each term that no other part holds; False where there is none.

        Args:
            key: See `key_of`.
        """
        numbers = self._parts.pop(key, None)
        if numbers is None:
            return False
        self._length -= len(numbers)
        for number in set(numbers):
            holding = self._holding[number]
            del holding[key]
            if not holding:
                del self._numbers[self._names[number]]
                self._names[number] = ""
                self._free.append(number)
        return True

    def keys(self, low: int = 0, high: int | None = None) -> list[int]:
        """Return the keys from `low` to below `high`, in no order.

        Args:
            low: The first key.
            high: The first key that is not meant; None for no end.
        """
        return [key for key in self._parts if low <= key and (high is None or key < high)]

    def matches(self, terms: Sequence[str]) -> Matches:
        """Return for each term the parts that hold it, with what it adds to their scores.

        Args:
            terms: What to look for; one with spaces is a phrase, whose terms stand side by side.
        """
        average = self._length / len(self._parts) if self._parts else 1.0
        found: list[dict[int, float]] = []
        for term in terms:
            counts = self._counts(term)
            idf = inverse_frequency(len(counts), len(self._parts)) * (K1 + 1)
            found.append(
                {
                    key: idf * count / (count + K1 * (1 - B + B * len(self._parts[key]) / average))
                    for key, count in counts.items()
                }
            )
        return found

    def _number(self, term: str) -> int:
        number = self._numbers.get(term)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._names[number] = term
            else:
                number = len(self._names)
                self._names.append(term)
                self._holding.append({})
            self._numbers[term] = number
        return number

    def _counts(self, term: str) -> Mapping[int, int]:
        """How often each part that holds the term or phrase does."""
        numbers = [self._numbers.get(each) for each in term.split()]
        wanted = [number for number in numbers if number is not None]
        if not wanted or len(wanted) < len(numbers):
            return {}
        if len(wanted) == 1:
            return self._holding[wanted[0]]
        rarest, *others = sorted((self._holding[number] for number in wanted), key=len)
        keys = [key for key in rarest if all(key in other for other in others)]
        phrase = array("I", wanted)
        counted = ((key, sum(1 for _ in _places(self._parts[key], phrase))) for key in keys)
        return {key: count for key, count in counted if count}


def _places(numbers: array[int], phrase: array[int]) -> Iterator[int]:
    """Where in a part the phrase begins."""
    first, length, at = phrase[0], len(phrase), -1
    while True:
        try:
            at = numbers.index(first, at + 1)
        except ValueError:
            return
        if numbers[at : at + length] == phrase:
            yield at

"""An in-memory index: which parts hold a term, and how much each of them scores for it. Pure.

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
"""The weight of a term that half of all parts hold, or more. It is above 0, so that a part that has it still comes
first."""

Matches = Sequence[Mapping[int, float]]
"""For each term that was asked, the parts that hold it, by key, with what it adds to the score of each."""

PART_BITS, SEQ_BITS = 8, 28


def key_of(number: int, seq: int, part: int = 0) -> int:
    """Return the key of a part: session, entry and part in one number, so that the keys of a session are contiguous.

    Args:
        number: of the session, below 2**27.
        seq: the entry's place in its log, below 2**28.
        part: which part of the entry, from 0, at most 254.
    """
    return number << SEQ_BITS + PART_BITS | seq << PART_BITS | part


def place_of(key: int) -> int:
    """Return the place of the entry that a part belongs to: the session's number and the `seq`, in one number.

    Args:
        key: of a part.
    """
    return key >> PART_BITS


def inverse_frequency(holding: int, parts: int) -> float:
    """Return the weight of a term.

    Args:
        holding: how many parts hold the term.
        parts: how many parts there are; if counted at another moment, this may be less than `holding`.
    """
    return max(log((max(parts - holding, 0) + 0.5) / (holding + 0.5)), LEAST)


class Postings:
    """An index of parts by their terms, in memory. Not safe for several threads at a time."""

    def __init__(self) -> None:
        """Make an empty index."""
        self._numbers: dict[str, int] = {}
        self._holding: list[dict[int, int]] = []
        self._names: list[str] = []
        self._free: list[int] = []
        self._parts: dict[int, array[int]] = {}
        self._length = 0

    def __len__(self) -> int:
        """Return how many parts are in the index."""
        return len(self._parts)

    def put(self, key: int, terms: Sequence[str]) -> None:
        """Add a part; one with the same key is replaced.

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
        """Remove a part, and each term that no other part holds; return False if there is no such part.

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
            high: The end of the range, excluded; None for no end.
        """
        return [key for key in self._parts if low <= key and (high is None or key < high)]

    def matches(self, terms: Sequence[str]) -> Matches:
        """Return for each term the parts that hold it, with what it adds to their scores.

        Args:
            terms: What to look for. A term with spaces is a phrase: its terms must stand side by side.
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
        """Return the number of a term, a new one if it has none."""
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
        """Return how often each part that holds the term or phrase does."""
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
    """Yield where in a part the phrase begins."""
    first, length, at = phrase[0], len(phrase), -1
    while True:
        try:
            at = numbers.index(first, at + 1)
        except ValueError:
            return
        if numbers[at : at + length] == phrase:
            yield at

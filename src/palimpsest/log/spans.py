"""Spans: ranges of places in a log, as pairs of first and last `seq`, ascending and disjoint. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

Span = tuple[int, int]
"""First and last `seq`, both inclusive."""

_low = itemgetter(0)


def of(seqs: Iterable[int]) -> tuple[Span, ...]:
    """Return these seqs, given in any order, as spans."""
    result: list[Span] = []
    for seq in sorted(seqs):
        if result and result[-1][1] >= seq - 1:
            result[-1] = (result[-1][0], seq)
        else:
            result.append((seq, seq))
    return tuple(result)


def union(*span_lists: Iterable[Span]) -> tuple[Span, ...]:
    """Return the places in any of these; adjacent spans are merged."""
    result: list[Span] = []
    for low, high in sorted(span for spans in span_lists for span in spans):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


def minus(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the places in `spans` and not in `others`, in linear time."""
    hidden, result, i = union(others), list[Span](), 0
    for low, high in union(spans):
        while i < len(hidden) and hidden[i][1] < low:
            i += 1
        start = low
        while i < len(hidden) and hidden[i][0] <= high:
            if start < hidden[i][0]:
                result.append((start, hidden[i][0] - 1))
            start = hidden[i][1] + 1
            if start > high:  # the hidden span may reach into the next span
                break
            i += 1
        if start <= high:
            result.append((start, high))
    return tuple(result)


def common(spans: Sequence[Span], others: Sequence[Span]) -> tuple[Span, ...]:
    """Return the places in both."""
    return minus(spans, minus(spans, others))


def since(spans: Iterable[Span], first: int) -> tuple[Span, ...]:
    """Return the part of the spans at `first` or after it."""
    return tuple((max(low, first), high) for low, high in spans if high >= first)


def within(spans: Sequence[Span], seq: int) -> bool:
    """Whether `seq` lies in one of the spans."""
    if not spans:
        return False
    i = bisect_right(spans, seq, key=_low)
    return i > 0 and seq <= spans[i - 1][1]


def members(spans: Iterable[Span]) -> Iterator[int]:
    """Yield every place, in ascending order."""
    for low, high in spans:
        yield from range(low, high + 1)


def size(spans: Iterable[Span]) -> int:
    """Return how many places the spans hold."""
    return sum(high - low + 1 for low, high in spans)


def longest(spans: Sequence[Span], most: int) -> tuple[Span, ...]:
    """Return at most so many of the spans: the longest, in the order of the log."""
    if len(spans) <= most:
        return tuple(spans)
    by_length = sorted(spans, key=lambda span: span[0] - span[1])
    return tuple(sorted(by_length[:most]))


def astray(spans: Iterable[Span], first: int, last: int) -> Span | None:
    """Return the first span that is not after the previous one, or not between `first` and `last`; None if all are."""
    for low, high in spans:
        if not first <= low <= high <= last:
            return low, high
        first = high + 1
    return None


def visible(hidden: Sequence[Span], after: int, before: int) -> list[Span]:
    """Return the spans between `after` and `before`, both exclusive, outside of `hidden`."""
    spans, first = [], after + 1
    for low, high in hidden:
        if low >= before:
            break
        if first < low:
            spans.append((first, low - 1))
        first = max(first, high + 1)
    if first < before:
        spans.append((first, before - 1))
    return spans


def hiding(hidden: Sequence[Span], first: int, last: int) -> tuple[Span, ...]:
    """Return the spans with everything from `first` to `last` (the end of the log) hidden, too."""
    spans = [(low, min(high, first - 1)) for low, high in hidden if low < first]
    if spans and spans[-1][1] == first - 1:
        first = spans.pop()[0]
    return (*spans, (first, last)) if first <= last else tuple(spans)


def in_words(spans: Iterable[Span]) -> str:
    """Return the spans as words, such as `2, 5 to 7`."""
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in spans)

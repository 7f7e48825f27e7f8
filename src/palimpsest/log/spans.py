"""Ranges of places in a log: pairs of first and last `seq`, ascending and apart from each other. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

Span = tuple[int, int]
"""First and last `seq`, both inclusive."""

_low = itemgetter(0)


def of(seqs: Iterable[int]) -> tuple[Span, ...]:
    """Return seqs, in any order, as spans."""
    found: list[Span] = []
    for seq in sorted(seqs):
        if found and found[-1][1] >= seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)


def union(*many: Iterable[Span]) -> tuple[Span, ...]:
    """Return what lies in any of them; neighbours become one span."""
    found: list[Span] = []
    for low, high in sorted(span for spans in many for span in spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def minus(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return what lies in `spans` and not in `others`. Each is looked at once, however many there are."""
    hidden, found, i = union(others), list[Span](), 0
    for low, high in union(spans):
        while i < len(hidden) and hidden[i][1] < low:
            i += 1
        first = low
        while i < len(hidden) and hidden[i][0] <= high:
            if first < hidden[i][0]:
                found.append((first, hidden[i][0] - 1))
            first = hidden[i][1] + 1
            if first > high:  # it may reach into the next one
                break
            i += 1
        if first <= high:
            found.append((first, high))
    return tuple(found)


def common(spans: Sequence[Span], others: Sequence[Span]) -> tuple[Span, ...]:
    """Return what lies in both."""
    return minus(spans, minus(spans, others))


def since(spans: Iterable[Span], first: int) -> tuple[Span, ...]:
    """Return what of the spans lies at `first` or behind it."""
    return tuple((max(low, first), high) for low, high in spans if high >= first)


def within(spans: Sequence[Span], seq: int) -> bool:
    """Whether a place lies in one of the spans."""
    if not spans:
        return False
    i = bisect_right(spans, seq, key=_low)
    return i > 0 and seq <= spans[i - 1][1]


def members(spans: Iterable[Span]) -> Iterator[int]:
    """Yield every place, ascending."""
    for low, high in spans:
        yield from range(low, high + 1)


def size(spans: Iterable[Span]) -> int:
    """How many places there are."""
    return sum(high - low + 1 for low, high in spans)


def astray(spans: Iterable[Span], first: int, last: int) -> Span | None:
    """Return the first span that is not behind the one before, from `first` to `last`; None where all are."""
    for low, high in spans:
        if not first <= low <= high <= last:
            return low, high
        first = high + 1
    return None


def visible(hidden: Sequence[Span], after: int, before: int) -> list[Span]:
    """Return the spans between `after` and `before`, both exclusive, that lie in none of `hidden`."""
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
    """Return the spans with all from `first` to `last` (the end of the log) hidden, too."""
    spans = [(low, min(high, first - 1)) for low, high in hidden if low < first]
    if spans and spans[-1][1] == first - 1:
        first = spans.pop()[0]
    return (*spans, (first, last)) if first <= last else tuple(spans)


def told(spans: Iterable[Span]) -> str:
    """Return the spans in words, as `2, 5 to 7`."""
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in spans)

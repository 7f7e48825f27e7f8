"""Spans of seqs: they agree with sets of seqs, and take little time however many there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.log import spans
from palimpsest.log.spans import Span

any_spans = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1])))


class Counted(int):
    """An int that counts its comparisons."""

    compared = 0

    def _counting(compare: Callable[[int, int], bool]) -> Callable[[Counted, int], bool]:  # type: ignore[misc]  # noqa: N805
        def counting(self: Counted, other: int) -> bool:
            Counted.compared += 1
            return compare(int(self), int(other))

        return counting

    __lt__, __le__, __gt__, __ge__ = map(_counting, (int.__lt__, int.__le__, int.__gt__, int.__ge__))

    def __add__(self, other: int) -> Counted:
        return Counted(int(self) + int(other))

    def __sub__(self, other: int) -> Counted:
        return Counted(int(self) - int(other))


@given(any_spans, any_spans)
def test_spans_agree_with_sets_of_seqs(one: list[Span], other: list[Span]) -> None:
    """Union, difference, intersection and membership of spans agree with those of sets, in any order."""
    places, others = set(spans.members(one)), set(spans.members(other))

    assert spans.union(one, other) == spans.of(places | others)
    assert spans.minus(one, other) == spans.of(places - others)
    assert spans.common(one, other) == spans.of(places & others)
    apart = spans.of(places)
    assert {seq for seq in range(50) if spans.within(apart, seq)} == places


@pytest.mark.parametrize("hidden", ["every second", "all but one", "one over all"])
@pytest.mark.parametrize("what", ["minus", "common", "within"])
def test_span_operations_take_linear_time(what: str, hidden: str) -> None:
    """A log of which every other entry has left is as quick, entry by entry, as one of which the older half has."""

    def compared(count: int) -> int:
        one = tuple((Counted(2 * i), Counted(2 * i)) for i in range(count))
        other = {"every second": one[::2], "all but one": one[1:], "one over all": ((Counted(0), Counted(2 * count)),)}
        Counted.compared = 0
        if what == "within":
            assert sum(spans.within(other[hidden], seq) for seq in range(2 * count)) > 0
        else:
            getattr(spans, what)(one, other[hidden])
        return Counted.compared

    assert compared(1000) < 3 * compared(500)

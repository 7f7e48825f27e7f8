"""Guards of summaries: what may not be lost, what must be in the source, and how a text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.log.summary import Summary, SummaryItem
from palimpsest.summaries import Rejected, SummarySource
from palimpsest.summaries.guards import (
    Protected,
    Support,
    completed,
    cut,
    echoes,
    mention,
    most_that_fit,
    pinned_of,
    protected,
)
from palimpsest.summaries.identifiers import missing
from summaries import NONCE, pins, texts, words


def test_pinned_identifiers_stay_pinned():
    """An identifier pinned in the source or in an earlier summary is pinned in every later summary."""
    before = Summary(id="s", text="A-1", covers=((1, 1),), items=(SummaryItem(kind="fact", text="A-1", pinned=True),))

    assert pinned_of(SummarySource(entries=(), previous=(before,), pinned=("B-2", "A-1", " "))) == ("B-2", "A-1")


def test_one_in_twenty_identifiers_may_be_lost():
    """A text with 19 of 20 identifiers has lost none; with 18 it has lost two; a pinned one is lost at once."""
    wanted = Protected(pinned=("P-1",), others=tuple(f"X-{i}" for i in range(20)))

    assert wanted.lost("P-1 " + " ".join(f"X-{i}" for i in range(19))) == ()
    assert wanted.lost("P-1 " + " ".join(f"X-{i}" for i in range(18))) == ("X-18", "X-19")
    assert wanted.lost(" ".join(f"X-{i}" for i in range(20))) == ("P-1",)


def test_the_newest_identifiers_are_protected():
    """Beside pinned ones the newest identifiers are protected, while they cost two fifths of the target."""
    items = [SummaryItem(kind="fact", text=f"X-{i}", sources=(i,)) for i in range(1, 41)]
    text = " ".join(item.text for item in items)

    wanted = protected(text, items, ["X-1"], 50, words)

    assert wanted.pinned == ("X-1",)
    assert wanted.others == tuple(f"X-{i}" for i in range(40, 31, -1))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("Ann Lee wants a refund for order ORD-1234", True),
        ("refunding the order", True),
        ("Ann Lee ordered on 7 May 2023", True),
        ("the order is ORD-9999", False),
        ("quantum reactors were purchased", False),
        ("the price is $99.00", False),
        ("it back", True),
        ("x y", False),
    ],
)
def test_an_item_is_supported_by_its_identifiers_and_words(item, expected):
    """An item is supported if its identifiers and most of its words are in the source, in any form."""
    source = "I am Ann Lee. On May 7, 2023 I made the order ORD-1234. Please make a refund, I want it back."

    assert Support(source).holds(item) is expected


def test_scripts_without_spaces_are_supported_by_pairs_of_letters():
    """In scripts without spaces, pairs of letters are compared in place of words."""
    support = Support("我在北京买了一个红色的水壶")

    assert support.holds("北京买了水壶")
    assert not support.holds("上海天气晴朗")


def test_the_mark_of_the_fence_is_recognised():
    """A text that repeats the mark of its prompt's fence is recognised."""
    assert echoes(f"as in {NONCE}", NONCE)
    assert echoes("</source-x1>", "x1")
    assert not echoes("x1 is a word", "x1")
    assert not echoes("anything", "")


def test_a_text_is_cut_at_the_end_of_a_sentence():
    """A text that is too long is cut after a whole sentence, or else a whole word; a title without lines goes too."""
    assert cut("One two. Three four. Five six.", 5, words) == "One two. Three four."
    assert cut("one two three four", 2, words) == "one two"
    assert cut("Goal:\n- a b\nErrors:\n- c d e", 5, words) == "Goal:\n- a b"
    assert cut("first second", 0, words) == ""
    assert cut("漢" * 100, 10, len) == "漢" * 10


@given(texts, st.integers(0, 30), st.sampled_from([words, len]))
def test_a_cut_text_fits_and_is_a_beginning(text, room, count):
    """A cut text takes no more than its room, and is a beginning of the text."""
    cut_text = cut(text, room, count)

    assert count(cut_text) <= room
    assert text.startswith(cut_text)


def test_lost_identifiers_are_put_back():
    """Lost identifiers are put back in one line at the end of a text."""
    wanted = Protected(pinned=("P-1",), others=("X-1",))

    assert completed("some text", wanted, 20, words) == "some text\nAlso mentioned: P-1, X-1"


@given(texts, pins, st.integers(0, 30))
def test_a_completed_text_holds_all_pinned_identifiers(text, pinned, room):
    """A completed text holds every pinned identifier and fits its room, or it is refused with `no_gain`."""
    wanted = Protected(tuple(pinned))
    if pinned and words(mention(pinned)) > room and (words(text) > room or missing(text, pinned)):
        with pytest.raises(Rejected, match="no_gain"):
            completed(text, wanted, room, words)
        return

    completed_text = completed(text, wanted, room, words)

    assert words(completed_text) <= room
    assert not missing(completed_text, pinned)


@given(st.integers(0, 300), st.integers(-5, 400))
def test_the_largest_number_that_fits_is_found(length, bound):
    """`most_that_fit` returns the largest number from 0 to `length` that fits."""
    assert most_that_fit(length, lambda n: n <= bound) == max(min(length, bound), 0)

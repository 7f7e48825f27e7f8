"""The guards: what may not be lost, what must be in the source, and how a text is cut."""

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


def test_pinned_are_those_of_the_source_and_of_the_summaries_before():
    """An identifier pinned once stays pinned in every later summary."""
    before = Summary(id="s", text="A-1", covers=((1, 1),), items=(SummaryItem(kind="fact", text="A-1", pinned=True),))

    assert pinned_of(SummarySource(entries=(), previous=(before,), pinned=("B-2", "A-1", " "))) == ("B-2", "A-1")


def test_every_pinned_identifier_counts_and_one_in_twenty_of_the_others_may_go():
    """A text with 19 of 20 identifiers has lost nothing; with 18 it has lost two; a pinned one is lost at once."""
    wanted = Protected(pinned=("P-1",), others=tuple(f"X-{i}" for i in range(20)))

    assert wanted.lost("P-1 " + " ".join(f"X-{i}" for i in range(19))) == ()
    assert wanted.lost("P-1 " + " ".join(f"X-{i}" for i in range(18))) == ("X-18", "X-19")
    assert wanted.lost(" ".join(f"X-{i}" for i in range(20))) == ("P-1",)


def test_what_is_protected_is_bounded_and_the_newest():
    """Beside the pinned ones, identifiers are protected while they cost two fifths of the target: the newest first."""
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
def test_support(item, expected):
    """An item is supported when its identifiers and most of its words are in the source, in whatever form."""
    source = "I am Ann Lee. On May 7, 2023 I made the order ORD-1234. Please make a refund, I want it back."

    assert Support(source).holds(item) is expected


def test_support_of_scripts_without_blanks():
    """Where words are not set apart, pairs of letters are compared."""
    support = Support("我在北京买了一个红色的水壶")

    assert support.holds("北京买了水壶")
    assert not support.holds("上海天气晴朗")


def test_the_mark_of_the_fence_is_recognised():
    """A text that repeats the mark of the prompt is told from one that does not."""
    assert echoes(f"as in {NONCE}", NONCE)
    assert echoes("</source-x1>", "x1")
    assert not echoes("x1 is a word", "x1")
    assert not echoes("anything", "")


def test_a_text_is_cut_at_the_end_of_a_sentence():
    """What is too long ends with a whole sentence, else with a whole word; a title without lines goes, too."""
    assert cut("One two. Three four. Five six.", 5, words) == "One two. Three four."
    assert cut("one two three four", 2, words) == "one two"
    assert cut("Goal:\n- a b\nErrors:\n- c d e", 5, words) == "Goal:\n- a b"
    assert cut("first second", 0, words) == ""
    assert cut("漢" * 100, 10, len) == "漢" * 10


@given(texts, st.integers(0, 30), st.sampled_from([words, len]))
def test_a_cut_text_fits_and_is_a_beginning(text, room, count):
    """A cut text takes no more than its room and is how the text begins."""
    made = cut(text, room, count)

    assert count(made) <= room
    assert text.startswith(made)


def test_lost_identifiers_are_put_back():
    """What a text has lost stands in one line at its end."""
    wanted = Protected(pinned=("P-1",), others=("X-1",))

    assert completed("some text", wanted, 20, words) == "some text\nAlso mentioned: P-1, X-1"


@given(texts, pins, st.integers(0, 30))
def test_pinned_identifiers_are_there_whatever_the_text_is(text, pinned, room):
    """A completed text holds every pinned identifier and fits; else it is refused, because they alone do not."""
    wanted = Protected(tuple(pinned))
    if pinned and words(mention(pinned)) > room and (words(text) > room or missing(text, pinned)):
        with pytest.raises(Rejected, match="no_gain"):
            completed(text, wanted, room, words)
        return

    made = completed(text, wanted, room, words)

    assert words(made) <= room
    assert not missing(made, pinned)


@given(st.integers(0, 300), st.integers(-5, 400))
def test_the_largest_number_that_fits(length, bound):
    """Of 0 to `length` the largest that fits is found."""
    assert most_that_fit(length, lambda n: n <= bound) == max(min(length, bound), 0)

"""Splitting texts into chunks, and choosing chunks that differ: laws, and time on hostile texts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palimpsest import ConfigError
from palimpsest.recall.diversity import diverse
from palimpsest.recall.splitter import Chunk, split
from palimpsest.strategies import TextSplitter
from palimpsest.tokens.counter import encoding

COUNT = encoding("o200k_base").count


@st.composite
def splitters(draw: st.DrawFn) -> TextSplitter:
    """A strategy of splitters."""
    size = draw(st.integers(1, 40))
    return TextSplitter(
        type=draw(st.sampled_from(["recursive", "sentence", "markdown"])),
        chunk_size=size,
        chunk_overlap=draw(st.integers(0, size - 1)),
        unit=draw(st.sampled_from(["tokens", "chars"])),
        min_chunk=draw(st.integers(0, size)),
        separators=draw(st.none() | st.lists(st.text("ab .\n#", max_size=3), max_size=4).map(tuple)),
    )


def joined(chunks: list[Chunk], text: str) -> str:
    """Return the text that these chunks cover, each without its overlap with the one before."""
    return "".join(text[one.start + one.overlap : one.end] for one in chunks)


@given(st.text("ab \n.#é漢😀", max_size=400), splitters())
@example("a.a.aaa", TextSplitter(chunk_size=2, chunk_overlap=0, unit="tokens", min_chunk=2))
@settings(max_examples=300, deadline=None)
def test_chunks_without_overlaps_are_the_text(text: str, splitter: TextSplitter) -> None:
    """Chunks without their overlaps are the text; none exceeds the size, and no overlap exceeds its limit.

    A single character may exceed the size.
    """
    chunks = split(text, splitter, COUNT)
    measure = COUNT if splitter.unit == "tokens" else len

    assert joined(chunks, text) == (text if text.strip() else "")
    assert all(measure(one.text) <= splitter.chunk_size or one.end - one.start == 1 for one in chunks)
    assert all(measure(text[one.start : one.start + one.overlap]) <= splitter.chunk_overlap for one in chunks[:-1])
    assert all(before.end >= after.start > before.start for before, after in pairwise(chunks))


def test_a_text_that_fits_is_one_chunk() -> None:
    """A text that fits is one chunk whatever separators it holds; a blank text has none."""
    text = "One.\n\nTwo.\n\nThree."

    assert split(text, TextSplitter(), COUNT) == [Chunk(text, 0, len(text))]
    assert split(text, TextSplitter(type="none", chunk_size=1, chunk_overlap=0), COUNT) == [Chunk(text, 0, len(text))]
    assert split(" \n ", TextSplitter(), COUNT) == []


def test_the_best_separator_decides() -> None:
    """A text is split at paragraphs before lines, sentences and words; a heading stays with its text."""
    chars = {"unit": "chars", "chunk_overlap": 0}
    text = "First paragraph here.\n\nSecond one. It has two sentences."
    markdown = "# One\ntext of one, long enough\n\nmore\n# Two\ntext of two"

    assert [one.text for one in split(text, TextSplitter(chunk_size=36, **chars), len)] == [
        "First paragraph here.\n\n",
        "Second one. It has two sentences.",
    ]
    assert split(markdown, TextSplitter(type="markdown", chunk_size=45, **chars), len)[1].text.startswith("# Two")
    custom = TextSplitter(separators=("|",), chunk_size=6, keep_separator=False, **chars)
    assert [one.text for one in split("ab|cd|ef|gh", custom, len)] == ["ab|cd", "ef|gh"]


def test_the_last_chunk_has_min_chunk_size() -> None:
    """A last chunk smaller than `min_chunk` is filled by repeating the end of the one before."""
    splitter = TextSplitter(unit="chars", chunk_size=20, chunk_overlap=0, min_chunk=15)

    last = split("word " * 9 + "end", splitter, len)[-1]

    assert len(last.text) >= 15
    assert last.text.endswith("end")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "text",
    ["a" * 300_000, " " * 300_000 + "x", "word " * 60_000, "😀" * 60_000, "\n\n" * 150_000 + "x", "a.\n" * 60_000],
    ids=["letters", "blanks", "words", "emoji", "lines", "sentences"],
)
@pytest.mark.parametrize("splitter", [TextSplitter(), TextSplitter(chunk_size=200, chunk_overlap=150, unit="chars")])
def test_a_hostile_text_is_split_in_time(text: str, splitter: TextSplitter) -> None:
    """A hostile text of 300,000 characters is split in linear time; a quadratic scan would not end in a test's time."""
    assert split(text, splitter, COUNT)


@pytest.mark.parametrize(("size", "overlap"), [(512, 512), (8, 9), (0, 0), (True, 0), (8, -1)])
def test_an_overlap_is_smaller_than_the_size(size: int, overlap: int) -> None:
    """An overlap that is not smaller than the chunk size is refused: splitting would never end."""
    with pytest.raises(ConfigError):
        TextSplitter(chunk_size=size, chunk_overlap=overlap)


def test_a_chunk_like_a_chosen_one_comes_later() -> None:
    """Of two similar chunks the second is chosen after one that differs, unless relevance alone counts."""
    alike = [[1.0, 1.0, 0.1], [1.0, 1.0, 0.1], [0.1, 0.1, 1.0]]
    relevance = [1.0, 0.9, 0.6]

    assert diverse(relevance, lambda i, j: alike[i][j], 3, 0.5) == [0, 2, 1]
    assert diverse(relevance, lambda i, j: alike[i][j], 2, 1.0) == [0, 1]
    assert diverse([0.2, 0.2], lambda i, j: 0.0, 5, 0.0) == [0, 1]
    assert diverse([], lambda i, j: 0.0, 5, 0.5) == []

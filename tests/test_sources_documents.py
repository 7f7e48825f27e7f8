"""Reading JSON value by value gives what reading it whole gives, and survives broken parts."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.transfer.sources.documents import Document
from palimpsest.transfer.sources.files import Ahead
from palimpsest.transfer.sources.limits import Limits
from strategies import json_values


class Trickle:
    """A stream that returns at most a few bytes per read."""

    def __init__(self, body: bytes, most: int) -> None:
        self._body, self._most = io.BytesIO(body), most

    def read(self, size: int, /) -> bytes:
        return self._body.read(min(size, self._most))


def document(body: bytes, name: str = "", most: int = 1 << 20) -> Document:
    """Return the document of these bytes, read at most `most` bytes at a time."""
    return Document(Ahead(Trickle(body, most)), name)


def values(body: bytes, name: str = "", most: int = 1 << 20) -> list[Any]:
    """Return the values of the document's items."""
    return [item.value for item in document(body, name, most).items()]


@settings(deadline=None)
@given(st.lists(json_values, max_size=6), st.sampled_from([None, 1]), st.integers(1, 9))
def test_a_list_gives_its_items(items: list[Any], indent: int | None, most: int) -> None:
    """A list gives its items, however it is laid out and however little is read at a time."""
    body = json.dumps(items, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")

    assert values(body, "x.json", most) == items


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), json_values, max_size=3), min_size=2, max_size=6), st.integers(1, 9)
)
def test_lines_give_their_values(items: list[Any], most: int) -> None:
    """JSON lines are recognized under any file name, and the place of a value is its line."""
    body = "\n\n".join(map(json.dumps, items)).encode()
    parsed = document(body, "x.json", most)

    assert parsed.layout == "lines"
    assert [(item.place, item.value) for item in parsed.items()] == [
        (2 * i + 1, value) for i, value in enumerate(items)
    ]


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["", "x.json", "x.jsonl"]))
def test_no_bytes_raise(body: bytes, name: str) -> None:
    """Reading arbitrary bytes gives values and faults, and raises nothing."""
    for item in document(body, name, 3).items():
        assert item.fault is None or item.value is None


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=3), json_values, max_size=3), min_size=3, max_size=3))
def test_a_broken_item_costs_no_other(items: list[Any]) -> None:
    """An item that is no JSON is a fault at its place; those around it are read."""
    first, _, last = map(json.dumps, items)

    parsed = list(document(f'[{first}, {{"a": nonsense}}, {last}]'.encode(), "x.json").items())

    assert [item.value for item in parsed] == [items[0], None, items[2]]
    assert [item.fault is None for item in parsed] == [True, False, True]


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        (b'[{"a": 1}, {"b": ', [None, "the file ends before the end of this item"]),
        (b'[{"a": 1}, "b', [None, "the file ends before the end of its list"]),
        (b'[{"a": 1}] x', [None, "this follows the list and is not valid JSON"]),
        (b'[{"a": 1}][{"b": 2}]', [None, None]),
        (b'[1, "}", nonsense, {"a": 1}]', ["not valid JSON: Expecting value at column 10", None]),
        (b"[" * 3000 + b"]" * 3000, ["nested too deeply: more than 300 levels"]),
        (b'[{"a": 1}, {"b": "\n"}]', [None, "not valid JSON: Invalid control character at column 8"]),
    ],
    ids=["item", "list", "rubbish", "two lists", "no values", "deep", "control character"],
)
def test_faults_are_reported(body: bytes, faults: list[str | None]) -> None:
    """A sudden end, rubbish and too deep nesting are reported; what can be read is."""
    assert [item.fault for item in document(body, "x.json").items()] == faults


@settings(deadline=None)
@given(
    st.lists(json_values | st.lists(st.text('"\\\\[]{}a'), max_size=9), max_size=6),
    st.integers(1, 9),
    st.integers(2, 60),
)
def test_items_beyond_a_limit_cost_no_other(items: list[Any], most: int, limit: int) -> None:
    """An item beyond a limit is a fault at its place; the others are read."""
    wrapped = [{"a": item} for item in items]
    body = json.dumps(wrapped).encode()

    parsed = list(Document(Ahead(Trickle(body, most)), "x.json", Limits(value=limit, values=9999)).items())

    sizes = [len(json.dumps(item)) for item in wrapped]
    assert [item.place for item in parsed] == list(range(len(wrapped)))
    for item, value, size in zip(parsed, wrapped, sizes, strict=True):
        assert item.value == (value if size <= limit else None)
        assert (item.fault is None) == (size <= limit)


@pytest.mark.parametrize("levels", [299, 300, 301, 5000])
@pytest.mark.parametrize("pair", ["[]", "{}"])
@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_values_of_300_levels_are_read(levels: int, pair: str, name: str) -> None:
    """A value of 300 levels is read, however it is laid out; a deeper one is a fault."""
    begin, end = ("[" * levels, "]" * levels) if pair == "[]" else ('{"]": ' * (levels - 1) + "{}", "}" * (levels - 1))
    body = f"{begin}{end}\n" if name == "x.jsonl" else f"[{begin}{end}, 1]"

    first = next(document(body.encode(), name).items())

    assert first.fault == (None if levels <= 300 else "nested too deeply: more than 300 levels")


def test_a_large_first_item_is_read_whole() -> None:
    """Looking ahead reads all of a large first item, and gives it back for the reading proper."""
    items = [{"text": "x" * 3_000_000}, {"text": "y"}]

    parsed = document(json.dumps(items).encode(), "x.json")

    assert parsed.sample() == items
    assert [item.value for item in parsed.items()] == items

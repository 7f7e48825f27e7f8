"""Taking JSON apart value by value gives what reading it whole gives, and survives what is broken."""

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
    """A stream that gives little at a time."""

    def __init__(self, body: bytes, most: int) -> None:
        self._body, self._most = io.BytesIO(body), most

    def read(self, size: int, /) -> bytes:
        return self._body.read(min(size, self._most))


def document(body: bytes, name: str = "", most: int = 1 << 20) -> Document:
    return Document(Ahead(Trickle(body, most)), name)


def values(body: bytes, name: str = "", most: int = 1 << 20) -> list[Any]:
    return [item.value for item in document(body, name, most).items()]


@settings(deadline=None)
@given(st.lists(json_values, max_size=6), st.sampled_from([None, 1]), st.integers(1, 9))
def test_a_list_is_its_items(items: list[Any], indent: int | None, most: int) -> None:
    """However it is laid out and however little is read at a time, the items are those of the list."""
    body = json.dumps(items, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")

    assert values(body, "x.json", most) == items


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), json_values, max_size=3), min_size=2, max_size=6), st.integers(1, 9)
)
def test_lines_are_their_values(items: list[Any], most: int) -> None:
    """JSON lines are recognised, also under another name, and their places are line numbers."""
    body = "\n\n".join(map(json.dumps, items)).encode()
    found = document(body, "x.json", most)

    assert found.layout == "lines"
    assert [(item.place, item.value) for item in found.items()] == [(2 * i + 1, value) for i, value in enumerate(items)]


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["", "x.json", "x.jsonl"]))
def test_nothing_is_raised_for_any_bytes(body: bytes, name: str) -> None:
    """Whatever a file holds, reading it gives values and faults."""
    for item in document(body, name, 3).items():
        assert item.fault is None or item.value is None


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=3), json_values, max_size=3), min_size=3, max_size=3))
def test_a_broken_item_costs_no_other(items: list[Any]) -> None:
    """An item that is no JSON is a fault at its place; the ones around it are read."""
    first, _, last = map(json.dumps, items)

    found = list(document(f'[{first}, {{"a": nonsense}}, {last}]'.encode(), "x.json").items())

    assert [item.value for item in found] == [items[0], None, items[2]]
    assert [item.fault is None for item in found] == [True, False, True]


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        (b'[{"a": 1}, {"b": ', [None, "the file ends before this item does"]),
        (b'[{"a": 1}, "b', [None, "the file ends before its list does"]),
        (b'[{"a": 1}] x', [None, "this is no JSON, and stands after the list"]),
        (b'[{"a": 1}][{"b": 2}]', [None, None]),
        (b'[1, "}", nonsense, {"a": 1}]', ["no JSON: Expecting value at column 10", None]),
        (b"[" * 3000 + b"]" * 3000, ["nested too deeply: more than 300 levels"]),
        (b'[{"a": 1}, {"b": "\n"}]', [None, "no JSON: Invalid control character at column 8"]),
    ],
    ids=["item", "list", "rubbish", "two lists", "no values", "deep", "control character"],
)
def test_what_is_wrong_is_told(body: bytes, faults: list[str | None]) -> None:
    """A sudden end, rubbish and too many levels are told; what can be read is."""
    assert [item.fault for item in document(body, "x.json").items()] == faults


@settings(deadline=None)
@given(
    st.lists(json_values | st.lists(st.text('"\\\\[]{}a'), max_size=9), max_size=6),
    st.integers(1, 9),
    st.integers(2, 60),
)
def test_items_beyond_a_limit_cost_no_other(items: list[Any], most: int, limit: int) -> None:
    """Of a list those items are given that are within the limit; in the place of the others stands a fault."""
    wrapped = [{"a": item} for item in items]
    body = json.dumps(wrapped).encode()

    found = list(Document(Ahead(Trickle(body, most)), "x.json", Limits(value=limit, values=9999)).items())

    sizes = [len(json.dumps(item)) for item in wrapped]
    assert [item.place for item in found] == list(range(len(wrapped)))
    for item, value, size in zip(found, wrapped, sizes, strict=True):
        assert item.value == (value if size <= limit else None)
        assert (item.fault is None) == (size <= limit)


@pytest.mark.parametrize("levels", [299, 300, 301, 5000])
@pytest.mark.parametrize("pair", ["[]", "{}"])
@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_how_deep_a_value_may_be(levels: int, pair: str, name: str) -> None:
    """A value of 300 levels is read, however it is laid out; one of more is told."""
    begin, end = ("[" * levels, "]" * levels) if pair == "[]" else ('{"]": ' * (levels - 1) + "{}", "}" * (levels - 1))
    body = f"{begin}{end}\n" if name == "x.jsonl" else f"[{begin}{end}, 1]"

    found = next(document(body.encode(), name).items())

    assert found.fault == (None if levels <= 300 else "nested too deeply: more than 300 levels")


def test_a_large_first_item_is_waited_for() -> None:
    """The look ahead goes as far as the first item does, and gives everything back."""
    items = [{"text": "x" * 3_000_000}, {"text": "y"}]

    found = document(json.dumps(items).encode(), "x.json")

    assert found.sample() == items
    assert [item.value for item in found.items()] == items

"""JSON that returns values with their types."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest import ConfigError
from palimpsest.log.typed import DEEPEST, from_json, to_json

FIRM: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(minutes=-90)))).map(
        lambda at: at.replace(fold=0)
    ),
    st.decimals(allow_nan=False),
    st.uuids(),
)
KEYS = st.integers() | st.text(st.sampled_from("$abctuple")) | st.sampled_from(["$tuple", "$dict", "$set", "$bytes"])
VALUES = st.recursive(
    FIRM | st.frozensets(FIRM, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(FIRM | st.tuples(FIRM), max_size=4)
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """Return a value with the types of all it contains, so that 1, True and 1.0 differ."""
    if isinstance(value, dict):
        return dict, [(typed(key), typed(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(one) for one in value]
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(repr, value))
    return type(value), str(value)


@given(VALUES)
def test_a_value_comes_back_equal_and_with_its_types(value: Any) -> None:
    """Mappings keep their order, and values that look like an encoded form come back as they were."""
    text = to_json(value, "x")

    assert typed(from_json(text)) == typed(value)
    assert text.isascii()
    assert "\n" not in text


@given(VALUES)
def test_plain_json_is_written_as_it_is(value: Any) -> None:
    """Plain JSON values are written as plain JSON."""
    try:
        plain = json.loads(json.dumps(value))
    except TypeError:
        return
    if typed(plain) == typed(value) and "$" not in json.dumps(value):
        assert json.loads(to_json(value, "x")) == value


class _Text(str):
    __slots__ = ()


def _deep(times: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(times):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), "x: .*nan"),
        ([1, {"a": float("inf")}], r"x\[1\]\['a'\]: .*inf"),
        (Decimal("sNaN"), "sNaN"),
        (object(), "x: .*object"),
        ({"a": (1, b"x", object)}, r"x\['a'\]\[2\]"),
        ({1.5: 1}, "a key.*float"),
        ({True: 1}, "a key.*bool"),
        ({(1,): 1}, "a key.*tuple"),
        (_Text("x"), "_Text.*model_dump"),
        (OrderedDict(a=1), "OrderedDict"),
        (_deep(DEEPEST + 1), "nested at most"),
        pytest.param(10**5000, "x: 'int'.*13,000 bits", id="long"),
        pytest.param({10**5000: 1}, "a key.*13,000 bits", id="long key"),
        (uuid4, "function"),
        ({1, "a", object()}, "object"),
    ],
)
def test_a_value_that_cannot_be_read_back_is_refused(value: object, told: str) -> None:
    """Unknown types, numbers that are not finite, and values too deep or too long are refused."""
    with pytest.raises(ConfigError, match=told):
        to_json(value, "x")


def test_a_value_that_contains_itself_is_refused() -> None:
    """A value that contains itself is refused."""
    found: list[Any] = []
    found.append(found)

    with pytest.raises(ConfigError, match="nested at most"):
        to_json(found, "x")


@pytest.mark.parametrize("text", ["{", '{"$set": 1}', '{"$dict": [1]}', '{"$set": [[]]}', '{"$tuple": null}'])
def test_reading_other_text_raises_value_error(text: str) -> None:
    """Reading other text raises ValueError, so that the store can name the place."""
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


@pytest.mark.parametrize("text", ['{"$date": "x"}', '{"$bytes": "?"}', '{"$decimal": "x"}', '{"$uuid": "1"}'])
def test_a_text_in_the_place_of_a_tagged_value_is_read_as_text(text: str) -> None:
    """A text where a tagged value is expected, which a policy may have written, is read as text."""
    assert from_json(text) == next(iter(json.loads(text).values()))


def test_dates_and_datetimes_keep_their_types() -> None:
    """A date and a datetime come back as such, although a datetime is a date to Python."""
    value = {"day": date(2026, 1, 2), "moment": datetime(2026, 1, 2, 3, 4, 5, 6, UTC)}
    assert typed(from_json(to_json(value, "x"))) == typed(value)


@pytest.mark.parametrize("text", ['{"$tuple":[1]}', '{"\\u0024tuple":[1]}', '[{"a":{"\\u0024tup\\u006ce":[1]}}]'])
def test_a_type_tag_with_escaped_characters_is_recognised(text: str) -> None:
    """A type tag is recognised even if another program escaped its characters."""
    wanted: Any = (1,) if text.startswith("{") else [{"a": (1,)}]
    assert from_json(text) == from_json(text.encode()) == wanted

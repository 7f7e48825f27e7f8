"""MemoryEntry of `palimpsest.compat.firefly`: its fields, and values that every store returns as they were."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

import firefly_stores
from palimpsest.compat.firefly import MemoryEntry, MemoryScope
from palimpsest.errors import ConfigError


@pytest.fixture(params=firefly_stores.EVERY)
def kind(request: pytest.FixtureRequest) -> str:
    """Yield each kind of store."""
    return request.param


def test_an_entry_has_the_documented_fields_and_defaults() -> None:
    """An entry needs no arguments: it gets a unique id, scope `working`, importance 0.5 and no expiry."""
    first, second = MemoryEntry(content="a"), MemoryEntry(content="a")

    assert first.entry_id != second.entry_id
    assert (first.scope, first.key, first.metadata, first.expires_at, first.importance) == (
        "working",
        None,
        {},
        None,
        0.5,
    )
    assert first.created_at.tzinfo is UTC
    assert not first.is_expired
    assert [scope.value for scope in MemoryScope] == ["conversation", "working", "long_term"]
    assert MemoryEntry(scope="long_term").scope is MemoryScope.LONG_TERM


@pytest.mark.parametrize("importance", [7, -0.1, 1.0001, float("nan"), float("inf"), "1", None, True])
def test_importance_is_a_number_from_0_to_1(importance: object) -> None:
    """An importance that is not a number from 0 to 1 raises ConfigError."""
    with pytest.raises(ConfigError, match="importance"):
        MemoryEntry(importance=importance)


@pytest.mark.parametrize(
    "fields",
    [
        {"entry_id": ""},
        {"entry_id": 3},
        {"scope": "forever"},
        {"key": 3},
        {"metadata": []},
        {"created_at": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"expires_at": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"expires_at": "2026-01-01"},
    ],
)
def test_an_invalid_field_is_refused_by_name(fields: dict[str, object]) -> None:
    """An invalid field, such as a time without a zone, raises ConfigError that names it."""
    with pytest.raises(ConfigError, match=next(iter(fields))):
        MemoryEntry(**fields)


def test_an_entry_survives_json() -> None:
    """An entry written as JSON or as a mapping is read as an equal entry."""
    entry = MemoryEntry(key="k", content={"a": (1, {2: b"x"})}, metadata={"by": "ann"}, expires_at=datetime.now(UTC))

    assert MemoryEntry.model_validate_json(entry.model_dump_json()) == entry
    assert MemoryEntry.model_validate(entry.model_dump(mode="json")) == entry
    assert MemoryEntry.model_validate(entry.model_dump()) == entry
    for content in ((1, 2), {1: "a"}, {"$tuple": [1]}, [b"x", (None,)]):
        entry = MemoryEntry(key="k", content=content, metadata={"seen": (1, {2: 3})})
        assert MemoryEntry.model_validate(entry.model_dump()) == entry
        assert MemoryEntry.model_validate(entry.model_dump(mode="json")) == entry
    assert entry.model_copy(update={"content": 1}).content == 1
    assert entry.model_copy() == entry
    with pytest.raises(ConfigError):
        MemoryEntry.model_validate_json("nonsense")
    with pytest.raises(ConfigError):
        MemoryEntry.model_validate_json("[]")


VALUES = [
    None,
    True,
    0,
    -(2**70),
    2**63,
    1.0,
    1e300,
    -0.0,
    5e-324,
    "",
    "text\0with\ud800 all \U0001f600\udfff\ufdd0",
    b"\0\xff",
    date(2026, 1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    Decimal("1.10"),
    UUID(int=7),
    [],
    (),
    {},
    set(),
    (1, (2, [3, {4}])),
    {1: "int", "1": "text"},
    {"$tuple": [1]},
    {"$json": "1"},
    {"b": 1, "a": {"d": 1, "c": [{"z": 1, "y": 2}]}, "": 0, "x.y": 1, "$set": 2},
    {"nul\0": "\0", "\ud800": 1},
    frozenset({2}),
    [[["deep"]]],
]


@pytest.mark.sampled
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_with_its_type(kind: str, tmp_path: Path, value: object) -> None:
    """Every store returns a value with its type, the order of its keys, and every character."""
    with firefly_stores.opened(kind, tmp_path) as store:
        store.save("n", MemoryEntry(key="k", content=value))

        (found,) = store.load("n")

    assert repr(found.content) == repr(value)
    assert type(found.content) is type(value)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), object(), {"a": {(1, 2): 3}}, [lambda: 1], 1j, Decimal("nan")]
)
def test_a_value_that_could_not_come_back_is_refused(kind: str, tmp_path: Path, value: object) -> None:
    """A value that could not be returned equal raises ConfigError with its key, and the old value stays."""
    with firefly_stores.opened(kind, tmp_path) as store:
        store.save("n", MemoryEntry(key="speed", content=1))

        with pytest.raises(ConfigError, match="speed"):
            store.save("n", MemoryEntry(key="speed", content=value))

        assert [entry.content for entry in store.load("n")] == [1]

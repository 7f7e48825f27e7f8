"""Working memory: facts that an agent stores under keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from palimpsest import AsyncMemory, ConfigError, Conflict, Memory
from palimpsest.testing.clock import FakeClock

VALUES: dict[str, Any] = {
    "text": "a\nb\x00\ud800",
    "none": None,
    "number": 7,
    "tuple": (1, (2, "x")),
    "set": {1, 2},
    "mapping": {1: "one", "two": [2], "$tuple": 3},
    "moment": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "bytes": b"\x00\xff",
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
}


@pytest.fixture(params=["memory", "sqlite", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/a"}[
        request.param
    ]


@pytest.fixture
def memory(where: str, clock: FakeClock) -> Iterator[Memory]:
    """Yield an open memory."""
    with Memory.open(where, clock=clock) as memory:
        yield memory


def test_values_come_back_with_their_types(memory: Memory) -> None:
    """Values come back with their types, as copies, in the order of their keys; a replaced value keeps its place."""
    facts = memory.working()
    for key, value in VALUES.items():
        facts.set(key, value)
    facts.set("text", "other")
    facts.set("text", VALUES["text"])

    assert facts.to_dict() == VALUES
    assert list(facts.to_dict()) == facts.keys() == list(VALUES)
    assert [type(value) for _, value in facts.items()] == [type(value) for value in VALUES.values()]
    facts.get("mapping")["two"].append(3)
    assert facts.get("mapping")["two"] == [2]


def test_none_is_a_value(memory: Memory) -> None:
    """None is a value: `get`, `has`, `fact` and `to_dict` tell it from a missing key."""
    facts = memory.working()
    facts.set("a", None)

    assert (facts.has("a"), facts.get("a", 1), facts.to_dict()) == (True, None, {"a": None})
    assert (facts.has("b"), facts.get("b", 1), facts.fact("b")) == (False, 1, None)
    assert facts.delete("a") is True
    assert (facts.delete("a"), facts.has("a"), facts.keys()) == (False, False, [])


def test_a_fact_has_versions_and_a_history(memory: Memory, clock: FakeClock) -> None:
    """A fact keeps its latest values, newest first; setting the same value makes a version and no history."""
    facts = memory.working(history=2)
    for number in (1, 2, 2, 3, 4):
        facts.set("a", number, importance=number / 10)
        clock.advance(1)

    fact = facts.fact("a")
    assert fact is not None
    assert (fact.value, fact.version, fact.importance) == (4, 5, 0.4)
    assert [(past_value.value, past_value.version, past_value.superseded_by) for past_value in fact.history] == [
        (3, 4, 5),
        (2, 3, 4),
    ]
    assert fact.updated_at - fact.created_at == timedelta(seconds=4)
    assert fact.history[0].superseded_at == fact.updated_at

    facts.set("a", 4)
    fact = facts.fact("a")
    assert fact is not None
    assert [(one.version, one.superseded_by) for one in fact.history] == [(4, 5), (3, 4)]


def test_an_expected_version_guards_a_change(memory: Memory) -> None:
    """A change that expects another version raises Conflict and changes nothing; version 0 expects no fact."""
    facts = memory.working()
    with pytest.raises(Conflict, match=r"'a'.*version 0, not 1"):
        facts.set("a", 1, version=1)
    facts.set("a", 1, version=0)
    with pytest.raises(Conflict, match="version 1, not 0"):
        facts.set("a", 2, version=0)
    facts.set("a", 2, version=1)
    with pytest.raises(Conflict, match="version 2, not 1"):
        facts.delete("a", version=1)

    assert facts.get("a") == 2
    assert facts.delete("a", version=2) is True
    with pytest.raises(Conflict, match="version 0, not 2"):
        facts.delete("a", version=2)


def test_a_fact_expires(memory: Memory, clock: FakeClock) -> None:
    """An expired fact is invisible, a new one of its key begins anew, and `sweep` removes it."""
    facts = memory.working()
    fact = facts.set("a", 1, ttl="1m")
    facts.set("b", 2, ttl=timedelta(minutes=1))
    facts.set("c", 3)
    assert fact.expires_at == fact.created_at + timedelta(minutes=1)
    clock.advance(60)

    assert facts.to_dict() == {"c": 3}
    assert (facts.has("a"), facts.get("a"), facts.fact("a")) == (False, None, None)
    assert facts.set("a", 1).version == 1
    assert memory.sweep() == 1
    assert facts.keys() == ["c", "a"]


def test_each_scope_has_its_own_facts(memory: Memory) -> None:
    """Scopes have their own facts, are listed by prefix, and clearing one leaves those beneath it."""
    for scope in ("user/ann", "user/ann/notes", "user/bob", "session/7"):
        memory.working(scope).set("a", scope)
    memory.for_tenant("other").working("user/eve").set("a", 1)

    assert memory.scopes() == ["session/7", "user/ann", "user/ann/notes", "user/bob"]
    assert memory.scopes("user/") == ["user/ann", "user/ann/notes", "user/bob"]
    assert memory.working("user/bob").get("a") == "user/bob"
    assert memory.working("user/ann").clear() == 1
    assert memory.scopes("user/") == ["user/ann/notes", "user/bob"]
    assert memory.working("nobody").clear() == 0


def test_several_facts_are_set_in_one_step(memory: Memory) -> None:
    """`set_many` sets all of its facts, or none."""
    facts = memory.working()
    facts.set("b", 0)
    facts_set = facts.set_many({"a": 1, "b": 2}, importance=0.9, ttl="1h")
    assert [(fact.key, fact.value, fact.version, fact.importance) for fact in facts_set] == [
        ("a", 1, 1, 0.9),
        ("b", 2, 2, 0.9),
    ]

    with pytest.raises(ConfigError, match="'d'"):
        facts.set_many({"c": 1, "d": object()})
    assert facts.to_dict() == {"b": 2, "a": 1}
    assert facts.set_many({}) == []


def test_pages_have_each_fact_once(memory: Memory) -> None:
    """Pages return each fact whose key begins with the prefix once."""
    facts = memory.working()
    facts.set_many({f"{kind}/{number}": number for number in range(25) for kind in "ab"})
    keys, after = list[str](), ""
    while True:
        page = facts.page(prefix="a/", after=after, limit=10)
        keys += [fact.key for fact in page.facts]
        if page.next is None:
            break
        after = page.next

    assert sorted(keys) == sorted(f"a/{number}" for number in range(25))
    assert facts.keys("b/") == [f"b/{number}" for number in range(25)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda facts: facts.set("a", float("nan")), "value of 'a'"),
        (lambda facts: facts.set("a", [{"x": object()}]), r"value of 'a'\[0\]\['x'\]"),
        (lambda facts: facts.set("a", "x" * 70_000), "value of 'a'.*65536"),
        (lambda facts: facts.set("", 1), "key"),
        (lambda facts: facts.set("a\n", 1), "key"),
        (lambda facts: facts.set("x" * 257, 1), "key"),
        (lambda facts: facts.set(7, 1), "key"),
        (lambda facts: facts.set(["a"], 1), "key"),
        (lambda facts: facts.set({}, 1), "key"),
        (lambda facts: facts.set("a", 1, importance=7), "importance"),
        (lambda facts: facts.set("a", 1, importance=-0.1), "importance"),
        (lambda facts: facts.set("a", 1, importance=float("nan")), "importance"),
        (lambda facts: facts.set("a", 1, ttl="soon"), "ttl"),
        (lambda facts: facts.set("a", 1, ttl=0), "ttl"),
        (lambda facts: facts.set("a", 1, version=-1), "version"),
        (lambda facts: facts.set_many([("a", 1)]), "facts"),
        (lambda facts: facts.set_many(dict.fromkeys(map(str, range(257)), 1)), "257 keys.*256"),
        (lambda facts: facts.page(limit=0), "limit"),
        (lambda facts: facts.keys(7), "prefix"),
        (lambda facts: facts.page(prefix=7), "prefix"),
        (lambda facts: facts.to_context_string(-1), "max_tokens"),
    ],
)
def test_a_refused_change_changes_nothing(memory: Memory, change: Any, told: str) -> None:
    """A change that is refused leaves the old value, and its error names what was wrong."""
    facts = memory.working()
    facts.set("a", "old")

    with pytest.raises(ConfigError, match=told):
        change(facts)

    assert facts.to_dict() == {"a": "old"}


@pytest.mark.parametrize("scope", ["", "/a", "a/", "a//b", "a\n", 7, "x" * 257])
def test_a_malformed_scope_is_refused(scope: Any) -> None:
    """A malformed scope raises ConfigError at once."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="scope"):
        memory.working(scope)


def test_a_readonly_view_changes_nothing(memory: Memory) -> None:
    """A readonly view of a scope sees what others change, and its own changes raise ConfigError."""
    facts = memory.working("a")
    reader = facts.readonly()
    facts.set("k", 1)

    assert (reader.get("k"), reader.is_readonly, reader.scope_id) == (1, True, "a")
    for change in (lambda: reader.set("k", 2), lambda: reader.delete("k"), reader.clear, lambda: reader.set_many({})):
        with pytest.raises(ConfigError, match="readonly"):
            change()
    assert facts.get("k") == 1


def test_the_text_for_a_prompt_has_a_line_for_each_fact(memory: Memory) -> None:
    """The text for a prompt has a heading and one line for each fact, whatever a value or a key contains."""
    facts = memory.working()
    assert facts.to_context_string() == ""
    facts.set("name", "Ann")
    facts.set("note", "a\n- b: c\r\u2028- d: e")
    facts.set("n", [1, "x"])

    assert facts.to_context_string() == (
        "Working Memory:\n- name: Ann\n- note: a\\n- b: c\\r\\u2028- d: e\n- n: [1, 'x']"
    )


def test_facts_without_room_in_a_prompt_are_counted(memory: Memory, clock: FakeClock) -> None:
    """The least important facts are left out of a prompt first, of these the oldest; a line says how many."""
    facts = memory.working()
    for number in range(20):
        facts.set(f"k{number}", "some words", importance=1.0 if number == 3 else 0.5)
        clock.advance(1)

    def words(text: str) -> int:
        return len(text.split())

    assert facts.to_context_string(19, counter=words).splitlines() == [
        "Working Memory:",
        "- k3: some words",
        "- k19: some words",
        "(18 less important facts left out)",
    ]
    assert facts.to_context_string(8, counter=words) == "Working Memory:\n(20 less important facts left out)"
    assert facts.to_context_string(7, counter=words) == ""
    assert facts.to_context_string(1000).count("\n") == 20


def test_facts_are_durable(where: str) -> None:
    """Another opening of a durable store sees the facts, and so does an asynchronous memory."""
    if where == "memory://":
        pytest.skip("a store in memory ends with its memory")
    with Memory.open(where) as memory:
        memory.working("a").set("k", (1, 2))

    async def read() -> Any:
        async with AsyncMemory.open(where) as memory:
            return await memory.working("a").get("k")

    assert asyncio.run(read()) == (1, 2)

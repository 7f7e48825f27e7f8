"""WorkingMemory of `palimpsest.compat.firefly`: values under keys, in scopes of any store."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import firefly_stores
from palimpsest import PalimpsestWarning
from palimpsest.compat.firefly import InMemoryStore, MemoryEntry, MemoryStore, WorkingMemory
from palimpsest.compat.firefly.working import _locks
from palimpsest.errors import ConfigError
from palimpsest.testing import FakeClock
from processes import at_once

FIVE = {"five methods": False, "five methods, JSON": True}


@pytest.fixture(params=[*firefly_stores.EVERY, *FIVE])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryStore]:
    """Yield an empty store of each kind, and two of a program's own with just five methods."""
    if request.param in FIVE:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PalimpsestWarning)
            yield firefly_stores.FiveMethods(written=FIVE[request.param])
        return
    with firefly_stores.opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def facts(store: MemoryStore) -> WorkingMemory:
    """Return an empty scope of the store."""
    return WorkingMemory(store=store, scope_id="s")


def test_the_documented_example_works(store: MemoryStore) -> None:
    """The example of Firefly's documentation gives the documented results."""
    wm = WorkingMemory(store=store, scope_id="idp-session-42")

    wm.set("doc_type", "invoice")
    wm.set("vendor", "Acme Corp", importance=0.9)

    assert wm.scope_id == "idp-session-42"
    assert wm.get("doc_type") == "invoice"
    assert wm.has("vendor")
    assert wm.keys() == ["doc_type", "vendor"]
    assert wm.items() == [("doc_type", "invoice"), ("vendor", "Acme Corp")]
    assert wm.to_dict() == {"doc_type": "invoice", "vendor": "Acme Corp"}
    wm.delete("vendor")
    assert wm.to_context_string() == "Working Memory:\n- doc_type: invoice"


def test_scopes_on_one_store_are_independent(store: MemoryStore) -> None:
    """Scopes on one store have separate values, and clearing one leaves the other."""
    agent_a_mem = WorkingMemory(store=store, scope_id="agent_a")
    agent_b_mem = WorkingMemory(store=store, scope_id="agent_b")
    agent_a_mem.set("key", "from A")
    agent_b_mem.set("key", "from B")

    assert agent_a_mem.get("key") == "from A"
    assert agent_b_mem.get("key") == "from B"
    agent_a_mem.clear()
    assert agent_a_mem.to_dict() == {}
    assert agent_b_mem.get("key") == "from B"


def test_the_default_scope_is_named_default() -> None:
    """A WorkingMemory without arguments has the scope `default` in a store of its own.

    Its entries are in the namespace `working:<scope>`.
    """
    first, second = WorkingMemory(), WorkingMemory()
    first.set("key", 1)

    assert (first.scope_id, second.to_dict()) == ("default", {})
    (entry,) = first.store.load("working:default")
    assert (entry.key, entry.content, entry.scope.value, entry.importance) == ("key", 1, "working", 0.5)


def test_a_key_that_is_set_again_keeps_its_place_and_has_one_row(facts: WorkingMemory) -> None:
    """A key that is set again keeps its place in the order and has one row, with the new value and importance."""
    for key in "abc":
        facts.set(key, 1)

    facts.set("a", 2, importance=0.9)

    assert facts.items() == [("a", 2), ("b", 1), ("c", 1)]
    rows = facts.store.load("working:s")
    assert [(row.key, row.importance) for row in rows] == [("a", 0.9), ("b", 0.5), ("c", 0.5)]


def test_a_deleted_key_is_gone(facts: WorkingMemory) -> None:
    """A deleted key is gone, and comes last if it is set again; deleting an unknown key is no error."""
    facts.set("a", 1)
    facts.set("b", 2)

    facts.delete("a")
    facts.delete("unknown")

    assert not facts.has("a")
    assert facts.get("a", "-") == "-"
    facts.set("a", 3)
    assert facts.keys() == ["b", "a"]


def test_none_is_a_value(facts: WorkingMemory) -> None:
    """None is a value: a key set to None exists in every way to look."""
    facts.set("empty", None)

    assert facts.has("empty")
    assert facts.get("empty", "default") is None
    assert facts.items() == [("empty", None)]
    assert facts.get("missing", "default") == "default"


def test_values_come_back_with_their_types_and_are_copies(facts: WorkingMemory) -> None:
    """Values come back with their types, and changing a returned value changes nothing stored."""
    value = {"tuple": (1, [2]), 7: {3}, "at": datetime(2026, 1, 1, tzinfo=UTC), "bytes": b"\0", "$tuple": None}
    facts.set("key", value)

    returned = facts.get("key")
    assert repr(returned) == repr(value)
    returned["tuple"][1].append("changed")
    value["tuple"][1].append("changed")
    facts.to_dict()["key"].clear()
    assert facts.get("key")["tuple"] == (1, [2])


@pytest.mark.parametrize("value", [float("nan"), object(), {"deep": [float("inf")]}])
def test_a_value_that_cannot_be_stored_leaves_the_old_one(facts: WorkingMemory, value: object) -> None:
    """A value that cannot be stored raises ConfigError with its key, and the old value stays."""
    facts.set("speed", "old", importance=0.7)

    with pytest.raises(ConfigError, match="speed"):
        facts.set("speed", value)

    assert facts.get("speed") == "old"


@pytest.mark.parametrize("importance", [7, -0.1, float("nan"), "high", True])
def test_an_invalid_importance_is_refused(facts: WorkingMemory, importance: Any) -> None:
    """An invalid importance raises ConfigError, and nothing is set."""
    with pytest.raises(ConfigError, match="importance"):
        facts.set("key", 1, importance=importance)

    assert not facts.has("key")


def test_a_value_cannot_forge_a_line(facts: WorkingMemory) -> None:
    """Line breaks in values and keys are escaped in the text, so that a value cannot look like another line."""
    facts.set("note", "a\n- b: c\u2028- d: e\r\x85")
    facts.set("k\n- x", [1, "y\nz"])

    assert facts.to_context_string() == (
        "Working Memory:\n- note: a\\n- b: c\\u2028- d: e\\r\\u0085\n- k\\n- x: [1, 'y\\nz']"
    )


def test_without_values_the_text_is_empty(facts: WorkingMemory) -> None:
    """Without values the text is empty, with or without a limit."""
    assert facts.to_context_string() == ""
    assert facts.to_context_string(max_tokens=5) == ""


def test_a_limit_leaves_out_the_least_important_facts() -> None:
    """Over `max_tokens` the least important facts are left out, the oldest of equal ones first.

    The text says how many, and keeps the order of the others.
    """
    clock = FakeClock()
    facts = WorkingMemory(store=InMemoryStore(clock=clock))
    for i, importance in enumerate((0.5, 0.1, 0.9, 0.1, 0.5)):
        facts.set(f"key{i}", "word", importance=importance)
        clock.advance(seconds=1)

    def words(text: str) -> int:
        return len(text.split())

    assert facts.to_context_string(max_tokens=17, counter=words) == facts.to_context_string()
    shortened = facts.to_context_string(max_tokens=16, counter=words)
    assert shortened == "Working Memory:\n- key2: word\n- key4: word\n(3 less important facts left out)"
    shorter = facts.to_context_string(max_tokens=12, counter=words)
    assert shorter == "Working Memory:\n- key2: word\n(4 less important facts left out)"
    assert len(facts.to_context_string(max_tokens=20)) < len(facts.to_context_string())
    with pytest.raises(ConfigError, match="max_tokens"):
        facts.to_context_string(max_tokens=-1)


def test_a_value_with_a_lifetime_expires(tmp_path: Path) -> None:
    """A value is seen until its `ttl` is over; set again, it comes last and no longer expires."""
    for kind in ("in_memory", "sqlite", "file"):
        clock = FakeClock()
        with firefly_stores.opened(kind, tmp_path / kind, clock=clock) as store:
            facts = WorkingMemory(store=store)
            facts.set("cart", 1, ttl="30m")
            facts.set("seat", 2, ttl=timedelta(hours=1))
            facts.set("ever", 3)

            clock.advance(seconds=1800)
            assert facts.items() == [("seat", 2), ("ever", 3)]
            assert not facts.has("cart")
            facts.set("cart", 4)
            assert facts.keys() == ["seat", "ever", "cart"]
            facts.set("seat", 5)
            clock.advance(seconds=7200)
            assert facts.get("seat") == 5
            with pytest.raises(ConfigError, match="ttl"):
                facts.set("cart", 1, ttl="soon")


def test_a_lifetime_applies_in_every_store(facts: WorkingMemory) -> None:
    """A value whose lifetime is over is not seen, even in a store that returns expired entries."""
    facts.set("live", 1, ttl=3600)
    facts.set("over", 2)
    (live, over) = facts.store.load("working:s")
    over.expires_at = datetime.now(UTC) - timedelta(seconds=1)
    facts.store.save("working:s", over)

    assert facts.to_dict() == {"live": 1}
    assert facts.get("over", "-") == "-"
    assert not facts.has("over")
    assert live.expires_at > datetime.now(UTC)
    facts.set("over", 3)
    assert facts.get("over") == 3


def test_keys_may_be_any_text(facts: WorkingMemory) -> None:
    """Keys may be any text of at most 1,280 bytes, and different texts are different keys."""
    keys = ["", " ", "a", "A", "é", "e\u0301", "nul\0", "\ud800", "x" * 300, "a/b", "entry_id", "$place"]
    for key in keys:
        facts.set(key, key)

    assert facts.items() == [(key, key) for key in keys]
    assert all(facts.get(key) == key for key in keys)
    for wrong in (None, 3, "x" * 1281):
        with pytest.raises(ConfigError, match="key"):
            facts.set(wrong, 1)
        with pytest.raises(ConfigError, match="key"):
            facts.get(wrong)


def test_scopes_may_be_any_text_without_nul() -> None:
    """Scopes may be any text without NUL; other scopes, and an object that is no store, are refused."""
    store = InMemoryStore()
    for scope in ("", "a/b", "working:", "x" * 300):
        WorkingMemory(store=store, scope_id=scope).set("k", scope)
    assert [WorkingMemory(store=store, scope_id=scope).get("k") for scope in ("", "working:")] == ["", "working:"]

    for scope in ("a\0", None, 3, "x" * 1273):
        with pytest.raises(ConfigError, match="scope_id"):
            WorkingMemory(store=store, scope_id=scope)
    with pytest.raises(ConfigError, match="load_by_key"):
        WorkingMemory(store=object())


def test_an_entry_of_another_program_is_replaced_in_place(facts: WorkingMemory) -> None:
    """Setting a key that another program stored replaces its entry at its place, without a second row."""
    facts.store.save("working:s", MemoryEntry(key="theirs", content="old"))
    facts.set("mine", 1)
    facts.store.save("working:s", MemoryEntry(content="without a key"))

    facts.set("theirs", "new")

    assert facts.items() == [("theirs", "new"), ("mine", 1)]
    assert len(facts.store.load("working:s")) == 3
    facts.delete("theirs")
    assert facts.keys() == ["mine"]


def test_a_store_that_is_false_is_used(store: MemoryStore) -> None:
    """A store that is false because it is empty is used all the same."""
    empty = firefly_stores.FiveMethods()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PalimpsestWarning)
        facts = WorkingMemory(store=empty)
    facts.set("key", 1)

    assert facts.store is empty
    assert len(empty) == 1


def test_a_store_without_compare_and_set_warns_once() -> None:
    """A store with just five methods warns once per process and class, at the program's line; ours never warn."""

    class Own(firefly_stores.FiveMethods):
        pass

    with pytest.warns(PalimpsestWarning, match="Own has no compare-and-set") as warned:
        WorkingMemory(store=Own())
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WorkingMemory(store=Own())
        WorkingMemory(store=InMemoryStore())


def test_threads_share_a_store_of_five_methods() -> None:
    """Threads that share a store without compare-and-set lose nothing: a lock per store orders their writes.

    The lock goes with the store.
    """
    before = len(_locks)
    store = firefly_stores.FiveMethods()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PalimpsestWarning)
        memories = [WorkingMemory(store=store) for _ in range(4)]

    def set_all(number: int) -> None:
        memory = memories[number]
        for i in range(50):
            memory.set("key", i)
            memory.set(f"own {id(memory)} {i}", i)

    at_once(set_all, 4)

    assert len(store) == 201
    assert memories[0].get("key") == 49
    memories.clear()
    del store
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PalimpsestWarning)
        WorkingMemory(store=firefly_stores.FiveMethods())
    assert len(_locks) <= before + 1


def test_a_store_may_use_working_memory_itself() -> None:
    """A store may use WorkingMemory inside its own methods without a deadlock."""

    class Counting(firefly_stores.FiveMethods):
        saves: WorkingMemory | None = None

        def save(self, namespace: str, entry: MemoryEntry) -> None:
            super().save(namespace, entry)
            if self.saves is not None and namespace != "working:saves":
                self.saves.set("count", self.saves.get("count", 0) + 1)

    store = Counting()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PalimpsestWarning)
        store.saves = WorkingMemory(store=store, scope_id="saves")
        facts = WorkingMemory(store=store)
    facts.set("a", 1)
    facts.set("b", 1)

    assert store.saves.get("count") == 2

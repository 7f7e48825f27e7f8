"""Law: every store of entries behaves like the one in memory, whatever is done to both in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import firefly_stores
from laws import examples
from palimpsest.compat.firefly import InMemoryStore, MemoryEntry
from palimpsest.compat.firefly.store import EntryStore
from palimpsest.errors import Conflict
from palimpsest.testing import FakeClock

NAMESPACES, KEYS, IDS = ("n", "m/\u00e9"), (None, "a", "b", "c"), tuple(f"id{i}" for i in range(5))

entries = st.tuples(st.sampled_from(IDS), st.sampled_from(KEYS), st.integers(0, 3), st.sampled_from((None, None, 2)))
steps = st.one_of(
    st.tuples(st.just("save"), st.sampled_from(NAMESPACES), entries),
    st.tuples(st.just("swap"), st.sampled_from(NAMESPACES), entries, st.booleans()),
    st.tuples(st.just("take"), st.sampled_from(NAMESPACES), st.sampled_from(KEYS[1:])),
    st.tuples(st.just("delete"), st.sampled_from(NAMESPACES), st.sampled_from(IDS)),
    st.tuples(st.just("clear"), st.sampled_from(NAMESPACES)),
    st.tuples(st.just("cleanup")),
    st.tuples(st.just("wait")),
)


def entry_of(given: tuple[str, str | None, int, int | None], clock: FakeClock) -> MemoryEntry:
    """Return an entry whose times come from the clock."""
    entry_id, key, content, ttl = given
    now = datetime.fromtimestamp(clock() / 1_000_000, UTC)
    expires = None if ttl is None else now + timedelta(seconds=ttl)
    return MemoryEntry(entry_id=entry_id, key=key, content=content, created_at=now, expires_at=expires)


def done(store: EntryStore, clock: FakeClock, step: tuple[Any, ...]) -> object:
    """Do a step on a store and return its answer, or "conflict"."""
    name, *rest = step
    try:
        if name == "save":
            return store.save(rest[0], entry_of(rest[1], clock))
        if name == "swap":
            entry = entry_of(rest[1], clock)
            key = entry.key or "a"
            entry.key = key
            return store.compare_and_set(rest[0], key, entry, store.load_by_key(rest[0], key) if rest[2] else None)
        if name == "take":
            return store.compare_and_set(*rest, None, store.load_by_key(*rest))
        if name == "cleanup":
            any_store: Any = store
            return getattr(any_store, "cleanup_expired_sync", any_store.cleanup_expired)()
        plain: dict[str, Callable[..., object]] = {"delete": store.delete, "clear": store.clear}
        return plain[name](*rest)
    except Conflict:
        return "conflict"


def seen(store: EntryStore) -> list[object]:
    """Return all that a store shows."""
    shown: list[object] = [store.load(namespace) for namespace in NAMESPACES]
    return [*shown, *(store.load_by_key(namespace, key) for namespace in NAMESPACES for key in KEYS if key)]


@pytest.mark.parametrize("kind", [kind for kind in firefly_stores.EVERY if kind != "in_memory"])
def test_every_store_behaves_like_the_one_in_memory(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """After each step of any history a store shows the same entries as the one in memory and gives the same answers."""

    @settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(steps, max_size=15))
    def law(history: list[tuple[Any, ...]]) -> None:
        clock = FakeClock()
        place: Path = tmp_path_factory.mktemp("law")
        model = InMemoryStore(clock=clock)
        with firefly_stores.opened(kind, place, clock=clock) as store:
            for step in history:
                if step[0] == "wait":
                    clock.advance(seconds=1)
                    continue
                assert done(store, clock, step) == done(model, clock, step), step
                assert seen(store) == seen(model), step

    law()

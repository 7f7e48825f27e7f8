"""Many writers to one working memory, on every durable store: no change is lost, and a key has one fact."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from on_servers import KINDS, SERVERS
from palimpsest import Memory
from processes import Process, together
from writer import SESSION


@pytest.fixture(params=["sqlite", "file", *SERVERS])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    if request.param in KINDS:
        return KINDS[request.param].address_of("facts")
    return f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else f"file://{tmp_path}/a"


def test_two_processes_of_four_threads_lose_no_change(address: str) -> None:
    """Two processes of four threads lose no change of a counter, of a shared key or of keys of their own."""
    labels_by_writer = together(Process("facts", address, name, 4, 5) for name in ("one", "two"))

    with Memory.open(address) as memory:
        facts = memory.working(SESSION)
        count, last = facts.fact("count"), facts.fact("last")
        keys = facts.keys()
    assert count is not None
    assert last is not None
    assert (count.value, count.version) == (40, 40)
    assert last.version == 40
    labels = sorted(label for labels in labels_by_writer for label in labels)
    assert last.value in labels
    assert sorted(keys) == sorted([*labels, "count", "last"])
    assert len(set(keys)) == len(keys)


@pytest.mark.sampled
def test_facts_of_a_killed_process_are_kept(address: str, dice: random.Random) -> None:
    """Whatever a killed process has set with success is stored, and no fact is incomplete."""
    acknowledged = list[str]()
    for round_number in range(5):
        with Process("facts", address, f"r{round_number}", 2, 1000) as writer:
            assert writer.hear() == "ready"
            writer.tell()
            heard = [writer.hear() for _ in range(dice.randrange(2, 20))]
            acknowledged += map(str, [*heard, *writer.kill()])

    with Memory.open(address) as memory:
        facts = memory.working(SESSION)
        assert set(acknowledged) <= set(facts.keys())
        counted = facts.fact("count")
        assert counted is not None
        assert counted.value == counted.version >= len(acknowledged)
        assert all(fact.value is not None for fact in facts.facts())

"""Reading beside a process that erases, redacts, clears, deletes and rotates keys is never taken for damage."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vandal_process
from palimpsest import EntryNotFound, Memory, Session, SessionNotFound
from processes import Process
from writer import quarters

ON_DISK = {"busy_seconds": 60, "synchronous": "NORMAL", "large_bytes": 64}
KEYS = {"keys": {"a": "01" * 32, "b": "02" * 32}}
STORES: dict[str, tuple[str, dict[str, Any]]] = {
    "sqlite": ("sqlite:///{}/a.db", ON_DISK),
    "file": ("file://{}/logs", ON_DISK),
    "encrypted file": ("file://{}/logs", ON_DISK | KEYS),
    "encrypted sqlite": ("sqlite:///{}/a.db", ON_DISK | KEYS),
}

NAME = "shared"


class Readings:
    """Every verb that reads a session, with a check of its result."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._forks = memory, 0

    @property
    def _session(self) -> Session:
        return self._memory.session(NAME, max_tokens=2_000, counter=quarters)

    def all(self) -> list[Callable[[], object]]:
        """Return all readings."""
        session = self._session
        return [
            session.entries,
            session.active_entries,
            session.interactions,
            session.history,
            session.count,
            session.context,
            session.expand,
            session.compact,
            self._memory.sessions,
            lambda: session.entry(1),
            lambda: session.summaries(history=True),
            lambda: session.export_to(io.BytesIO(), format="openai"),
            lambda: self._memory.scan(vandal_process.PATTERN),
            self.stats,
            self.verify,
            self.export,
            self.export_to,
            self.fork,
        ]

    def stats(self) -> None:
        told = self._session.stats()
        assert told.total_entries == told.active_entries + told.archived_entries
        assert min(told.active_entries, told.archived_entries) >= 0

    def verify(self) -> None:
        assert self._session.verify().problems == ()

    def export(self) -> None:
        whole(self._session.export())

    def export_to(self) -> None:
        out = io.BytesIO()
        self._session.export_to(out)
        whole(json.loads(out.getvalue()))

    def fork(self) -> None:
        self._forks += 1
        branch = self._session.fork(f"own {self._forks}")
        branch.entries()
        assert branch.verify().problems == ()
        self._memory.delete_session(branch.id)


def whole(export: dict[str, Any]) -> None:
    """Check that an export is consistent: all entries and everything that its records name."""
    numbers = sorted(entry["seq"] for entry in [*export["entries"], *export["tombstones"]])
    head = export["head"]
    assert numbers == list(range(head["first_seq"], head["next_seq"]))
    made = {record["revision"] for record in export["records"] if record.get("compaction") is not None}
    assert head["compaction"] in {0, *made}


def read_beside(kind: str, folder: Path, dice: random.Random, rounds: int) -> None:
    """Read everything so often, in random order, beside a process that destroys it."""
    address, options = STORES[kind]
    where = address.format(folder)
    with vandal_process.opened(where, options) as memory:
        vandal_process.fill(memory, NAME, range(10))
        seed = dice.randrange(1_000)
        script = Path(vandal_process.__file__)
        with Process(where, json.dumps(options), NAME, seed, script=script) as other:
            assert other.hear() == "ready"
            readings = Readings(memory)
            for _ in range(rounds):
                reads = readings.all()
                dice.shuffle(reads)
                for read in reads:
                    try:
                        read()
                    except (EntryNotFound, SessionNotFound):  # it is gone, which is no damage
                        continue
            other.tell()
            name, done = other.hear()
            assert (name, done > 0) == ("done", True)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
def test_reads_beside_destroying_processes_report_no_damage(kind: str, tmp_path: Path, dice: random.Random) -> None:
    """Reads return the state before or after another process's change, and never raise StoreCorrupt."""
    read_beside(kind, tmp_path, dice, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_reads_beside_destroying_processes_report_no_damage_in_a_long_run(
    kind: str, tmp_path: Path, dice: random.Random
) -> None:
    """Reads never raise StoreCorrupt beside another process's changes in a hundred times longer run."""
    read_beside(kind, tmp_path, dice, 150)

"""Workers that are killed beside other workers and writers: each session is compacted, and no summary is paid twice.

Leases last ten minutes here, so that no pause of the machine takes one from a worker that is alive: then a summary
would rightly be paid for twice. What killed workers had begun is left to a last worker, whose clock is an hour ahead.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from on_servers import KINDS
from palimpsest.log import spans
from palimpsest.resources import Resources
from palimpsest.resources.workplace import TAKEN
from processes import PATIENCE, Process, until
from worker_process import TURNS, declared
from writer import quarters

SCRIPT = Path(__file__).with_name("worker_process.py")
LEASE, AHEAD = "10m", 3_600
"""How long leases last, and by how many seconds the last worker's clock is ahead, which is longer."""


def compacted(resources: Resources, sessions: int) -> int:
    """Return how many of the sessions have a summary."""
    keys = (f"k{i}" for i in range(sessions))
    summaries = [resources.session({"id": "chat", "key": key}, counter=quarters).summaries() for key in keys]
    return sum(map(bool, summaries))


def check(resources: Resources, sessions: int, calls: Path, dead: set[int]) -> None:
    """Assert that every session is compacted, no entry twice, and that each summary was paid for once.

    Only the last call of each killed worker may have been paid for without a summary.
    """
    calls_made = [(key, int(pid)) for key, pid, _ in map(str.split, calls.read_text().splitlines())]
    last = {pid: number for number, (_, pid) in enumerate(calls_made)}
    lost = {number for pid, number in last.items() if pid in dead}
    versions_by_key = Counter[str]()
    for i in range(sessions):
        session = resources.session({"id": "chat", "key": f"k{i}"}, counter=quarters)
        versions = session.summaries(history=True)
        assert versions, f"session {i} is compacted"
        assert all(f"<k{i}>" in version.text for version in versions)
        assert not any(
            spans.common(version.folded, next_version.covers) and not next_version.parents
            for version, next_version in pairwise(versions)
        )
        folded = [seq for version in versions for seq in spans.members(version.folded)]
        assert len(folded) == len(set(folded)), f"no entry of session {i} is compacted twice"
        assert session.verify().ok
        assert len(session.entries()) == 2 * TURNS
        versions_by_key[f"k{i}"] = len(versions)
    assert Counter(key for number, (key, _) in enumerate(calls_made) if number not in lost) <= versions_by_key
    assert versions_by_key <= Counter(key for key, _ in calls_made)


def killed(resources: Resources, where: str, calls: Path, *, sessions: int, kills: int, seconds: float) -> set[int]:
    """Run two workers and two writers at once, kill workers one after the other, and replace each.

    In the end all workers are killed, and a last one does what they have left. Return the ids of the killed processes.
    """
    dice, dead = random.Random(sessions), set[int]()
    patience = PATIENCE * max(sessions / 500, 1)  # the longer, the more sessions are written to meanwhile
    calls.touch()
    with ExitStack() as running:
        half = sessions // 2
        writers = [
            running.enter_context(Process("write", where, first, last, script=SCRIPT))
            for first, last in ((0, half), (half, sessions))
        ]

        def ready(ahead: int = 0) -> Process:
            return running.enter_context(Process("work", where, calls, seconds, LEASE, ahead, script=SCRIPT))

        workers = [ready() for _ in range(3)]  # the last one waits to take the place of one that is killed
        for one in workers[:2]:
            begin(one)
        step = max((sessions - 2) // kills - TAKEN, 1)  # sessions claimed by killed workers stay untouched
        for number in range(kills):
            until(lambda number=number: len(calls.read_bytes().splitlines()) >= number * step + 1, patience)
            time.sleep(dice.random() * seconds * 2)  # somewhere in the middle of a call, or between two
            dead.add(workers[0].pid)
            workers.pop(0).kill()
            begin(workers[1])
            workers.append(ready())
        assert [one.end() for one in writers] == [["written"]] * 2
        until(lambda: compacted(resources, sessions) >= sessions - TAKEN * len(dead), patience)
        for one in workers:
            dead.add(one.pid)
            one.kill()
        begin(ready(AHEAD))
        until(lambda: compacted(resources, sessions) == sessions, patience)
    return dead


def begin(worker: Process) -> None:
    """Let a worker begin."""
    assert worker.hear() == "ready"
    worker.tell()


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Return the file in which calls of the summarizer are noted."""
    return tmp_path / "calls"


@pytest.fixture
def resources(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Resources, str]]:
    """Yield the declared memory, and the address of its store."""
    kind = getattr(request, "param", "sqlite")
    where = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else KINDS[kind].address_of("killed")
    with Resources.load(declared(where)) as loaded:
        yield loaded, where


@pytest.mark.wide
def test_a_killed_worker_costs_its_own_call_alone(resources: tuple[Resources, str], calls: Path) -> None:
    """Two kills among forty sessions leave every session compacted, and cost no more than the calls under way."""
    loaded, where = resources
    dead = killed(loaded, where, calls, sessions=40, kills=2, seconds=0.01)
    check(loaded, 40, calls, dead)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("resources", ["sqlite", "postgres", "redis"], indirect=True)
def test_twenty_kills_leave_two_thousand_sessions_compacted(resources: tuple[Resources, str], calls: Path) -> None:
    """Twenty kills among two thousand sessions leave every session compacted, in a file and on servers."""
    loaded, where = resources
    dead = killed(loaded, where, calls, sessions=2_000, kills=20, seconds=0.01)
    check(loaded, 2_000, calls, dead)


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("resources", ["postgres", "redis"], indirect=True)
def test_a_killed_worker_costs_its_own_call_alone_on_servers(resources: tuple[Resources, str], calls: Path) -> None:
    """Two kills among forty sessions leave every session compacted on servers, too."""
    loaded, where = resources
    dead = killed(loaded, where, calls, sessions=40, kills=2, seconds=0.01)
    check(loaded, 40, calls, dead)

"""`vacuum` rewrites a store in small steps beside other writers: nothing is lost, and nothing erased is left."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory, ConfigError, Keys, Memory, StoreUnavailable
from palimpsest.stores.sqlite import scrubbing
from palimpsest.types import Vacuumed
from processes import Process, integrity, remains, together
from sqlitestore import connection
from writer import SESSION, quarters

SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a file as large, and a piece of it as full, from 64 kB on."""
    monkeypatch.setattr(scrubbing, "SMALL", 1 << 16)
    monkeypatch.setattr(scrubbing, "PIECE", 1 << 16)


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """A random generator for each test."""
    return random.Random(request.node.name)


class Life:
    """Does a bit of everything in a memory, with a unique word each time."""

    def __init__(self, memory: Memory, dice: random.Random) -> None:
        self.memory, self.dice = memory, dice
        self.said: dict[tuple[str, str], str] = {}
        self.gone: list[str] = []
        self._number = 0

    def live(self) -> None:
        """Do something random."""
        self._number += 1
        name = f"s{self.dice.randrange(5)}"
        session, word = self.memory.session(name, counter=quarters), f"w{self._number:05}rd"
        act = self.dice.choice(["add"] * 9 + ["erase"] * 2 + ["branch", "count", "delete", "large"])
        there = [key for key in self.said if key[0] == name]
        if act in ("add", "large"):
            length = 9_000 if act == "large" else self.dice.choice([1, 3, 30, 300])
            self.said[name, session.add_user_message(f"{word} " * length).id] = word
        elif act == "erase" and there:
            session.erase([(key := self.dice.choice(there))[1]])
            self.gone.append(self.said.pop(key))
        elif act == "branch" and there:
            session.fork(f"branch {word}")
            self.memory.delete_session(f"branch {word}")
        elif act == "count":
            session.count()
        elif act == "delete" and self.dice.random() < 0.2:
            self.memory.delete_session(name)
            self.gone += [self.said.pop(key) for key in there]

    def check(self, path: Path) -> None:
        """Check that exactly the unerased texts are there and the file is sound."""
        there = {
            (info.session, entry.id): entry.text[:8]
            for info in self.memory.sessions()
            for entry in self.memory.session(info.session).entries()
            if not entry.erased
        }
        assert there == self.said
        assert integrity(path) == "ok"
        assert not any(self.memory.session(name).verify().problems for name in {name for name, _ in there})


def test_vacuum_removes_erased_rows_left_between_pages(path: Path, dice: random.Random) -> None:
    """`vacuum` removes copies of erased rows that SQLite left while it moved rows between pages."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        said: dict[str, dict[str, str]] = {f"s{number}": {} for number in range(9)}
        for number in range(1500):
            name, word = dice.choice(list(said)), f"w{number:05}rd"
            said[name][memory.session(name).add_user_message(f"{word} " * dice.choice([1, 3, 20, 200])).id] = word
        erased = {name: dice.sample(list(there), 40) for name, there in said.items()}
        for name, some in erased.items():
            memory.session(name).erase(some)
        gone = [said[name][id].encode() for name, some in erased.items() for id in some]
        bytes_before = remains(path)

        done = memory.vacuum()

        bytes_after = remains(path)
        assert [word for word in gone if word in bytes_before] != []
        assert [word for word in gone if word in bytes_after] == []
        assert done.remains == ()
        assert done.freed >= 0


@pytest.mark.parametrize("seed", SEEDS)
def test_vacuum_leaves_no_erased_text_and_keeps_the_rest(path: Path, seed: int) -> None:
    """After any history `vacuum` leaves no word of erased texts and keeps the others."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        life = Life(memory, random.Random(seed))
        for _ in range(120):
            life.live()
        steps: list[tuple[int, int]] = []

        done = memory.vacuum(progress=lambda done, total: steps.append((done, total)))

        bytes_of_it = remains(path)
        assert [word for word in life.gone if word.encode() in bytes_of_it] == []
        life.check(path)
        assert done.remains == ()
        assert len(steps) > 5
        assert steps == sorted(steps, key=lambda step: step[0] / step[1])
        assert steps[-1][0] == steps[-1][1]
        assert connection(memory).execute("PRAGMA freelist_count").fetchone() == (0,)
        assert memory.vacuum() == Vacuumed()
    with Memory.open(path) as memory:
        life.memory = memory
        for _ in range(30):
            life.live()
        life.check(path)


@pytest.mark.parametrize("seed", SEEDS)
def test_writes_between_steps_of_a_vacuum_are_kept(path: Path, seed: int) -> None:
    """Other writers' changes between the steps of `vacuum` are kept."""
    with Memory.open(path, synchronous="NORMAL") as memory, Memory.open(path, synchronous="NORMAL") as other:
        life = Life(other, random.Random(seed))
        for _ in range(70):
            life.live()
        before, left = list(life.gone), 60

        def meanwhile(_: int, __: int) -> None:
            nonlocal left
            if left:
                left -= 1
                life.live()

        memory.vacuum(progress=meanwhile)

        bytes_of_it = remains(path)
        assert [word for word in before if word.encode() in bytes_of_it] == []
        life.check(path)
        memory.vacuum()
        bytes_of_it = remains(path)
        assert [word for word in life.gone if word.encode() in bytes_of_it] == []
        life.check(path)


def test_an_interrupted_vacuum_continues_at_the_next_step(path: Path) -> None:
    """A vacuum that stopped after any step continues after reopening; the store is sound in between."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        life = Life(memory, random.Random(7))
        for _ in range(70):
            life.live()
    rounds = 0
    while True:
        rounds += 1
        with Memory.open(path, synchronous="NORMAL") as memory:
            life.memory = memory
            life.live()
            life.check(path)
            steps = iter(range(3))
            try:
                memory.vacuum(progress=lambda _, __: next(steps))  # noqa: B023
            except (StopIteration, RuntimeError):
                continue
            life.check(path)
        break

    assert rounds > 3


def test_two_vacuums_at_once_share_the_work(path: Path) -> None:
    """Two vacuums at once take turns at the steps of one run, and both return when it is done."""
    with Memory.open(path, synchronous="NORMAL") as one, Memory.open(path, synchronous="NORMAL") as other:
        life = Life(one, random.Random(3))
        for _ in range(70):
            life.live()
        inner: list[Vacuumed] = []

        def both(done: int, total: int) -> None:
            if done > total // 3 and not inner:
                inner.append(other.vacuum())

        outer = one.vacuum(progress=both)

        assert (inner[0].remains, outer.remains) == ((), ())
        life.check(path)
        bytes_of_it = remains(path)
        assert [word for word in life.gone if word.encode() in bytes_of_it] == []


@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_a_killed_vacuum_loses_nothing(path: Path, dice: random.Random, kills: int) -> None:
    """After a kill the file is sound, acknowledged texts are there, and the next run completes the work."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        life = Life(memory, random.Random(1))
        for _ in range(70):
            life.live()
    added: set[int] = set()
    erased: set[int] = set()
    for _ in range(kills):
        process, wanted, said = Process("vacuum", path), dice.randrange(60), []
        while wanted and (one := process.hear()) is not None:
            said.append(one)
            wanted -= one[0] == "step"
        said += process.kill()
        added |= {one[1] for one in said if one[0] == "added"}
        erased |= {one[1] for one in said if one[0] == "erased"}

        assert integrity(path) == "ok"
        with Memory.open(path, synchronous="NORMAL") as memory:
            life.memory = memory
            entries = memory.session(SESSION).entries()
            words = " ".join(entry.text for entry in entries if entry.is_human and not entry.erased).split()
            memory.session(SESSION).add_user_message("after a kill")
        numbers = {int(word.split(".")[0]) for word in words if word[0].isdigit() and "." in word}
        assert added <= numbers

    with Memory.open(path, synchronous="NORMAL") as memory:
        memory.vacuum()
        assert memory.vacuum().remains == ()
        bytes_of_it = remains(path)
        assert [word for word in life.gone if word.encode() in bytes_of_it] == []
        memory.delete_session(SESSION)
        life.memory = memory
        life.check(path)
    assert erased


def test_writers_in_other_processes_lose_nothing_beside_a_vacuum(path: Path) -> None:
    """Turns of two processes of four threads beside a `vacuum` are each there once and whole."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        life = Life(memory, random.Random(5))
        for _ in range(70):
            life.live()
    vacuums = Process("vacuum", path)
    while (said := vacuums.hear())[0] != "step":
        pass
    acknowledged = together([Process("threads", path, name, 4, 10) for name in ("one", "two")])
    vacuums.kill()

    with Memory.open(path) as memory:
        words = " ".join(entry.text for entry in memory.session(SESSION).entries(rewound=True))
        missing = [label for said in acknowledged for label in said if str(label) not in words]
    assert missing == []
    assert integrity(path) == "ok"
    assert said is not None


def test_a_vacuum_without_room_raises_and_continues_later(path: Path) -> None:
    """Without room for the copy StoreUnavailable says so; nothing is lost, and with room the vacuum continues."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        life = Life(memory, random.Random(2))
        for _ in range(70):
            life.live()
        db = connection(memory)
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages + 4}").fetchone()

        with pytest.raises(StoreUnavailable, match="make room and try again"):
            memory.vacuum()

        life.check(path)
        db.execute("PRAGMA max_page_count=1000000").fetchone()
        assert memory.vacuum().remains == ()
        bytes_of_it = remains(path)
        assert [word for word in life.gone if word.encode() in bytes_of_it] == []
        life.check(path)


def test_each_step_of_a_vacuum_is_bounded(path: Path) -> None:
    """A step changes at most some thousand rows and returns few pages, however large the file."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        sessions = [memory.session(f"s{number}", counter=quarters) for number in range(2)]
        for session in sessions:
            for _ in range(2):
                session.add([{"role": "user", "content": f"text {number}"} for number in range(500)])
            session.count()
        sessions[0].erase([9])
        db, changes, pages = connection(memory), [0], list[int]()
        before = db.total_changes

        def count(_: int, __: int) -> None:
            changes.append(db.total_changes - before)
            pages.append(db.execute("PRAGMA page_count").fetchone()[0])

        memory.vacuum(progress=count)

    assert max(later - one for one, later in pairwise(changes)) <= 2 * scrubbing.MANY
    assert max(one - later for one, later in pairwise(pages)) <= scrubbing.MANY
    assert changes[-1] > 4 * scrubbing.MANY


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("kind", ["sqlite", "file", "memory"])
def test_every_store_can_be_vacuumed(tmp_path: Path, kind: str, sealed: bool) -> None:
    """Every store has `vacuum`: it returns unused space, reports how much, and finds nothing the second time."""
    where: Any = {"sqlite": tmp_path / "log.db", "file": f"file://{tmp_path}/logs", "memory": "memory://"}[kind]
    keys = {"encryption": Keys({"a": b"k" * 32})} if sealed else {}
    with Memory.open(where, **keys) as memory:
        for number in range(40):
            memory.session(f"s{number % 8}").add_user_message(f"zanzibar {number} " * 400)
        for number in range(7):
            memory.delete_session(f"s{number}")

        first, second = memory.vacuum(), memory.vacuum()

        assert first.remains == second.remains == ()
        assert second.freed == 0
        assert (first.freed > 50_000) is (kind == "sqlite")
        assert len(memory.session("s7").entries()) == 5
        assert kind == "memory" or b"zanzibar 0" not in remains(where)


def test_a_read_only_memory_refuses_vacuum(path: Path) -> None:
    """A read-only memory refuses `vacuum`; an invalid `progress` is refused by name."""
    Memory.open(path).close()
    with Memory.open(path, readonly=True) as memory, pytest.raises(ConfigError, match="readonly"):
        memory.vacuum()
    with Memory.open(path) as memory, pytest.raises(ConfigError, match="progress"):
        memory.vacuum(progress=3)  # type: ignore[arg-type]


def test_other_tasks_run_between_steps_of_a_vacuum(path: Path) -> None:
    """Under an event loop other tasks write between the steps of `vacuum`."""

    async def work() -> tuple[int, int]:
        async with AsyncMemory.open(path, synchronous="NORMAL") as memory:
            session = memory.session("one")
            for _ in range(6):
                await session.add([{"role": "user", "content": f"text {number} " * 9} for number in range(200)])
            await session.erase([3])
            steps, begun = 0, asyncio.Event()

            def count(_: int, __: int) -> None:
                nonlocal steps
                steps += 1
                begun.set()

            running = asyncio.create_task(memory.vacuum(progress=count))
            await begun.wait()
            await session.add_user_message("meanwhile")
            seen = steps
            await running
            return seen, steps

    seen, steps = asyncio.run(work())
    assert 0 < seen < steps


@pytest.fixture
def reader(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection to the file."""
    Memory.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


def test_vacuum_reports_a_log_that_a_reader_keeps(path: Path, reader: sqlite3.Connection) -> None:
    """While a reader keeps an old state in the write-ahead log, `vacuum` reports it as remaining."""
    with Memory.open(path, synchronous="NORMAL", busy_seconds=0.2) as memory:
        session = memory.session("one")
        for number in range(200):
            session.add_user_message(f"zanzibar {number} " * 40)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchone()
        session.erase([3])

        (told,) = memory.vacuum().remains

        assert "write-ahead log" in told
        reader.execute("COMMIT")
        assert memory.vacuum().remains == ()
        assert b"zanzibar 2 " not in remains(path)
